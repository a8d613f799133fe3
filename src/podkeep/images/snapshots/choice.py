"""Which driver keeps new layers: the configured one, or the best that works here, found out by trying."""

from __future__ import annotations

import logging
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.images.snapshots import erofs
from podkeep.images.snapshots.directories import DirectoriesDriver
from podkeep.images.snapshots.driver import SnapshotDriver
from podkeep.images.snapshots.erofs import ErofsDriver

log = logging.getLogger(__name__)


class Choice(FrozenStruct, kw_only=True):
    """The driver of new layers; ``why_not`` says why it is not the better one, empty if it is or was not wanted."""

    driver: str
    why_not: str = ""


def choose(root: Path, wanted: str) -> Choice:
    """Return the driver for layers below ``root``, an existing directory.

    :param wanted: ``directories``, ``erofs``, or ``auto`` for erofs where it works.
    :raises FailedPrecondition: if erofs is wanted and does not work.
    """
    if wanted == DirectoriesDriver.name:
        return Choice(driver=DirectoriesDriver.name)
    why_not = erofs.probe(root)
    if not why_not:
        return Choice(driver=ErofsDriver.name)
    if wanted == ErofsDriver.name:
        raise FailedPrecondition(
            f'images.snapshot_driver = "erofs" does not work below {root}: {why_not}',
            hint='set it to "auto" or "directories"',
        )
    log.info("layers are kept as directories, because EROFS images cannot be mounted: %s", why_not)
    return Choice(driver=DirectoriesDriver.name, why_not=why_not)


def open_drivers(root: Path, mounted: Path | None = None) -> dict[str, SnapshotDriver]:
    """Return every driver there may be layers of, by name.

    :param mounted: where layers may be mounted; None: they are only read.
    """
    drivers: tuple[SnapshotDriver, ...] = (DirectoriesDriver(root), ErofsDriver(root, mounted))
    return {driver.name: driver for driver in drivers}
