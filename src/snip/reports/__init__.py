"""What happened: counts, FLOPs, live paths, pictures, text, HTML."""
