"""Directories of layers: the files made of a tar, and the record of what of the tar is not in them."""
