"""Classes of RDT when the daemon ends, is killed at any step, or finds another configuration at its next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support import rdt
from support.class_types import in_force
from support.cri import Pods
from support.daemon import Daemon
from support.mortal import Mortal
from support.rdt import CLASSES, RdtNode
from support.resctrl.fixture import Mount
from support.waiting import wait_for

WITHOUT_GOLD = """
partitions:
  common:
    l3Allocation: "40%"
    classes:
      silver: {}
"""


@pytest.fixture
def node(resctrl: Mount, mortal: Mortal) -> RdtNode:
    """A daemon with the classes of support/rdt.py, not started."""
    return RdtNode(mortal.daemon, resctrl())


def end(daemon: Daemon, how: str) -> None:
    """Stop or kill a daemon."""
    if how == "stopped":
        assert daemon.stop() == 0
    else:
        daemon.kill()


@pytest.mark.requirement("Q16", "Q37")
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_restart_changes_nothing_for_who_runs(node: RdtNode, mortal: Mortal, how: str) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    container = rdt.launch(pods, sandbox, "sh", "-c", "sleep 1000 & sleep 1000", rdt="gold")
    wait_for(lambda: len(node.resctrl.tasks("gold")) == 2, "both processes")
    before = rdt.without_daemon(node.machine())

    end(mortal.daemon, how)
    assert node.resctrl.tasks("gold")
    pods = mortal.start()

    assert rdt.without_daemon(node.machine()) == before
    assert in_force(pods, container=container) == {"rdt": "gold"}
    assert node.resctrl.tasks("gold") == node.members(pods, container)
    rdt.update(pods, container, "silver")
    assert node.resctrl.tasks("silver") == node.members(pods, container)


@pytest.mark.requirement("Q16")
def test_what_ended_while_no_daemon_ran_is_let_go(node: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    empty = node.machine()
    sandbox = pods.run()
    container = rdt.launch(pods, sandbox, "sh", "-c", "read _", rdt="gold", stdin=False)
    pods.exited(container)
    mortal.daemon.kill()

    pods = mortal.start()
    pods.remove(sandbox)

    assert node.machine() == empty


@pytest.mark.requirement("Q16")
def test_who_was_moved_while_no_daemon_ran_is_put_back(node: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    container = rdt.launch(pods, pods.run(), rdt="gold")
    members = node.members(pods, container)
    mortal.daemon.kill()
    (node.resctrl.path / "gold").rmdir()

    mortal.start()

    assert node.resctrl.tasks("gold") == members


@pytest.mark.requirement("Q16", "Q33")
def test_a_class_that_is_gone_keeps_its_group_until_its_last_container_ended(node: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    container = rdt.launch(pods, sandbox, rdt="gold")
    members, mask = node.members(pods, container), node.masks("gold")
    assert mortal.daemon.stop() == 0

    node.write(WITHOUT_GOLD)
    pods = mortal.start()

    assert pods.status(container).state == api.CONTAINER_RUNNING
    assert node.resctrl.groups() == {"gold", "silver"}
    assert (node.resctrl.tasks("gold"), node.masks("gold")) == (members, mask)
    assert "keeps class gold of rdt, which is not configured any more" in mortal.daemon.log.read_text()
    assert [item.Name for item in rdt.offered(pods)["rdt"].classes] == ["silver"]
    pods.stop(container)
    pods.remove_container(container)
    assert node.resctrl.groups() == {"silver"}


@pytest.mark.requirement("Q16")
def test_rdt_that_was_switched_off_lets_go_when_nobody_is_left(node: RdtNode, mortal: Mortal) -> None:
    before = node.resctrl.schemata()
    pods = mortal.start()
    sandbox = pods.run()
    container = rdt.launch(pods, sandbox, rdt="gold")
    members = node.members(pods, container)
    mortal.daemon.kill()

    node.write("")
    pods = mortal.start()

    assert "rdt" not in rdt.offered(pods)
    assert node.resctrl.groups() == {"gold"}
    assert node.resctrl.tasks("gold") == members
    pods.remove(sandbox)
    assert node.resctrl.groups() == set()
    assert node.resctrl.schemata() == before


def killed_start(node: RdtNode, point: str) -> None:
    """Start a daemon that is killed at a failpoint before it listens."""
    node.daemon.environment = {"PODKEEP_FAILPOINTS": f"{point}=kill"}
    with pytest.raises(AssertionError, match="the runtime ended with -9"):
        node.daemon.start()


@pytest.mark.parametrize("point", ["rdt.group.noted", "rdt.groups.made", "rdt.schemata.written"])
def test_killed_while_groups_are_made(node: RdtNode, mortal: Mortal, point: str) -> None:
    killed_start(node, point)

    mortal.start()

    assert node.resctrl.groups() == {"gold", "silver", "bronze"}
    assert node.masks("silver") == node.masks("")
    node.write("")
    node.reload("configuration read again")
    assert node.resctrl.groups() == set()


@pytest.mark.parametrize("point", ["rdt.group.noted", "rdt.groups.made", "rdt.schemata.written"])
def test_killed_while_groups_are_made_and_then_switched_off(node: RdtNode, mortal: Mortal, point: str) -> None:
    root = node.resctrl.schemata()
    killed_start(node, point)

    node.write("")
    mortal.start()

    assert node.resctrl.groups() == set()
    assert node.resctrl.schemata() == root


@pytest.mark.requirement("Q16")
@pytest.mark.parametrize(
    "point", ["container.created", "class.applied.rdt", "container.classed", "class.released.rdt", "class.changed.rdt"]
)
def test_killed_while_a_container_is_in_a_class(node: RdtNode, mortal: Mortal, point: str) -> None:
    pods = mortal.start()
    empty = node.machine()
    sandbox = pods.run()
    witness = rdt.launch(pods, sandbox, rdt="silver", name="witness")
    assert mortal.daemon.stop() == 0
    pods = mortal.start(failpoints=f"{point}=kill")

    with pytest.raises(PodkeepError):
        whole_life(pods, sandbox)
    assert mortal.daemon.process is not None
    assert mortal.daemon.process.wait(20) == -9
    pods = mortal.start()

    for container in pods.containers():
        if members := node.members(pods, container.id):
            assert members <= node.resctrl.tasks(in_force(pods, container=container.id)["rdt"])
    assert node.members(pods, witness) <= node.resctrl.tasks("silver")
    whole_life(pods, sandbox, attempt=1)
    pods.remove(sandbox)
    assert node.machine() == empty


def whole_life(pods: Pods, sandbox: str, attempt: int = 0) -> None:
    """Let a container go through everything that has to do with classes."""
    container = rdt.launch(pods, sandbox, rdt="gold", attempt=attempt)
    rdt.update(pods, container, "bronze")
    pods.stop(container)
    pods.remove_container(container)


def test_no_file_of_notes_where_rdt_never_was(mortal: Mortal) -> None:
    mortal.start()

    assert not (Path(mortal.daemon.layout.root) / "rdt-groups.json").exists()


def test_classes_of_the_file_come_back_after_the_machine_was_started_anew(node: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    rdt.launch(pods, sandbox, rdt="gold")
    mortal.daemon.kill()
    for name in node.resctrl.groups():
        (node.resctrl.path / name).rmdir()
    (node.resctrl.path / "schemata").write_text(unlimited(node))

    node.write(CLASSES)
    pods = mortal.start()

    assert node.resctrl.groups() == {"gold", "silver", "bronze"}
    assert node.masks("silver") == node.masks("")
    assert len(node.resctrl.tasks("gold")) == 1


def unlimited(node: RdtNode) -> str:
    """Return the schemata of a machine that was just started."""
    cache = node.resctrl.hardware.l3
    assert cache is not None
    return "".join(f"L3:{domain}={cache.cbm_mask:x}\n" for domain in cache.domains)
