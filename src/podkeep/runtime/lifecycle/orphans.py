"""Directories of sandboxes and containers that no record names: a power loss can take records that were not synced.

Owns: finding and removing them. Called by the recovery, once, after it went through the records; blocks. Links, cgroups
and processes need no such search: a power loss ends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.files.removal import remove_tree, unmount_below
from podkeep.kernel.process import procfs
from podkeep.runtime.bundle.leftovers import Remove
from podkeep.runtime.model.layout import Layout

_ID = re.compile(r"[0-9a-f]{64}")


def orphans(layout: Layout, known: Set[str]) -> Iterator[Path]:
    """Yield what is named like a sandbox or container that is not in ``known``, those with mounts first."""
    of_run, of_root = (layout.bundles, layout.sandboxes_run), (layout.containers_data, layout.sandboxes_data)
    for directory in (*of_run, *of_root, layout.exits):
        if directory.is_dir():
            yield from sorted(path for path in directory.iterdir() if _is_orphan(path, known))


def _is_orphan(path: Path, known: Set[str]) -> bool:
    return _ID.fullmatch(path.name) is not None and path.name not in known


def remove_orphan(path: Path, *, remove: Remove = remove_tree) -> None:
    """Unmount what is below ``path`` and remove it.

    :raises FailedPrecondition: if a process works on it: then the records were lost and not the machine's power.
    :raises KernelCallError: if something cannot be unmounted; nothing is removed then.
    :raises OSError: if the file system refuses.
    """
    if processes := procfs.find_by_arguments(path.name):
        raise FailedPrecondition(
            f"{path} has no record, but process {processes[0].pid} works on it",
            hint="end the process, and the next start removes the directory",
        )
    unmount_below(path)
    remove(path)
