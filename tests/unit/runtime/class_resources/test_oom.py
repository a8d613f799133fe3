"""The type oom on real processes in a cgroup of the test's own."""

from __future__ import annotations

import errno
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources import oom
from podkeep.runtime.class_resources.model import Level, Target
from podkeep.runtime.class_resources.oom import Oom

CLASSES = {"first": 900, "likely": 500, "unlikely": 100}
FLOOR = int(Path("/proc/self/oom_score_adj").read_text())


class Family:
    """A first process and its children in one cgroup; each takes part in nothing but being there."""

    def __init__(self) -> None:
        self.cgroups, self.cgroup = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
        self.cgroups.create(self.cgroup)
        self.first = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.cgroups.add(self.cgroup, self.first.pid)
        self.others: list[subprocess.Popen[bytes]] = []

    @property
    def target(self) -> Target:
        process = procfs.identify(self.first.pid)
        return Target(level=Level.CONTAINER, id="c1", name="ns/web/main", cgroup=self.cgroup, process=process)

    def more(self) -> subprocess.Popen[bytes]:
        self.others.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self.cgroups.add(self.cgroup, self.others[-1].pid)
        return self.others[-1]

    def scores(self) -> list[int]:
        return [procfs.oom_score_adj(process.pid) for process in (self.first, *self.others)]

    def end(self) -> None:
        for process in (self.first, *self.others):
            pipes: list[IO[bytes] | None] = [process.stdin, process.stdout]
            for pipe in filter(None, pipes):
                pipe.close()
            process.wait()
        self.cgroups.remove(self.cgroup)


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.end()


def made(classes: dict[str, int] | None = None, *, floor: int = FLOOR) -> Oom:
    return Oom(CLASSES if classes is None else classes, cgroups=Cgroups(), floor=floor)


@pytest.mark.requirement("Q78")
def test_every_process_gets_the_value_of_the_class(family: Family) -> None:
    family.more()
    kind = made()
    kind.apply(family.target, "unlikely")
    assert family.scores() == [100, 100]
    kind.verify(family.target, "unlikely")
    kind.apply(family.target, "likely", previous="unlikely")
    assert family.scores() == [500, 500]


def test_a_process_that_chose_its_own_value_keeps_it(family: Family) -> None:
    child = family.more()
    kind = made()
    kind.apply(family.target, "unlikely")
    procfs.set_oom_score_adj(child.pid, 777)
    kind.apply(family.target, "likely", previous="unlikely")
    assert family.scores() == [500, 777]
    # The first one may raise itself, too, also right after its start.
    procfs.set_oom_score_adj(family.first.pid, 800)
    kind.verify(family.target, "likely")


def test_a_value_that_is_too_low_is_noticed_and_mended(family: Family) -> None:
    kind = made()
    kind.apply(family.target, "unlikely")
    with pytest.raises(
        FailedPrecondition, match=r"class resource oom: ns/web/main has oom_score_adj 100, .*likely is 500"
    ):
        kind.verify(family.target, "likely")
    kind.apply(family.target, "likely")
    kind.verify(family.target, "likely")


def test_a_reload_moves_those_that_have_what_the_class_meant(family: Family) -> None:
    child = family.more()
    kind = made()
    kind.apply(family.target, "unlikely")
    procfs.set_oom_score_adj(child.pid, 777)
    coming = made({"unlikely": 300})
    coming.apply(family.target, "unlikely", previous="unlikely")
    assert family.scores() == [300, 777]


@pytest.mark.parametrize("now", [50, 300])
def test_a_daemon_that_starts_finds_what_a_class_meant_before(family: Family, now: int) -> None:
    child = family.more()
    made().apply(family.target, "unlikely")
    procfs.set_oom_score_adj(child.pid, 777)
    coming = made({"unlikely": now})
    with pytest.raises(FailedPrecondition, match="oom_score_adj 100"):
        coming.verify(family.target, "unlikely")
    coming.apply(family.target, "unlikely")
    coming.verify(family.target, "unlikely")
    assert family.scores() == [now, 777]


