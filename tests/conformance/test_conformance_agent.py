"""``podkeep run`` on whichever runtime there is: the agent core reaches containers through the socket alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import forked
from support.endpoint import Endpoint, Node
from support.images import file, layers_layout
from support.registry import Registry

MOUNTS = [{"name": "volume", "mountPath": "/volume"}]


@pytest.fixture
def data(registry: Registry, workplace: Path) -> str:
    """Reference of an image of nothing but data."""
    return registry.push(layers_layout(workplace / "data", [[file("file", "data\n")]]), "agent-data:1")


def run(
    node: Node, endpoint: Endpoint, directory: Path, *script: str, options: tuple[str, ...] = (), **spec: Any
) -> subprocess.CompletedProcess[str]:
    """Run a pod of one container to its end."""
    mounts = {"volumeMounts": MOUNTS} if spec else {}
    container = {"name": "main", "image": node.image, "command": ["sh", "-c", *script]} | mounts
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]} | spec,
    }
    manifest = directory / "pod.yaml"
    manifest.write_text(json.dumps(document))
    settings = {"agent.root": str(directory / "kubelet"), "agent.pod_logs": str(directory / "logs")}
    own = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "podkeep", *endpoint.options, *own, "run", *options, str(manifest)]
    done = forked.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert list((directory / "kubelet").glob("pods/*")) == []
    return done


def test_a_pod_runs_to_its_end(node: Node, endpoint: Endpoint, host_directory: Path) -> None:
    done = run(node, endpoint, host_directory, "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n"), done.stderr


def test_an_image_volume_is_there_or_the_pod_fails(
    node: Node, endpoint: Endpoint, host_directory: Path, data: str
) -> None:
    volumes = [{"name": "volume", "image": {"reference": data}}]
    done = run(node, endpoint, host_directory, "cat /volume/file; ls -d /volume", volumes=volumes)
    if endpoint.name == "podkeep":
        assert (done.returncode, done.stdout) == (0, "data\n/volume\n"), done.stderr
        return
    assert (done.returncode, done.stdout) == (1, "")
    assert "podkeep: Error: image volumes are not supported by the runtime: " in done.stderr


@pytest.mark.requirement("Q32", "Q86")
@pytest.mark.parametrize("level", ["containers", "pod"])
def test_a_class_is_in_force_or_the_pod_is_refused(
    node: Node, endpoint: Endpoint, host_directory: Path, level: str
) -> None:
    """The reference reports no class resources, and would run the pod without a word (KEP-3008, Dependencies)."""
    wanted = ("--class", "qos=Burstable") if level == "containers" else ("--pod-class", "demo=nosuch")
    before = len(node.sandboxes())
    done = run(node, endpoint, host_directory, "echo ran", options=(*wanted, "-o", "json"))
    status = json.loads(done.stdout)["status"]
    assert len(node.sandboxes()) == before
    if endpoint.is_reference:
        type_name = wanted[1].partition("=")[0]
        assert (done.returncode, status["phase"], status["reason"]) == (1, "Failed", "ClassResourceUnavailable")
        text = f"Pod was rejected: class resource {type_name}: the runtime reports no class resources at all"
        assert status["message"] == text
        assert f"podkeep: {text}\nhint: it would run the pod without its classes" in done.stderr
    elif level == "pod":
        assert (done.returncode, status["reason"]) == (1, "ClassResourceUnavailable")
        assert "class resource demo: this node does not offer it to pods" in done.stderr
    else:
        assert (done.returncode, status["phase"], done.stderr) == (0, "Succeeded", "ran\n")
