"""What verbs say of pods of a node that wait: why, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import pod

from support.container_mounts import ContainerMounts
from support.registry import Registry
from support.running_node import own_base
from support.supervised_node import SupervisedDaemon, SupervisedNode
from support.timeout import TIMEOUT_S


@pytest.fixture
def node(open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts) -> Iterator[SupervisedNode]:
    daemon = SupervisedDaemon.of(own_base(open_directory), registry.host, mounts_of_containers)
    with SupervisedNode(daemon) as running:
        yield running
        daemon.run("delete", "pods", "--all", timeout=TIMEOUT_S)


def said(node: SupervisedNode, *arguments: str) -> str:
    """Return what a verb says that must fail."""
    done = node.daemon.run(*arguments)
    assert done.returncode == 1, (done.stdout, done.stderr)
    return done.stderr


def lacking(name: str, image: str, **container: Any) -> dict[str, Any]:
    """Return a pod whose container cannot be made."""
    return pod({"name": "main", "image": image, **container}, name=name)


def test_a_pod_that_waits_says_why_and_where_is_more(node: SupervisedNode, image: str) -> None:
    missing = {"envFrom": [{"configMapRef": {"name": "missing"}}]}
    node.apply(lacking("web", image, **missing))
    words = (
        'podkeep: container "main" in pod "web" is waiting to start: CreateContainerConfigError: configmap'
        ' "missing" not found\nhint: `podkeep describe pod web` says more\n'
    )
    node.until(lambda: words == node.daemon.run("logs", "web").stderr, "it waits for its ConfigMap")
    for verb in (["logs", "web", "--all-containers"], ["exec", "web", "id"]):
        assert said(node, *verb) == words, verb
