"""What pods were granted: kept over restarts, granted, deferred, refused; and the order of changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from podkeep.agent.poddirs import PodDirs
from podkeep.agent.resources import resize
from podkeep.agent.resources.allocations import FILE_NAME, Allocations
from podkeep.agent.resources.pod_limits import CgroupLimits
from podkeep.agent.resources.predicates import NodeFacts, Preempt, Rejection, admit, beyond_capacity
from podkeep.agent.resources.resizer import Running, in_order, larger
from podkeep.api.pod import Pod
from support.pods import container, pod, resources

ALLOCATABLE = {"cpu": 2000}


class Node:
    """A node with 2 CPUs, whose pods are granted resources as the agent does it."""

    def __init__(self, root: Path, immutable: frozenset[str] = frozenset()) -> None:
        self.pods: dict[str, Pod] = {}
        self._dirs = PodDirs(root, "/run/socket")
        self._immutable = immutable
        self.restart()

    def restart(self) -> None:
        immutable = {"pod": self._immutable, "container": self._immutable}
        self.allocations = Allocations(self._dirs, lambda: immutable)  # type: ignore[arg-type, return-value]
        self.allocations.judge = self._judge

    def _judge(self, wanted: Pod) -> Any:
        others = [self.allocations.allocated(one) for uid, one in self.pods.items() if uid != wanted.metadata.uid]
        if never := beyond_capacity(wanted, ALLOCATABLE):
            return Rejection(reason=resize.INFEASIBLE, message=never)
        return admit(wanted, others, NodeFacts(name="n", labels={}, allocatable=ALLOCATABLE))

    def take(self, given: Pod) -> None:
        uid = given.metadata.uid
        self._dirs.directory(uid).path.mkdir(parents=True, exist_ok=True)  # type: ignore[arg-type]
        self.pods[uid] = given
        self.allocations.take(given)
        self.allocations.note(uid)

    def request(self, given: Pod) -> list[str]:
        self.pods[given.metadata.uid] = given
        events = self.allocations.request(given, 1.0)
        assert not isinstance(events, Preempt)
        return [event.reason for event in events]

    def granted(self, given: Pod) -> str | None:
        allocated = self.allocations.allocated(given)
        return allocated.spec.containers[0].resources.requests.get("cpu")


def asking(cpu: str, name: str = "web", generation: int = 1, **spec: Any) -> Pod:
    return pod(container(requests=f"cpu={cpu}"), name=name, metadata={"generation": generation}, **spec)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_change_that_fits_is_granted_and_completed_when_the_container_has_it(node: Node) -> None:
    node.take(asking("1"))
    wanted = asking("1500m", generation=2)

    assert node.request(wanted) == ["ResizeStarted"]
    assert node.granted(wanted) == "1500m"
    found = node.allocations.take(wanted)
    (condition,) = found.conditions(wanted)
    assert (condition.type, condition.reason, condition.observed_generation) == ("PodResizeInProgress", "", 2)
    assert node.allocations.finish(wanted) is None

    node.allocations.started(wanted.metadata.uid, "main", wanted.spec.containers[0].resources)
    event = node.allocations.finish(wanted)
    assert event is not None
    assert event.message == (
        'Pod resize completed: {"containers":[{"name":"main","resources":{"requests":{"cpu":"1500m"}}}],"generation":2}'
    )
    assert found.conditions(wanted) == ()


def test_what_a_container_was_started_with_counts_and_not_what_was_granted_meanwhile(node: Node) -> None:
    """It was told as done, and the container kept what it had for good."""
    node.take(before := asking("1"))
    node.request(wanted := asking("1500m", generation=2))

    node.allocations.started(wanted.metadata.uid, "main", before.spec.containers[0].resources)

    assert node.allocations.finish(wanted) is None
    assert node.allocations.take(wanted).actuated.containers["main"].requests == {"cpu": "1"}


def test_what_a_pod_was_given_as_a_whole_counts_and_not_what_was_granted_meanwhile(node: Node) -> None:
    first, second, third = (
        pod(resources=resources(f"cpu={cpu}m"), metadata={"generation": generation})
        for generation, cpu in enumerate((500, 700, 900), 1)
    )
    node.take(first)
    assert node.request(second) == node.request(third) == ["ResizeStarted"]

    node.allocations.pod_actuated(second.metadata.uid, second.spec.resources)

    assert node.allocations.finish(third) is None
    found = node.allocations.take(third)
    assert (found.actuated.pod, found.granted.pod) == (second.spec.resources, third.spec.resources)


def test_a_change_that_does_not_fit_waits_and_is_told_once(node: Node) -> None:
    node.take(asking("1"))
    node.take(asking("1", name="other"))
    wanted = asking("1500m", generation=2)

    assert node.request(wanted) == ["ResizeDeferred"]
    assert node.request(wanted) == []
    assert node.granted(wanted) == "1"
    (condition,) = node.allocations.take(wanted).conditions(wanted)
    assert (condition.type, condition.reason) == ("PodResizePending", "Deferred")
    assert condition.message == "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"

    del node.pods["uid-other"]
    assert [one.metadata.name for one in node.allocations.waiting(node.pods.values())] == ["web"]
    assert node.request(wanted) == ["ResizeStarted"]
    assert node.allocations.waiting(node.pods.values()) == []


def test_the_event_of_a_change_that_waits_names_the_reason_of_its_condition(node: Node) -> None:
    """As a kubelet's does: ``OutOfcpu`` is the reason of a pod that is rejected, and this one runs."""
    node.take(asking("1"))
    node.take(asking("1", name="other"))

    events = node.allocations.request(asking("1500m", generation=2), 1.0)

    assert not isinstance(events, Preempt)
    assert [event.message for event in events] == [
        'Pod resize Deferred: {"containers":[{"name":"main","resources":{"requests":{"cpu":"1500m"}}}],"generation":2,'
        '"error":"Node didn\'t have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"}'
    ]


