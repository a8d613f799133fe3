"""The OCI runtime: configurations (``spec`` and its parts), CDI devices, and the driver that executes it with conmon.

Used by ``bundle`` and ``lifecycle``. The parts of a configuration are pure; ``driver`` and ``exec`` start processes.
"""
