"""The Services that the API had last, in a file of the agent: containers have variables that name them. Blocking.

Without it, no container could be started again by an agent that was started while the API is away.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podkeep.base.frozen import FrozenStruct

log = logging.getLogger(__name__)

FILE_NAME = "services.json"
_MAX_BYTES = 64 << 20


class ServicesFile(FrozenStruct):
    """The file. Not synced: after a loss of power no container runs that could be started again."""

    path: Path

    def write(self, services: Sequence[Mapping[str, Any]]) -> None:
        """Keep these; a failure is logged."""
        temporary = self.path.with_name(f".{self.path.name}")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(services))
            os.replace(temporary, self.path)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error)

    def read(self) -> list[dict[str, Any]] | None:
        """Return those that were kept; ``None`` if none were, or they cannot be understood."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            return msgspec.json.decode(data, type=list[dict[str, Any]]) if len(data) <= _MAX_BYTES else None
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read: %s", self.path, error)
            return None
