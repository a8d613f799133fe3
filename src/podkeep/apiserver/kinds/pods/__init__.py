"""Pods and what templates of pods have in common with them: defaults, validation, updates, columns."""
