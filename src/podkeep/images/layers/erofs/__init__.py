"""EROFS images of layers: the tree in memory, its attributes, the bytes, and the files beside the image."""
