"""Identities as types: a value of one of these types has been parsed and is valid.

Parse at the edge (RPC module, command line, state file); pass the typed value inwards.
"""

from __future__ import annotations

import os
import re
from typing import NewType

from podkeep.base.errors import InvalidArgument

SandboxID = NewType("SandboxID", str)
ContainerID = NewType("ContainerID", str)
ImageID = NewType("ImageID", str)
"""The digest of an image's configuration, ``sha256:<64 hex>`` (CRI: Image.id)."""
Digest = NewType("Digest", str)
"""``algorithm:hex`` of a blob (OCI image-spec, descriptor.md)."""
PodUID = NewType("PodUID", str)
HandlerName = NewType("HandlerName", str)
"""Name of a runtime handler; the empty string is the default one (CRI: RuntimeHandler.name)."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_SHOWN = 160
_POD_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def new_id() -> str:
    """Return 64 random hex characters, the form of every sandbox and container ID."""
    # Not secrets.token_hex: every image worker would pay for what that module imports.
    return os.urandom(32).hex()


def parse_digest(text: str) -> Digest:
    """Return ``text`` as a digest.

    :raises InvalidArgument: if it is not ``sha256:`` or ``sha512:`` with the right number of hex digits.
    """
    if not _DIGEST.fullmatch(text):
        raise InvalidArgument(f"{text[:_SHOWN]!r} is not a digest", hint="write sha256: and 64 lower-case hex digits")
    return Digest(text)


def parse_pod_uid(text: str) -> PodUID:
    """Return ``text`` as a pod UID that is safe as a directory name.

    :raises InvalidArgument: if it is empty, too long or holds anything but letters, digits, ``.``, ``_``, ``-``.
    """
    if not _POD_UID.fullmatch(text) or text in {".", ".."}:
        raise InvalidArgument(f"pod UID {text[:_SHOWN]!r} may hold only letters, digits, '.', '_' and '-'")
    return PodUID(text)
