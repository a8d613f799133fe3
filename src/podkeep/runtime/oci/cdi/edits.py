"""The changes that CDI devices make to a container's OCI configuration. Pure.

Owns: the changes, as the CDI specification says for ``containerEdits``. Does not own: where they come from
(``spec.py``) or looking at device nodes and host paths (``nodes.py``). Called by ``container_executor.py`` with the
configuration that ``oci/spec.py`` built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.oci.cdi.spec import Edits, Hook, IntelRdt
from podkeep.runtime.oci.compose import Config
from podkeep.runtime.oci.mounts import OciMount, is_virtual, normal


class Prepared(FrozenStruct, kw_only=True):
    """Edits, with the machine looked at."""

    edits: Edits
    devices: tuple[Mapping[str, Any], ...] = ()
    """Device nodes in OCI's form, with ``access`` and ``source`` (the host's path; empty: there is none) beside."""
    mounts: tuple[OciMount, ...] = ()


def apply(prepared: Prepared, config: Config) -> Config:
    """Return ``config`` with the changes.

    :raises InvalidArgument: if the container cannot have what a device needs.
    """
    edits, mapped = prepared.edits, _maps_ids(config)
    if edits.net_devices:
        name = edits.net_devices[0].host_interface_name
        raise InvalidArgument(f"a CDI device brings network interface {name}: the OCI runtimes here cannot move it")
    process, linux = dict(config["process"]), dict(config["linux"])
    process["env"] = _environment(process["env"], edits.env)
    process["user"] = _with_groups(process["user"], edits.additional_gids)
    mounts = list(prepared.mounts)
    resources = dict(linux["resources"])
    rules = list(resources["devices"])
    nodes = {node["path"]: node for node in linux.get("devices", ())}
    for device in prepared.devices:
        node = {key: value for key, value in device.items() if key not in {"access", "source"}}
        # In a user namespace nobody can make device nodes: there the machine's are mounted.
        if not mapped:
            nodes[node["path"]] = _owned(node, process["user"])
        elif device["source"]:
            mounts.append(_device_mount(node["path"], device["source"]))
        else:
            raise InvalidArgument(
                f"CDI device node {node['path']} is not on the machine, and cannot be made in a user namespace"
            )
        # A FIFO is no device, so no rule of the device cgroup is about it.
        if device["access"] and node["type"] != "p":
            numbers = {key: node[key] for key in ("type", "major", "minor")}
            rules.append({"allow": True, **numbers, "access": device["access"]})
    if nodes:
        linux["devices"] = list(nodes.values())
    linux["resources"] = {**resources, "devices": rules}
    if edits.intel_rdt is not None:
        linux["intelRdt"] = _intel_rdt(edits.intel_rdt)
    result = {**config, "process": process, "linux": linux, "mounts": _with_mounts(config["mounts"], mounts)}
    if edits.hooks:
        result["hooks"] = _with_hooks(config.get("hooks", {}), edits.hooks)
    return result


def _maps_ids(config: Mapping[str, Any]) -> bool:
    return any(namespace["type"] == "user" for namespace in config["linux"]["namespaces"])


def _device_mount(target: str, source: str) -> OciMount:
    return {
        "destination": target,
        "type": "bind",
        "source": source,
        "options": ["bind", "rprivate", "nosuid", "noexec"],
    }


def _owned(node: dict[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node that belongs to the container's user, unless the vendor says otherwise."""
    owners = {key: user[key] for key in ("uid", "gid") if key not in node and user[key] > 0}
    return {**node, **owners}


def _environment(old: list[str], new: tuple[str, ...]) -> list[str]:
    variables = dict(entry.partition("=")[::2] for entry in (*old, *new))
    return [f"{name}={value}" for name, value in variables.items()]


def _with_groups(user: Mapping[str, Any], gids: tuple[int, ...]) -> dict[str, Any]:
    # CDI, SPEC.md, additionalGids: values of 0 are ignored.
    groups = [*user["additionalGids"], *(gid for gid in gids if gid != 0)]
    return {**user, "additionalGids": list(dict.fromkeys(groups))}


def _with_mounts(old: list[OciMount], new: list[OciMount]) -> list[OciMount]:
    """Return the mounts with ``new`` in place of those at the same path, and before what is mounted below them."""
    result = list(old)
    for mount in new:
        target = normal(mount["destination"])
        result = [item for item in result if normal(item["destination"]) != target]
        # And before /dev, /proc and /sys, as all that is not in them (``mounts.py``).
        below = [
            number
            for number, item in enumerate(result)
            if item["destination"].startswith(f"{target}/")
            or (is_virtual(item["destination"]) and not is_virtual(target))
        ]
        result.insert(below[0] if below else len(result), {**mount, "destination": target})
    return result


def _with_hooks(old: Mapping[str, Any], new: tuple[Hook, ...]) -> dict[str, list[dict[str, Any]]]:
    result = {name: list(hooks) for name, hooks in old.items()}
    for hook in new:
        entry: dict[str, Any] = {"path": hook.path}
        if hook.args:
            entry["args"] = list(hook.args)
        if hook.env:
            entry["env"] = list(hook.env)
        if hook.timeout is not None:
            entry["timeout"] = hook.timeout
        result.setdefault(hook.hook_name, []).append(entry)
    return result


def _intel_rdt(asked: IntelRdt) -> dict[str, Any]:
    found: dict[str, Any] = {
        "closID": asked.clos_id,
        "l3CacheSchema": asked.l3_cache_schema,
        "memBwSchema": asked.mem_bw_schema,
        "schemata": list(asked.schemata),
        "enableMonitoring": asked.enable_monitoring,
    }
    return {key: value for key, value in found.items() if value}
