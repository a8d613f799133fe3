"""What the texts of images may be: how long, how many, of which characters. Every limit has its reason here. Pure.

Whoever writes an image chooses them, and they go on: into messages that hold 16 MiB for all images together, arguments
that the kernel bounds, paths, terminals. They are checked once, when a document is decoded (``manifest.py``). Text that
is no Unicode (half a surrogate pair) never gets this far: no document may have it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

import msgspec

from podkeep.base.errors import InvalidArgument
from podkeep.base.text.printable import shortened


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of one text: UTF-8 bytes, and whether it may have lines, tabs and other control characters.

    None may have a NUL, which ends a text for the kernel and for every program in C.
    """

    most: int
    lines: bool = False


class Many(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of a list, or of the keys of a map: how many, and each of them."""

    count: int
    each: Text


WORD = Text(most=255)
"""Architecture, operating system, variant, when it was made, a stop signal, a port: in truth below 64 bytes."""
USER = Text(most=511)
"""Two names and a colon; 256 with its zero byte is the longest name of an account (limits.h, LOGIN_NAME_MAX)."""
PATH = Text(most=4095)
"""What the kernel takes as a path (linux/limits.h, PATH_MAX, without the zero byte)."""
ARGUMENT = Text(most=131_071, lines=True)
"""What the kernel takes as one argument or variable of a program (execve(2), MAX_ARG_STRLEN, without the zero byte)."""
KEY = Text(most=4096)
"""Name of a label or an annotation; containerd has the same limit for both halves of its own labels together."""
VALUE = Text(most=1 << 18, lines=True)
"""A label, an annotation, a step of an image's history. Kubernetes has this limit for all annotations of an object
together; the longest in use are lists of a builder's parts and certificates of signatures, a tenth of it."""

ARGUMENTS = Many(count=8192, each=ARGUMENT)
"""Entrypoint and Cmd, and environment; all of them also fit into ``RUN_BYTES``."""
PATHS = Many(count=1024, each=PATH)
"""Anonymous volumes: each becomes a directory and a mount of every container."""
PORTS = Many(count=3 * 65536, each=WORD)
"""Every port of three protocols: ranges of ports become one entry each."""
KEYS = Many(count=4096, each=KEY)
"""Labels of an image; annotations of a document, a layer or an entry of an index."""
HISTORY = 4096
"""Steps of an image's history: 500 layers, and the steps that made none."""
URLS = Many(count=64, each=Text(most=16 << 10))
"""Other places of a blob (descriptor.md, ``urls``). They are not used."""
FEATURES = Many(count=64, each=WORD)
"""What an image wants of its operating system (config.md, ``os.features``)."""
NAMES = Many(count=1024, each=Text(most=1024))
"""Names that an archive gives to one image; each is stored and told of."""
ENTRIES = 10_000
"""Entries of an index or an archive: as many as of a list of referrers."""
RUN_BYTES = 1 << 20
"""How an image wants to be run, all texts together: they are in memory while a container is made; the kernel takes
2 MiB of arguments and environment with the usual stack (execve(2))."""

_SHOWN = 80


def short(text: str) -> str:
    """Return a foreign text as it may stand in a message: quoted, printable and no longer than a line."""
    return repr(shortened(text, _SHOWN))


def check(text: str, limit: Text, field: str) -> str:
    """Return ``text``.

    :param field: what it is, for the error.
    :raises InvalidArgument: if it is longer than the limit, or has characters it may not have.
    """
    # The length first: characters are looked at one by one only of what is short enough.
    size = len(text.encode(errors="surrogatepass"))
    if size > limit.most:
        raise InvalidArgument(f"{field} has {size} bytes, more than {limit.most}: {short(text)}")
    # Nearly every text: this is done in C, the loop below is not.
    if text.isprintable():
        return text
    for letter in text:
        kind = unicodedata.category(letter)
        if letter == "\0" or kind == "Cs" or (kind == "Cc" and not limit.lines):
            raise InvalidArgument(f"{field} has the character {letter!r}, which is not allowed there: {short(text)}")
    return text


def check_many(texts: Iterable[str], limit: Many, field: str) -> tuple[str, ...]:
    """Return a list of texts.

    :raises InvalidArgument: if it is longer than the limit, or one of them is not as it may be.
    """
    found = tuple(texts)
    check_count(len(found), limit.count, field)
    for number, text in enumerate(found):
        check(text, limit.each, f"{field}[{number}]")
    return found


def check_map(texts: Mapping[str, str], limit: Many, field: str) -> dict[str, str]:
    """Return a map of texts, whose keys are limited by ``limit`` and whose values by :data:`VALUE`.

    :raises InvalidArgument: if it has too many, or one of them is not as it may be.
    """
    check_count(len(texts), limit.count, field)
    for key, value in texts.items():
        check(key, limit.each, f"a key of {field}")
        check(value, VALUE, f"{field}[{short(key)}]")
    return dict(texts)


def check_count(count: int, most: int, field: str) -> None:
    """Check how many there are.

    :raises InvalidArgument: if that is more than ``most``.
    """
    if count > most:
        raise InvalidArgument(f"{field} has {count} entries, more than {most}")


def check_together(texts: Iterable[str], most: int, what: str) -> None:
    """Check the length of all texts together, in UTF-8.

    :raises InvalidArgument: if that is more than ``most``.
    """
    size = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    if size > most:
        raise InvalidArgument(f"{what}: its texts have {size} bytes together, more than {most}")
