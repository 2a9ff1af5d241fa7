"""One page about runs: made from their folders, self-contained, live if asked for."""
