"""Containers in classes of RDT, on a stand-in for resctrl or with ``--resctrl=real`` on the machine's own."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support import rdt
from support.class_types import in_force, pod_classes
from support.cri import Pods, bind, error_of, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.rdt import RdtNode
from support.registry import Registry
from support.resctrl.fixture import Mount, sharing
from support.resctrl.hardware import AMD, ARM, HASWELL, INTEL, Cache, Hardware, MemoryBandwidth, Monitoring
from support.waiting import wait_for


@pytest.fixture(scope=sharing)
def node(open_directory: Path, registry: Registry, image: str, shared_resctrl: Mount) -> Iterator[RdtNode]:
    """A daemon with the classes of support/rdt.py."""
    base = open_directory / f"rdt-{os.urandom(3).hex()}"
    base.mkdir()
    daemon = Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n')
    node = RdtNode(daemon, shared_resctrl())
    with daemon:
        with Pods(daemon.socket, image) as client:
            client.pull()
        yield node


@pytest.fixture
def pods(node: RdtNode, image: str) -> Iterator[Pods]:
    """A client of that daemon; what a test made is gone afterwards, from resctrl, too."""
    before = node.machine()
    with Pods(node.daemon.socket, image) as client:
        yield client
    assert node.machine() == before


@pytest.fixture
def own_node(resctrl: Mount, mortal: Mortal) -> RdtNode:
    """A daemon of the test's own, not started."""
    return RdtNode(mortal.daemon, resctrl())


@pytest.mark.requirement("Q1", "Q36", "Q38", "Q92")
def test_a_container_is_in_the_group_of_its_class(node: RdtNode, pods: Pods) -> None:
    sandbox = pods.run()
    first = rdt.launch(pods, sandbox, rdt="gold", name="first")
    second = rdt.launch(pods, sandbox, rdt="gold", name="second")
    plain = pods.launch(sandbox, name="plain")

    assert node.oci(first)["linux"]["intelRdt"]["closID"] == "gold"
    assert "intelRdt" not in node.oci(plain)["linux"]
    assert node.resctrl.tasks("gold") == node.members(pods, first) | node.members(pods, second)
    assert node.members(pods, plain) <= node.resctrl.tasks()
    assert in_force(pods, container=first) == {"rdt": "gold"}
    assert node.resctrl.tasks("silver") == set()


@pytest.mark.requirement("Q36")
def test_the_program_never_runs_outside_its_class(node: RdtNode, pods: Pods) -> None:
    container = rdt.create(pods, pods.run(), rdt="gold")
    waiting = node.members(pods, container)

    assert waiting
    assert node.resctrl.tasks("gold") == waiting
    pods.start(container)
    assert pods.host_pid(container) in node.resctrl.tasks("gold")


@pytest.mark.requirement("Q40")
def test_story_1_a_class_has_its_cache_for_itself(node: RdtNode, pods: Pods) -> None:
    container = rdt.launch(pods, pods.run(), rdt="gold")

    assert pods.host_pid(container) in node.resctrl.tasks("gold")
    mine = node.masks("gold")
    cache = node.resctrl.hardware.l3
    assert cache is not None
    assert set(mine) == set(cache.domains)
    for other in ("", "silver", "bronze"):
        for domain, mask in node.masks(other).items():
            assert mask & mine[domain] == 0, f"{other or '/'} shares cache {domain} with gold"
    bits = cache.cbm_mask.bit_length()
    assert all(mask.bit_count() == pytest.approx(0.6 * bits, abs=1) for mask in mine.values())
    if not cache.shareable_bits:  # the kernel agrees
        (node.resctrl.path / "gold/mode").write_text("exclusive\n")
        assert node.resctrl.mode("gold") == "exclusive"
        (node.resctrl.path / "gold/mode").write_text("shareable\n")


@pytest.mark.requirement("Q41")
def test_story_4_a_class_has_little_memory_bandwidth(node: RdtNode, pods: Pods) -> None:
    sandbox = pods.run()
    low = rdt.launch(pods, sandbox, "sh", "-c", "while :; do :; done", rdt="bronze", name="low")
    other = rdt.launch(pods, sandbox, rdt="silver", name="other")

    assert pods.host_pid(low) in node.resctrl.tasks("bronze")
    assert pods.host_pid(other) in node.resctrl.tasks("silver")
    bandwidth = node.resctrl.hardware.mb
    assert bandwidth is not None, "this machine has no memory bandwidth allocation"
    unlimited = node.resctrl.schemata("silver")["MB"]
    for domain, value in node.resctrl.schemata("bronze")["MB"].items():
        assert int(value) == 1000 if bandwidth.mbps else int(value) <= int(unlimited[domain]) * 0.3


