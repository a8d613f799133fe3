"""Checks of single values of a request, each naming the field it refuses."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence, Sized
from typing import TypeVar

from podkeep.base.errors import InvalidArgument
from podkeep.base.text import printable
from podkeep.kernel.namespace.idmap import MAX_USER

MAX_NAME_LENGTH = 1024
"""Characters of a name; Kubernetes allows 253."""
MAX_FILE_NAME = 255
"""Bytes of one part of a path (limits.h: NAME_MAX)."""
MAX_TEXT_BYTES = 4096
"""Bytes of a path (limits.h: PATH_MAX) or an image's name that lists and statuses echo."""
MAX_PATH_PARTS = 256
"""Parts of a path that the runtime makes or walks; those of Kubernetes have about ten."""
MAX_SECONDS = 2_000_000
"""The longest wait, 23 days: poll(2) takes milliseconds in 31 bits."""
MAX_ENTRIES = 1024
"""Entries of a list that is kept with a sandbox or container and has some ten."""
MAX_STRING_BYTES = 131_071
"""Bytes of an argument or a variable of a program (execve(2), MAX_ARG_STRLEN, without the zero byte)."""
MAX_STRINGS = 16_384
"""Arguments, and variables, of a program: those of two images, or seven for each of 2000 Services, as a kubelet adds.
OCI runtimes compare each variable with each other."""
MAX_PROGRAM_BYTES = 6 << 20
"""Bytes of the arguments and variables of a program with a zero byte and a pointer for each: the most that execve(2)
takes, whatever the limit of the stack is."""
MAX_METADATA_BYTES = 1 << 20
"""Bytes of the labels and annotations of one sandbox or container; Kubernetes allows 256 KiB of annotations."""
_Enum = TypeVar("_Enum", bound=enum.IntEnum)
quote = printable.quoted


def enum_value(field: str, kind: type[_Enum], number: int) -> _Enum:
    """Return a value of an open enum: the wire carries numbers that this version does not know."""
    try:
        return kind(number)
    except ValueError:
        raise InvalidArgument(f"{field}: {number} is not known", hint="the caller may speak a newer CRI") from None


def identifier(field: str, value: int) -> int:
    if not 0 <= value <= MAX_USER:
        raise InvalidArgument(f"security_context.{field}: {value} is no ID", hint=f"0 to {MAX_USER} are")
    return value


def bounded(field: str, text: str) -> str:
    """Return a text that lists or statuses echo to everybody: all of a list shares one message."""
    try:
        # The number of characters first: this is the event loop, and encoding some megabytes takes its time.
        size = len(text) if len(text) > MAX_TEXT_BYTES else len(text.encode())
    except UnicodeEncodeError:  # of a name on the machine, to which a link of a pod may lead
        raise InvalidArgument(f"{field}: {quote(text)} is not UTF-8 text") from None
    if size > MAX_TEXT_BYTES:
        raise InvalidArgument(f"{field}: {quote(text)} has more than {MAX_TEXT_BYTES} bytes")
    return text


def text(field: str, value: str) -> str:
    """Return a text that the system or another program is given: one without a NUL, which would end it there."""
    refuse_nul(field, bounded(field, value))
    return value


def seconds(value: int) -> int:
    """Return a number of seconds to wait; below zero is none, and no more than what clocks can count."""
    return min(max(value, 0), MAX_SECONDS)


def check_metadata(labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    """Check the size of what every list carries of a sandbox or container, naming the larger of the two maps."""
    sizes = {"config.labels": _size(labels), "config.annotations": _size(annotations)}
    if sum(sizes.values()) > MAX_METADATA_BYTES:
        raise InvalidArgument(
            f"{max(sizes, key=lambda field: sizes[field])}: labels and annotations have {sum(sizes.values())} bytes;"
            f" together at most {MAX_METADATA_BYTES} are possible"
        )


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in texts.items())


def check_count(field: str, items: Sized, most: int = MAX_STRINGS) -> None:
    """Refuse a list that is kept, or whose entries are compared, before its entries are looked at."""
    if len(items) > most:
        raise InvalidArgument(f"{field}: {len(items)} entries; at most {most} are possible")


def check_program(lists: Mapping[str, Sequence[str]]) -> None:
    """Check the arguments and variables (``name=value``) of a program, by field, against what execve(2) takes.

    :raises InvalidArgument: naming the field; such a program can never run.
    """
    total = 0
    for field, items in lists.items():
        check_count(field, items)
        for item in items:
            size = len(item) if len(item) > MAX_STRING_BYTES else len(item.encode())
            if size > MAX_STRING_BYTES:
                raise InvalidArgument(
                    f"{field}: {quote(item)} has more than {MAX_STRING_BYTES} bytes",
                    hint="put what is long into a file",
                )
            total += size + 9
    if total > MAX_PROGRAM_BYTES:
        raise InvalidArgument(
            f"{', '.join(lists)}: no program starts with more than {MAX_PROGRAM_BYTES} bytes; these are {total}",
            hint="put what is long into files",
        )


def path_text(field: str, path: str) -> str:
    """Return a path, or a part of one, whose length and depth can be walked."""
    if len([part for part in text(field, path).split("/") if part]) > MAX_PATH_PARTS:
        raise InvalidArgument(f"{field}: {quote(path)} has more than {MAX_PATH_PARTS} parts")
    return path


def absolute(field: str, path: str) -> str:
    path_text(field, path)
    if path and (not path.startswith("/") or ".." in path.split("/")):
        raise InvalidArgument(f"{field}: {quote(path)} is not an absolute path")
    return path


def token(field: str, text: str) -> str:
    """Return a word that is written into a pod's files, where a space or a new line would make it two."""
    if len(text) > MAX_NAME_LENGTH:
        raise InvalidArgument(f"{field}: {quote(text)} has more than {MAX_NAME_LENGTH} characters")
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise InvalidArgument(f"{field}: {quote(text)} is empty or holds a space or control character")
    return text


def refuse_nul(field: str, *values: str) -> None:
    for value in values:
        if "\0" in value:
            raise InvalidArgument(f"{field}: {quote(value)} holds a NUL character")


def cgroup_path(field: str, path: str) -> str:
    parts = path.strip("/").split("/") if path.strip("/") else []
    if path and (not path.startswith("/") or any(part in {"", ".", ".."} for part in parts) or not path.isprintable()):
        raise InvalidArgument(f"{field}: {path!r} is not an absolute cgroup path", hint="write it like /kubepods/pod1")
    if any(len(part.encode()) > MAX_FILE_NAME for part in parts):
        raise InvalidArgument(f"{field}: {quote(path)}: a part has more than {MAX_FILE_NAME} bytes")
    return path


def refuse_plain_text(field: str, *values: str) -> None:
    for value in values:
        if any(ord(character) < 32 or character in "/\x7f" for character in value):
            raise InvalidArgument(f"{field}: {quote(value)} holds a character that no name may hold")
        if len(value) > MAX_NAME_LENGTH:
            raise InvalidArgument(f"{field}: {quote(value)} has more than {MAX_NAME_LENGTH} characters")


def refuse_no_name(field: str, value: str) -> None:
    """Refuse what cannot name an object, and could be a path; an empty text is the caller's to refuse."""
    refuse_plain_text(field, value)
    if value and value.strip() in {"", ".", ".."}:
        raise InvalidArgument(f"{field}: {quote(value)} is no name")
