"""Where layers are kept and how an image is mounted: the snapshot drivers behind one interface (``driver``).

Used by the store; a worker reads layers through it again to save or verify them.
"""
