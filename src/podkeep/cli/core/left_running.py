"""Containers that run on while no runtime does: told by ``podkeep status`` and ``podkeep node uninstall``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base.errors import NotFound
from podkeep.cli.core.output import number_of

if TYPE_CHECKING:
    from podkeep.base.config import Config


def running_without(config: Config) -> int:
    """Return how many containers run while no runtime does; those that cannot be looked at are not counted."""
    from podkeep.base.ids import ContainerID
    from podkeep.kernel.process import procfs
    from podkeep.runtime.model.layout import Layout

    layout, count = Layout(root=Path(config.runtime.root), run=Path(config.runtime.run)), 0
    with suppress(OSError):
        for name in os.listdir(layout.bundles):
            # The number of one that has ended may be another process's: conmon has written its exit then.
            if not (layout.exits / name).exists():
                with suppress(OSError, ValueError, NotFound):
                    procfs.identify(int((layout.bundle(ContainerID(name)) / "pid").read_text()))
                    count += 1
    return count


def words(count: int) -> str:
    """Return what to say of so many."""
    return f"{number_of(count, 'container')} of its pods {'runs' if count == 1 else 'run'} on"
