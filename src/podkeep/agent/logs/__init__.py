"""Logs of containers: kept within bounds (``NodeLogs``), rotated, and read over rotations (``LogReader``).

All of them come to a log by ``files``: a pod may have exchanged its directories.
"""
