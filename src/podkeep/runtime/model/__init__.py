"""What the runtime knows: records of sandboxes and containers, their state on disk, and where files live.

Used by every other package of the runtime. Values, one database, and no step that makes or removes anything.
"""
