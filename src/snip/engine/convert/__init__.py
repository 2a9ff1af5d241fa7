"""From a traced network to one that stays in the engine's layouts."""
