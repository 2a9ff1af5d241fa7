"""What experiments measure beside errors: curves of training, maps of what survives, times."""