def test_a_change_to_more_than_the_node_has_does_not_wait(node: Node) -> None:
    node.take(asking("1"))
    wanted = asking("2001m", generation=2)
    assert node.request(wanted) == ["ResizeInfeasible"]
    (condition,) = node.allocations.take(wanted).conditions(wanted)
    assert (condition.type, condition.reason) == ("PodResizePending", "Infeasible")
    assert condition.message == "Node didn't have enough capacity: cpu, requested: 2001, capacity: 2000"
    assert node.allocations.waiting(node.pods.values()) == []
    assert node.request(asking("2", generation=3)) == ["ResizeStarted"]


def test_memory_is_named_first_of_what_the_node_does_not_have() -> None:
    both = pod(container(requests="cpu=3 memory=2Ki"))
    words = "Node didn't have enough capacity: memory, requested: 2048, capacity: 1024"
    assert beyond_capacity(both, {"cpu": 2000, "memory": 1024}) == words
    assert beyond_capacity(both, {"cpu": 3000, "memory": 2048}) == beyond_capacity(both, {}) == ""


def test_a_change_that_is_taken_back_is_no_change(node: Node) -> None:
    node.take(asking("1"))
    node.request(asking("5", generation=2))

    assert node.request(asking("1000m", generation=3)) == []
    assert node.allocations.take(asking("1")).conditions(asking("1")) == ()


def test_what_was_granted_outlives_the_agent(node: Node) -> None:
    node.take(asking("1"))
    node.request(asking("1500m", generation=2))
    later = asking("5", generation=3)

    node.restart()

    found = node.allocations.take(later)
    assert node.granted(later) == "1500m"
    # The container had not got it yet.
    assert found.actuated.containers["main"].requests == {"cpu": "1"}
    assert found.in_progress is not None
    assert node.request(later) == ["ResizeInfeasible"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pod(resources=resources("cpu=1")), pod(resources=resources("cpu=1500m"))),
        # A container that had nothing gets some.
        (pod(resources=resources("cpu=1")), pod(container(requests="cpu=500m"), resources=resources("cpu=1"))),
        (pod(resources={"classes": {"rdt": "gold"}}), pod(resources={"classes": {"rdt": "silver"}})),
    ],
)
def test_what_a_pod_was_granted_as_a_whole_outlives_the_agent(node: Node, before: Pod, after: Pod) -> None:
    node.take(before)

    node.restart()

    found = node.allocations.take(after)
    assert found.granted == found.actuated == resize.of(before)
    assert node.request(after) == ["ResizeStarted"]
    assert (found.granted, found.actuated) == (resize.of(after), resize.of(before))


