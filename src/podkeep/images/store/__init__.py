"""The image store: what is here, how it gets here, who uses it, how it goes. ``ImageStore`` is the way in.

Used by the runtime. Owns the records (SQLite), the catalog in memory, and the worker processes.
"""
