"""One reading of a user's forward, and one table of the operations in it."""
