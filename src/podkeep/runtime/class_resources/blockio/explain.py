"""What the classes of a file mean on this node, for people: ``podkeep classes check`` and verbose status.

Owns: words and forms. Does not own: the meaning (``limits.py``). Pure but for what sysfs says of a disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.runtime.class_resources.blockio import limits
from podkeep.runtime.class_resources.blockio.configuration import DEFAULT_WEIGHT, Setting
from podkeep.runtime.class_resources.blockio.devices import Device, Devices
from podkeep.runtime.class_resources.blockio.limits import Ability, Limits

_JSON = {
    Setting.READ_BPS: "readBytesPerSecond",
    Setting.READ_IOPS: "readOperationsPerSecond",
    Setting.WRITE_BPS: "writeBytesPerSecond",
    Setting.WRITE_IOPS: "writeOperationsPerSecond",
    Setting.WEIGHT: "weight",
}


def warnings(resolved: Limits, ability: Ability) -> list[str]:
    """Return what of a class has no effect here.

    :param ability: with all disks.
    """
    found = [*resolved.warnings, *limits.without_effect(resolved, ability)]
    if hint := limits.unheeded(resolved, ability):
        found.append(f"what asks for the class is refused, as no disk respects its weights; {hint}")
    return found


def describe(resolved: Limits, ability: Ability, devices: Devices) -> dict[str, Any]:
    """Return a class as JSON: what is set for each disk, and what has no effect."""
    by_name = sorted(resolved.devices.items(), key=lambda item: item[0].name)
    described: dict[str, Any] = {"devices": [_described(device, values, devices) for device, values in by_name]}
    if resolved.weight is not None:
        described["weight"] = resolved.weight
    found = warnings(resolved, ability)
    return {**described, "warnings": found} if found else described


def _described(device: Device, values: Mapping[Setting, int], devices: Devices) -> dict[str, Any]:
    rates = {name: values[setting] for setting, name in _JSON.items() if values.get(setting)}
    return {"name": device.name, "number": device.number, **devices.facts(device.number), **rates}


def explain(meaning: Mapping[str, Any]) -> list[str]:
    """Return lines of text.

    :param meaning: of the type, as :meth:`podkeep.runtime.class_resources.blockio.plugin.BlockIo.describe` returns it.
    """
    classes = meaning["classes"]
    count = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}"
    lines = [f"{meaning['file']}: {count}, cgroup version {meaning['cgroupVersion']}"]
    for name, described in classes.items():
        lines += ["", name, *(f"  {line}" for line in _class_lines(described))]
    return lines


def _class_lines(described: Mapping[str, Any]) -> Iterator[str]:
    if weight := described.get("weight"):
        yield f"weight {weight} for disks that are not named; without a class it is {DEFAULT_WEIGHT}"
    for device in described["devices"]:
        about = [
            device["number"],
            *(f"{key} {device[key]}" for key in ("model", "serial", "scheduler") if key in device),
        ]
        yield f"{device['name']} ({', '.join(about)}): {'; '.join(_in_words(device)) or 'no limit'}"
    if not weight and not described["devices"]:
        yield "limits nothing"
    yield from (f"warning: {text}" for text in described.get("warnings", ()))
    if reason := described.get("containersOnly"):
        yield f"for containers only: it {reason}"


def _in_words(device: Mapping[str, Any]) -> Iterator[str]:
    for verb in ("read", "write"):
        rates = []
        if in_bytes := device.get(f"{verb}BytesPerSecond"):
            rates.append(f"{_amount(in_bytes)}B/s")
        if operations := device.get(f"{verb}OperationsPerSecond"):
            rates.append(f"{operations} operations/s")
        if rates:
            yield f"{verb}s at most {' and '.join(rates)}"
    if "weight" in device:
        yield f"weight {device['weight']}"


def _amount(value: int) -> str:
    """Return a number as the largest unit says it exactly."""
    for factor, unit in ((10**9, "G"), (2**30, "Gi"), (10**6, "M"), (2**20, "Mi"), (10**3, "k"), (2**10, "Ki")):
        if value % factor == 0:
            return f"{value // factor} {unit}"
    return f"{value} "
