"""Runs pruned networks with kernels that compute only with the surviving weights."""
