"""Layers of which only the surviving weights exist."""
