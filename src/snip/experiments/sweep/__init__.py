"""One experiment by command: which runs there are to do, and doing them in many processes."""
