"""Images: pulling by tag and digest, listing, status by every kind of name, removal."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import DeadlineExceeded, InvalidArgument, NotFound, PodkeepError, RegistryUnavailable
from podkeep.cri.v1 import api_pb2 as api
from support.endpoint import Node
from support.images import Layout, busybox_layout, file, layers_layout
from support.registry import Registry
from support.waiting import wait_for


def layout(base: Path, content: str, **config: Any) -> Layout:
    """Build an image of one small file; equal contents are equal images."""
    return layers_layout(base / f"image-{content}-{os.urandom(3).hex()}", [[file("content", content)]], **config)


def request(reference: str) -> api.PullImageRequest:
    """Return a request to pull."""
    return api.PullImageRequest(image=api.ImageSpec(image=reference))


def test_pulled_image_is_shown(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "one"), "shown:1")
    assert node.image_status(reference) is None
    pulled = node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    assert status.id.startswith("sha256:")
    assert list(status.repo_tags) == [reference]
    assert len(status.repo_digests) == 1
    assert status.repo_digests[0].startswith(f"{registry.host}/shown@sha256:")
    assert status.size > 0
    assert pulled in {status.id, status.repo_digests[0]}
    assert status in node.images()


@pytest.mark.reference(differs="the filter is passed over")
def test_list_by_name(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "filter"), "filter:1")
    node.fetch(reference)
    status = node.image_status(reference)
    assert node.images(reference) == [status]
    assert len(node.images()) > 1


def test_removed_image_is_gone_at_once(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "removed"), "removed:1")
    node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    node.remove_image(reference)
    assert node.image_status(reference) is None
    assert node.image_status(status.id) is None
    assert status.id not in {item.id for item in node.images()}


def test_image_without_a_tag_is_the_latest(node: Node, registry: Registry, host_directory: Path) -> None:
    tagged = registry.push(layout(host_directory, "latest"), "untagged:latest")
    node.fetch(tagged.removesuffix(":latest"))
    status = node.image_status(tagged)
    assert status is not None
    assert list(status.repo_tags) == [tagged]


def test_image_by_digest_has_no_tag(node: Node, registry: Registry, host_directory: Path) -> None:
    image = layout(host_directory, "digest")
    registry.push(image, "bydigest:1")
    reference = f"{registry.host}/bydigest@{image.manifest_digest}"
    node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    assert list(status.repo_tags) == []
    assert list(status.repo_digests) == [reference]


def test_status_by_every_kind_of_name(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "names"), "names:1")
    pulled = node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    for name in (status.id, pulled, *status.repo_tags, *status.repo_digests):
        found = node.image_status(name)
        assert found is not None, name
        assert (found.id, list(found.repo_tags), list(found.repo_digests)) == (
            status.id,
            list(status.repo_tags),
            list(status.repo_digests),
        ), name


def test_three_images_of_three_names(node: Node, registry: Registry, host_directory: Path) -> None:
    references = [
        registry.push(layout(host_directory, f"number{number}"), f"different:{number}") for number in range(3)
    ]
    ids = [node.fetch(reference) and node.image_status(reference) for reference in references]
    shown = {item.id: list(item.repo_tags) for item in node.images()}
    for reference, status in zip(references, ids, strict=True):
        assert status is not None
        assert shown[status.id] == [reference]


def test_three_names_of_one_image(node: Node, registry: Registry, host_directory: Path) -> None:
    image = layout(host_directory, "same")
    references = [registry.push(image, f"same:{number}") for number in range(3)]
    pulled = {node.fetch(reference) for reference in references}
    assert len(pulled) == 1
    (found,) = [item for item in node.images() if item.id == image.image_id]
    assert sorted(found.repo_tags) == references


def test_removal_by_one_name_removes_all(node: Node, registry: Registry, host_directory: Path) -> None:
    image = layout(host_directory, "alltags")
    references = [registry.push(image, f"alltags{number}:1") for number in range(3)]
    for reference in references:
        node.fetch(reference)
    node.remove_image(references[1])
    assert [node.image_status(reference) for reference in (*references, image.image_id)] == [None] * 4


@pytest.mark.parametrize("kind", ["id", "digest"])
def test_removal_by_id_or_digest(node: Node, registry: Registry, host_directory: Path, kind: str) -> None:
    reference = registry.push(layout(host_directory, f"by{kind}"), f"by{kind}:1")
    node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    node.remove_image(status.id if kind == "id" else status.repo_digests[0])
    assert node.image_status(reference) is None


def test_removal_again_is_no_error(node: Node) -> None:
    for _ in range(2):
        node.remove_image("0" * 64)
    assert node.image_status("0" * 64) is None


def test_removal_at_once(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "atonce"), "atonce:1")
    node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    removal = api.RemoveImageRequest(image=api.ImageSpec(image=status.id))
    answers = node.call_all([("RemoveImage", removal)] * 5, service="images")
    assert [item for item in answers if isinstance(item, Exception)] == []
    assert node.image_status(status.id) is None


def test_same_pull_at_once(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "pulls"), "pulls:1")
    answers = node.call_all([("PullImage", request(reference))] * 5, service="images")
    assert len({item.image_ref for item in answers}) == 1
    node.remove_image(reference)


@pytest.mark.parametrize(
    ("user", "uid", "name"),
    [("1002", 1002, ""), ("app", None, "app"), ("1003:50", 1003, ""), ("app:staff", None, "app"), ("0", 0, "")],
)
def test_user_of_an_image(
    node: Node, registry: Registry, host_directory: Path, user: str, uid: int | None, name: str
) -> None:
    """Either a number or a name is told, never both (CRI: Image.uid, Image.username)."""
    image = busybox_layout(host_directory / "image", config={"User": user})
    reference = registry.push(image, "user:1")
    node.fetch(reference)
    status = node.image_status(reference)
    assert status is not None
    assert status.username == name
    assert (status.uid.value if status.HasField("uid") else None) == uid


@pytest.mark.reference(differs="the filter is passed over")
def test_list_of_a_name_that_is_not_there(node: Node) -> None:
    assert node.images("registry.invalid/none:1") == []


def test_pull_of_what_is_not_there(node: Node, registry: Registry) -> None:
    message = node.refused(lambda: node.fetch(f"{registry.host}/none:1"), NotFound)
    assert "none:1" in message


def test_pull_from_nowhere(node: Node) -> None:
    node.refused(lambda: node.fetch("127.0.0.1:1/none:1"), RegistryUnavailable)


@pytest.mark.parametrize("reference", ["127.0.0.1/UPPER:1", "a b", "name:tag with space", "127.0.0.1/x@sha256:12"])
def test_pull_of_what_is_no_reference(node: Node, reference: str) -> None:
    node.refused(lambda: node.fetch(reference), InvalidArgument)


def test_pull_that_may_take_no_time(node: Node, registry: Registry, host_directory: Path) -> None:
    reference = registry.push(layout(host_directory, "slow"), "slow:1")
    with pytest.raises(DeadlineExceeded):
        node.call("PullImage", request(reference), service="images", timeout=0.001)
    # The runtime may have finished all the same.
    node.remove_image(reference)


def test_image_in_use_can_be_pulled_again(node: Node) -> None:
    container = node.launch(node.run())
    node.pull()
    assert node.status(container).state == api.CONTAINER_RUNNING


def test_file_systems_of_images(node: Node) -> None:
    """The space is that of the last count: containerd's are ten seconds apart."""

    def usage() -> api.FilesystemUsage:
        answer = node.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images")
        assert len(answer.image_filesystems) >= 1
        return answer.image_filesystems[0]

    wait_for(lambda: usage().used_bytes.value > 0, "the space that images take")
    assert usage().timestamp > 0
    assert Path(usage().fs_id.mountpoint).is_absolute()


