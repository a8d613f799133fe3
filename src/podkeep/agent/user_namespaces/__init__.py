"""User IDs of pods: ranges of the node and blocks of them (KEP-127)."""
