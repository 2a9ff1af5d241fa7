"""Several processes that prune one model together, each with its own data or its own part of it."""
