"""Smaller ordinary models, compact files, ONNX."""
