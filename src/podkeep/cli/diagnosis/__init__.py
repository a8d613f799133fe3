"""``podkeep doctor`` and ``podkeep config``: checks of the machine and of what the configuration names."""
