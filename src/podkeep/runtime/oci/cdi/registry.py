"""The CDI spec files of this machine.

Owns: reading them, and noticing that they changed. Does not own: what is in them (``cdi.py``).
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.kernel.files import openat
from podkeep.runtime.oci.cdi.spec import Edits, Spec, parse, resolve

log = logging.getLogger(__name__)

MAX_SPEC_BYTES = 8 << 20


@dataclass
class Registry:
    """The spec files of some directories, later directories before earlier ones; safe to use from threads.

    A file is read again when it has changed, whenever somebody asks for a device. One that is wrong takes only its own
    devices away.
    """

    directories: tuple[str, ...]
    _read: dict[str, tuple[tuple[int, ...], Spec | InvalidArgument]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def edits(self, names: Sequence[str]) -> Edits:
        """Return what devices need together; blocks.

        :raises NotFound: naming the devices that no file has.
        :raises FailedPrecondition: if two files have a device.
        """
        if not names:
            return Edits()
        with self._lock:
            specs, wrong = self._refresh()
        found, unknown = resolve(specs, names)
        if unknown:
            hint = "; ".join(wrong) or f"its vendor's software writes a file below {' or '.join(self.directories)}"
            raise NotFound(f"unresolvable CDI devices {', '.join(unknown)}", hint=hint)
        return found

    def _refresh(self) -> tuple[list[list[Spec]], list[str]]:
        now: dict[str, tuple[tuple[int, ...], Spec | InvalidArgument]] = {}
        specs: list[list[Spec]] = []
        wrong: list[str] = []
        for directory in self.directories:
            specs.append([])
            for path in _spec_files(directory):
                entry = self._entry(path)
                if entry is None:
                    continue
                now[path] = entry
                if isinstance(entry[1], Spec):
                    specs[-1].append(entry[1])
                else:
                    wrong.append(entry[1].message)
        self._read = now
        return specs, wrong

    def _entry(self, path: str) -> tuple[tuple[int, ...], Spec | InvalidArgument] | None:
        try:
            # Opened once: what is judged is what is read, whatever is put at the path meanwhile.
            file = openat.open_named_regular(path)
            if file is None:
                return None
            with openat.closing(file):
                return self._read_file(file, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return (), InvalidArgument(f"CDI spec {path}: {error.strerror}")

    def _read_file(self, file: int, path: str) -> tuple[tuple[int, ...], Spec | InvalidArgument]:
        status = os.fstat(file)
        # ctime as well: a file that is replaced in place, or whose owner or mode changes, may keep its mtime.
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        known = self._read.get(path)
        if known is not None and known[0] == key:
            return known
        try:
            if status.st_uid != 0 or status.st_mode & stat.S_IWOTH:
                raise InvalidArgument(
                    f"CDI spec {path}: others than root can write it, and its hooks would run as root"
                )
            if status.st_size > MAX_SPEC_BYTES:
                raise InvalidArgument(f"CDI spec {path}: {status.st_size} bytes are more than {MAX_SPEC_BYTES}")
            return key, parse(openat.read_bytes(file, MAX_SPEC_BYTES), path)
        except InvalidArgument as error:
            # Once for each version of a file: the error is kept under the same key.
            log.warning("%s", error)
            return key, error


def _spec_files(directory: str) -> list[str]:
    """Return the spec files right in a directory; none if there is no such directory."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [os.path.join(directory, name) for name in names if name.endswith((".json", ".yaml"))]
