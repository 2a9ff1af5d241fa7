"""Prune a PyTorch network once, before training (SNIP, ICLR 2019)."""
