"""Volumes, claims, classes of storage, and CSI."""
