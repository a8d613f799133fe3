"""Trees that a killed daemon left: moved aside when the next one starts, and removed while it serves requests.

Owns: ``<root>/leftovers``, where each has a name of its own. A container may have left millions of files, and the
service manager ends a daemon that is not ready after a minute. Does not own: what is left over (``recovery.py``).
Methods block.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from podkeep.base import failpoints
from podkeep.base.errors import Cancelled, PodkeepError
from podkeep.base.ids import new_id
from podkeep.kernel.files import openat
from podkeep.kernel.files.removal import remove_entry, remove_tree

log = logging.getLogger(__name__)

Remove = Callable[[Path], None]
"""What takes a tree away, as ``remove_tree`` or :meth:`Leftovers.put_aside`; a missing one is no error."""


class Leftovers:
    """The trees in ``directory``, which is made when there is one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended = threading.Event()

    def put_aside(self, path: Path) -> None:
        """Take a tree away from ``path``, at once; a missing one is no error. One of another file system is removed.

        :raises OSError: if the file system refuses, EBUSY if something is mounted there.
        :raises PodkeepError: as ``remove_tree``.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # A rename takes no time, however many files there are. The new ID keeps trees with the same name apart.
            os.rename(path, self._directory / new_id())
        except FileNotFoundError:
            return
        except OSError as error:
            # Directories below runtime.run are usually on another file system than this one below runtime.root.
            if error.errno != errno.EXDEV:
                raise
            remove_tree(path)

    def remove_all(self) -> None:
        """Remove what is aside, until :meth:`end`; what cannot be removed is logged, and tried by the next daemon."""
        try:
            directory = openat.open_directory(self._directory)
        except FileNotFoundError:
            return
        with openat.closing(directory):
            failpoints.reach("leftovers.remove")
            for name in os.listdir(directory):
                if self._ended.is_set():
                    return
                try:
                    remove_entry(directory, name, stop=self._ended.is_set)
                except Cancelled:
                    return
                except (PodkeepError, OSError) as error:
                    log.warning("what an earlier daemon left in %s/%s: %s", self._directory, name, error)
        with suppress(OSError):  # there is something left
            self._directory.rmdir()

    def end(self) -> None:
        """Have :meth:`remove_all` end soon."""
        self._ended.set()
