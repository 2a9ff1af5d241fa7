"""Which connections lie on a path from input to output: the machinery behind connectivity.py."""
