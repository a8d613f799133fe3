"""Thresholds of node pressure: read from the configuration, met or not by what was observed. Pure.

Rules: pkg/kubelet/eviction (helpers.go, api/types.go). A signal is an amount of which little is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import structs

from podkeep.agent.resources import requests
from podkeep.base.config import AgentConfig
from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import quantity

MEMORY = "memory.available"
ALLOCATABLE_MEMORY = "allocatableMemory.available"
NODEFS, NODEFS_INODES = "nodefs.available", "nodefs.inodesFree"
IMAGEFS, IMAGEFS_INODES = "imagefs.available", "imagefs.inodesFree"
CONTAINERFS, CONTAINERFS_INODES = "containerfs.available", "containerfs.inodesFree"
PIDS = "pid.available"
INODES_RESOURCE, PIDS_RESOURCE = "inodes", "pids"
Condition = Literal["MemoryPressure", "DiskPressure", "PIDPressure"]

RESOURCES: Mapping[str, str] = {
    MEMORY: requests.MEMORY,
    ALLOCATABLE_MEMORY: requests.MEMORY,
    NODEFS: requests.EPHEMERAL_STORAGE,
    NODEFS_INODES: INODES_RESOURCE,
    IMAGEFS: requests.EPHEMERAL_STORAGE,
    IMAGEFS_INODES: INODES_RESOURCE,
    CONTAINERFS: requests.EPHEMERAL_STORAGE,
    CONTAINERFS_INODES: INODES_RESOURCE,
    PIDS: PIDS_RESOURCE,
}
"""What is reclaimed when a signal is low."""
CONDITIONS: Mapping[str, Condition] = {
    MEMORY: "MemoryPressure",
    ALLOCATABLE_MEMORY: "MemoryPressure",
    NODEFS: "DiskPressure",
    NODEFS_INODES: "DiskPressure",
    IMAGEFS: "DiskPressure",
    IMAGEFS_INODES: "DiskPressure",
    CONTAINERFS: "DiskPressure",
    CONTAINERFS_INODES: "DiskPressure",
    PIDS: "PIDPressure",
}
_ALLOWED = f"the signals are {', '.join(name for name in RESOURCES if name != ALLOCATABLE_MEMORY)}"


class Value(FrozenStruct):
    """An amount as it was given (``text``), or a part of the capacity between 0 and 1."""

    text: str = ""
    part: float = 0.0

    def of(self, capacity: int) -> int:
        """Return the amount, where there is ``capacity`` in all."""
        return quantity.units(self.text) if self.text else int(capacity * self.part)

    def shown(self, signal: str, capacity: int) -> str:
        """Return the amount for a message."""
        if self.text:
            return quantity.canonical(self.text)
        return shown(signal, self.of(capacity))


class Threshold(FrozenStruct, kw_only=True):
    """Less than ``value`` of ``signal`` is too little. ``grace`` in seconds; ``None``: a hard threshold."""

    signal: str
    value: Value
    grace: float | None = None
    reclaim: Value | None = None

    @property
    def is_hard(self) -> bool:
        """Whether a pod is ended at once."""
        return not self.grace


class Observation(FrozenStruct, kw_only=True):
    """How much of something there is, in bytes or by number; ``time`` (seconds) is when it was measured."""

    available: int
    capacity: int
    time: float = 0.0


Observations = Mapping[str, Observation]
"""By signal."""


def shown(signal: str, value: int) -> str:
    """Return an amount of a signal for a message: bytes with a binary suffix, numbers with a decimal one."""
    if RESOURCES[signal] in (INODES_RESOURCE, PIDS_RESOURCE):
        return quantity.canonical(str(value))
    return requests.binary(value)


def read(agent: AgentConfig) -> tuple[Threshold, ...]:
    """Return the thresholds of a configuration, hard ones first.

    :raises InvalidArgument: naming the setting that is wrong.
    """
    reclaim = {
        signal: _value("eviction_minimum_reclaim", signal, text)
        for signal, text in agent.eviction_minimum_reclaim.items()
    }
    found = _statements("eviction_hard", agent.eviction_hard)
    for threshold in _statements("eviction_soft", agent.eviction_soft):
        grace = agent.eviction_soft_grace_period.get(threshold.signal)
        if grace is None or grace < 0:
            raise InvalidArgument(
                f"agent.eviction_soft_grace_period: grace period must be specified for the soft eviction threshold "
                f"{threshold.signal}",
                hint=f'write eviction_soft_grace_period = {{"{threshold.signal}" = 90.0}}, in seconds',
            )
        found.append(structs.replace(threshold, grace=grace))
    found = [structs.replace(item, reclaim=reclaim.get(item.signal)) for item in found]
    if "pods" in agent.enforce_node_allocatable:
        # What the limit of all pods together is for memory is a threshold like that of the machine.
        found += [
            structs.replace(item, signal=ALLOCATABLE_MEMORY) for item in found if item.signal == MEMORY and item.is_hard
        ]
    return tuple(found)


def for_filesystems(
    thresholds: Iterable[Threshold], *, images_apart: bool, layers_apart: bool
) -> tuple[Threshold, ...]:
    """Return ``thresholds`` with those of ``containerfs``, which follow from nodefs or imagefs and cannot be set.

    :param images_apart: images are on another file system than the agent's directory.
    :param layers_apart: writable layers are on another file system than images.
    """
    kept = [item for item in thresholds if item.signal not in (CONTAINERFS, CONTAINERFS_INODES)]
    # Writable layers are with the images, or on the file system of the agent's directory.
    disk, inodes = (IMAGEFS, IMAGEFS_INODES) if images_apart and not layers_apart else (NODEFS, NODEFS_INODES)
    made = {disk: CONTAINERFS, inodes: CONTAINERFS_INODES}
    return (*kept, *(structs.replace(item, signal=made[item.signal]) for item in kept if item.signal in made))


def met(
    thresholds: Iterable[Threshold], observed: Observations, *, with_reclaim: bool = False
) -> tuple[Threshold, ...]:
    """Return the thresholds that are met, without regard to their grace period.

    :param with_reclaim: until the minimum that is to be reclaimed is free, too.
    """
    found = []
    for threshold in thresholds:
        seen = observed.get(threshold.signal)
        if seen is None:
            continue
        wanted = threshold.value.of(seen.capacity)
        if with_reclaim and threshold.reclaim is not None:
            wanted += threshold.reclaim.of(seen.capacity)
        if seen.available < wanted:
            found.append(threshold)
    return tuple(found)


def _statements(key: str, texts: Mapping[str, str]) -> list[Threshold]:
    found = []
    for signal, text in texts.items():
        if text in ("0%", "100%"):
            _known(key, signal)
            continue  # how a kubelet's configuration switches a threshold off
        value = _value(key, signal, text)
        if value.of(1 << 62) <= 0:
            raise InvalidArgument(f"agent.{key}: eviction threshold {signal} must be positive: {text}")
        found.append(Threshold(signal=signal, value=value))
    return found


def _known(key: str, signal: str) -> None:
    if signal not in RESOURCES or signal == ALLOCATABLE_MEMORY:
        raise InvalidArgument(f"agent.{key}: unsupported eviction signal {signal}", hint=_ALLOWED)


def _value(key: str, signal: str, text: str) -> Value:
    _known(key, signal)
    try:
        if text.endswith("%"):
            part = float(text[:-1]) / 100
            if not 0 < part <= 1:
                raise ValueError(f"{text} is not between 0% and 100%")
            return Value(part=part)
        quantity.units(text)
    except ValueError as error:
        raise InvalidArgument(f"agent.{key}: {signal}: {error}", hint="write it like 100Mi or 10%") from error
    return Value(text=text)
