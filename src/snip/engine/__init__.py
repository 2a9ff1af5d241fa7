"""Pruned networks that run as fast as their zeros allow."""
