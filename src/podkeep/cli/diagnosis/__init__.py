"""The checks of ``podkeep doctor``: a module for each part of the machine."""
