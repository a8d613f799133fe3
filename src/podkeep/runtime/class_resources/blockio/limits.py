"""What a blockio class means for a cgroup: from rules and devices to lines of files. Pure.

Owns: names and forms of the kernel's files, which are the OCI configuration's too. Does not own: looking at devices
(``devices.py``) or reading and writing files (``plugin.py``). All files are seen in one way: keys, which are
``MAJOR:MINOR`` or ``default``, and their values. Sources: blkio-controller.rst (version 1), cgroup-v2.rst ("IO
Interface Files"), bfq-iosched.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.class_resources.blockio.configuration import DEFAULT_WEIGHT, Class, Setting
from podkeep.runtime.class_resources.blockio.devices import Device, Matches

DEFAULT = "default"
"""Key of the weight of devices that are not named."""

IO_MAX = "io.max"
BFQ_WEIGHT_V1 = "blkio.bfq.weight"
BFQ_WEIGHT_DEVICE_V1 = "blkio.bfq.weight_device"
BFQ_WEIGHT = "io.bfq.weight"
COST_WEIGHT = "io.weight"

WEIGHT_FILES = {1: (BFQ_WEIGHT_V1, BFQ_WEIGHT_DEVICE_V1), 2: (BFQ_WEIGHT, COST_WEIGHT)}
"""By the version of cgroups."""
_RATES = {
    Setting.READ_BPS: ("blkio.throttle.read_bps_device", "throttleReadBpsDevice", "rbps"),
    Setting.WRITE_BPS: ("blkio.throttle.write_bps_device", "throttleWriteBpsDevice", "wbps"),
    Setting.READ_IOPS: ("blkio.throttle.read_iops_device", "throttleReadIOPSDevice", "riops"),
    Setting.WRITE_IOPS: ("blkio.throttle.write_iops_device", "throttleWriteIOPSDevice", "wiops"),
}
"""The file of version 1, the name in the OCI configuration, and the key of ``io.max``, in the order of the kernel."""
RATE_FILES_V1 = {setting: file for setting, (file, _, _) in _RATES.items()}

_FORGETTING = {
    BFQ_WEIGHT_V1: frozenset({BFQ_WEIGHT_V1, BFQ_WEIGHT_DEVICE_V1}),
    BFQ_WEIGHT: frozenset({BFQ_WEIGHT}),
}
_UNLIMITED = " ".join(f"{key}=max" for _, _, key in _RATES.values())
_LEAST_RATE_V2 = 2
"""Version 2 refuses 1 (blk-throttle.c, tg_set_limit); the file may say so, for version 1."""

Content = Mapping[str, Mapping[str, str]]
"""By file: keys and values."""


class Limits(FrozenStruct, kw_only=True):
    """What a class sets on this node now."""

    weight: int | None
    """Of devices that are not named."""
    devices: Mapping[Device, Mapping[Setting, int]]
    warnings: tuple[str, ...]
    """What of the class has no effect here, with the line of the file."""

    @property
    def throttled(self) -> list[Device]:
        """Return the devices that have a rate, 0 included."""
        return [device for device, values in self.devices.items() if any(setting.is_rate for setting in values)]

    @property
    def weighed(self) -> list[Device]:
        """Return the devices that have a weight of their own."""
        return [device for device, values in self.devices.items() if Setting.WEIGHT in values]


class Ability(FrozenStruct, kw_only=True):
    """What the kernel can do here."""

    version: int
    """Of cgroups."""
    throttles: bool
    weight_files: frozenset[str]
    """Files that take weights."""
    bfq: frozenset[str] = msgspec.field(default_factory=frozenset)
    """Numbers of the disks that BFQ schedules."""
    cost: frozenset[str] = msgspec.field(default_factory=frozenset)
    """Numbers of the disks whose time io.cost controls."""


class Write(FrozenStruct, kw_only=True):
    """One write of a file, which changes one key."""

    file: str
    key: str
    text: str


def patterns_of(class_: Class) -> list[str]:
    return [pattern for rule in class_.rules for pattern in rule.devices]


def resolve(class_: Class, matches: Matches) -> Limits:
    """Apply the rules in their order to what their patterns match; a value that is given later wins."""
    weight: int | None = None
    devices: dict[Device, dict[Setting, int]] = {}
    warnings: list[str] = []
    for rule in class_.rules:
        if not rule.devices:
            weight = rule.values.get(Setting.WEIGHT, weight)
        disks = {match.device for pattern in rule.devices for match in matches[pattern] if not match.partition}
        for pattern in rule.devices:
            found = matches[pattern]
            if not found:
                warnings.append(f"line {rule.line}: {pattern} matches no block device")
            for match in found:
                devices.setdefault(match.device, {}).update(rule.values)
                if match.partition and match.device not in disks:
                    text = f"{match.path} is a partition: the limit is that of {match.device.name}, all of it"
                    warnings.append(f"line {rule.line}: {text}")
    return Limits(weight=weight, devices=devices, warnings=tuple(dict.fromkeys(warnings)))


def oci(limits: Limits, version: int) -> dict[str, Any]:
    """Return ``linux.resources.blockIO`` (OCI runtime-spec, config-linux.md); empty if there is no rate.

    Weights are left to us: crun 1.8 writes a file that Linux 5.0 has removed and fails, and OCI runtimes move them to
    another scale on version 2, where a class of weight 100 would get nine times what a container without one gets.
    """
    written: dict[str, Any] = {}
    for device, values in limits.devices.items():
        major, minor = map(int, device.number.split(":"))
        for setting, (_, name, _) in _RATES.items():
            if values.get(setting):
                # 0 is "no limit", which is said by leaving the device out.
                rate = _rate(values[setting], version)
                written.setdefault(name, []).append({"major": major, "minor": minor, "rate": rate})
    return written


def wanted(limits: Limits, ability: Ability) -> dict[str, dict[str, str]]:
    """Return all that the files of a cgroup shall say; what is not in it shall not be set."""
    files = _rates_v1(limits) if ability.version == 1 else {IO_MAX: _rates_v2(limits)}
    if not ability.throttles:
        files = {}
    weight = str(limits.weight or DEFAULT_WEIGHT)
    weights = {device.number: str(limits.devices[device][Setting.WEIGHT]) for device in limits.weighed}
    for file in sorted(ability.weight_files):
        able = ability.cost if file == COST_WEIGHT else ability.bfq
        # Version 1 has another file for the weights of devices.
        named = {} if file == BFQ_WEIGHT_V1 else {number: text for number, text in weights.items() if number in able}
        files[file] = named if file == BFQ_WEIGHT_DEVICE_V1 else {DEFAULT: weight, **named}
    return files


def without_effect(limits: Limits, ability: Ability) -> list[str]:
    """Return a warning for every weight of a named device that no scheduler respects."""
    return [
        f"the weight of {device.name} has no effect: its scheduler is not bfq"
        for device in limits.weighed
        if device.number not in ability.bfq | ability.cost
    ]


def unheeded(limits: Limits, ability: Ability) -> str:
    """Return what fixes that no disk respects a weight of a class that has some, which is refused then; else nothing.

    :param ability: with all disks. Weights for disks that are not here are none.
    """
    weighed, respecting = limits.weighed, ability.bfq | ability.cost
    if limits.weight is None and not weighed:
        return ""
    if any(device.number in respecting for device in weighed) or (limits.weight is not None and respecting):
        return ""
    name = weighed[0].name.removeprefix("/dev/") if weighed else "vda"
    return f"choose a scheduler that does: `echo bfq > /sys/block/{name}/queue/scheduler`"


def _rate(value: int, version: int) -> int:
    return max(value, _LEAST_RATE_V2) if version == 2 else value


def _rates_v1(limits: Limits) -> dict[str, dict[str, str]]:
    return {
        file: {device.number: str(values[setting]) for device, values in limits.devices.items() if values.get(setting)}
        for setting, file in RATE_FILES_V1.items()
    }


def _rates_v2(limits: Limits) -> dict[str, str]:
    lines: dict[str, str] = {}
    for device, values in limits.devices.items():
        rates = {key: values.get(setting, 0) for setting, (_, _, key) in _RATES.items()}
        line = " ".join(f"{key}={_rate(rate, 2) if rate else 'max'}" for key, rate in rates.items())
        if line != _UNLIMITED:
            lines[device.number] = line
    return lines


def read(file: str, text: str) -> dict[str, str]:
    """Return keys and values of a file's content; a disk that went away while it was limited has no key any more."""
    if file == BFQ_WEIGHT_V1:
        return {DEFAULT: text.strip()}
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if key[:1].isdigit() or (key == DEFAULT and file != BFQ_WEIGHT_DEVICE_V1):
            found[key] = value
    return {key: value for key, value in found.items() if value != _UNLIMITED}


