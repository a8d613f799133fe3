"""Objects: revisions on disk, the newest of each in memory, and watches of both.

``store`` is the way in. ``database`` is what is on disk and blocks; it runs on one thread of the store's.
"""
