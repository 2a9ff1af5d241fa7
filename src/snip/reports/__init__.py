"""Reports on what pruning left: counts, FLOPs, live paths, pictures, text, HTML."""
