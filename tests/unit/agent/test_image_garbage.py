"""Collecting images: a table of what a node has, what is removed then, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.agent.events import Event
from podkeep.agent.images.garbage import ImageGarbage, ImageUsers, Policy, Reclaimed, Space, space_of, wanted_by
from podkeep.agent.images.pull_records import PullRecords, Verification
from podkeep.agent.images.puller import Images
from podkeep.agent.metrics import IMAGES_COLLECTED, AgentMetrics
from podkeep.api.pod import Pod
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, PodkeepError, Unavailable
from podkeep.base.registries import reference
from podkeep.base.registries.docker_config import Credentials
from podkeep.base.registries.reference import Reference
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

MIB = 1 << 20
SECRET = Credentials(username="me", password="m")
NAME = reference.parse("r.example/a:1")


class Node:
    """A runtime with images and containers, pods that refer to them, a clock and a disk that a test sets."""

    def __init__(self, *images: str, capacity: int = 1000 * MIB, available: int = 500 * MIB) -> None:
        self.images = {name: api_pb2.Image(id=f"sha256:{name}", size=100 * MIB) for name in images}
        self.containers: list[api_pb2.Container] = []
        self.mounts: dict[str, list[str]] = {}
        self.pods: list[Pod] = []
        self.pulling: set[str] = set()
        self.space = Space(capacity=capacity, available=available)
        self.now = 1000.0
        self.removed: list[str] = []
        self.known_as: list[str] = []
        """Names that pulls without an end were compared with."""
        self.refused: Collection[str] = ()
        self.errors: dict[str, PodkeepError] = {}
        """What is answered of an image, or of a container."""
        self.late: list[Pod] = []
        """Pods that come when an image is removed."""
        self.records: PullRecords | None = None
        self.again: Reference | None = None
        """What is pulled while an image is removed, and brings it once more."""
        self.events: list[Event] = []
        self.metrics = AgentMetrics()

    def container(self, image: str, *, pod: str = "", mounts: Sequence[str] = ()) -> None:
        """Have a container, of whatever state, run ``image`` and mount images."""
        name = f"c{len(self.containers)}"
        self.containers.append(
            api_pb2.Container(id=name, image_id=f"sha256:{image}", labels={"io.kubernetes.pod.uid": pod})
        )
        self.mounts[name] = [f"sha256:{mount}" for mount in mounts]

    async def _list(self, request: api_pb2.ListImagesRequest) -> api_pb2.ListImagesResponse:
        return api_pb2.ListImagesResponse(images=self.images.values())

    async def _status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        if error := self.errors.get(request.image.image):
            raise error
        return api_pb2.ImageStatusResponse(image=self.images.get(request.image.image))

    async def _remove(self, request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        name = request.image.image.removeprefix("sha256:")
        if name in self.refused:
            raise FailedPrecondition(f"image {name} is in use")
        self.removed.append(name)
        self.pods += self.late
        if self.records and self.again:
            self.records.succeeded(self.records.begin(self.again), [f"sha256:{name}"], SECRET)
        else:
            del self.images[name]
        free = self.space.available + 100 * MIB
        self.space = Space(capacity=self.space.capacity, available=free)
        return api_pb2.RemoveImageResponse()

    async def _fs(self, request: api_pb2.ImageFsInfoRequest) -> api_pb2.ImageFsInfoResponse:
        place = api_pb2.FilesystemIdentifier(mountpoint="/images")
        return api_pb2.ImageFsInfoResponse(image_filesystems=[api_pb2.FilesystemUsage(fs_id=place)])

    async def _containers(self, request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
        return api_pb2.ListContainersResponse(containers=self.containers)

    async def _container(self, request: api_pb2.ContainerStatusRequest) -> api_pb2.ContainerStatusResponse:
        if error := self.errors.get(request.container_id):
            raise error
        mounts = [api_pb2.Mount(image=api_pb2.ImageSpec(image=name)) for name in self.mounts[request.container_id]]
        return api_pb2.ContainerStatusResponse(status=api_pb2.ContainerStatus(id=request.container_id, mounts=mounts))

    def garbage(self, client: CriClient, policy: Policy, *, volumes: bool = True) -> ImageGarbage:
        return ImageGarbage(
            client,
            policy,
            ImageUsers(
                pods=lambda: self.pods,
                pulling=lambda: self.pulling,
                volumes=volumes,
                removing=Images(client, records=self.records).removing,
                prune=self.known_as.extend,
            ),
            report=self.events.append,
            metrics=self.metrics,
            disk=lambda _: self.space,
            clock=lambda: self.now,
        )

    def work(self, socket: Path, steps: Any, policy: Policy | None = None, *, volumes: bool = True) -> Any:
        """Return what ``steps(garbage)`` comes to."""
        images = {"ListImages": self._list, "ImageStatus": self._status, "RemoveImage": self._remove}
        runtime = {"ListContainers": self._containers, "ContainerStatus": self._container}

        async def all_of_it() -> Any:
            async with talking(socket, images=images | {"ImageFsInfo": self._fs}, runtime=runtime) as client:
                return await steps(self.garbage(client, policy or Policy(), volumes=volumes))

        return run(all_of_it())

    def said(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.events]


def pod_of(*images: str, volumes: Sequence[str] = (), phase: str | None = None, uid: str = "u1") -> Pod:
    document: dict[str, Any] = {
        "metadata": {"name": "web", "uid": uid},
        "spec": {
            "containers": [{"name": f"c{index}", "image": image} for index, image in enumerate(images)],
            "volumes": [{"name": f"v{index}", "image": {"reference": image}} for index, image in enumerate(volumes)],
        },
    }
    pod = msgspec.convert(document, Pod)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))


async def aged(node: Node, found: ImageGarbage) -> None:
    """Look once, and let the images get older than their minimum age."""
    await found.detect(node.now)
    node.now += 121


def test_nothing_goes_while_there_is_room(tmp_path: Path) -> None:
    node = Node("a", "b", available=160 * MIB)

    async def steps(found: ImageGarbage) -> None:
        await aged(node, found)
        await found.collect()

    node.work(tmp_path / "s", steps)
    assert (node.removed, node.events) == ([], [])


def test_each_look_tells_the_names_of_all_images(tmp_path: Path) -> None:
    node = Node("a", "b")
    node.images["a"].repo_tags.append("r.example/a:1")
    node.images["b"].repo_digests.append(f"r.example/b@sha256:{'0' * 64}")
    node.work(tmp_path / "s", lambda found: found.detect(node.now))
    assert {"r.example/a:1", f"r.example/b@sha256:{'0' * 64}"} <= set(node.known_as)


@pytest.mark.requirement("V83")
def test_from_the_high_threshold_down_to_the_low_one(tmp_path: Path) -> None:
    """Those that were used longest ago go first, image volumes like others, and no more of them than necessary."""
    node = Node("a", "b", "c", available=100 * MIB)
    node.container("a")

    async def steps(found: ImageGarbage) -> None:
        await found.detect(node.now)
        node.containers.clear()
        node.pods = [pod_of("x", volumes=["b"])]
        node.now += 121
        await found.detect(node.now)
        node.pods.clear()
        node.now += 1
        await found.collect()

    node.work(tmp_path / "s", steps)
    assert node.removed == ["c"]
    assert node.metrics.value(IMAGES_COLLECTED, "space") == 1


@pytest.mark.parametrize("again", [None, NAME, reference.parse("r.example/a:2")])
def test_who_may_use_an_image_is_forgotten_with_it(tmp_path: Path, again: Reference | None) -> None:
    """Not if a pull brings it once more while it is removed: without a record it would be for everybody."""
    node = Node("a")
    node.records = PullRecords(tmp_path / "records", Verification())
    node.records.succeeded(node.records.begin(NAME), ["sha256:a"], SECRET)
    node.again = again

    async def steps(found: ImageGarbage) -> None:
        await aged(node, found)
        await found.remove_unused()

    node.work(tmp_path / "s", steps)
    assert node.removed == ["a"]
    assert node.records.may_use(NAME, "sha256:a", [SECRET], [NAME])
    assert node.records.may_use(NAME, "sha256:a", [], [NAME]) is (again is None)


def test_an_image_that_was_just_pulled_stays(tmp_path: Path) -> None:
    node = Node(available=0)

    async def steps(found: ImageGarbage) -> None:
        await found.detect(node.now)
        node.images |= Node("a").images
        await found.detect(node.now)
        node.now += 119
        with pytest.raises(FailedPrecondition):
            await found.collect()

    node.work(tmp_path / "s", steps)
    assert node.removed == []


def test_what_was_there_before_the_agent_goes_at_its_first_look(tmp_path: Path) -> None:
    """A node that started with a full disk ended pods, since for two minutes no image was old enough to be removed."""
    node = Node("used", "unused", available=0)
    node.container("used")

    async def steps(found: ImageGarbage) -> Reclaimed:
        return await found.remove_unused()

    assert node.work(tmp_path / "s", steps) == Reclaimed(size=100 * MIB, images=1)
    assert node.removed == ["unused"]


@pytest.mark.requirement("V80", "V81", "V82")
def test_what_pods_refer_to_stays(tmp_path: Path) -> None:
    """As image or as volume, with or without a container, and what is pulled now; also what a tag meant before."""
    node = Node("image", "volume", "pulled", "exited", "moved", "pinned", "free", available=0)
    node.images["pinned"].pinned = True
    node.pods = [pod_of("image", volumes=["volume"])]
    node.pulling = {"pulled"}
    node.container("exited", pod="u1", mounts=["moved"])

    async def steps(found: ImageGarbage) -> Reclaimed:
        await aged(node, found)
        return await found.remove_unused()

    freed = node.work(tmp_path / "s", steps)
    assert node.removed == ["free"]
    assert freed == Reclaimed(size=100 * MIB, images=1)


def test_a_pod_that_comes_during_a_collection_keeps_its_image(tmp_path: Path) -> None:
    """Each image is asked for again before it goes."""
    node = Node("a", "b", "c", available=0)
    node.late = [pod_of("b")]

    async def steps(found: ImageGarbage) -> None:
        await aged(node, found)
        await found.remove_unused()

    node.work(tmp_path / "s", steps)
    assert node.removed == ["a", "c"]


@pytest.mark.requirement("V84")
def test_without_the_gate_volumes_are_unused(tmp_path: Path) -> None:
    """What was pulled for a volume before goes like any other image; what containers are made of or have mounted stays:
    the runtime would refuse to remove it, at each collection."""
    node = Node("image", "volume", "mounted", available=0)
    node.refused = {"image", "mounted"}
    node.pods = [pod_of("image", volumes=["volume", "mounted"])]
    node.container("image", pod="u1", mounts=["mounted"])

    async def steps(found: ImageGarbage) -> None:
        await aged(node, found)
        await found.remove_unused()

    node.work(tmp_path / "s", steps, volumes=False)
    assert node.removed == ["volume"]


def test_images_of_pods_that_are_over_may_go(tmp_path: Path) -> None:
    node = Node("a", available=0)
    node.pods = [pod_of("a", phase="Succeeded")]

    async def steps(found: ImageGarbage) -> None:
        await aged(node, found)
        await found.remove_unused()

    node.work(tmp_path / "s", steps)
    assert node.removed == ["a"]


@pytest.mark.requirement("V83")
def test_what_was_not_used_for_long_goes_whatever_room_there_is(tmp_path: Path) -> None:
    """Not before the agent has run for that long itself."""
    node = Node("old", "used")
    node.pods = [pod_of("used")]
    policy = Policy(max_age=3600)

    async def steps(found: ImageGarbage) -> list[list[str]]:
        await found.collect()
        node.now += 3600
        await found.collect()
        before = list(node.removed)
        node.now += 1
        await found.collect()
        return [before, list(node.removed)]

    assert node.work(tmp_path / "s", steps, policy) == [[], ["old"]]
    assert node.metrics.value(IMAGES_COLLECTED, "age") == 1


def test_what_is_said_when_there_is_not_enough_to_remove(tmp_path: Path) -> None:
    """The event has a kubelet's words; a second failure is one more event."""
    node = Node("a", capacity=1536 * MIB, available=0)

    async def steps(found: ImageGarbage) -> None:
        await aged(node, found)
        await found.attempt()
        await found.attempt()

    node.work(tmp_path / "s", steps)

    def full(used: int, freed: int) -> str:
        return (
            f"Insufficient free disk space on the node's image filesystem ({used}% of 1.5 GiB used). "
            f"Failed to free sufficient space by deleting unused images (freed {freed} bytes). "
            "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        )

    assert node.said() == [
        ("FreeDiskSpaceFailed", full(100, 100 * MIB)),
        ("FreeDiskSpaceFailed", full(94, 0)),
        ("ImageGCFailed", full(94, 0)),
    ]


def test_an_image_that_cannot_be_removed_hinders_no_other(tmp_path: Path) -> None:
    node = Node("a", "b", available=100 * MIB)
    node.refused = ["a"]

    async def steps(found: ImageGarbage) -> str:
        await aged(node, found)
        with pytest.raises(PodkeepError) as failed:
            await found.collect()
        return failed.value.message

    text = node.work(tmp_path / "s", steps)
    assert node.removed == ["b"]
    assert text.startswith(f"wanted to free {100 * MIB} bytes, but freed {100 * MIB} bytes space with errors")
    assert "image a is in use" in text


def test_a_disk_without_size(tmp_path: Path) -> None:
    node = Node(capacity=0, available=0)

    async def steps(found: ImageGarbage) -> None:
        await found.attempt()

    node.work(tmp_path / "s", steps)
    assert node.said() == [("InvalidDiskCapacity", "invalid capacity 0 on image filesystem")]


def test_nothing_runs_where_it_is_switched_off(tmp_path: Path) -> None:
    """100 % and no maximum age: the loop ends at once, also while no pod is known."""
    node = Node("a")
    node.work(tmp_path / "s", lambda found: found.run(asyncio.Event()), Policy(high_percent=100))
    assert node.removed == []


def test_references_of_a_pod() -> None:
    pod = pod_of("a", "b", volumes=["v"])
    assert wanted_by(pod, volumes=True) == {("a", ""), ("b", ""), ("v", "")}
    assert wanted_by(pod, volumes=False) == {("a", ""), ("b", "")}
    assert wanted_by(pod_of("a", phase="Failed"), volumes=True) == set()


@pytest.mark.parametrize("path", ["/images/\0", "/" + "x" * (1 << 20)])
def test_a_runtime_whose_images_are_nowhere(path: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"statvfs\(/") as raised:
        space_of(path)
    assert len(raised.value.message) < 1000


@pytest.mark.parametrize("error", [InvalidArgument("no name"), FailedPrecondition("images.referrers is off")])
def test_a_pod_whose_image_has_no_name_keeps_no_other_image(tmp_path: Path, error: PodkeepError) -> None:
    """Anybody who may make a pod writes any text there, and the pod waits for as long as he likes."""
    node = Node("used", "unused", available=0)
    node.pods = [pod_of("?"), pod_of("used", uid="u2")]
    node.errors["?"] = error
    node.work(tmp_path / "s", lambda garbage: garbage.remove_unused())
    assert node.removed == ["unused"]


def test_a_container_that_the_runtime_does_not_tell_of_keeps_no_other_image(tmp_path: Path) -> None:
    node = Node("silent", "mounted", "unused")
    node.pods = [pod_of("silent", volumes=["x"], uid="u1"), pod_of("silent", volumes=["x"], uid="u2")]
    node.container("silent", pod="u1")
    node.container("silent", pod="u2", mounts=["mounted"])
    node.errors["c0"] = DeadlineExceeded("it hangs")
    node.work(tmp_path / "s", lambda garbage: garbage.remove_unused())
    assert node.removed == ["unused"]


def test_nothing_is_collected_while_the_runtime_is_away(tmp_path: Path) -> None:
    node = Node("silent", "unused")
    node.pods = [pod_of("silent", volumes=["x"], uid="u1")]
    node.container("silent", pod="u1")
    node.errors["c0"] = Unavailable("it restarts")
    with pytest.raises(Unavailable):
        node.work(tmp_path / "s", lambda garbage: garbage.remove_unused())
    assert node.removed == []
