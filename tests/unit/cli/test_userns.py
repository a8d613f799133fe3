"""Who has which IDs, what is wrong with that, and what is done about it: decided from what was read."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.agent.user_namespaces import blocks
from podkeep.agent.user_namespaces.blocks import UNIT, Block, default_range
from podkeep.agent.user_namespaces.subordinate_ids import Granted
from podkeep.base.config import AgentConfig, Config
from podkeep.base.errors import FailedPrecondition, PermissionDenied
from podkeep.base.ids import PodUID
from podkeep.cli.userns import inventory, repair
from podkeep.cli.userns.inventory import Limits, Record, Runtime, Sandbox, judge
from podkeep.cli.userns.repair import Step, plan
from podkeep.kernel.namespace import idmap
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

DIRS = PodDirs(Path("/agent"), "/run/podkeep.sock")
ALLOWED = Limits(id_range=default_range(9), granted=())


def record(uid: str, first: int | None, *, length: int = 1, ours: bool = True) -> Record:
    """Return the record of a pod; ``first`` and ``length`` in units; ``None``: it is damaged."""
    return Record(
        uid=uid,
        file=Path(f"/agent/pods/{uid}/userns"),
        block=None if first is None else Block(first=first * UNIT, length=length * UNIT),
        damage="it maps nothing" if first is None else "",
        dirs=DIRS if ours else None,
        namespace="default" if ours else "",
        name=f"pod-{uid}" if ours else "",
    )


def sandbox(uid: str, first: int, *, length: int = 1, ready: bool = True) -> Sandbox:
    id_map = idmap.block(first * UNIT, length * UNIT)
    return Sandbox(uid=uid, namespace="default", name=f"pod-{uid}", ready=ready, id_map=id_map)


def runtime(*sandboxes: Sandbox, others: str = "") -> Runtime:
    return Runtime(sandboxes=sandboxes, pods=frozenset({*others, *(item.uid for item in sandboxes)}))


def kinds(rows: list[inventory.Row]) -> dict[str, list[str]]:
    return {row.uid: [problem.kind for problem in row.problems] for row in rows}


def test_blocks_are_listed_in_order_with_their_pods() -> None:
    found = [record("a", 2), record("b", 1), record("k", 3, ours=False), record("d", 4)]
    rows = judge(found, runtime(sandbox("a", 2), sandbox("d", 4, ready=False)), ALLOWED)
    assert [(row.first, row.last, row.namespace, row.name, row.uid, row.state) for row in rows] == [
        (65536, 131071, "default", "pod-b", "b", "not running"),
        (131072, 196607, "default", "pod-a", "a", "running"),
        (196608, 262143, "", "", "k", "other agent's"),
        (262144, 327679, "default", "pod-d", "d", "stopped"),
    ]
    assert kinds(rows) == {"a": [], "b": [], "k": [], "d": []}
    assert not inventory.wrong(rows)
    assert [row.state for row in judge(found, None, ALLOWED)] == ["unknown", "unknown", "other agent's", "unknown"]


@pytest.mark.parametrize(
    ("found", "running", "expected"),
    [
        ([record("a", None)], runtime(), {"a": ["damaged"]}),
        ([record("a", 1), record("b", 1)], runtime(), {"a": ["overlaps-pod"], "b": ["overlaps-pod"]}),
        (
            [record("a", 2, length=2), record("b", 3)],
            runtime(),
            {"a": ["overlaps-pod", "outside"], "b": ["overlaps-pod"]},
        ),
        ([record("a", 2, length=2), record("b", 4)], runtime(), {"a": ["outside"], "b": []}),
        ([record("a", 20)], runtime(), {"a": ["outside"]}),
        ([record("k", 20, ours=False)], runtime(), {"k": []}),
        ([record("a", 5)], runtime(), {"a": ["overlaps-user"]}),
        ([record("a", 1)], runtime(sandbox("a", 2)), {"a": ["differs"]}),
        ([record("a", 1)], runtime(sandbox("a", 1, ready=False), sandbox("a", 2)), {"a": ["differs"]}),
        ([record("a", 1)], runtime(sandbox("a", 2, ready=False), sandbox("a", 1)), {"a": []}),
        ([], runtime(sandbox("c", 1)), {"c": ["unrecorded"]}),
        (
            [record("a", 1)],
            runtime(sandbox("a", 1), sandbox("c", 1)),
            {"a": ["overlaps-pod"], "c": ["unrecorded", "overlaps-pod"]},
        ),
        # A pod that has ended gave its IDs back, and another one has them: its sandbox stays until it is removed.
        ([], runtime(sandbox("c", 1, ready=False)), {}),
        ([record("a", 1)], runtime(sandbox("a", 1), sandbox("c", 1, ready=False)), {"a": []}),
    ],
)
def test_what_is_wrong(found: list[Record], running: Runtime, expected: dict[str, list[str]]) -> None:
    granted = (Granted(file="/etc/subuid", user="alice", first=5 * UNIT + 1, count=1),)
    rows = judge(found, running, Limits(id_range=default_range(9).without(granted), granted=granted))
    assert kinds(rows) == expected
    assert inventory.wrong(rows) == any(kind != "outside" for of in expected.values() for kind in of)


def node_mapping(uid: str) -> Record:
    """Return the record of a pod with the mapping of all pods."""
    return structs.replace(record(uid, None), damage="", id_map=idmap.block(1000, 70000))


def of_all(uid: str) -> Sandbox:
    return Sandbox(uid=uid, namespace="default", name=uid, ready=True, id_map=idmap.block(1000, 70000))


def test_pods_with_the_mapping_of_all_pods_share_their_ids() -> None:
    found, running = [node_mapping("a"), node_mapping("b"), record("c", 3)], runtime(of_all("a"), of_all("b"))
    rows = judge(found, running, ALLOWED)
    assert [(row.first, row.last, row.shared) for row in rows[:2]] == [(1000, 70999, True)] * 2
    assert not any(row.problems for row in rows)
    assert plan(found, running) == []
    found.append(record("d", 1))
    assert kinds(judge(found, running, ALLOWED)) == {
        "a": ["overlaps-pod"],
        "b": ["overlaps-pod"],
        "c": [],
        "d": ["overlaps-pod", "overlaps-pod"],
    }
    assert steps(found, running) == {"d": (None, "")}


def test_without_a_range_nothing_is_outside_of_it() -> None:
    rows = judge([record("a", 20)], None, Limits(id_range=None, granted=(), problem="the ID range could not be"))
    assert kinds(rows) == {"a": []}


def steps(found: list[Record], running: Runtime) -> dict[str, tuple[Block | IdMap | None, str]]:
    return {step.record.uid: (step.given, step.refusal) for step in plan(found, running)}


def test_a_damaged_record_of_a_pod_with_the_mapping_of_all_pods_is_written_anew() -> None:
    """It is no block of the pod's own, though it looks like one: its volumes are not shifted."""
    mapping = idmap.block(2 * UNIT, UNIT)
    shared = structs.replace(record("b", None), damage="", id_map=mapping, node_mapping=True)
    found = [structs.replace(record("a", None), node_mapping=True), shared]
    assert steps(found, runtime(sandbox("a", 2), sandbox("b", 2))) == {"a": (mapping, "")}


