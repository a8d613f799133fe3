"""Why a pod was ended, in its directory until the API has it: ``ending.json``.

An agent that is killed after it evicted a pod, and before it could tell, would start the containers again: the reason
for the eviction may be gone by then. Blocking.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from podkeep.api.status import PodCondition
from podkeep.base import atomicfile

log = logging.getLogger(__name__)

FILE_NAME = "ending.json"
_MAX_BYTES = 1 << 20


class LastDecision(msgspec.Struct, frozen=True, kw_only=True):
    """That a pod is over: reason, message and conditions of its status. ``grace``: seconds for its containers."""

    failed: bool
    reason: str
    message: str
    grace: int
    conditions: tuple[PodCondition, ...] = ()


def note(directory: Path, decision: LastDecision) -> None:
    """Keep a decision for the next process; without room on the disk it is only logged that it cannot be kept."""
    path = directory / FILE_NAME
    try:
        atomicfile.write(path, msgspec.json.encode(decision))
    except OSError as error:
        log.warning("%s cannot be written, so a restart may forget why the pod ended: %s", path, error)


def read(directory: Path) -> LastDecision | None:
    """Return what an earlier process decided; ``None`` if it decided nothing."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        return msgspec.json.decode(data, type=LastDecision) if len(data) <= _MAX_BYTES else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s cannot be read, so the pod runs on: %s", path, error)
        return None
