"""The file of blockio classes, in goresctrl's form: from text to rules. Pure but for reading the file.

Owns: keys, quantities, and what is refused, with file and line. Does not own: which devices a pattern means here
(``devices.py``) or what is written (``limits.py``). The form is goresctrl's doc/blockio.md:

    Classes:
      slow:
        - Weight: 80                      # of every device that is not named below
        - Devices: ["/dev/sd[a-z]", "/dev/disk/by-id/*SSD*"]
          ThrottleReadBps: 50M
          Weight: 50

Keys are read without regard to case, as goresctrl does. Of several rules for one device the last one that gives a value
counts, value by value.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import quantity
from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.blockio import patterns
from podkeep.runtime.class_resources.model import check_class
from podkeep.runtime.class_resources.yamlfile import Node


class Setting(enum.StrEnum):
    """A value of a rule; the values are the file's keys."""

    READ_BPS = "ThrottleReadBps"
    """Bytes in a second, as the others with ``BPS``; 0: no limit."""
    WRITE_BPS = "ThrottleWriteBps"
    READ_IOPS = "ThrottleReadIOPS"
    """Operations in a second, as the others with ``IOPS``; 0: no limit."""
    WRITE_IOPS = "ThrottleWriteIOPS"
    WEIGHT = "Weight"
    """Share of the device's time among those who want it, 10 to 1000; who has none has 100."""

    @property
    def is_rate(self) -> bool:
        """Is it a limit of its own, and not a share?"""
        return self is not Setting.WEIGHT


MIN_WEIGHT, MAX_WEIGHT, DEFAULT_WEIGHT = 10, 1000, 100
MAX_IOPS = 2**32 - 2
"""Cgroup version 1 cuts what is larger down to its lower 32 bits without a word, and 2**32 - 1 is its "no limit"."""
_CLASSES, _DEVICES = "Classes", "Devices"


class Rule(FrozenStruct, kw_only=True):
    """One entry of a class."""

    devices: tuple[str, ...]
    """Patterns of paths; none: the weight is that of all devices that no rule names."""
    values: Mapping[Setting, int]
    line: int


class Class(FrozenStruct, kw_only=True):
    """A class; one without rules limits nothing."""

    name: str
    rules: tuple[Rule, ...]

    @property
    def throttles(self) -> bool:
        """Does it set a rate of any device?"""
        return any(setting.is_rate for rule in self.rules for setting in rule.values)

    @property
    def weighs(self) -> bool:
        return any(Setting.WEIGHT in rule.values for rule in self.rules)


class Configuration(FrozenStruct, kw_only=True):
    """What the file says."""

    source: str
    """The file, as it is named in messages."""
    classes: Mapping[str, Class]
    """By name, sorted."""


def load(path: Path) -> Configuration:
    """Read a file; :func:`read` says what it may raise."""
    return read(yamlfile.load(path))


def read(root: Node) -> Configuration:
    """Return what a file says.

    :param root: its tree.
    :raises InvalidArgument: naming file and line, if it cannot be read or says something that cannot be meant.
    """
    fields = root.fields((_CLASSES,))
    found: dict[str, Class] = {}
    for name, node in fields[_CLASSES].entries().items() if _CLASSES in fields else ():
        check_class(name, key=f"{node.source}:{node.line}: {_CLASSES}")
        found[name] = Class(name=name, rules=tuple(_rule(item) for item in node.items()))
    return Configuration(source=root.source, classes=dict(sorted(found.items())))


def _rule(node: Node) -> Rule:
    fields = node.fields((_DEVICES, *Setting))
    if not fields:
        raise node.error("says nothing", hint=f"give it one of {', '.join((_DEVICES, *Setting))}")
    devices = tuple(_pattern(item) for item in fields[_DEVICES].items()) if _DEVICES in fields else ()
    if _DEVICES in fields and not devices:
        raise fields[_DEVICES].error("names no device", hint="leave it out for the weight of all devices")
    values = {setting: _value(setting, fields[setting]) for setting in Setting if _is_given(fields.get(setting))}
    if not devices:
        for setting in values:
            if setting.is_rate:
                raise fields[setting].error(
                    "throttling needs Devices: a rate is the limit of one device", hint="such as Devices: [/dev/vd*]"
                )
    return Rule(devices=devices, values=values, line=node.line)


def _is_given(node: Node | None) -> bool:
    return node is not None and not node.is_null


def _pattern(node: Node) -> str:
    text = node.text()
    try:
        patterns.check(text)
    except ValueError as error:
        raise node.error(f"{text!r}: {error}", hint="write it like /dev/sd[a-z] or /dev/disk/by-id/*SSD*") from error
    return text


def _value(setting: Setting, node: Node) -> int:
    text = node.text()
    try:
        value = quantity.units(text)
    except ValueError as error:
        raise node.error(str(error), hint="a quantity of Kubernetes, such as 50M, 64Mi or 5k") from error
    if setting is Setting.WEIGHT:
        if not MIN_WEIGHT <= value <= MAX_WEIGHT:
            raise node.error(f"{value} is not between {MIN_WEIGHT} and {MAX_WEIGHT}")
    elif value < 0:
        raise node.error(f"{value} is negative", hint="0 stands for no limit")
    elif setting in {Setting.READ_IOPS, Setting.WRITE_IOPS} and value > MAX_IOPS:
        raise node.error(f"{value} is more than the kernel can count, {MAX_IOPS}", hint="0 stands for no limit")
    return value
