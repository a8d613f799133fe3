"""The verbs of ``podkeep images``."""
