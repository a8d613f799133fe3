"""Names of the forms of layers, and of files of theirs that more than one module knows."""

from __future__ import annotations

DIRECTORIES = "directories"
EROFS = "erofs"
"""Forms, which have the names of their snapshot drivers."""
TREE = "tree"
"""Below a layer's directory, where a layer is unpacked that cannot be an image."""
RECORD_SUFFIX = ".headers"
"""Of the name of a layer's record (``recording``), beside the staged tree's."""
METADATA = "meta.erofs"
