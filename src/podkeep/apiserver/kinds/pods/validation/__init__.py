"""Validation of pods, of their updates and of their status, in kube-apiserver's words (core/validation). Pure."""