@pytest.mark.requirement("Q43")
@pytest.mark.parametrize(
    "machine",
    [
        AMD,
        ARM,
        HASWELL,
        Hardware(l3=Cache(cdp=True), mb=MemoryBandwidth(), monitoring=Monitoring()),
        Hardware(l3=Cache(cbm_mask=0x7FF, domains=(3, 7)), mb=MemoryBandwidth(mbps=True), monitoring=Monitoring()),
        Hardware(l3=Cache(), mb=MemoryBandwidth(), monitoring=Monitoring(num_rmids=4)),
    ],
    ids=["amd", "arm", "haswell", "code and data", "megabytes", "no counter left"],
)
def test_any_hardware_that_resctrl_knows_will_do(resctrl: Mount, mortal: Mortal, machine: Hardware) -> None:
    node = RdtNode(mortal.daemon, resctrl(machine))
    if machine.mb is None:
        node.write(f"options: {{mb: {{optional: true}}}}\n{rdt.CLASSES}")
    pods = mortal.start()

    assert list(rdt.offered(pods)["rdt"].classes) == [api.ClassResourceClassInfo(Name=n) for n in _NAMES]
    sandbox = pods.run()
    for name in _NAMES:
        container = rdt.launch(pods, sandbox, rdt=name, name=name)
        assert node.members(pods, container) == node.resctrl.tasks(name)
    caches = [resource for resource in node.resctrl.schemata() if resource.startswith("L3")]
    assert len(caches) == (2 if machine.l3 is not None and machine.l3.cdp else 1)
    for resource in caches:
        for other in ("", "silver", "bronze"):
            pairs = zip(node.masks("gold", resource).values(), node.masks(other, resource).values(), strict=True)
            assert all(mine & theirs == 0 for mine, theirs in pairs)
    if machine.mb is not None and machine.mb.mbps:
        assert set(node.resctrl.schemata("bronze")["MB"].values()) == {"1000"}


_NAMES = ("bronze", "gold", "silver")


@pytest.mark.requirement("Q13", "Q42")
def test_update_moves_every_thread_and_child(node: RdtNode, pods: Pods) -> None:
    threads = (
        "import threading, subprocess, time\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "for _ in range(5): subprocess.Popen(['sleep', '1000'])\n"
        "print('ready', flush=True)\n"
    )
    container = rdt.launch(
        *(pods, pods.run(pod(log_directory=str(node.daemon.base)))),
        *("chroot", "/host", "/usr/bin/python3", "-c", threads),
        rdt="silver",
        mounts=[bind("/", "/host", readonly=True)],
        log_path="main.log",
    )
    wait_for(lambda: "ready" in (node.daemon.base / "main.log").read_text(), "the threads")
    every = wait_for(lambda: _at_least(26, node.members(pods, container)), "26 threads")
    assert node.resctrl.tasks("silver") == every

    rdt.update(pods, container, "gold")

    assert not rdt.offered(pods)["rdt"].immutable
    assert node.members(pods, container) == every
    assert node.resctrl.tasks("gold") == every
    assert node.resctrl.tasks("silver") == set()
    assert in_force(pods, container=container) == {"rdt": "gold"}


def _at_least(number: int, threads: set[int]) -> set[int]:
    return threads if len(threads) >= number else set()


@pytest.mark.requirement("Q42")
def test_update_catches_a_container_that_never_stops_forking(node: RdtNode, pods: Pods) -> None:
    script = "while :; do sleep 0.05 & sleep 0.01; done"
    container = rdt.launch(pods, pods.run(), "sh", "-c", script, rdt="silver")

    for name in ("gold", "bronze", "gold"):
        rdt.update(pods, container, name)
        # What is listed first and lives on after the second look must be in the group.
        before = node.members(pods, container)
        inside = node.resctrl.tasks(name)
        assert before - inside <= before - node.members(pods, container)


@pytest.mark.requirement("Q36")
def test_commands_run_in_the_class_of_their_container(node: RdtNode, pods: Pods) -> None:
    container = rdt.launch(pods, pods.run(), rdt="gold")

    answer = pods.exec(container, "sh", "-c", "sleep 1000 >/dev/null 2>&1 </dev/null &")

    assert answer.exit_code == 0
    assert len(node.members(pods, container)) == 2
    assert node.resctrl.tasks("gold") == node.members(pods, container)


@pytest.mark.requirement("Q5", "Q6", "Q39")
def test_what_cannot_be_had_is_refused_before_anything_is_made(node: RdtNode, pods: Pods) -> None:
    sandbox = pods.run()
    before = node.machine()

    unknown = error_of(lambda: rdt.create(pods, sandbox, rdt="platinum"), InvalidArgument)
    pod_level = error_of(lambda: pods.run(pod("other", class_resources=pod_classes(rdt="gold"))), InvalidArgument)

    assert unknown.startswith("class resource rdt: no class 'platinum'")
    assert pod_level.startswith("class resource rdt: ")
    status = pods.call("Status", api.StatusRequest()).status
    assert "rdt" not in {item.Name for item in status.resources.pod_class_resources}
    assert node.machine() == before


@pytest.mark.requirement("Q39")
def test_disabled_is_said_by_name(own_node: RdtNode, mortal: Mortal) -> None:
    own_node.write("")
    pods = mortal.start()

    assert "rdt" not in rdt.offered(pods)
    sandbox = pods.run()
    refused = error_of(lambda: rdt.create(pods, sandbox, rdt="gold"), FailedPrecondition)

    assert refused.startswith("class resource rdt: RDT is disabled: class_resources.rdt_config names no file")
    assert own_node.resctrl.groups() == set()


