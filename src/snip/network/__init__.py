"""A user's own network: which parameters count, its units, how it is called and left as found."""
