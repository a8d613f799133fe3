"""Every field of what a runtime says about a pod, its containers and its images, as a kubelet makes and reads them.

:data:`ANSWERS` has all fields: one that CRI has beside them fails the test, so that none is forgotten when it grows.
:data:`REFERENCE` has those that containerd 1.6 answers otherwise; docs/conformance.md says why, and what newer ones and
CRI-O answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.cri import bind, namespaces, pod
from support.endpoint import Node
from support.images import busybox_layout
from support.registry import Registry

IMAGE: dict[str, object] = {
    "id": "<image>",
    "repo_tags": ["<name>"],
    "repo_digests": ["<digest>"],
    "size": "<bytes>",
    "uid.value": 0,
    "username": "",
    "spec.image": "<name>",
    "spec.annotations": {},
    "spec.user_specified_image": "",
    "spec.runtime_handler": "",
    "spec.image_ref": "",
    "pinned": False,
}
POD: dict[str, object] = {
    "id": "<pod>",
    "metadata.name": "web",
    "metadata.uid": "uid-web",
    "metadata.namespace": "tests",
    "metadata.attempt": 0,
    "state": api.SANDBOX_READY,
    "created_at": "<time>",
    "labels": {"app": "web"},
    "annotations": {"example.com/note": "of the pod"},
    "runtime_handler": "",
}
POD_STATUS: dict[str, object] = {
    **{f"status.{name}": value for name, value in POD.items()},
    "status.network.ip": "<address>",
    "status.network.additional_ips.#": 0,
    "status.linux.namespaces.options.network": api.POD,
    "status.linux.namespaces.options.pid": api.CONTAINER,
    "status.linux.namespaces.options.ipc": api.POD,
    "status.linux.namespaces.options.target_id": "",
    "status.linux.namespaces.options.userns_options.mode": api.NODE,
    "status.linux.namespaces.options.userns_options.uids.#": 0,
    "status.linux.namespaces.options.userns_options.gids.#": 0,
    "info": {},
    "timestamp": "<time>",
}
CONTAINER: dict[str, object] = {
    "id": "<container>",
    "metadata.name": "main",
    "metadata.attempt": 3,
    "state": api.CONTAINER_RUNNING,
    "created_at": "<time>",
    "image.annotations": {},
    "image.user_specified_image": "<name>",
    "image.runtime_handler": "",
    "image.image_ref": "",
    "image_ref": "<digest>",
    "image_id": "<image>",
    "labels": {"tier": "front"},
    "annotations": {"example.com/note": "of the container"},
}
CONTAINER_LISTED: dict[str, object] = {**CONTAINER, "pod_sandbox_id": "<pod>", "image.image": "<image>"}
CONTAINER_STATUS: dict[str, object] = {
    **CONTAINER,
    "image.image": "<name>",
    "started_at": "<time>",
    "finished_at": 0,
    "exit_code": 0,
    "reason": "",
    "message": "",
    "mounts.#": 1,
    "mounts.0.container_path": "/data",
    "mounts.0.host_path": "<directory>",
    "mounts.0.readonly": True,
    "mounts.0.selinux_relabel": False,
    "mounts.0.propagation": api.PROPAGATION_PRIVATE,
    "mounts.0.uidMappings.#": 0,
    "mounts.0.gidMappings.#": 0,
    "mounts.0.recursive_read_only": False,
    "mounts.0.image": None,
    "mounts.0.image_sub_path": "",
    "log_path": "<directory>/log/main/3.log",
    "resources.linux.cpu_period": 0,
    "resources.linux.cpu_quota": 0,
    "resources.linux.cpu_shares": 2,
    "resources.linux.memory_limit_in_bytes": 64 << 20,
    "resources.linux.oom_score_adj": 0,
    "resources.linux.cpuset_cpus": "",
    "resources.linux.cpuset_mems": "",
    "resources.linux.hugepage_limits.#": 0,
    "resources.linux.unified": {},
    "resources.linux.memory_swap_limit_in_bytes": 0,
    "user.linux.uid": 0,
    "user.linux.gid": 0,
    "user.linux.supplemental_groups": [0],
    "stop_signal": api.SIGTERM,
}
CREATED = {"state": api.CONTAINER_CREATED, "started_at": 0}
EXITED = {"state": api.CONTAINER_EXITED, "finished_at": "<time>", "exit_code": 137, "reason": "Error"}
ANSWERS: dict[str, dict[str, object]] = {
    "ImageStatus": IMAGE,
    "ListImages": IMAGE,
    "PodSandboxStatus": {**POD_STATUS, "containers_statuses.#": 0},
    "ListPodSandbox": POD,
    "ListContainers": CONTAINER_LISTED,
    "ContainerStatus, created": {**CONTAINER_STATUS, **CREATED},
    "ContainerStatus, running": CONTAINER_STATUS,
    "ContainerStatus, exited": {**CONTAINER_STATUS, **EXITED},
}

ABSENT = object()
"""A message that is not there; so none of its fields are."""
_OLD_IMAGE: dict[str, object] = {"uid": ABSENT, "spec": ABSENT}
_OLD_STATUS: dict[str, object] = {
    "image.user_specified_image": "",
    "image_id": "",
    "user": ABSENT,
    "stop_signal": api.RUNTIME_DEFAULT,
    "resources.linux.memory_swap_limit_in_bytes": 64 << 20,
}
REFERENCE: dict[str, dict[str, object]] = {
    "ImageStatus": _OLD_IMAGE,
    "ListImages": _OLD_IMAGE,
    "PodSandboxStatus": {"status.linux.namespaces.options.userns_options": ABSENT, "timestamp": 0},
    "ListContainers": {
        "image.annotations": {"example.com/note": "of the image"},
        "image.user_specified_image": "",
        "image_ref": "<image>",
        "image_id": "",
    },
    "ContainerStatus, created": _OLD_STATUS,
    "ContainerStatus, running": _OLD_STATUS,
    "ContainerStatus, exited": _OLD_STATUS,
}


def fields(message: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every field by its path, also those that are not set; Windows' are left out."""
    for field in message.DESCRIPTOR.fields:
        name, value = f"{path}{field.name}", getattr(message, field.name)
        if field.name == "windows":
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield name, dict(value)
        elif field.is_repeated and field.message_type is not None:
            yield f"{name}.#", len(value)
            for number, item in enumerate(value):
                yield from fields(item, f"{name}.{number}.")
        elif field.is_repeated:
            yield name, list(value)
        elif field.message_type is not None and message.HasField(field.name):
            yield from fields(value, f"{name}.")
        else:
            yield name, None if field.message_type is not None else value


