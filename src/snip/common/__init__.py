"""Errors, text, checks, files, the console, the machine and timing, for all packages."""
