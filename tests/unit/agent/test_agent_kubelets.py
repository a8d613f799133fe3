"""Which directories and cgroups of the agent are a kubelet's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from podkeep.agent import kubelets
from podkeep.agent.kubelets import Kubelet
from podkeep.agent.user_namespaces import blocks as userns
from podkeep.base.config import AgentConfig, Config, RuntimeConfig
from podkeep.cli.diagnosis import machine
from podkeep.cli.diagnosis.finding import Level

DEFAULT = Kubelet(who="kubelet (pid 7)", root=kubelets.ROOT, pod_logs=(kubelets.POD_LOGS,))


def refused(config: Config, *found: Kubelet) -> list[str]:
    return [error.message.partition(":")[0] for error in kubelets.conflicts(config, found)]


def test_no_default_is_a_kubelets() -> None:
    assert refused(Config(), DEFAULT) == []


@pytest.mark.parametrize(
    "root", ["/var/lib/kubelet", "/var/lib/kubelet/", "/var/lib/kubelet/pods", "/var/lib/../lib/kubelet"]
)
def test_a_kubelets_root_and_what_is_in_it_are_refused(root: str) -> None:
    assert refused(Config(agent=AgentConfig(root=root)), DEFAULT) == ["agent.root"]
    assert refused(Config(agent=AgentConfig(root=root))) == []


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    there = Kubelet(who="k", root=str(tmp_path / "link"), pod_logs=(str(tmp_path / "link/logs"),))
    agent = AgentConfig(root=str(tmp_path / "real"), pod_logs=str(tmp_path / "real/logs"))
    assert refused(Config(agent=agent), there) == ["agent.root", "agent.pod_logs"]


@pytest.mark.parametrize(
    "parent", ["/kubepods", "/kubepods.slice", "/x/kubepods/y", "kubepods.slice", "kubepods-burstable.slice"]
)
def test_the_cgroup_of_a_kubelets_pods_is_refused(parent: str) -> None:
    assert refused(Config(runtime=RuntimeConfig(cgroup_parent=parent)), DEFAULT) == ["runtime.cgroup_parent"]


def test_who_was_just_looked_for_is_not_looked_for_again() -> None:
    """Looking reads all of /proc: what `podkeep run` found before it made anything holds for its first pods, too."""
    kubelet = Kubelet(who="one that runs nowhere", root="/k", pod_logs=())
    known = kubelets.KnownKubelets(Config(), [kubelet])
    assert asyncio.run(known.found()) == [kubelet]


def test_doctor_tells_it() -> None:
    (found,) = machine.beside_kubelets(Config(agent=AgentConfig(pod_logs=kubelets.POD_LOGS)), [DEFAULT])
    assert found.level is Level.MISSING
    assert found.detail.startswith("agent.pod_logs: /var/log/pods is in use by kubelet (pid 7)")


def test_blocks_that_others_hold_are_not_given_out_but_a_pods_own_stays(tmp_path: Path) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    for pods, uid, start in ((own, "a", 65536), (others, "k1", 65536), (others, "k2", 131072)):
        (pods / uid).mkdir(parents=True)
        (pods / uid / "userns").write_bytes(userns.render(userns.Block(first=start)))
    (others / "bad").mkdir()
    (others / "bad/userns").write_bytes(b"garbage")
    (own / "new").mkdir()
    # Two that hold the same block, because a kubelet does not look at ours, are no reason to start no pod at all.
    assert userns.allocate(own, "a", userns.default_range(3), [others]).first == 65536
    assert userns.allocate(own, "new", userns.default_range(3), [others, tmp_path / "missing"]).first == 3 * 65536
