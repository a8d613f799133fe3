"""A CNI plugin for tests, as a program: it notes how it was called, keeps one file per attachment, and does as told.

Its directory is beside the program: ``<program>.d/``. In it are ``calls`` (a JSON object per line), ``attached/`` (a
file per attachment, which ADD makes and DEL and GC remove), ``versions`` (a list in JSON) and ``orders``, a JSON object
from commands to what they do: ``{"code": 7, "msg": "no"}``, ``{"sleep": 60}``, ``{"print": "text"}`` or ``{"exit":
3}``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes import write_script

_PROGRAM = Path(__file__).with_name("programs") / "cniplugin.py"


@dataclass(frozen=True)
class Plugin:
    """A plugin made in a directory of plugins."""

    path: Path

    @classmethod
    def make(cls, directory: Path, name: str, *, versions: tuple[str, ...] = ("0.4.0", "1.0.0", "1.1.0")) -> Plugin:
        """Write the program; its directory is new."""
        directory.mkdir(parents=True, exist_ok=True)
        plugin = cls(directory / name)
        (plugin.directory / "attached").mkdir(parents=True)
        (plugin.directory / "calls").touch()
        plugin.order()
        (plugin.directory / "versions").write_text(json.dumps(versions))
        write_script(plugin.path, f"#!{sys.executable} -IS\n{_PROGRAM.read_text()}")
        return plugin

    @property
    def directory(self) -> Path:
        return Path(f"{self.path}.d")

    def order(self, **commands: Any) -> None:
        """Say what the commands do from now on; those not named do their work."""
        (self.directory / "orders").write_text(json.dumps(commands))

    def calls(self, *commands: str) -> list[dict[str, Any]]:
        """Return how it was called, of ``commands`` if any are given."""
        lines = (self.directory / "calls").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [call for call in found if not commands or call["environment"]["CNI_COMMAND"] in commands]

    def forget(self) -> None:
        """Forget the calls."""
        (self.directory / "calls").write_text("")

    def attached(self) -> set[str]:
        """Return the IDs of what is attached."""
        return {path.name for path in (self.directory / "attached").iterdir()}


def write_list(directory: Path, *plugins: dict[str, Any], file: str = "10-test.conflist", **fields: Any) -> None:
    """Write a network configuration list of the network ``testnet``."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {"cniVersion": "1.0.0", "name": "testnet", "plugins": list(plugins), **fields}
    (directory / file).write_text(json.dumps(content))