def changes(now: Content, then: Content) -> list[Write]:
    """Return the writes that lead from one content of files to another: old entries are cleared after new ones are set.

    :param then: for every file the whole of what it shall say.
    """
    setting: list[Write] = []
    clearing: list[Write] = []
    forgotten = _forgotten(now, then)
    for file, lines in then.items():
        held = {} if file in forgotten else now.get(file, {})
        for key, value in lines.items():
            if held.get(key) != value:
                setting.append(Write(file=file, key=key, text=_text(file, key, value)))
        clearing += [Write(file=file, key=key, text=_text(file, key, None)) for key in held if key not in lines]
    return [*setting, *clearing]


def _forgotten(now: Content, then: Content) -> frozenset[str]:
    """Return the files whose weights of devices BFQ forgets when the default is written (bfq_io_set_weight_legacy)."""
    for file, files in _FORGETTING.items():
        if file in then and now.get(file, {}).get(DEFAULT) != then[file].get(DEFAULT):
            return files
    return frozenset()


def _text(file: str, key: str, value: str | None) -> str:
    """Return what is written for a key; None clears it."""
    if file == BFQ_WEIGHT_V1:
        return value or str(DEFAULT_WEIGHT)
    if value is not None:
        return f"{key} {value}"
    if key == DEFAULT:
        return f"{key} {DEFAULT_WEIGHT}"
    if file == IO_MAX:
        return f"{key} {_UNLIMITED}"
    # What removes a device's line: 0 for a rate (blkio-controller.rst), "default" for a weight (cgroup-v2.rst).
    return f"{key} {0 if file in RATE_FILES_V1.values() else DEFAULT}"


def difference(found: Content, then: Content) -> str:
    """Return in words the first thing in which two contents differ; empty if none."""
    for file, lines in then.items():
        held = found.get(file, {})
        for key in [*lines, *(key for key in held if key not in lines)]:
            if held.get(key) != lines.get(key):
                return f"{file} has {held.get(key, 'nothing')!r} for {key} instead of {lines.get(key, 'nothing')!r}"
    return ""
