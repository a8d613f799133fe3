"""Networks of pods: the bridge that podkeep makes itself, CNI where it is configured, host ports.

``networks`` chooses. Used by ``lifecycle``.
"""
