"""Validation of manifests after defaulting: the rules of the v1 API for what this version runs. Pure."""
