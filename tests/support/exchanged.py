"""The directories of a container's log, exchanged for a link as a pod with a hostPath there does it."""

from __future__ import annotations

from pathlib import Path


class ExchangedLog:
    """A log below ``root``, and a directory of somebody else that has files of a log's names; ``large``: in bytes."""

    def __init__(self, root: Path, *, large: int = 4096) -> None:
        self.path = root / "logs" / "default_web_uid" / "main" / "0.log"
        self.path.parent.mkdir(parents=True)
        self.path.touch()
        self._other = root / "other"
        # Found by both links, that in the place of the container's directory and of the pod's.
        for directory in (self._other, self._other / "main"):
            directory.mkdir()
            for name in ("0.log", *(f"0.log.20200131-08000{number}" for number in range(6))):
                (directory / name).write_bytes(b"2026-01-02T03:04:05.000000006Z stdout F secret\n".ljust(large, b"x"))
        self._before = self._state()

    def exchange(self, what: str) -> None:
        """Put a link to the other directory in the place of that of the ``container`` or of the ``pod``."""
        place = self.path.parent if what == "container" else self.path.parent.parent
        place.rename(place.with_name("moved"))
        place.symlink_to(self._other)

    def is_other_untouched(self) -> bool:
        return self._state() == self._before

    def _state(self) -> dict[str, tuple[int, int, int]]:
        found = [self._other, *self._other.rglob("*")]
        return {str(path): (path.lstat().st_ino, path.lstat().st_size, path.lstat().st_ctime_ns) for path in found}
