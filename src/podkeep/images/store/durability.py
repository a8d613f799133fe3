"""Seeing that layers outlive a loss of power, without a pod waiting for the disk.

Pulled layers are not synced when they come. A while after a pull everything is synced at once and recorded as such;
what was not when the machine went down is doubtful, and pulled again. What is loaded from a file is synced before the
load is answered: there may be no file to load it from again. Used by the store.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from podkeep.base.errors import PodkeepError
from podkeep.images.store.catalog import Catalog
from podkeep.kernel.files.openat import syncfs
from podkeep.kernel.process import procfs

log = logging.getLogger(__name__)

_DELAY = 30.0
"""Seconds after a pull: by then the kernel has written most of it, and the pod that waited for it runs."""


class Durability:
    """Which layers of a store are known to be on the disk below ``root``."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self._root = root
        self._catalog = catalog
        self._timer: threading.Timer | None = None
        self._closed = False
        self.boot_id = procfs.boot_id()
        """What a layer's record says until it is known to be on the disk (``LayerRecord.boot_id``)."""

    def sync_later(self) -> None:
        """Sync in a while, if there is something to be synced."""
        with self._catalog.changing:
            unsynced = any(layer.boot_id for layer in self._catalog.layers.values())
            if self._closed or self._timer is not None or not unsynced:
                return
            self._timer = threading.Timer(_DELAY, self._sync_in_time)
            # The end of the process does not wait for it: what was not synced is doubtful only after a loss of power.
            self._timer.daemon = True
            self._timer.start()

    def sync(self) -> None:
        """Write every layer and the records of images to the disk now, so that they outlive a loss of power. Blocks.

        :raises KernelCallError: if the disk fails.
        :raises ResourceExhausted: if the disk has no space for the record of it.
        """
        with self._catalog.changing:
            # Chosen before the sync: a layer that comes meanwhile may not be on the disk after it.
            layers = [layer.id for layer in self._catalog.layers.values() if layer.boot_id]
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            syncfs(fd)
        finally:
            os.close(fd)
        with self._catalog.changing:
            # The store may have closed its database while this waited for the disk.
            if not self._closed:
                self._catalog.database.mark_synced(layers)
                self._catalog.refresh()

    def _sync_in_time(self) -> None:
        try:
            self.sync()
        except (PodkeepError, OSError) as error:
            log.warning("layers may not outlive a loss of power: %s", error)
        with self._catalog.changing:
            self._timer = None

    def close(self) -> None:
        """Record nothing from now on. The caller holds the lock, and calls :meth:`join` without it."""
        self._closed = True

    def join(self) -> None:
        """Wait for a sync that runs."""
        timer = self._timer
        if timer is not None:
            timer.cancel()
            timer.join()
