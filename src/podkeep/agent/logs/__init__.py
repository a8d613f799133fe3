"""Logs of containers: kept within bounds (``NodeLogs``), rotated, and read over rotations (``LogReader``)."""