@pytest.mark.requirement("Q39")
def test_a_machine_without_resctrl_offers_no_class_and_says_why(
    own_node: RdtNode, mortal: Mortal, tmp_path: Path
) -> None:
    mortal.daemon.extra = mortal.daemon.extra.replace(str(own_node.resctrl.path), str(tmp_path / "none"))
    mortal.daemon.write()
    pods = mortal.start()

    assert "rdt" not in rdt.offered(pods)
    sandbox = pods.run()
    refused = error_of(lambda: rdt.create(pods, sandbox, rdt="gold"), FailedPrecondition)
    assert refused.startswith(f"class resource rdt: resctrl is not mounted at {tmp_path}/none")


def test_the_end_of_a_container_leaves_nothing_in_its_group(node: RdtNode, pods: Pods) -> None:
    sandbox = pods.run()
    before = node.machine()
    container = rdt.launch(pods, sandbox, rdt="gold")
    short = rdt.launch(pods, sandbox, "true", rdt="gold", name="short")
    never = rdt.create(pods, sandbox, rdt="gold", name="never")
    pods.exited(short)

    assert node.machine() != before
    for item in (container, short, never):
        pods.stop(item)
        pods.remove_container(item)
    assert node.machine() == before


@pytest.fixture
def broken(resctrl: Mount, mortal: Mortal) -> RdtNode:
    """A daemon whose resctrl can be made to fail, whatever the machine has."""
    return RdtNode(mortal.daemon, resctrl(INTEL))


@pytest.mark.requirement("Q36")
def test_a_container_that_does_not_get_into_its_group_is_not_made(broken: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    with rdt.unchanged(broken):
        broken.resctrl.fail("gold/tasks", "write", errno.ENOMEM)

        with pytest.raises(PodkeepError, match=r"^class resource rdt: .*Cannot allocate memory"):
            rdt.create(pods, sandbox, rdt="gold")

        assert pods.containers() == []


@pytest.mark.requirement("Q42")
@pytest.mark.parametrize("monitors", ["move", "stay", "there are none"])
def test_an_update_that_fails_leaves_the_class_as_it_was(resctrl: Mount, mortal: Mortal, monitors: str) -> None:
    machine = replace(
        INTEL, movable_monitors=monitors == "move", monitoring=None if monitors == "there are none" else Monitoring()
    )
    node = RdtNode(mortal.daemon, resctrl(machine))
    pods = mortal.start()
    container = rdt.launch(pods, pods.run(), "sh", "-c", "sleep 1000 & sleep 1000", rdt="silver")
    wait_for(lambda: _at_least(2, node.members(pods, container)), "both processes")
    with rdt.unchanged(node):
        if monitors == "move":
            node.resctrl.fail(f"silver/mon_groups/{container}", "rename", errno.EIO)
        else:
            node.resctrl.fail("gold/tasks", "write", errno.EIO)

        with pytest.raises(PodkeepError, match=r"^class resource rdt: .*Input/output error"):
            rdt.update(pods, container, "gold")

        assert in_force(pods, container=container) == {"rdt": "silver"}
        assert node.resctrl.tasks("silver") == node.members(pods, container)


def test_a_group_that_somebody_removed_or_changed_is_put_right(broken: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    first = rdt.launch(pods, sandbox, rdt="gold", name="first")
    before = broken.resctrl.schemata("gold")

    (broken.resctrl.path / "gold/schemata").write_text("L3:0=1\n")
    second = rdt.launch(pods, sandbox, rdt="gold", name="second")
    assert broken.resctrl.schemata("gold") == before
    (broken.resctrl.path / "gold").rmdir()
    third = rdt.launch(pods, sandbox, rdt="gold", name="third")

    assert broken.resctrl.schemata("gold") == before
    assert broken.members(pods, third) <= broken.resctrl.tasks("gold")
    for container in (first, second):
        rdt.update(pods, container, "gold")
    assert len(broken.resctrl.tasks("gold")) == 3


def test_a_task_that_somebody_took_out_keeps_the_container_from_starting(broken: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    container = rdt.create(pods, pods.run(), rdt="gold")
    for task in broken.members(pods, container):
        (broken.resctrl.path / "tasks").write_text(f"{task}\n")

    refused = error_of(lambda: pods.start(container), FailedPrecondition)

    assert "are not in class gold" in refused
    assert pods.status(container).state != api.CONTAINER_RUNNING


def test_classes_do_not_cost_a_descriptor(broken: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()

    def once() -> int:
        container = rdt.launch(pods, sandbox, rdt="gold")
        rdt.update(pods, container, "silver")
        pods.stop(container)
        pods.remove_container(container)
        return len(list(Path(f"/proc/{mortal.daemon.pid}/fd").iterdir()))

    first = once()
    wait_for(lambda: once() <= first, "no more descriptors than after the first round", timeout=60)
