"""Mounts: the table, the calls, overlay and EROFS file systems, and the block devices below them.

``mountinfo`` reads, ``mounts`` changes. Used by every layer above.
"""
