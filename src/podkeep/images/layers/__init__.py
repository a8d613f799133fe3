"""One layer: reading its tar, judging it, and making a tree or an EROFS image of it.

Used by the unpack process, which is confined and sees one layer, and by what reads stored layers again.
"""
