"""Control groups: cgroups, their statistics, systemd's slices of them, and resctrl's groups.

Version 1 and 2 alike. Used by ``runtime``, and by ``agent`` for the cgroups of pods.
"""
