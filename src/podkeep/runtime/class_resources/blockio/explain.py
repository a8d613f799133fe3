"""What the classes of a file mean on this node, for people: ``podkeep classes check`` and verbose status.

Owns: words and forms. Does not own: the meaning (``limits.py``). Works without a runtime and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podkeep.runtime.class_resources.blockio import configuration, limits
from podkeep.runtime.class_resources.blockio.configuration import DEFAULT_WEIGHT, Setting
from podkeep.runtime.class_resources.blockio.devices import Device, Devices
from podkeep.runtime.class_resources.blockio.limits import Ability, Limits

_JSON = {
    Setting.READ_BPS: "readBytesPerSecond",
    Setting.WRITE_BPS: "writeBytesPerSecond",
    Setting.READ_IOPS: "readOperationsPerSecond",
    Setting.WRITE_IOPS: "writeOperationsPerSecond",
    Setting.WEIGHT: "weight",
}


def explain(file: Path, devices: Devices, *, cgroup_version: int) -> list[str]:
    """Return the lines that say what a file means here.

    :raises InvalidArgument: naming file and line, if it cannot be used.
    """
    read = configuration.load(file)
    weights = frozenset({limits.BFQ_WEIGHT}) if "bfq" in devices.schedulers() else frozenset()
    ability = ability_for(cgroup_version, weights, devices)
    classes = f"{len(read.classes)} class{'' if len(read.classes) == 1 else 'es'}"
    lines = [f"{file}: {classes}, cgroup version {cgroup_version}"]
    for name, class_ in read.classes.items():
        resolved = limits.resolve(class_, devices.match(limits.patterns_of(class_)))
        lines += ["", name, *(f"  {line}" for line in _class_lines(resolved, ability, devices))]
        if class_.throttles and cgroup_version == 1:
            lines.append("  for containers only: cgroup version 1 cannot throttle a pod as a whole")
    return lines


def ability_for(
    version: int,
    weight_files: frozenset[str],
    devices: Devices,
    *,
    throttles: bool = True,
    cost: frozenset[str] = frozenset(),
) -> Ability:
    """Return what the kernel can do with all disks there are."""
    bfq = frozenset(number for number in devices.numbers() if devices.scheduler(number) == "bfq")
    return Ability(version=version, throttles=throttles, weight_files=weight_files, bfq=bfq, cost=cost)


def warnings(resolved: Limits, ability: Ability) -> list[str]:
    """Return what of a class has no effect here.

    :param ability: with all disks, as :func:`ability_for` returns it.
    """
    found = [*resolved.warnings, *limits.without_effect(resolved, ability)]
    if hint := limits.unheeded(resolved, ability):
        found.append(f"what asks for the class is refused, as no disk respects its weights; {hint}")
    return found


def describe(resolved: Limits, ability: Ability, devices: Devices) -> dict[str, Any]:
    """Return a class as JSON: what is set for each disk, and what has no effect."""
    described: dict[str, Any] = {
        "devices": [_described(device, values, devices) for device, values in _sorted(resolved)]
    }
    if resolved.weight is not None:
        described["weight"] = resolved.weight
    found = warnings(resolved, ability)
    return {**described, "warnings": found} if found else described


def _sorted(resolved: Limits) -> list[tuple[Device, Mapping[Setting, int]]]:
    return sorted(resolved.devices.items(), key=lambda item: item[0].name)


def _described(device: Device, values: Mapping[Setting, int], devices: Devices) -> dict[str, Any]:
    facts = devices.facts(device.number)
    known = {"model": facts.model, "serial": facts.serial, "scheduler": facts.scheduler}
    rates = {_JSON[setting]: values[setting] for setting in Setting if values.get(setting)}
    return {"name": device.name, "number": device.number, **{key: text for key, text in known.items() if text}, **rates}


def _class_lines(resolved: Limits, ability: Ability, devices: Devices) -> list[str]:
    lines = []
    if resolved.weight is not None:
        lines.append(f"weight {resolved.weight} for disks that are not named; without a class it is {DEFAULT_WEIGHT}")
    for device, values in _sorted(resolved):
        facts = devices.facts(device.number)
        known = [("model", facts.model), ("serial", facts.serial), ("scheduler", facts.scheduler)]
        about = ", ".join(f"{key} {text}" for key, text in known if text)
        lines.append(f"{device.name} ({device.number}{', ' + about if about else ''}): {_in_words(values)}")
    if not lines:
        lines.append("limits nothing")
    return [*lines, *(f"warning: {text}" for text in warnings(resolved, ability))]


def _in_words(values: Mapping[Setting, int]) -> str:
    parts = []
    for verb, in_bytes, operations in (
        ("reads", Setting.READ_BPS, Setting.READ_IOPS),
        ("writes", Setting.WRITE_BPS, Setting.WRITE_IOPS),
    ):
        rates = []
        if values.get(in_bytes):
            rates.append(f"{_amount(values[in_bytes])}B/s")
        if values.get(operations):
            rates.append(f"{values[operations]} operations/s")
        if rates:
            parts.append(f"{verb} at most {' and '.join(rates)}")
    if Setting.WEIGHT in values:
        parts.append(f"weight {values[Setting.WEIGHT]}")
    return "; ".join(parts) or "no limit"


def _amount(value: int) -> str:
    """Return a number as the largest unit says it exactly."""
    for factor, unit in ((10**9, "G"), (2**30, "Gi"), (10**6, "M"), (2**20, "Mi"), (10**3, "k"), (2**10, "Ki")):
        if value % factor == 0:
            return f"{value // factor} {unit}"
    return f"{value} "