@pytest.mark.parametrize(("old", "new"), [("unlikely", "likely"), ("likely", "unlikely")])
def test_half_a_change_is_taken_back(family: Family, old: str, new: str) -> None:
    family.more()
    made().apply(family.target, old)
    procfs.set_oom_score_adj(family.first.pid, CLASSES[new])
    made().apply(family.target, old, previous=new)
    assert family.scores() == [CLASSES[old]] * 2


class Full(Cgroups):
    """Cgroups that take no note of the value 500 alone: what is given cannot be finished."""

    def set_attribute(self, path: str, name: str, value: bytes | None) -> None:
        """Note, or refuse."""
        if value == b"500":
            raise KernelCallError("setxattr(cgroup)", errno.ENOSPC)
        super().set_attribute(path, name, value)


@pytest.mark.requirement("Q9")
@pytest.mark.parametrize("previous", ["unlikely", "first", None])
def test_a_change_that_fails_when_values_were_given_leaves_those_of_before(
    family: Family, previous: str | None
) -> None:
    child = family.more()
    kind = Oom(CLASSES, cgroups=Full(), floor=FLOOR)
    if previous:
        kind.apply(family.target, previous)
        procfs.set_oom_score_adj(child.pid, 950)
    before = family.scores()
    with pytest.raises(KernelCallError, match=r"^class resource oom: setxattr"):
        kind.apply(family.target, "likely", previous=previous)
    assert family.scores() == before
    if previous:
        kind.verify(family.target, previous)


def test_what_still_lives_gets_back_what_it_had(family: Family) -> None:
    child = family.more()
    kind = made()
    kind.apply(family.target, "unlikely")
    kind.apply(family.target, "likely", previous="unlikely")
    procfs.set_oom_score_adj(child.pid, 777)
    for _ in range(2):
        kind.release(family.target, "likely")
        assert family.scores() == [FLOOR, 777]
    kind.apply(family.target, "first")
    assert family.scores() == [900, 900]


def test_a_class_that_is_gone_does_not_hinder_a_change(family: Family) -> None:
    made().apply(family.target, "unlikely")
    kind = made({"late": 400})
    kind.apply(family.target, "late", previous="unlikely")
    assert family.scores() == [400]


@pytest.mark.requirement("Q78")
def test_a_value_below_the_floor_is_attempted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    kind = made({"never": -900, "likely": 500}, floor=0)
    kind.check(Level.CONTAINER, "never")
    kind.check(Level.CONTAINER, "likely")
    (record,) = caplog.records
    assert record.getMessage() == (
        "class resource oom: class never: attempted -900, and given 0: the runtime has no CAP_SYS_RESOURCE"
    )
    assert kind.edit("never", {"process": {"args": []}}) == {"process": {"args": [], "oomScoreAdj": 0}}
    assert kind.describe()["classes"] == {
        "likely": {"oomScoreAdj": 500},
        "never": {"oomScoreAdj": 0, "attempted": -900},
    }
    assert made({"never": -900}, floor=-1000).edit("never", {"process": {}})["process"] == {"oomScoreAdj": -900}


def test_a_container_that_has_ended_is_no_error(family: Family) -> None:
    target = family.target
    assert family.first.stdin is not None
    family.first.stdin.close()
    family.first.wait()
    kind = made()
    kind.apply(target, "likely")
    kind.verify(target, "likely")
    kind.release(target, "likely")


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ({"default": 1}, "class_resources.oom: no class may be called 'default'"),
        ({"a b": 1}, "class_resources.oom: 'a b' is no name of a class"),
        ({"a": 1001}, "class_resources.oom.a: 1001 is not between -1000 and 1000"),
        ({"a": -1001}, "class_resources.oom.a: -1001 is not between"),
    ],
)
@pytest.mark.requirement("Q80")
def test_classes_that_cannot_be(classes: dict[str, int], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        oom.check(classes)


def test_it_is_for_containers_alone() -> None:
    kind = made()
    assert set(kind.offers()) == {Level.CONTAINER}
    assert kind.offers()[Level.CONTAINER].classes == ("first", "likely", "unlikely")
    assert "several processes together" in kind.why_not(Level.POD)
    assert made({}).offers() == {}
