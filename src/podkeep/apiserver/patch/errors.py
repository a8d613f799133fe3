"""What is wrong with a patch, or with applying it."""

from __future__ import annotations

import msgspec


class PatchError(Exception):
    """A patch that cannot be applied. ``code`` is the HTTP status that says whose fault it is.

    400 for a patch that is wrong by itself, 413 for one that makes too much, 422 for one that does not fit the object.
    """

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def as_json(value: object, characters: int = 200) -> str:
    """Return what a client sent as the beginning of its JSON, for a message."""
    return msgspec.json.encode(value).decode()[:characters]
