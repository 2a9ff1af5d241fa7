"""From scores to masks: which connections compete, how many stay, what each costs, the top-k."""
