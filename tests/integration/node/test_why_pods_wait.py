"""What verbs say of pods of a node that wait: why, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import BCRYPT_OF_SECRET, LOGIN
from agent.manifests import pod

from podkeep.cri.v1 import api_pb2
from support.container_mounts import ContainerMounts
from support.cri import Pods
from support.images import busybox_layout
from support.registry import Registry
from support.running_node import own_base
from support.supervised_node import SupervisedDaemon, SupervisedNode
from support.waiting import TIMEOUT_S


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Registry]:
    """A registry that asks for credentials."""
    with Registry(tmp_path / "private", htpasswd=f"user:{BCRYPT_OF_SECRET}\n") as running:
        yield running


@pytest.fixture
def node(
    open_directory: Path, registry: Registry, private: Registry, mounts_of_containers: ContainerMounts
) -> Iterator[SupervisedNode]:
    daemon = SupervisedDaemon.of(own_base(open_directory), registry.host, mounts_of_containers)
    daemon.extra += f'[registries."{private.host}"]\ninsecure = true\n'
    daemon.write()
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


def test_what_to_do_about_a_registry_that_wants_credentials(
    node: SupervisedNode, private: Registry, tmp_path: Path
) -> None:
    node.apply(lacking("web", private.push(busybox_layout(tmp_path / "image"), "team/web:1", headers=LOGIN)))
    asks = "the registry asks for credentials; hint: give the pod an image pull secret"
    node.until(lambda: "BackOff" in (found := said(node, "logs", "web")) and found, "its image cannot be pulled")
    for verb in (["logs", "web"], ["status"]):
        done = node.daemon.run(*verb)
        assert asks in done.stdout + done.stderr, (verb, done.stdout, done.stderr)
    described = node.daemon.run("describe", "pod", "web", check=True).stdout
    first, _, rest = described.partition("\n")
    assert asks in first
    assert asks in rest.partition("Events:")[2]
    (status,) = json.loads(node.daemon.run("get", "pod", "web", "-o", "json", check=True).stdout)["status"][
        "containerStatuses"
    ]
    assert asks in status["state"]["waiting"]["message"]


def test_a_pod_of_which_only_the_api_has_something_left_does_not_wait(node: SupervisedNode, image: str) -> None:
    """It was evicted, and then the disk was full: nothing of it is in the runtime, whose agent waited for it before."""
    volumes = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    script = ["sh", "-c", "dd if=/dev/zero of=/data/file bs=64k count=64; sleep 1000"]
    main = {"name": "main", "image": image, "command": script, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    node.apply(pod(main, name="full", volumes=volumes))
    assert node.phase("full", "Failed")["status"]["reason"] == "Evicted"
    with Pods(node.daemon.socket, "") as client:
        answer = client.call("ListPodSandbox", api_pb2.ListPodSandboxRequest())
        (sandbox,) = [item for item in answer.items if item.metadata.name == "full"]
        node.until(lambda: not node.pods_with_processes(), "the end of the pod")
        client.call("RemovePodSandbox", api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id))

    assert said(node, "logs", "full") == (
        'podkeep: pod "full" does not run: Usage of EmptyDir volume "data" exceeds the limit "1Mi".\n'
        "hint: `podkeep describe pod full` says more\n"
    )
