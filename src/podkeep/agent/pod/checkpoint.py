"""The object of a pod that runs, in its directory: for an agent that starts while the API is away. Blocking.

It is there from the pod's sandbox to the moment when the pod begins to end. It holds what the API holds of the pod, and
is root's alone. Not synced: after a loss of power nothing runs, and the API is asked what is to run.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from podkeep.api.pod import Pod
from podkeep.api.status import PodStatus

log = logging.getLogger(__name__)

FILE_NAME = "object.json"
_MAX_BYTES = 4 << 20


def keep(directory: Path, pod: Pod, start_time: str | None) -> None:
    """Keep what a pod is by now; its status, which changes all the time, is left out but for when it began."""
    path = directory / FILE_NAME
    temporary = path.with_name(f".{FILE_NAME}")
    kept = msgspec.structs.replace(pod, status=PodStatus(phase="Pending", start_time=start_time))
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(kept))
        os.replace(temporary, path)
    except OSError as error:
        log.warning("%s cannot be written, so the pod is not looked after without the API: %s", path, error)


def drop(directory: Path) -> None:
    """Forget it: the pod is not to run any more."""
    try:
        (directory / FILE_NAME).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", directory / FILE_NAME, error)


def read(directory: Path) -> Pod | None:
    """Return the pod that a directory is kept for; ``None`` if there is none that can be understood."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        pod = msgspec.json.decode(data, type=Pod) if len(data) <= _MAX_BYTES else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s cannot be read: %s", path, error)
        return None
    return pod if pod is not None and pod.metadata.uid == directory.name else None
