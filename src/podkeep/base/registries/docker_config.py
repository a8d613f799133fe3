"""Credentials in the form Docker keeps them, and which of them are meant for an image.

Owns: the two formats (``config.json`` with its ``auths``, and the older ``.dockercfg``) and the matching of entries
with names, as a kubelet does it for pull secrets. Does not own: where such a text comes from (a Secret, a file of the
node). Texts of errors never quote what could be a secret.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from podkeep.base.errors import InvalidArgument

_DOCKER_HUB = "index.docker.io"
_DOCKER_HUB_NAMES = frozenset({"docker.io", _DOCKER_HUB})


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Who asks a registry: a name and a password, or a token of either kind (CRI: AuthConfig).

    ``origin`` is the object of the API that they are from, and stays when what is in it is replaced; it makes no others
    of them.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    origin: str = field(default="", repr=False, compare=False)

    def told(self) -> dict[str, str]:
        """Return what a registry is told, by the names of the fields."""
        return {
            "username": self.username,
            "password": self.password,
            "identity_token": self.identity_token,
            "registry_token": self.registry_token,
        }


Entry = tuple[str, Credentials]
"""For which registry, or part of one, and what: ``("registry.example/team", …)``."""


def parse(data: bytes, *, legacy: bool = False) -> tuple[Entry, ...]:
    """Return the entries of a configuration in their order; those that hold nothing are left out.

    :param legacy: read a ``.dockercfg``, whose entries are not below ``auths``.
    :raises InvalidArgument: if it is no such configuration.
    """
    document = decode(data)
    auths = document if legacy or not isinstance(document, dict) else document.get("auths")
    if auths is None:
        return ()
    if not isinstance(auths, dict):
        raise InvalidArgument("expected an object" if legacy or auths is document else "auths: expected an object")
    entries = ((where, _credentials(where, value)) for where, value in auths.items())
    return tuple((where, found) for where, found in entries if found != Credentials())


def decode(data: bytes) -> Any:
    """Return what a JSON document with credentials says.

    :raises InvalidArgument: if it is not one, or holds half of a surrogate pair, which no message can have.
    """
    try:
        document = json.loads(data)
        # Here and not when it is sent: an error there would be no fault of whoever wrote the file.
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidArgument("it has half of a surrogate pair") from None  # the error has all of the text
    except ValueError as error:
        raise InvalidArgument("not valid JSON") from error
    except RecursionError as error:
        raise InvalidArgument("its JSON nests too deeply") from error
    return document


def _credentials(where: str, value: Any) -> Credentials:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where}: expected an object")
    username, password = _text(where, value, "username"), _text(where, value, "password")
    if auth := _text(where, value, "auth"):
        username, password = decode_auth(where, auth)
    return Credentials(
        username=username,
        password=password,
        identity_token=_text(where, value, "identitytoken"),
        registry_token=_text(where, value, "registrytoken"),
    )


def _text(where: str, value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise InvalidArgument(f"{where}: {name}: expected text")
    return text or ""


def decode_auth(where: str, auth: str) -> tuple[str, str]:
    """Return the name and the password in an ``auth`` field; padding of the base64 text may be missing.

    :param where: the entry, for messages.
    :raises InvalidArgument: if it is not ``base64(username:password)``.
    """
    stripped = auth.strip().rstrip("=")
    try:
        text = base64.b64decode(stripped + "=" * (-len(stripped) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise InvalidArgument(f"{where}: auth: must be base64(username:password)") from error
    username, colon, password = text.partition(":")
    if not colon:
        raise InvalidArgument(f"{where}: auth: must be base64(username:password)")
    return username, password


def pattern_length(where: str) -> int:
    """Return how many characters of an entry's host are to be matched as a pattern; 0 of one that is a plain name."""
    host, _ = _split_port(_key(where).partition("/")[0])
    return len(host) if _has_wildcard(host) else 0


class Keyring:
    """Entries from several configurations, asked by an image's name.

    An entry names a host, whose parts may be patterns (``*.example``), with or without a port, and may go on with the
    beginning of a path. Scheme and ``/v1/`` or ``/v2/`` do not count. The longer of two that match comes first, and of
    the same registry the one that was added first.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._by_key: dict[str, list[Credentials]] = {}
        for where, credentials in entries:
            self._by_key.setdefault(_key(where), []).append(credentials)

    def lookup(self, name: str) -> tuple[Credentials, ...]:
        """Return the credentials for ``host/repository``, in the order in which to try them."""
        host, _, path = name.partition("/")
        found = [
            credentials
            # In reverse order a longer entry comes before the one that it begins with.
            for key in sorted(self._by_key, reverse=True)
            if _matches(key, host, path)
            for credentials in self._by_key[key]
        ]
        if not found and host in _DOCKER_HUB_NAMES:
            found = self._by_key.get(_DOCKER_HUB, [])
        return tuple(dict.fromkeys(found))


def _key(where: str) -> str:
    """Return an entry's name as ``host[/path]``."""
    for scheme in ("https://", "http://"):
        where = where.removeprefix(scheme)
    host, _, path = where.partition("/")
    if path.startswith(("v1/", "v2/")):
        path = path[3:]
    return f"{host}/{path}" if path else host


def _matches(key: str, host: str, path: str) -> bool:
    wanted_host, _, wanted_path = key.partition("/")
    wanted_name, wanted_port = _split_port(wanted_host)
    name, port = _split_port(host)
    patterns, parts = wanted_name.split("."), name.split(".")
    # `*` stands for one part of a host, as with a kubelet: *.example is not a.b.example.
    if wanted_port != port or len(patterns) != len(parts) or not path.startswith(wanted_path):
        return False
    return all(_fits(pattern, part) for pattern, part in zip(patterns, parts, strict=True))


def _fits(pattern: str, part: str) -> bool:
    # Making an expression of it takes some 10 us a character.
    if not _has_wildcard(pattern):
        return pattern == part
    # Go, whose matching Kubernetes users know, negates a class with a caret.
    return fnmatch.fnmatchcase(part, pattern.replace("[^", "[!"))


def _has_wildcard(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def _split_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    if not colon or "]" in port:
        name, port = host, ""
    # The brackets of an IPv6 address are no pattern.
    return (name[1:-1] if name.startswith("[") and ":" in name else name), port
