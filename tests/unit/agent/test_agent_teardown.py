"""Taking pods down: exactly this pod's logs and directory, nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.agent.teardown import remove_node_state
from podkeep.base.config import AgentConfig, Config
from podkeep.base.ids import PodUID

SOCKET = "/run/podkeep/podkeep.sock"


def node(tmp_path: Path) -> tuple[PodDirs, Config]:
    """Return an agent's directories with the logs of two pods, one of whose UIDs ends with the other's."""
    agent = AgentConfig(root=str(tmp_path / "kubelet"), pod_logs=str(tmp_path / "logs"))
    for name in ("default_a_1", "default_b_x_1", "a-file"):
        (tmp_path / "logs" / name / "c").mkdir(parents=True)
    return PodDirs(Path(agent.root), SOCKET), Config(agent=agent)


def test_logs_of_a_pod_whose_uid_ends_alike_stay(tmp_path: Path) -> None:
    dirs, config = node(tmp_path)
    remove_node_state(dirs, config, PodUID("1"))
    assert sorted(os.listdir(tmp_path / "logs")) == ["a-file", "default_b_x_1"]
    remove_node_state(dirs, config, PodUID("x_1"))
    assert os.listdir(tmp_path / "logs") == ["a-file"]


def test_logs_and_volumes_of_a_kubelets_pod_stay(tmp_path: Path) -> None:
    dirs, config = node(tmp_path)
    (dirs.pods / "1/volumes").mkdir(parents=True)
    remove_node_state(dirs, config, PodUID("1"))
    assert (dirs.pods / "1/volumes").is_dir()
    assert (tmp_path / "logs/default_a_1/c").is_dir()
    (dirs.pods / "1/volumes").rmdir()
    os.close(dirs.own(PodUID("1")))
    dirs.identify(PodUID("1"), PodIdentity(namespace="default", name="a"))
    remove_node_state(dirs, config, PodUID("1"))
    assert dirs.all() == []
    assert not (tmp_path / "logs/default_a_1").exists()