def test_what_was_asked_for_as_a_whole_while_no_agent_ran_is_judged(node: Node) -> None:
    node.take(pod(resources=resources("cpu=1")))
    wanted = pod(resources=resources("cpu=50"))

    node.restart()
    node.allocations.take(wanted)

    assert node.request(wanted) == ["ResizeInfeasible"]
    assert node.allocations.allocated(wanted).spec.resources == pod(resources=resources("cpu=1")).spec.resources


def test_a_pod_without_a_record_was_granted_what_it_asked_for_when_it_was_seen_last(node: Node) -> None:
    wanted = pod(container() | {"resources": {"classes": {"rdt": "gold"}}}, metadata={"generation": 2})

    found = node.allocations.take(wanted, pod)

    assert found.granted == found.actuated == resize.of(pod())
    assert node.request(wanted) == ["ResizeStarted"]


@pytest.mark.parametrize("is_early", [True, False], ids=["before its directory is made", "after"])
def test_a_class_that_a_pod_without_resources_was_refused_is_refused_by_the_next_agent(
    tmp_path: Path, is_early: bool
) -> None:
    node = Node(tmp_path, frozenset({"rdt"}))
    wanted = pod(container() | {"resources": {"classes": {"rdt": "gold"}}}, metadata={"generation": 2})
    if is_early:
        node.allocations.take(pod())
        assert node.request(wanted) == ["ResizeInfeasible"]
    node.take(pod())
    assert node.request(wanted) == ([] if is_early else ["ResizeInfeasible"])

    node.restart()
    found = node.allocations.take(wanted)  # it has no sandbox yet, so no object of it was kept

    assert found.granted == found.actuated == resize.of(pod())
    assert node.request(wanted) == ["ResizeInfeasible"]


def test_a_pod_that_has_nothing_costs_no_file(node: Node, tmp_path: Path) -> None:
    node.take(pod())
    assert list((tmp_path / "pods").glob("*/allocation.json")) == []


def test_a_damaged_record_is_none(node: Node, tmp_path: Path) -> None:
    node.take(asking("1"))
    (tmp_path / "pods" / "uid-web" / "allocation.json").write_bytes(b"\xff{")

    node.restart()
    node.allocations.take(asking("2"))

    assert node.granted(asking("2")) == "2"


def test_classes_of_an_immutable_type(tmp_path: Path) -> None:
    node = Node(tmp_path, frozenset({"rdt"}))

    def with_class(name: str) -> Pod:
        return pod(container() | {"resources": {"classes": {"rdt": name}}})

    node.take(with_class("gold"))

    assert node.request(with_class("silver")) == ["ResizeInfeasible"]
    found = node.allocations.take(with_class("silver"))
    assert found.refused is not None
    assert found.refused.message == (
        "class resource rdt: the class of container main cannot be changed while it runs: the type is immutable"
    )
    assert node.allocations.allocated(with_class("silver")).spec.containers[0].resources.classes == {"rdt": "gold"}


def test_an_error_is_told_once(node: Node) -> None:
    node.take(asking("1"))
    wanted = asking("1500m", generation=2)
    node.request(wanted)

    first, second = node.allocations.fail(wanted, "no"), node.allocations.fail(wanted, "no")

    assert first is not None
    assert first.reason == "ResizeError"
    assert '"generation":2,"error":"no"}' in first.message
    assert second is None
    (condition,) = node.allocations.take(wanted).conditions(wanted)
    assert (condition.reason, condition.message) == ("Error", "no")


def test_who_waits_is_asked_in_order(node: Node) -> None:
    for given in (asking("1", "low"), asking("500m", "high"), asking("500m", "less")):
        node.take(given)
    low, high = asking("2", "low", 2), asking("1700m", "high", 2, priority=5)
    node.request(low)
    node.request(high)

    assert [one.metadata.name for one in node.allocations.waiting(node.pods.values())] == ["high", "low"]


