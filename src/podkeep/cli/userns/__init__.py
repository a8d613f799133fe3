"""``podkeep userns``: blocks of IDs of pods: who has which, what is wrong with them, and repairing their records."""
