"""A CNI plugin for tests, as a program: it notes how it was called, keeps one file per attachment, and does as told.

Its directory is beside the program: ``<program>.d/``. In it are ``calls`` (a JSON object per line), ``attached/`` (a
file per attachment, which ADD makes and DEL and GC remove) and ``orders``, a JSON object from commands to what they do:
``{"code": 7, "msg": "no"}``, ``{"sleep": 60}``, ``{"print": "text"}`` or ``{"exit": 3}``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SOURCE = """#!{python} -IS
import json, os, sys, time
here = sys.argv[0] + ".d"
command, conf = os.environ["CNI_COMMAND"], json.load(sys.stdin)
names = ("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH")
call = {{name: os.environ[name] for name in names if name in os.environ}}
call["netns_is_there"] = os.path.exists(call.get("CNI_NETNS") or "/nowhere")
with open(here + "/calls", "a") as file:
    file.write(json.dumps({{"environment": call, "stdin": conf}}) + "\\n")
with open(here + "/orders") as file:
    order = json.load(file).get(command, {{}})
attached = here + "/attached/"
if command == "ADD":
    open(attached + call["CNI_CONTAINERID"], "w").close()
if "sleep" in order:
    time.sleep(order["sleep"])
if "exit" in order:
    print("it broke", file=sys.stderr)
    sys.exit(order["exit"])
if "code" in order:
    print(json.dumps({{"cniVersion": conf["cniVersion"], **order}}))
    sys.exit(1)
if "print" in order:
    print(order["print"])
elif command == "VERSION":
    print(json.dumps({{"cniVersion": "1.1.0", "supportedVersions": {versions}}}))
elif command == "ADD":
    given = {{"interfaces": [{{"name": "eth0", "sandbox": call["CNI_NETNS"]}}], "ips": [
        {{"address": "2001:db8:7::9/64", "interface": 0}}, {{"address": "203.0.113.9/24", "interface": 0}}]}}
    result = conf.get("prevResult") or {{"cniVersion": conf["cniVersion"], **given}}
    print(json.dumps(result))
elif command == "DEL" and os.path.exists(attached + call["CNI_CONTAINERID"]):
    os.unlink(attached + call["CNI_CONTAINERID"])
elif command == "GC":
    valid = [item["containerID"] for item in conf["cni.dev/valid-attachments"]]
    for name in set(os.listdir(attached)) - set(valid):
        os.unlink(attached + name)
"""


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
        plugin.path.write_text(_SOURCE.format(python=sys.executable, versions=list(versions)))
        plugin.path.chmod(0o755)
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