def with_init(cpu: str, generation: int = 1) -> Pod:
    return pod(
        container(requests="cpu=100m"), init=[container("setup", f"cpu={cpu}")], metadata={"generation": generation}
    )


def test_an_init_container_is_granted_no_more_than_there_is(node: Node) -> None:
    """It counts for what its pod asks for, and other pods would find no room."""
    node.take(with_init("1"))
    wanted = with_init("5", 2)

    assert node.request(wanted) == ["ResizeInfeasible"]

    other = asking("900m", "other")
    node.take(other)
    assert node.request(structs.replace(other, metadata=structs.replace(other.metadata, generation=2))) == []
    assert node.request(asking("1", "other", 2)) == ["ResizeStarted"]


def test_what_an_earlier_agent_wrote_of_a_pod_is_completed(node: Node, tmp_path: Path) -> None:
    """It granted nothing to init containers: that they ask for something is no resize."""
    node.take(given := with_init("1"))
    path = tmp_path / "pods" / given.metadata.uid / FILE_NAME
    record = msgspec.json.decode(path.read_bytes())
    del record["granted"]["containers"]["setup"]
    path.write_bytes(msgspec.json.encode(record))
    node.restart()
    node.take(given)

    assert node.request(given) == []
    assert node.allocations.take(given).complete


def test_containers_that_have_ended_for_good_have_nothing_to_be_given(node: Node) -> None:
    node.take(with_init("1"))
    node.request(wanted := with_init("1500m", 2))
    assert node.allocations.finish(wanted) is None

    node.allocations.over(wanted.metadata.uid, frozenset({"setup"}))

    event = node.allocations.finish(wanted)
    assert event is not None
    assert event.reason == "ResizeCompleted"

    # The next process finds that there is nothing to be done, which is no news.
    node.restart()
    assert node.allocations.take(wanted).in_progress is not None
    node.allocations.over(wanted.metadata.uid, frozenset({"setup"}))
    assert node.allocations.finish(wanted) is None
    assert node.allocations.take(wanted).in_progress is None


def test_what_is_granted_is_granted_to_all_containers_and_to_the_pod() -> None:
    given = pod(
        container(requests="cpu=1"),
        init=[container("setup", "cpu=1"), container("side", "cpu=1", restartPolicy="Always")],
        resources=resources("cpu=4"),
    )

    granted = resize.of(given)

    assert sorted(granted.containers) == ["main", "setup", "side"]
    assert granted.pod is not None
    changed = msgspec.structs.replace(granted, pod=None)
    assert resize.allocated(given, changed).spec.resources is None
    assert resize.allocated(given, granted) is given


@pytest.mark.parametrize(
    ("wanted", "now", "expected"),
    [
        (
            CgroupLimits(shares=100, quota_us=50, memory=10),
            CgroupLimits(shares=200, quota_us=20, memory=5),
            CgroupLimits(shares=200, quota_us=50, memory=10),
        ),
        (CgroupLimits(shares=1, quota_us=50), CgroupLimits(shares=1, quota_us=0), CgroupLimits(shares=1, quota_us=0)),
        (CgroupLimits(memory=10), CgroupLimits(), CgroupLimits()),
        (CgroupLimits(shares=5), CgroupLimits(shares=2, quota_us=7, memory=7), CgroupLimits(shares=5)),
    ],
)
def test_a_pod_has_the_larger_of_both_while_its_containers_change(
    wanted: CgroupLimits, now: CgroupLimits, expected: CgroupLimits
) -> None:
    assert larger(wanted, now) == expected


def test_memory_shrinks_before_it_grows() -> None:
    had = resize.of(pod(container("a", limits="memory=1Mi"), container("b", limits="memory=4Mi")))
    now = pod(container("a", limits="memory=4Mi"), container("b", limits="memory=1Mi"))

    found = in_order([Running(id=item.name, container=item) for item in now.spec.containers], had)

    assert [item.id for item in found] == ["b", "a"]
