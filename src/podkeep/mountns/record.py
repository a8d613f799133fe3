"""What podkeep remembers of a namespace that it made: a file beside the pin, gone with it.

The file is in the directory of the pin, so it is seen alike from the host and from inside, which the pin is not.
Called by ``lifecycle``, under the lock of the directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from podkeep.base import atomicfile
from podkeep.base.errors import DataLoss
from podkeep.base.frozen import FrozenStruct
from podkeep.mountns.netns_directory import Done

NAME = "podkeep.json"
Key = tuple[str, str, str]
"""Device, root and mount point: what tells mounts of two namespaces apart (proc_pid_mountinfo(5))."""
T = TypeVar("T")


class Record(FrozenStruct, kw_only=True):
    """``inode``: of the namespace, 0 before it is made; ``on_demand``: who needs it removes it when it is unused."""

    inode: int = 0
    on_demand: bool = False
    netns: Done = ""
    """What podkeep did to /run/netns, for this namespace or for one that was there when it was made."""
    inherited: tuple[Key, ...] = ()
    """What the namespace was born with, if the host does not tell it when it unmounts something of that."""


def load(path: Path, kind: type[T], *, hint: str) -> T | None:
    """Return what a file of JSON holds, as a ``kind``; None: there is no such file.

    :param hint: what to do if it cannot be understood.
    :raises DataLoss: if so.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise DataLoss(f"{path}: {error}", hint=hint) from error


def read(directory: Path) -> Record | None:
    """Return the record in a pin's directory; None: podkeep made nothing there.

    :raises DataLoss: if it cannot be understood.
    """
    hint = "remove it, and then the namespace with `podkeep mountns stop`"
    return load(directory / NAME, Record, hint=hint)


def write(directory: Path, record: Record) -> None:
    """Replace the record.

    :raises OSError: if the directory is missing, read-only or full.
    """
    atomicfile.write(directory / NAME, msgspec.json.encode(record), mode=0o644)


def remove(directory: Path) -> None:
    """Remove the record, if there is one, and what a killed process wrote of another."""
    # The temporary files of a write that was killed before its rename.
    for path in (directory / NAME, *directory.glob(f".{NAME}.*")):
        path.unlink(missing_ok=True)
