"""Experiments that answer one question each: commands whose results are kept under results/."""
