"""Pruning inside the libraries that people train with; each is needed only by its own file."""