def test_name_that_a_container_uses_is_the_name_it_shows(node: Node) -> None:
    """An image may be given by name or by what PullImage answered."""
    status = node.image_status(node.image)
    assert status is not None
    sandbox = node.run()
    by_id = node.create(sandbox, image=status.id, name="by-id")
    by_digest = node.create(sandbox, image=status.repo_digests[0], name="by-digest")
    assert node.status(by_id).image_ref == node.status(by_digest).image_ref


@pytest.mark.reference(unsupported="no image_id")
def test_identifier_is_the_same_everywhere(node: Node) -> None:
    status = node.image_status(node.image)
    assert status is not None
    container = node.launch(node.run())
    (item,) = node.containers()
    assert {
        node.status(container).image_id,
        item.image_id,
        *(i.id for i in node.images() if node.image in i.repo_tags),
    } == {status.id}


@pytest.mark.reference(unsupported="no streaming lists")
def test_streamed_list_is_the_list(node: Node) -> None:
    parts = node.collect("StreamImages", api.StreamImagesRequest(), service="images")
    assert sorted(item.id for part in parts for item in part.images) == sorted(item.id for item in node.images())


@pytest.mark.parametrize("way", ["fields", "auth"])
def test_credentials(node: Node, private_registry: Registry, host_directory: Path, way: str) -> None:
    encoded = base64.b64encode(b"user:secret").decode()
    headers = {"Authorization": f"Basic {encoded}"}
    reference = private_registry.push(layout(host_directory, way), f"{way}:1", headers=headers)
    with pytest.raises(PodkeepError) as caught:
        node.call("PullImage", request(reference), service="images")
    assert reference.removesuffix(":1") in str(caught.value)
    wrong = request(reference)
    wrong.auth.username, wrong.auth.password = "user", "wrong"
    with pytest.raises(PodkeepError):
        node.call("PullImage", wrong, service="images")
    assert node.image_status(reference) is None
    right = request(reference)
    if way == "auth":
        right.auth.auth = encoded
    else:
        right.auth.username, right.auth.password = "user", "secret"
    node.call("PullImage", right, service="images")
    assert node.image_status(reference) is not None
    node.remove_image(reference)
