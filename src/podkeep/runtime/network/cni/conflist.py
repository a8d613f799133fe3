"""CNI network configuration lists: finding, reading and checking them (CNI specification 1.1.0, section 1).

Owns: the files of the configuration directory. Does not own: running plugins (``plugin.py``).
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct

log = logging.getLogger(__name__)

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""The versions of the specification that this runtime speaks, oldest first."""
SUFFIXES = (".conf", ".conflist", ".json")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_MAX_BYTES = 1 << 20

Json = dict[str, Any]


class NetworkList(FrozenStruct, kw_only=True):
    """A network configuration list. ``versions`` are those that its author allows, newest last."""

    name: str
    versions: tuple[str, ...]
    plugins: tuple[Json, ...]
    disable_check: bool = False
    disable_gc: bool = False

    def text(self) -> str:
        """Return it as JSON, for a sandbox's record."""
        return json.dumps(
            {
                "name": self.name,
                "cniVersion": self.versions[-1],
                "cniVersions": list(self.versions),
                "disableCheck": self.disable_check,
                "disableGC": self.disable_gc,
                "plugins": list(self.plugins),
            }
        )


def parse(data: Json) -> NetworkList:
    """Return what a list's JSON means; pure.

    :raises InvalidArgument: if it is no valid list, or of no version that this runtime speaks.
    """
    name = data.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"name: {name!r} is no name of a network")
    plugins = data.get("plugins")
    if not isinstance(plugins, list) or not plugins:
        raise InvalidArgument("plugins: the list has none")
    for number, plugin in enumerate(plugins):
        kind = plugin.get("type") if isinstance(plugin, dict) else None
        if not isinstance(kind, str) or not _NAME.fullmatch(kind):
            raise InvalidArgument(f"plugins[{number}].type: {kind!r} is no name of a plugin")
        if not isinstance(plugin.get("capabilities", {}), dict):
            raise InvalidArgument(f"plugins[{number}].capabilities: must be an object")
    return NetworkList(
        name=name,
        versions=_versions(data),
        plugins=tuple(plugins),
        disable_check=_flag(data, "disableCheck"),
        disable_gc=_flag(data, "disableGC"),
    )


def _versions(data: Json) -> tuple[str, ...]:
    single = data.get("cniVersion", VERSIONS[0]) or VERSIONS[0]
    several = data.get("cniVersions", [])
    if not isinstance(single, str) or not isinstance(several, list):
        raise InvalidArgument("cniVersion: must be a string, and cniVersions a list of strings")
    given = {single, *(item for item in several if isinstance(item, str))} if "cniVersion" in data else set(several)
    known = tuple(version for version in VERSIONS if version in (given or {single}))
    if not known:
        raise InvalidArgument(
            f"cniVersion: {', '.join(map(repr, sorted(map(str, given))))}: this runtime speaks {', '.join(VERSIONS)}"
        )
    return known


def _flag(data: Json, key: str) -> bool:
    value = data.get(key, False)
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidArgument(f"{key}: must be true or false")
    return value


def read(path: Path) -> NetworkList:
    """Read one file: a list, or the configuration of a single plugin, which is a list of one.

    :raises InvalidArgument: naming the file, if it cannot be read or is none.
    """
    try:
        data = _json(path)
        if path.suffix == ".conflist" or "plugins" in data:
            _add_plugins(path, data)
            return parse(data)
        shared: Json = {key: data[key] for key in ("name", "cniVersion", "cniVersions") if key in data}
        return parse(shared | {"plugins": [data]})
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}") from error


def _add_plugins(path: Path, data: Json) -> None:
    """Append the plugins of ``<name>/*.conf`` beside a list that allows it (CNI 1.1.0, loadOnlyInlinedPlugins)."""
    if data.get("loadOnlyInlinedPlugins", "name" not in data) or not isinstance(data.get("plugins", []), list):
        return
    directory = path.parent / str(data["name"])
    if "/" in str(data["name"]) or not directory.is_dir():
        return
    more = [_json(item) for item in sorted(directory.iterdir()) if item.suffix == ".conf"]
    data["plugins"] = [*data.get("plugins", []), *more]


def _json(path: Path) -> Json:
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
    except OSError as error:
        raise InvalidArgument(error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"no JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidArgument("no JSON object")
    return data


Signature = tuple[tuple[str, int, int, int], ...]


class Loaded(FrozenStruct, kw_only=True):
    """What a configuration directory has: the first valid list and its file, and why others are not valid."""

    network: NetworkList | None = None
    path: Path | None = None
    problems: tuple[str, ...] = ()


class ConfDirectory:
    """A configuration directory, read again when a file in it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature: Signature | None = None
        self._loaded = Loaded()

    def files(self) -> Signature:
        """Return names, sizes and times of the files that may be configurations, in the order of the names."""
        found = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if Path(entry.name).suffix in SUFFIXES and entry.is_file():
                        status = entry.stat()
                        found.append((entry.name, status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            # Not there (yet), or no directory: it has no configuration.
            return ()
        return tuple(sorted(found))

    def load(self) -> Loaded:
        """Return the first valid list; a file that is none is logged when it is new, and passed over."""
        signature = self.files()
        if signature != self._signature:
            self._loaded = _load(self.path, signature)
            self._signature = signature
        return self._loaded


def _load(directory: Path, signature: Signature) -> Loaded:
    problems = []
    for name, *_ in signature:
        try:
            network = read(directory / name)
        except InvalidArgument as error:
            log.warning("CNI configuration %s", error)
            problems.append(str(error))
            continue
        log.info("CNI network %s of %s", network.name, directory / name)
        return Loaded(network=network, path=directory / name, problems=tuple(problems))
    return Loaded(problems=tuple(problems))
