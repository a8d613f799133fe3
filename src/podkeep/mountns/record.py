"""What podkeep remembers of a namespace that it made: a file beside the pin, gone with it.

The file is in the directory of the pin, so it is seen alike from the host and from inside, which the pin is not.
Called by ``lifecycle``, under the lock of the directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from podkeep.base import atomicfile
from podkeep.base.errors import DataLoss
from podkeep.mountns.netns_directory import Done

NAME = "podkeep.json"


Key = tuple[str, str, str]
"""Device, root and mount point: what tells mounts of two namespaces apart (proc_pid_mountinfo(5))."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """``inode``: of the namespace, 0 before it is made; ``on_demand``: who needs it removes it when it is unused."""

    inode: int = 0
    on_demand: bool = False
    netns: Done = ""
    """What podkeep did to /run/netns, for this namespace or for one that was there when it was made."""
    inherited: tuple[Key, ...] = ()
    """What the namespace was born with, if the host does not tell it when it unmounts something of that."""


def read(directory: Path) -> Record | None:
    """Return the record in a pin's directory; None: podkeep made nothing there.

    :raises DataLoss: if it cannot be understood.
    """
    path = directory / NAME
    try:
        content = json.loads(path.read_bytes())
        return Record(
            inode=int(content["inode"]),
            on_demand=bool(content["on_demand"]),
            netns=content["netns"],
            inherited=tuple((device, root, mount_point) for device, root, mount_point in content["inherited"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataLoss(
            f"{path}: {error}", hint="remove it, and then the namespace with `podkeep mountns stop`"
        ) from error


def write(directory: Path, record: Record) -> None:
    """Replace the record.

    :raises OSError: if the directory is missing, read-only or full.
    """
    atomicfile.write(directory / NAME, json.dumps(asdict(record)).encode(), mode=0o644)


def remove(directory: Path) -> None:
    """Remove the record, if there is one, and what a killed process wrote of another."""
    for path in (directory / NAME, *directory.glob(f".{NAME}.*")):
        path.unlink(missing_ok=True)
