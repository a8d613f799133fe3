"""Processes: /proc, this one's confinement (seccomp, security modules) and its allocator.

``procfs`` tells a process from a later one with its ID. Used by every layer above.
"""