def test_what_is_right_is_left_as_it_is() -> None:
    found = [record("a", 1), record("b", 2, length=2), record("k", 5, ours=False), record("c", 900)]
    assert plan(found, runtime(sandbox("a", 1), sandbox("b", 2, length=2), sandbox("z", 30))) == []


def test_a_damaged_record_of_a_pod_that_is_gone_is_put_aside() -> None:
    assert steps([record("a", None), record("b", 1)], runtime(sandbox("b", 1))) == {"a": (None, "")}


def test_a_damaged_record_of_a_pod_in_use_is_written_anew() -> None:
    for ready in (True, False):
        found = steps([record("a", None)], runtime(sandbox("a", 4, length=2, ready=ready)))
        assert found == {"a": (Block(first=4 * UNIT, length=2 * UNIT), "")}


@pytest.mark.parametrize(
    ("users", "groups"),
    [
        ([(1000, 10)], [(1000, 10)]),
        ([(UNIT, UNIT)], [(2 * UNIT, UNIT)]),
        ([(UNIT, UNIT), (2 * UNIT, UNIT)],) * 2,
        ([(0, UNIT)],) * 2,
    ],
)
def test_a_pod_in_use_whose_ids_are_no_block_is_left_alone(
    users: list[tuple[int, int]], groups: list[tuple[int, int]]
) -> None:
    uids, gids = (
        tuple(IdMapping(container_id=n * UNIT, host_id=host, length=length) for n, (host, length) in enumerate(side))
        for side in (users, groups)
    )
    mine = Sandbox(uid="a", namespace="default", name="a", ready=True, id_map=IdMap(uids=uids, gids=gids))
    ((block, refusal),) = steps([record("a", None)], runtime(mine)).values()
    assert block is None
    assert refusal.endswith("remove the pod")


