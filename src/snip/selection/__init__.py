"""From scores to masks: who competes, how many stay, what each costs, the one top-k."""
