"""Which configuration the runtime that serves has, and what differs from another one.

Owns: the file ``<run>/configuration.json``, which the runtime writes before it serves and at each reload. It is for
callers that cannot ask over the socket, because gRPC starts threads and they have to change their mount namespace
first (``podkeep run``); verbose Status tells the same. Does not own: what is done about a difference (``cli/runtime``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from podkeep.base import atomicfile, peer
from podkeep.base.config import Config

FILE_NAME = "configuration.json"
_NOT_OF_THE_RUNTIME = frozenset({"agent", "api", "log"})
"""Tables whose values make no difference to what a runtime does for its clients."""
_MOST_BYTES = 4 << 20


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime says of itself.

    ``replaceable``: it was started in the background and ends by itself, so nobody else minds if it ends sooner.
    """

    pid: int
    replaceable: bool
    config: dict[str, Any]


def publish(run: Path, config: Config, *, replaceable: bool) -> None:
    """Tell others which configuration this process, which is the runtime, has.

    :raises OSError: if the file cannot be written.
    """
    told = InForce(pid=os.getpid(), replaceable=replaceable, config=_plain(config))
    atomicfile.write(run / FILE_NAME, msgspec.json.encode(told))


def read(run: Path, path: str) -> InForce | None:
    """Return what the runtime that listens on socket ``path`` has published; None if it has not, or nobody listens."""
    try:
        with (run / FILE_NAME).open("rb") as file:
            told = msgspec.json.decode(file.read(_MOST_BYTES), type=InForce)
        # The file may be that of a runtime that was killed.
        return told if told.pid == peer.listener(path) else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def differences(told: InForce, config: Config) -> tuple[str, ...]:
    """Return the keys of ``config`` that the runtime has otherwise, sorted; only of tables that a runtime reads."""
    changed = _changed("", told.config, _plain(config))
    return tuple(sorted(key for key in changed if key.partition(".")[0] not in _NOT_OF_THE_RUNTIME))


def changed_keys(one: Config, other: Config) -> tuple[str, ...]:
    """Return the keys whose values differ, such as ``runtime.socket``, sorted; pure.

    A table that only one of them has, such as a registry or a type of class resources, is one key.
    """
    return tuple(sorted(_changed("", _plain(one), _plain(other))))


def _plain(config: Config) -> dict[str, Any]:
    """Return a configuration as JSON has it: two of the same values are equal."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def _changed(prefix: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in one.keys() | other.keys():
        first, second = one.get(key), other.get(key)
        if isinstance(first, dict) and isinstance(second, dict):
            yield from _changed(f"{prefix}{key}.", first, second)
        elif first != second:
            yield f"{prefix}{key}"
