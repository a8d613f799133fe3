"""Commands that enter containers while the classes of these change, and classes that are not configured any more."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from podkeep.base.config import ClassResourcesConfig, CustomClass, CustomType
from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.custom import plugin as custom
from podkeep.runtime.class_resources.model import ClassResource, Level, Offer, Target, problem
from podkeep.runtime.class_resources.oom import Oom
from podkeep.runtime.class_resources.registry import ClassResources

WEIGHT = "cpu.shares" if Cgroups().version == 1 else "cpu.weight"
OWN = int(open("/proc/self/oom_score_adj").read())  # noqa: PTH123, SIM115


@dataclass
class Refusing(ClassResource):
    """A type that comes after ``oom``, and refuses the class ``never``."""

    name: str = "zoo"
    offered: Mapping[Level, Offer] = field(default_factory=lambda: {Level.CONTAINER: Offer(classes=("cage", "never"))})

    def offers(self) -> Mapping[Level, Offer]:
        return self.offered

    def why_not(self, level: Level) -> str:
        return "" if level in self.offered else "no pod is that wild"

    def check(self, level: Level, class_name: str) -> None:
        assert class_name in self.offered[level].classes

    def edit(self, class_name: str, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        if class_name == "never":
            raise FailedPrecondition(problem(self.name, "never"))

    def verify(self, target: Target, class_name: str) -> None:
        assert class_name == "cage"

    def release(self, target: Target, class_name: str) -> None:
        assert class_name == "cage"

    def describe(self) -> dict[str, Any]:
        return {}


class Room:
    """A container's cgroup with its first process, and what runs commands in it from outside."""

    def __init__(self) -> None:
        self.cgroups, self.cgroup = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
        self.cgroups.create(self.cgroup)
        self.started: list[subprocess.Popen[bytes]] = []
        self.first = self.start()
        self.cgroups.add(self.cgroup, self.first)
        process = procfs.identify(self.first)
        self.target = Target(level=Level.CONTAINER, id="c1", name="ns/web/main", cgroup=self.cgroup, process=process)

    def start(self, *argv: str) -> int:
        process = subprocess.Popen(argv or ("cat",), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started.append(process)
        return process.pid

    def start_with_child(self) -> tuple[int, int]:
        """Return the IDs of an OCI runtime, so to speak, and of the command that it has started."""
        parent = self.start("sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait")
        line = self.started[-1].stdout
        assert line is not None
        return parent, int(line.readline())

    def close(self) -> None:
        for process in self.started:
            process.communicate()
        self.cgroups.remove(self.cgroup)


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


def oom(**classes: int) -> Oom:
    return Oom(classes, cgroups=Cgroups(), floor=OWN)


def scores(*pids: int) -> list[int]:
    return [procfs.oom_score_adj(pid) for pid in pids]


@pytest.mark.requirement("Q42")
def test_a_command_has_the_class_that_is_in_force_when_it_enters(room: Room) -> None:
    classes = ClassResources([oom(low=100, high=900)])
    classes.apply(room.target, {"oom": "low"})
    _, enter = classes.command(room.target, {"oom": "low"}, {"process": {}})
    assert enter is not None
    classes.change(room.target, {"oom": "low"}, {"oom": "high"})
    command = room.start()
    enter(command)
    assert scores(room.first, command) == [900, 900]


@pytest.mark.requirement("Q42")
def test_a_command_that_is_not_in_the_container_yet_follows_a_change(room: Room) -> None:
    classes = ClassResources([oom(low=100, high=900), Refusing()])
    classes.apply(room.target, {"oom": "low", "zoo": "cage"})
    runtime, command = room.start_with_child()
    _, enter = classes.command(room.target, {"oom": "low"}, {"process": {}})
    assert enter is not None
    enter(runtime)
    held = {"oom": "low", "zoo": "cage"}
    with pytest.raises(FailedPrecondition, match="never"):
        classes.change(room.target, held, {"oom": "high", "zoo": "never"})
    assert scores(room.first, runtime, command) == [100, 100, 100]
    take_back = classes.change(room.target, held, {"oom": "high"})
    assert scores(room.first, runtime, command) == [900, 900, 900]
    take_back()
    assert scores(room.first, runtime, command) == [100, 100, 100]
    [assigned] = classes.assignments()
    assert assigned.classes == held


def test_a_command_that_is_half_in_the_container_follows_a_change(room: Room) -> None:
    """With version 1 it goes from hierarchy to hierarchy."""
    classes = ClassResources([oom(low=100, high=900)])
    classes.apply(room.target, {"oom": "low"})
    runtime, command = room.start_with_child()
    _, enter = classes.command(room.target, {"oom": "low"}, {"process": {}})
    assert enter is not None
    enter(runtime)
    (room.cgroups.directories(room.cgroup)[-1] / "cgroup.procs").write_text(str(command))
    classes.change(room.target, {"oom": "low"}, {"oom": "high"})
    assert scores(room.first, runtime, command) == [900, 900, 900]


def test_a_command_in_the_container_keeps_a_value_that_it_chose(room: Room) -> None:
    classes = ClassResources([oom(low=100, high=900)])
    classes.apply(room.target, {"oom": "low"})
    runtime, command = room.start_with_child()
    _, enter = classes.command(room.target, {"oom": "low"}, {"process": {}})
    assert enter is not None
    enter(runtime)
    room.cgroups.add(room.cgroup, command)
    procfs.set_oom_score_adj(command, 1000)
    classes.change(room.target, {"oom": "low"}, {"oom": "high"})
    assert scores(room.first, runtime, command) == [900, 900, 1000]


def test_what_ended_has_no_commands(room: Room) -> None:
    classes = ClassResources([oom(low=100, high=900)])
    classes.apply(room.target, {"oom": "low"})
    _, enter = classes.command(room.target, {"oom": "low"}, {"process": {}})
    classes.release(room.target, {"oom": "low"})
    command = room.start()
    assert enter is not None
    enter(command)
    classes.apply(room.target, {"oom": "low"})
    classes.change(room.target, {"oom": "low"}, {"oom": "high"})
    assert scores(room.first, command) == [900, 100]


@pytest.mark.requirement("Q9")
def test_a_refused_change_is_taken_back_into_classes_that_are_not_configured_any_more(room: Room) -> None:
    def weights(**values: int) -> ClassResource:
        given = {name: CustomClass(cgroup={WEIGHT: str(value)}) for name, value in values.items()}
        [made] = custom.load(ClassResourcesConfig(types={"weight": CustomType(classes=given)}), Cgroups())
        return made

    before = ClassResources([oom(low=100, mid=500), weights(big=700, small=40)])
    held = {"oom": "low", "weight": "big"}
    before.apply(room.target, held)
    after = ClassResources([oom(mid=500), weights(small=40), Refusing()])
    after.restore(room.target, held | {"zoo": "cage"}, {})
    for wanted in ({"oom": "mid"}, {"weight": "small"}, {"oom": "mid", "weight": "small"}):
        with pytest.raises(FailedPrecondition, match="never"):
            after.change(room.target, held | {"zoo": "cage"}, wanted | {"zoo": "never"})
        assert scores(room.first) == [100]
        assert int(room.cgroups.read(room.cgroup, WEIGHT) or 0) == 700
    take_back = after.change(room.target, held, {"oom": "mid", "weight": "small"})
    assert scores(room.first) == [500]
    take_back()
    assert (scores(room.first), int(room.cgroups.read(room.cgroup, WEIGHT) or 0)) == ([100], 700)
    assert os.path.isdir(f"/proc/{room.first}")
