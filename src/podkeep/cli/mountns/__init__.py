"""``podkeep mountns``: the container mount namespace; ``status`` and ``namespace`` serve ``podkeep doctor``, too."""
