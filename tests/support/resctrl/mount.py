"""A mounted resctrl for tests: a stand-in on hardware of their choice, or the machine's own.

Owns: starting and ending the server, and reading the file system for assertions. Does not own: how it behaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from podkeep.kernel.mount import mounts
from support.resctrl import hardware as description
from support.resctrl.hardware import Hardware
from support.waiting import TIMEOUT_S

REAL = Path("/sys/fs/resctrl")
_TESTS = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Resctrl:
    """A mounted resctrl."""

    path: Path
    hardware: Hardware
    is_real: bool = False

    def groups(self) -> set[str]:
        """Return the names of the control groups but the root."""
        ours = {"info", "mon_groups", "mon_data"}
        return {path.name for path in self.path.iterdir() if path.is_dir()} - ours

    def schemata(self, group: str = "") -> dict[str, dict[int, str]]:
        """Return the values of a group by control and domain, such as ``{"L3": {0: "f"}}``; without leading zeros."""
        found: dict[str, dict[int, str]] = {}
        for line in (self.path / group / "schemata").read_text().splitlines():
            name, _, values = line.strip().partition(":")
            pairs = (item.split("=") for item in values.split(";"))
            found[name] = {int(domain): value.strip().lstrip("0") or "0" for domain, value in pairs}
        return found

    def mode(self, group: str = "") -> str:
        """Return the mode of a group."""
        return (self.path / group / "mode").read_text().strip()

    def tasks(self, group: str = "") -> set[int]:
        """Return the tasks in a group."""
        return {int(line) for line in (self.path / group / "tasks").read_text().split()}

    def last_cmd_status(self) -> str:
        """Return what the kernel says about the last command."""
        return (self.path / "info/last_cmd_status").read_text().strip()

    def count(self, event: str, value: int | str, *, group: str = "", domain: int = 0, mon_group: str = "") -> None:
        """Have a counter read ``value`` from now on; stand-in only."""
        below = self.path / group / "mon_groups" / mon_group if mon_group else self.path / group
        os.setxattr(below / f"mon_data/mon_L3_{domain:02}" / event, "user.count", str(value).encode())

    def fail(self, path: str, operation: str, errno: int, times: int = 1) -> None:
        """Let the next operations on what is at ``path`` below the mount point fail; stand-in only.

        :param operation: ``read``, ``write``, ``rmdir``, ``rename``, or ``mkdir``: of a group in ``path``.
        """
        os.setxattr(self.path / path, "user.fail", f"{operation} {errno} {times}".encode())


@contextmanager
def stand_in(hardware: Hardware, directory: Path) -> Iterator[Resctrl]:
    """Mount a stand-in at a directory, in the caller's mount namespace, and unmount it afterwards."""
    command = [sys.executable, "-m", "support.resctrl.server", str(directory), json.dumps(asdict(hardware))]
    environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/", env=environment) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n", f"the stand-in ended with {server.wait(TIMEOUT_S)}"
            yield Resctrl(path=directory, hardware=hardware)
        finally:
            if server.poll() is None:
                mounts.unmount(directory, lazy=True)
                try:
                    server.wait(10)
                except subprocess.TimeoutExpired:  # another mount namespace still has it
                    server.terminate()


@contextmanager
def real() -> Iterator[Resctrl]:
    """Lend the machine's own; groups that were made meanwhile are removed."""
    resctrl = Resctrl(path=REAL, hardware=description.read(REAL / "info"), is_real=True)
    before = resctrl.groups()
    assert not before, f"{REAL} is in use: {sorted(before)}"
    root = (REAL / "schemata").read_text()
    try:
        yield resctrl
    finally:
        for name in resctrl.groups() - before:
            (REAL / name).rmdir()
        (REAL / "schemata").write_text(root)
