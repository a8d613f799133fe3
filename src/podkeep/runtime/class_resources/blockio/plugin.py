"""The type ``blockio``: limits and shares of block devices, by the classes of a file in goresctrl's form.

Owns: reading and writing the block I/O files of a cgroup, which belong to the class once one is assigned. Does not own:
what is to be in them (``limits.py``), or when (``registry.py``). Devices are looked up when a class is assigned; one
that is plugged in later is limited for containers made from then on, and for all after a reload.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from podkeep.base.config import ClassResourcesConfig
from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, KernelCallError
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.class_resources.blockio import configuration, explain, limits
from podkeep.runtime.class_resources.blockio.configuration import Class, Configuration
from podkeep.runtime.class_resources.blockio.devices import Devices
from podkeep.runtime.class_resources.blockio.limits import Ability, Limits, Write
from podkeep.runtime.class_resources.model import BLOCKIO, ClassResource, Level, Offer, Target, named, problem
from podkeep.runtime.oci.compose import Config, setting

log = logging.getLogger(__name__)

_GONE = frozenset({errno.ENODEV, errno.ENXIO})
_LEAVING = _GONE | {errno.ENOMEM}
"""What the kernel says of a disk that is just being removed, but still in sysfs."""
_TIMEOUT_S = 0.5
_PAUSE_S = 0.005
_OF_SYSTEMD = (".slice", ".scope")
"""Cgroups whose weights systemd writes itself; crun's containers are in one below their scope."""
_COST_QOS = "io.cost.qos"
_NOTHING = Limits(weight=None, devices={}, warnings=())


def load(config: ClassResourcesConfig, cgroups: Cgroups, *, systemd: bool = False) -> BlockIo | None:
    """Read the file that the configuration names; None if it names none.

    :param systemd: the cgroups of pods are slices of systemd's.
    :raises InvalidArgument: naming file and line, if it cannot be used.
    """
    if not config.blockio_config:
        return None
    return BlockIo(configuration.load(Path(config.blockio_config)), cgroups, Devices(), systemd=systemd)


