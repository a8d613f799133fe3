"""Names of images, as the packages around the store import them; the grammar is in ``base/reference.py``."""

from __future__ import annotations

from podkeep.base.reference import DEFAULT_HOST, Reference, is_host, is_media_type, parse

__all__ = ["DEFAULT_HOST", "Reference", "is_host", "is_media_type", "parse"]
