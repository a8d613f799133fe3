"""Reading the configuration again while the runtime serves (SIGHUP).

Owns: which keys can change without a restart, and putting them into force. A file that cannot be read or understood
changes nothing: what was in force stays.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

import msgspec

from podkeep.base import log as logs
from podkeep.base import service
from podkeep.base.config import Config
from podkeep.base.errors import PodkeepError
from podkeep.base.in_force import changed_keys
from podkeep.base.text.printable import listed
from podkeep.images.store.store import ImageStore
from podkeep.runtime.daemon import settings

log = logging.getLogger(__name__)

RELOADABLE = frozenset({"log", "images", "registries", "class_resources"})
"""Tables of the configuration that a reload applies."""
_NOT_BEFORE_RESTART = frozenset({"images.snapshot_driver", "class_resources.resctrl"})
"""Keys in these tables that need a restart: snapshot drivers are tried, and made, when the store is opened; running
containers are in groups of the resctrl file system that was configured when they started.
"""

_SHOWN_KEYS = 20
"""Keys that a line of the log has at most."""


class Reload:
    """The configuration in force, and its renewal. Used on the event loop."""

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config] | None,
        images: ImageStore,
        replace_classes: Callable[[Config], None] = lambda _: None,
        tell: Callable[[Config], None] = lambda _: None,
    ) -> None:
        """Start from ``config``.

        :param load: reads the file anew; None: there is nothing to read.
        :param replace_classes: puts the class resources of a configuration into force, or raises and changes nothing;
            blocks. Asked at every reload: their files may differ where the configuration does not.
        :param tell: hears of the configuration that is in force after a reload.
        """
        self._config, self._load, self._images, self._replace_classes = config, load, images, replace_classes
        self._tell = tell
        self._running: asyncio.Task[None] | None = None
        self._again = self._closed = False

    def start(self) -> None:
        """Reload in the background; asked for during a reload, once more after it."""
        if self._closed:
            return
        if self._running is not None and not self._running.done():
            self._again = True
            return
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Wait for a reload that is under way; there are no others any more."""
        self._closed, self._again = True, False
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        while True:
            self._again = False
            await self._reload()
            if not self._again:
                return

    async def _reload(self) -> None:
        if self._load is None:
            log.warning("SIGHUP: this runtime was started without a way to read its configuration again")
            return
        service.reloading()
        try:
            config = await asyncio.to_thread(_checked, self._load)
            coming = self._coming(config)
            # First, as the only part that may be refused from here on.
            await asyncio.to_thread(self._replace_classes, coming)
        except Exception as error:
            # Whatever is wrong with a file, the runtime serves on. The text of our own errors says all.
            unexpected = None if isinstance(error, PodkeepError) else error
            log.error("the configuration stays as it was: %s", error, exc_info=unexpected)  # noqa: TRY400
            service.ready(f"serving {self._config.runtime.socket}; the new configuration was refused")
            return
        changed = changed_keys(self._config, config)
        applied = [key for key in changed if key.partition(".")[0] in RELOADABLE and key not in _NOT_BEFORE_RESTART]
        waiting = [key for key in changed if key not in applied]
        # What waits for a restart is compared with what is in force at the next reload, too.
        self._config = coming
        logs.configure(config.log.level, sys.stderr, style=config.log.format)
        await asyncio.to_thread(self._images.reconfigure, coming.images, config.registries)
        self._tell(coming)
        # They count also where no key changed, and are in force by now.
        files = [file for file in (config.class_resources.rdt_config, config.class_resources.blockio_config) if file]
        also = f"; also in force: {', '.join(files)}" if files else ""
        log.info("configuration read again; applied: %s%s", listed(applied, _SHOWN_KEYS) or "nothing", also)
        if waiting:
            log.warning("changed and not in force before a restart: %s", listed(waiting, _SHOWN_KEYS))
        service.ready(f"serving {self._config.runtime.socket}")

    def _coming(self, config: Config) -> Config:
        """Return the configuration in force with what a reload takes from another."""
        now = self._config
        return msgspec.structs.replace(
            now,
            log=config.log,
            images=msgspec.structs.replace(config.images, snapshot_driver=now.images.snapshot_driver),
            registries=config.registries,
            class_resources=msgspec.structs.replace(config.class_resources, resctrl=now.class_resources.resctrl),
        )


def _checked(load: Callable[[], Config]) -> Config:
    """Read a configuration and the files that it names; blocks."""
    config = load()
    settings.check(config)
    return config
