"""Base64 as Go's standard decoder takes it, with its message: it passes over line ends, and over nothing else. Pure."""

from __future__ import annotations

import base64
import re

_OTHER = re.compile(rb"[^A-Za-z0-9+/]")
_LINE_END = re.compile(rb"[\r\n]")


def decode(text: str) -> bytes:
    """Return what ``text`` encodes.

    :raises ValueError: if it is not base64; the message says at which byte, as Go's does.
    """
    data = text.encode(errors="surrogatepass")
    bare = _LINE_END.sub(b"", data)
    other = _OTHER.search(bare)
    digits = other.start() if other else len(bare)
    missing = -digits % 4
    if missing < 3 and bare[digits:] == b"=" * missing:
        return base64.b64decode(bare)
    raise ValueError(f"illegal base64 data at input byte {_corrupt(data, bare, digits)}")


def _corrupt(data: bytes, bare: bytes, digits: int) -> int:
    """Return the place of the error (encoding/base64: ``decodeQuantum``)."""
    places = [match.start() for match in re.finditer(rb"[^\r\n]", data)]
    rest = digits % 4
    if digits == len(bare):
        return len(data) - rest  # it ends within a group of four
    if bare[digits : digits + 1] != b"=" or rest < 2:
        return places[digits]
    if rest == 3:
        return places[digits + 1]  # more after the padding
    if digits + 1 == len(bare):
        return len(data)
    return places[digits + 2] if bare[digits + 1 : digits + 2] == b"=" else places[digits + 1] - 1
