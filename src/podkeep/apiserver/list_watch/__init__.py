"""Lists and watches of a resource: its objects at one revision, and its events from one on.

``lists.Lists`` and ``watches.Watches`` read the store for ``endpoints.resources``, with what both remember of objects
(``facts``, ``recent``).
"""
