"""A node whose API gets another authority: its agent, and whoever asks it through the API, go on with the new one.

So it is when the authority's ten years are over, and when a machine without a clock of its own learns what time it is.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.container_mounts import ContainerMounts
from support.registry import Registry
from support.running_node import own_base
from support.supervised_node import SupervisedDaemon, SupervisedNode
from support.waiting import TIMEOUT_S


@pytest.fixture
def supervised(
    open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts
) -> Iterator[SupervisedNode]:
    daemon = SupervisedDaemon.of(own_base(open_directory), registry.host, mounts_of_containers)
    with SupervisedNode(daemon) as running:
        yield running
        running.delete_all_pods()


def waiting(name: str, image: str) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


@pytest.mark.slow
def test_the_agent_takes_another_authority(supervised: SupervisedNode, image: str) -> None:
    """It was locked out, and let nobody in: its kubeconfig had the old one in itself, and is read at the start."""
    root = supervised.daemon.base / "api"
    supervised.apply(waiting("before", image))
    supervised.running("before")
    old = (root / "pki" / "ca.crt").read_bytes()
    for name in ("ca.crt", "ca.key"):
        (root / "pki" / name).unlink()
    supervised.kill("api")
    assert (root / "pki" / "ca.crt").read_bytes() != old
    supervised.apply(waiting("after", image))
    supervised.running("after")

    def answers() -> bool:
        command = ["kubectl", "exec", "before", "--", "true"]
        environment = {**os.environ, "KUBECONFIG": str(root / "admin.conf")}
        return subprocess.run(command, env=environment, timeout=TIMEOUT_S, check=False).returncode == 0

    supervised.until(answers, "a command in the pod")