def named(value: object, names: Mapping[str, str]) -> object:
    """Return a value with what differs from run to run replaced by its name."""
    if isinstance(value, list):
        return [named(item, names) for item in value]
    if not isinstance(value, str):
        return value
    for text, name in names.items():
        value = value.replace(text, name)
    return value


def answer(message: Any, names: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a message, comparable with :data:`ANSWERS`."""
    found = {name: named(value, names) for name, value in fields(message)}
    for name, value in found.items():
        if name.endswith(("_at", "timestamp")) and value:
            found[name] = "<time>"
        elif name == "size":
            found[name] = "<bytes>" if value else value
    return found


def expected(what: str, node: Node) -> dict[str, object]:
    """Return what an endpoint has to answer."""
    answers = dict(ANSWERS[what])
    for name, value in REFERENCE.get(what, {}).items() if node.endpoint.is_reference else ():
        if value is ABSENT:
            answers = {key: kept for key, kept in answers.items() if not key.startswith(f"{name}.")}
        answers[name] = None if value is ABSENT else value
    return answers


def test_every_field_of_every_answer(node: Node, host_directory: Path) -> None:
    image = node.image_status(node.image)
    assert image is not None
    config = pod("web", labels={"app": "web"}, annotations={"example.com/note": "of the pod"}, hostname="web")
    config.log_directory = str(host_directory / "log")
    sandbox = node.run(config)
    found: dict[str, Any] = {
        "ImageStatus": image,
        "ListImages": next(item for item in node.images(node.image) if item.id == image.id),
        "PodSandboxStatus": node.pod_status(sandbox),
        "ListPodSandbox": node.sandboxes(id=sandbox)[0],
    }
    container = node.create(
        sandbox,
        attempt=3,
        # As the kubelet asks: by the ID that PullImage answered.
        image=api.ImageSpec(
            image=image.id, user_specified_image=node.image, annotations={"example.com/note": "of the image"}
        ),
        labels={"tier": "front"},
        annotations={"example.com/note": "of the container"},
        mounts=[bind(host_directory, "/data", readonly=True)],
        log_path="main/3.log",
        resources=api.LinuxContainerResources(cpu_shares=2, memory_limit_in_bytes=64 << 20),
    )
    found["ContainerStatus, created"] = node.status(container)
    node.start(container)
    found["ContainerStatus, running"] = node.status(container)
    found["ListContainers"] = node.containers(id=container)[0]
    node.stop(container)
    found["ContainerStatus, exited"] = node.status(container)
    names = {
        sandbox: "<pod>",
        container: "<container>",
        node.image: "<name>",
        image.repo_digests[0]: "<digest>",
        image.id: "<image>",
        node.address(sandbox): "<address>",
        str(host_directory): "<directory>",
    }
    assert found.keys() == ANSWERS.keys()
    for what, message in found.items():
        assert answer(message, names) == expected(what, node), what


@pytest.fixture
def image_with_signal(registry: Registry, workplace: Path, node: Node) -> str:
    """Reference of an image with a stop signal and a host name of its own."""
    config = {"StopSignal": "SIGQUIT", "Env": ["PATH=/bin", "HOSTNAME=0.0.0.0"]}
    reference = registry.push(busybox_layout(workplace / "signal", config=config), "fields/signal:1")
    node.fetch(reference)
    return reference


@pytest.mark.reference(differs="the name is the first one that the image has")
def test_status_names_the_image_as_it_was_asked_for(node: Node, registry: Registry, workplace: Path) -> None:
    layout = busybox_layout(workplace / "two-names", config={"Labels": {"two": "names"}})
    references = {name: registry.push(layout, f"fields/{name}:1") for name in ("first", "second")}
    (image_id,) = {node.fetch(reference) for reference in references.values()}
    sandbox = node.run()
    for name, reference in references.items():
        spec = api.ImageSpec(image=image_id, user_specified_image=reference)
        status = node.status(node.create(sandbox, image=spec, name=name))
        assert status.image.image == reference


@pytest.mark.parametrize("form", ["tag", "digest"])
def test_status_of_a_container_that_was_made_by_name(node: Node, form: str) -> None:
    image = node.image_status(node.image)
    assert image is not None
    asked = node.image if form == "tag" else image.repo_digests[0]
    status = node.status(node.create(node.run(), image=asked))
    assert status.image.image == (node.image if node.endpoint.is_reference else asked)


@pytest.mark.reference(unsupported="no stop signal in a status")
def test_stop_signal_is_the_one_that_is_sent(node: Node, image_with_signal: str) -> None:
    sandbox = node.run()
    of_image = node.create(sandbox, image=image_with_signal, name="image")
    of_request = node.create(sandbox, image=image_with_signal, name="request", stop_signal=api.SIGUSR1)
    of_neither = node.create(sandbox, name="neither")
    found = [node.status(container).stop_signal for container in (of_image, of_request, of_neither)]
    assert found == [api.SIGQUIT, api.SIGUSR1, api.SIGTERM]


@pytest.mark.parametrize(
    "config",
    [pod("named", hostname="web-0"), pod("unnamed"), pod("host", options=namespaces(network=api.NODE))],
    ids=["with a host name", "without one", "on the host's network"],
)
def test_host_name_is_in_the_environment(node: Node, config: api.PodSandboxConfig) -> None:
    container = node.executed(node.launch(node.run(config)))
    name, seen = node.read(container, "tr '\\0' '\\n' </proc/1/environ | grep ^HOSTNAME=; hostname").splitlines()
    assert name == f"HOSTNAME={seen}"
    assert seen == (config.hostname or os.uname().nodename)


def test_host_name_of_the_image_and_of_the_request_win(node: Node, image_with_signal: str) -> None:
    sandbox = node.run(pod("named", hostname="web-0"))
    script = "tr '\\0' '\\n' </proc/1/environ | grep ^HOSTNAME="
    of_image = node.launch(sandbox, image=image_with_signal, name="image")
    assert node.read(node.executed(of_image), script) == "HOSTNAME=0.0.0.0"
    envs = [api.KeyValue(key="HOSTNAME", value=b"mine")]
    of_request = node.launch(sandbox, image=image_with_signal, name="request", envs=envs)
    assert node.read(node.executed(of_request), script) == "HOSTNAME=mine"
