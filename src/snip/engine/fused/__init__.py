"""Networks whose layers follow one another in a line, as one native call; the training step."""
