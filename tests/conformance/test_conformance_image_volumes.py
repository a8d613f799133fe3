"""Images as volumes of containers (KEP-4639): read-only, whole or one directory of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import namespaces, pod
from support.endpoint import Node
from support.images import directory, file, layers_layout, symlink
from support.registry import Registry

pytestmark = pytest.mark.reference(unsupported="no image volumes")

BLOCK = (0, 1_000_000, 65536)


@pytest.fixture
def artifact(node: Node, registry: Registry, host_directory: Path) -> str:
    """An image with a file, a directory, a program and a link that leads out of it."""
    members = [
        file("file", "content"),
        directory("etc"),
        file("etc/passwd", "not the container's\n"),
        file("run", "#!/bin/sh\necho ran\n", 0o755),
        symlink("way-out", "/../../.."),
    ]
    reference = registry.push(layers_layout(host_directory / "artifact", [members]), "artifact:1")
    node.fetch(reference)
    return reference


def volume(reference: str, **fields: object) -> api.Mount:
    """Return a mount of an image, read-only unless said otherwise."""
    given = {"container_path": "/volume", "readonly": True} | fields
    return api.Mount(image=api.ImageSpec(image=reference, user_specified_image=reference), **given)


def test_content_is_there_and_cannot_be_changed(node: Node, artifact: str) -> None:
    container = node.launch(node.run(), mounts=[volume(artifact)])
    assert node.read(container, "cat /volume/file") == "content"
    answer = node.exec(container, "touch", "/volume/new")
    assert (answer.exit_code, b"Read-only file system" in answer.stderr) == (1, True)


def test_status_shows_the_image(node: Node, artifact: str) -> None:
    status = node.image_status(artifact)
    assert status is not None
    container = node.create(node.run(), mounts=[volume(artifact)])
    (shown,) = node.status(container).mounts
    assert (shown.container_path, shown.readonly) == ("/volume", True)
    assert shown.image.image_ref in {status.id, *status.repo_digests}


def test_image_by_id(node: Node, artifact: str) -> None:
    status = node.image_status(artifact)
    assert status is not None
    container = node.launch(node.run(), mounts=[volume(status.id)])
    assert node.read(container, "cat /volume/file") == "content"


def test_writable_is_refused(node: Node, artifact: str) -> None:
    sandbox = node.run()
    node.refused(lambda: node.create(sandbox, mounts=[volume(artifact, readonly=False)]), InvalidArgument)
    assert node.containers() == []


def test_directory_of_an_image(node: Node, artifact: str) -> None:
    container = node.launch(node.run(), mounts=[volume(artifact, image_sub_path="etc")])
    assert node.read(container, "ls -A /volume; cat /volume/passwd") == "passwd\nnot the container's"


@pytest.mark.parametrize("path", ["no-such", "file/below"])
def test_directory_that_the_image_has_not(node: Node, artifact: str, path: str) -> None:
    sandbox = node.run()
    message = node.refused(
        lambda: node.create(sandbox, mounts=[volume(artifact, image_sub_path=path)]), NotFound, InvalidArgument
    )
    assert "ImageVolumeMountFailed" in message
    assert node.containers() == []


@pytest.mark.parametrize("path", ["/etc", "../..", "etc/../../.."])
def test_directory_that_leads_out_is_refused(node: Node, artifact: str, path: str) -> None:
    sandbox = node.run()
    node.refused(
        lambda: node.create(sandbox, mounts=[volume(artifact, image_sub_path=path)]), InvalidArgument, NotFound
    )
    assert node.containers() == []


def test_link_that_leads_out_stays_in_the_image(node: Node, artifact: str) -> None:
    sandbox = node.run()
    (answer,) = node.call_all(
        [("CreateContainer", node.create_request(sandbox, mounts=[volume(artifact, image_sub_path="way-out")]))]
    )
    if isinstance(answer, Exception):
        assert type(answer) in {InvalidArgument, NotFound}, repr(answer)
    else:
        assert node.read(node.start(answer.container_id), "ls -A /volume").split() == ["etc", "file", "run", "way-out"]


def test_image_that_is_not_there(node: Node) -> None:
    sandbox = node.run()
    node.refused(lambda: node.create(sandbox, mounts=[volume("registry.invalid/none:1")]), NotFound)
    assert node.containers() == []


def test_image_and_host_path_contradict_each_other(node: Node, artifact: str, host_directory: Path) -> None:
    sandbox = node.run()
    mount = volume(artifact, host_path=str(host_directory))
    node.refused(lambda: node.create(sandbox, mounts=[mount]), InvalidArgument)
    assert node.containers() == []


def test_containers_share_an_image(node: Node, artifact: str) -> None:
    sandbox = node.run()
    for name in ("one", "two"):
        container = node.launch(sandbox, name=name, mounts=[volume(artifact)])
        assert node.read(container, "cat /volume/file") == "content"
    node.remove_container(container)
    (other,) = node.containers()
    assert node.read(other.id, "cat /volume/file") == "content"


def test_container_may_start_again_with_its_volume(node: Node, artifact: str) -> None:
    sandbox = node.run()
    node.exited(node.launch(sandbox, "cat", "/volume/file", mounts=[volume(artifact)]))
    again = node.exited(node.launch(sandbox, "cat", "/volume/file", mounts=[volume(artifact)], attempt=1))
    assert again.exit_code == 0


def test_pod_with_a_user_namespace(node: Node, artifact: str) -> None:
    sandbox = node.run(pod(options=namespaces(user=BLOCK)))
    container = node.launch(sandbox, mounts=[volume(artifact)])
    assert node.read(container, "cat /volume/file; stat -c :%u:%g /volume/file") == "content:0:0"


def test_program_of_an_image_volume_is_not_run(node: Node, artifact: str) -> None:
    """noexec is the default of podkeep (KEP-4639); a setting turns it off."""
    container = node.launch(node.run(), mounts=[volume(artifact)])
    assert node.exec(container, "/volume/run").exit_code != 0