def test_a_pod_that_is_being_made_is_left_alone() -> None:
    """The runtime lists no sandbox of it yet, and holds it."""
    ((block, refusal),) = steps([record("a", None)], runtime(others="a")).values()
    assert block is None
    assert refusal.startswith("the pod is in use")


def test_what_another_agent_has_is_left_alone() -> None:
    ((_, refusal),) = steps([record("k", None, ours=False)], runtime()).values()
    assert refusal.startswith("it is not of a pod of this agent")


def test_of_two_with_the_same_ids_the_one_in_use_keeps_them() -> None:
    both = [record("a", 1), record("b", 1)]
    assert steps(both, runtime(sandbox("b", 1))) == {"a": (None, "")}
    assert steps(both, runtime(sandbox("a", 1))) == {"b": (None, "")}
    assert steps(both, runtime()) == {"b": (None, "")}
    assert steps([record("a", 1), record("k", 1, ours=False)], runtime()) == {"a": (None, "")}


def test_a_pod_that_has_ended_keeps_nobody_from_its_ids() -> None:
    ended = sandbox("c", 1, ready=False)
    assert steps([record("a", 1), record("b", None)], runtime(sandbox("a", 1), sandbox("b", 2), ended)) == {
        "b": (Block(first=2 * UNIT), "")
    }
    assert steps([record("a", None)], runtime(sandbox("a", 1), ended)) == {"a": (Block(first=UNIT), "")}
    assert steps([record("a", 1)], runtime(ended)) == {}


def test_two_in_use_with_the_same_ids_are_told() -> None:
    found = steps([record("a", 1), record("b", 1)], runtime(sandbox("a", 1), sandbox("b", 1)))
    assert set(found) == {"a", "b"}
    assert all("remove one of the pods" in refusal and block is None for block, refusal in found.values())


def test_a_record_that_the_runtime_contradicts_is_written_anew() -> None:
    assert steps([record("a", 1)], runtime(sandbox("a", 3))) == {"a": (Block(first=3 * UNIT), "")}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(1, 8)), st.integers(1, 3), st.booleans()), max_size=6),
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 8), st.integers(1, 3), st.booleans(), st.booleans()), max_size=4
    ),
)
def test_ids_in_use_are_never_freed_nor_given_twice(
    of_records: list[tuple[int | None, int, bool]], of_sandboxes: list[tuple[int, int, int, bool, bool]]
) -> None:
    """Whatever records and runtime say: a pod in use keeps its block or its file, and no two records contradict."""
    found = [record(str(uid), *one[:1], length=one[1], ours=one[2]) for uid, one in enumerate(of_records)]
    by_uid = {
        str(uid): sandbox(str(uid), first, length=length, ready=ready) for uid, first, length, _, ready in of_sandboxes
    }
    running = runtime(*by_uid.values(), others="".join(str(uid) for uid, *_, held, _ in of_sandboxes if held))
    after = {item.uid: item.block for item in found if item.dirs is not None}
    for step in plan(found, running):
        if step.refusal:
            after.pop(step.record.uid, None)
            continue
        assert step.record.dirs is not None
        assert step.record.uid not in running.pods or step.given == by_uid[step.record.uid].block()
        assert not isinstance(step.given, IdMap)
        after[step.record.uid] = step.given
    changed = {step.record.uid for step in plan(found, running) if not step.refusal}
    for (one, mine), (other, theirs) in itertools.combinations(after.items(), 2):
        if {one, other} & changed and mine is not None and theirs is not None:
            assert not mine.overlaps(theirs)


