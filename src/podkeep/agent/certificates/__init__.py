"""Certificates that a cluster signs for the node: asked for, kept, and renewed before they expire."""
