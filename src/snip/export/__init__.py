"""What leaves the library: smaller ordinary models, compact files, ONNX."""