@pytest.fixture
def dirs(tmp_path: Path) -> PodDirs:
    """Directories of a pod of the agent, whose record is damaged."""
    found = PodDirs(tmp_path, "/run/podkeep.sock")
    (found.pods / "uid").mkdir(parents=True)
    found.identify(PodUID("uid"), PodIdentity(namespace="default", name="web"))
    (found.pods / "uid" / "userns").write_bytes(b"garbage")
    return found


def damaged(dirs: PodDirs) -> Record:
    return Record(uid="uid", file=dirs.pods / "uid" / "userns", damage="garbage", dirs=dirs)


def test_putting_aside_keeps_every_damaged_file(dirs: PodDirs) -> None:
    for name in ("userns.damaged", "userns.damaged.1", "userns.damaged.2"):
        done = repair.execute(Step(record=damaged(dirs), why="garbage"))
        assert done.repaired
        assert done.message == f"garbage; put aside as {name}"
        assert (dirs.pods / "uid" / name).read_bytes() == b"garbage"
        assert blocks.read_all(dirs.pods, default_range(3)).held() == {}
        (dirs.pods / "uid" / "userns").write_bytes(b"garbage")


def test_a_record_in_use_is_written_as_the_runtime_says(dirs: PodDirs) -> None:
    block = Block(first=UNIT)
    done = repair.execute(Step(record=damaged(dirs), why="garbage", given=block))
    assert done.message.endswith("and 65536-131071 recorded, with which the pod runs")
    assert blocks.read_all(dirs.pods, default_range(3)).held() == {"uid": block}
    assert (dirs.pods / "uid" / "userns.damaged").read_bytes() == b"garbage"


def test_the_mapping_of_all_pods_is_written_as_the_runtime_says(dirs: PodDirs) -> None:
    identity = PodIdentity(namespace="default", name="web")
    dirs.identify(PodUID("uid"), identity, node_mapping=True)
    (found,) = inventory.records_of(dirs)
    assert found.node_mapping
    done = repair.execute(Step(record=found, why=found.damage, given=idmap.block(1000, 70000)))
    assert done.message.endswith("and the mapping of all pods recorded, with which the pod runs")
    assert blocks.record(dirs.pods, "uid") == idmap.block(1000, 70000)


def test_a_pod_that_a_process_works_on_is_left_alone(dirs: PodDirs) -> None:
    """It may be about to ask for a sandbox with the IDs that it has read."""
    lock = dirs.own(PodUID("uid"))
    try:
        done = repair.execute(Step(record=damaged(dirs), why="garbage"))
    finally:
        os.close(lock)
    assert not done.repaired
    assert "another process is working on pod uid: stop the agent" in done.message
    assert (dirs.pods / "uid" / "userns").read_bytes() == b"garbage"


@pytest.mark.slow
def test_too_many_damaged_files(dirs: PodDirs) -> None:
    for number in range(1, 1000):
        (dirs.pods / "uid" / f"userns.damaged.{number}").touch()
    repair.execute(Step(record=damaged(dirs), why="garbage"))
    (dirs.pods / "uid" / "userns").write_bytes(b"garbage")
    with pytest.raises(FailedPrecondition, match="1000 damaged records lie beside it"):
        repair.execute(Step(record=damaged(dirs), why="garbage"))


def test_what_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pods: Path) -> list[tuple[str, Path]]:
        raise PermissionError(13, "Permission denied", str(pods))

    monkeypatch.setattr(blocks, "files", refuse)
    with pytest.raises(PermissionDenied) as caught:
        inventory.records(Config(agent=AgentConfig(root=str(tmp_path))))
    assert caught.value.hint == "run it as root"