class BlockIo(ClassResource):
    """The type, with the classes of one file."""

    name = BLOCKIO

    def __init__(self, classes: Configuration, cgroups: Cgroups, devices: Devices, *, systemd: bool = False) -> None:
        self._configuration = classes
        self._cgroups = cgroups
        self._systemd = systemd
        self._devices = devices
        self._lock = threading.Lock()
        self._applied: dict[str, tuple[str, limits.Content]] = {}
        """By target: its class, and what was written for it, also if other devices are there by now."""
        self._logged: dict[str, tuple[str, ...]] = {}

    def offers(self) -> Mapping[Level, Offer]:
        return self._offers

    @cached_property
    def _offers(self) -> Mapping[Level, Offer]:
        if not self._has_controller:
            return {}
        classes = self._configuration.classes
        for_pods = tuple(name for name, class_ in classes.items() if not self._not_pods(class_))
        by_level = {Level.CONTAINER: tuple(classes), Level.POD: for_pods}
        return {level: Offer(classes=names) for level, names in by_level.items() if names}

    def why_not(self, level: Level) -> str:
        if not self._has_controller:
            return f"the cgroup controller {'io' if self._cgroups.version == 2 else 'blkio'} is missing"
        if level in self.offers():
            return ""
        if self._configuration.classes:
            reasons = dict.fromkeys(map(self._not_pods, self._configuration.classes.values()))
            return f"every class {' or '.join(reasons)}"
        return f"{self._configuration.source} has no classes"

    def check(self, level: Level, class_name: str) -> None:
        with named(BLOCKIO):
            class_ = self._class(class_name)
            if level is Level.POD and (reason := self._not_pods(class_)):
                raise FailedPrecondition(f"class {class_name} {reason}")
            if class_.weighs and (hint := limits.unheeded(self._resolve(class_name), self._machine_ability())):
                text = f"class {class_name} has weights, and no disk that they are for respects any"
                raise FailedPrecondition(text, hint=hint)

    def edit(self, class_name: str, config: Config) -> Config:
        with named(BLOCKIO):
            block_io = limits.oci(self._resolve(class_name), self._cgroups.version)
        if not block_io:
            return config
        resources = config.get("linux", {}).get("resources", {})
        return setting("linux", resources={**resources, "blockIO": block_io})(config)

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        """Write the limits of the class, clear those of any other, and read them back."""
        resolved = self._resolve(class_name)
        ability = self._ability(resolved, target.cgroup)
        self._warn(class_name, [*resolved.warnings, *limits.without_effect(resolved, ability)])
        self._require_files(target, resolved, ability)
        self._write(target, class_name, limits.wanted(resolved, ability))

    def way_back(self, target: Target, class_name: str, previous: str | None) -> Callable[[], None]:
        if previous is None:
            return super().way_back(target, class_name, previous)
        return partial(self._write, target, previous, self._read(target.cgroup, self._nothing(target)))

    def _nothing(self, target: Target) -> limits.Content:
        """Return what the files of a cgroup say without a class."""
        return limits.wanted(_NOTHING, self._ability(_NOTHING, target.cgroup))

    def _write(self, target: Target, class_name: str, then: limits.Content) -> None:
        try:
            # Usually the OCI runtime has written all of it: then what is read says so already.
            if self._read(target.cgroup, then) != then:
                then = self._carry_out(target.cgroup, then)
                self._require_same(target, then)
        except KernelCallError as error:
            raise Internal(f"{target.name}, class {class_name}: {error.message}") from error
        with self._lock:
            self._applied[target.id] = (class_name, then)

    def verify(self, target: Target, class_name: str) -> None:
        """Lines of devices that are gone went with them, and others may have come since the class was applied."""
        with self._lock:
            applied, then = self._applied.get(target.id, ("", {}))
        with named(BLOCKIO):
            # An earlier daemon wrote it: what that was is worked out again.
            if applied != class_name:
                resolved = self._resolve(class_name)
                ability = self._ability(resolved, target.cgroup)
                self._require_files(target, resolved, ability)
                then = limits.wanted(resolved, ability)
            self._require_same(target, then)

    def release(self, target: Target, class_name: str) -> None:
        with self._lock:
            self._applied.pop(target.id, None)
        if not self._cgroups.exists(target.cgroup):
            return
        try:
            self._carry_out(target.cgroup, self._nothing(target))
        except KernelCallError as error:
            # The container has ended: its cgroup may go between the look and the write.
            if error.errno not in _GONE | {errno.ENOENT} or self._cgroups.exists(target.cgroup):
                raise Internal(problem(BLOCKIO, f"{target.name}: {error.message}")) from error

    def describe(self) -> dict[str, Any]:
        ability = self._machine_ability()
        classes = {}
        for name, class_ in self._configuration.classes.items():
            reason = self._not_pods(class_)
            described = explain.describe(self._resolve(name), ability, self._devices)
            classes[name] = described | ({"containersOnly": reason} if reason else {})
        return {"file": self._configuration.source, "cgroupVersion": self._cgroups.version, "classes": classes}

    def activate(self, in_use: Collection[str], *, previous: ClassResource | None) -> None:
        """Log what of the classes has no effect here; cgroups are written when something is put into a class."""
        ability = self._machine_ability()
        for name in self._configuration.classes:
            self._warn(name, explain.warnings(self._resolve(name), ability))

    # what is here

    def _class(self, name: str) -> Class:
        found = self._configuration.classes.get(name)
        if found is None:
            raise InvalidArgument(f"{self._configuration.source} has no class {name!r}")
        return found

    def _resolve(self, class_name: str) -> Limits:
        class_ = self._class(class_name)
        return limits.resolve(class_, self._devices.match(limits.patterns_of(class_)))

    def _not_pods(self, class_: Class) -> str:
        """Return why a class is none for pods here; empty if it is one."""
        if class_.throttles and self._cgroups.version == 1:
            return "throttles, which cgroup version 1 cannot do to a pod as a whole"
        if class_.weighs and self._systemd:
            return "has weights, which systemd resets for the slices of pods"
        return ""

    @cached_property
    def _has_controller(self) -> bool:
        if self._cgroups.version == 2:
            return "io" in (self._cgroups.read("/", "cgroup.controllers") or "").split()
        return all(self._cgroups.has("/", file) for file in limits.RATE_FILES_V1.values())

    def _machine_ability(self) -> Ability:
        """Return what cgroups of this machine have, without one at hand: the root has neither limits nor weights."""
        has = {
            # BFQ's counters are in the root as well, where its weights are not.
            limits.BFQ_WEIGHT_V1: self._cgroups.has("/", "blkio.bfq.io_service_bytes"),
            limits.BFQ_WEIGHT_DEVICE_V1: self._cgroups.has("/", "blkio.bfq.io_service_bytes"),
            limits.BFQ_WEIGHT: "bfq" in self._devices.schedulers(),
            limits.COST_WEIGHT: self._cgroups.has("/", _COST_QOS),
        }
        version = self._cgroups.version
        return Ability(
            version=version,
            throttles=self._has_controller,
            weight_files=frozenset(file for file in limits.WEIGHT_FILES[version] if has[file]),
            bfq=self._with_bfq(self._devices.numbers()),
            cost=self._cost(),
        )

    def _ability(self, resolved: Limits, cgroup: str) -> Ability:
        version, has = self._cgroups.version, partial(self._cgroups.has, cgroup)
        weighed = [device.number for device in resolved.weighed]
        return Ability(
            version=version,
            throttles=has(limits.IO_MAX if version == 2 else limits.RATE_FILES_V1[configuration.Setting.READ_BPS]),
            weight_files=frozenset(filter(has, limits.WEIGHT_FILES[version])),
            bfq=self._with_bfq(weighed),
            cost=self._cost() if weighed else frozenset(),
        )

    def _with_bfq(self, numbers: Iterable[str]) -> frozenset[str]:
        return frozenset(number for number in numbers if self._devices.scheduler(number) == "bfq")

    def _cost(self) -> frozenset[str]:
        lines = (self._cgroups.read("/", _COST_QOS) or "").splitlines() if self._cgroups.version == 2 else []
        return frozenset(line.split()[0] for line in lines if "enable=1" in line.split())

    # reading and writing

    def _require_files(self, target: Target, resolved: Limits, ability: Ability) -> None:
        if not self._cgroups.exists(target.cgroup):
            raise FailedPrecondition(f"{target.name}: cgroup {target.cgroup} is gone")
        weights = resolved.weight is not None or resolved.weighed
        if weights and target.cgroup.endswith(_OF_SYSTEMD):
            text = f"cgroup {target.cgroup} is systemd's, which resets weights when it reads its units again"
            raise FailedPrecondition(f"{target.name}: {text}", hint="give the weights to its containers, run by crun")
        without_throttling = resolved.throttled and not ability.throttles
        if without_throttling or (weights and not ability.weight_files):
            hint = "the controller io must be enabled in the cgroup above, in cgroup.subtree_control"
            files = f"files for {'limits' if without_throttling else 'weights'} of block devices"
            raise FailedPrecondition(
                f"{target.name}: cgroup {target.cgroup} has no {files}", hint=hint if ability.version == 2 else ""
            )

    def _read(self, cgroup: str, files: limits.Content) -> dict[str, dict[str, str]]:
        return {file: limits.read(file, self._cgroups.read(cgroup, file) or "") for file in files}

    def _carry_out(self, cgroup: str, then: limits.Content) -> dict[str, dict[str, str]]:
        """Write, and return what is in force then: without the devices that are gone by now."""
        kept = {file: dict(lines) for file, lines in then.items()}
        for write in limits.changes(self._read(cgroup, then), then):
            try:
                self._write_surely(cgroup, write)
            except KernelCallError as error:
                if write.key == limits.DEFAULT or not self._is_beyond(write, error.errno):
                    raise
                if kept[write.file].pop(write.key, None) is not None:
                    log.warning("class resource blockio: %s: %s", write.key, error.message)
        return kept

    def _write_surely(self, cgroup: str, write: Write) -> None:
        """Write; again while the kernel does not know a disk that is there: it is about to go, or has just come."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return self._cgroups.write(cgroup, write.file, write.text)
            except KernelCallError as error:
                there = write.key != limits.DEFAULT and self._devices.exists(write.key)
                if error.errno not in _LEAVING or not there or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _is_beyond(self, write: Write, number: int) -> bool:
        """Say whether a write failed because the disk went away, or its scheduler that respects weights."""
        if number == errno.EOPNOTSUPP:
            return write.file in limits.WEIGHT_FILES[self._cgroups.version]
        return number in _GONE and not self._devices.exists(write.key)

    def _require_same(self, target: Target, then: limits.Content) -> None:
        found = self._read(target.cgroup, then)
        if found == then:
            return
        if text := limits.difference(self._present(found), self._present(then)):
            raise FailedPrecondition(f"{target.name}: {text}", hint="something else writes this cgroup's files")

    def _present(self, content: limits.Content) -> limits.Content:
        """Leave out devices that are gone, and weights that went with a device's scheduler."""
        return {
            file: {key: value for key, value in lines.items() if key == limits.DEFAULT or self._respects(file, key)}
            for file, lines in content.items()
        }

    def _respects(self, file: str, number: str) -> bool:
        if file in {limits.BFQ_WEIGHT, limits.BFQ_WEIGHT_DEVICE_V1}:
            return self._devices.scheduler(number) == "bfq"
        return self._devices.exists(number)

    def _warn(self, class_name: str, warnings: Sequence[str]) -> None:
        with self._lock:
            known = self._logged.get(class_name, ())
            self._logged[class_name] = tuple(warnings)
        for warning in warnings:
            if warning not in known:
                log.warning("class resource blockio: %s, class %s: %s", self._configuration.source, class_name, warning)
