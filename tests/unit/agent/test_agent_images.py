"""Having images: a table of what a runtime may answer, and what the pod's containers and events say then."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from podkeep.agent import durations
from podkeep.agent.backoff import PullBackOff
from podkeep.agent.events import Event, PullFailed
from podkeep.agent.images import pull_secrets
from podkeep.agent.images.puller import ASK_AGAIN_S, SEEN_S, Images, LocalImage, PodPull, Wanted
from podkeep.agent.metrics import IMAGE_VOLUMES_FAILED, IMAGE_VOLUMES_MOUNTED, IMAGE_VOLUMES_REQUESTED
from podkeep.agent.objects.sources import Sources
from podkeep.agent.volumes.images import VolumeImages
from podkeep.api import manifest
from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.base.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodkeepError,
    RegistryUnavailable,
    Unavailable,
)
from podkeep.base.registries.docker_config import Credentials, Keyring
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

IMAGE = "r.example/app:1"


class Runtime:
    """An image service that has what it was told, and a clock that stands still unless told otherwise.

    ``pulls`` are the requests, ``answers`` what pulls come to in turn: an error, or the ID of an image.
    """

    def __init__(self, *answers: PodkeepError | str, present: dict[str, str] | None = None) -> None:
        self.answers = list(answers)
        self.present = present or {}
        self.pulls: list[api_pb2.PullImageRequest] = []
        self.asked: list[api_pb2.ImageSpec] = []
        self.inspection: PodkeepError | None = None
        self.now = 1000.0
        self.events: list[Event] = []

    async def _status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        self.asked.append(request.image)
        if self.inspection is not None:
            raise self.inspection
        known = self.present.get(request.image.image, request.image.image)
        if known not in self.present.values():
            return api_pb2.ImageStatusResponse()
        image = api_pb2.Image(id=known, size=123, username="app")
        return api_pb2.ImageStatusResponse(image=image)

    async def _pull(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        self.pulls.append(request)
        self.now += 1.5
        answer = self.answers.pop(0)
        if isinstance(answer, PodkeepError):
            raise answer
        self.present[request.image.image] = answer
        return api_pb2.PullImageResponse(image_ref=answer)

    def ask(self, socket: Path, *steps: Callable[[Images], Any]) -> list[Any]:
        """Do ``steps`` one after the other and return what each came to, an error included."""

        async def work() -> list[Any]:
            async with talking(socket, images={"ImageStatus": self._status, "PullImage": self._pull}) as client:
                images = Images(client, clock=lambda: self.now)
                return [await _outcome(step(images)) for step in steps]

        return run(work())

    def pod(self, **more: Any) -> PodPull:
        sandbox = api_pb2.PodSandboxConfig(metadata=api_pb2.PodSandboxMetadata(name="web", uid="u"))
        return PodPull(uid="u", sandbox=sandbox, report=self.events.append, **more)

    def said(self) -> list[tuple[str, str, str]]:
        return [(event.type, event.reason, event.message) for event in self.events]


async def _outcome(work: Any) -> Any:
    try:
        return await work
    except PullFailed as failure:
        return failure


def wanted(image: str = IMAGE, policy: str = "IfNotPresent") -> Wanted:
    return Wanted(image=image, policy=policy, container="main")


def ensure(runtime: Runtime, socket: Path, want: Wanted, **pod: Any) -> Any:
    (outcome,) = runtime.ask(socket, lambda images: images.ensure(want, runtime.pod(**pod)))
    return outcome


@pytest.mark.requirement("V23", "V114")
def test_an_image_that_is_here_is_not_pulled(tmp_path: Path) -> None:
    runtime = Runtime(present={IMAGE: "sha256:1"})
    outcome = ensure(runtime, tmp_path / "s", wanted())
    assert isinstance(outcome, LocalImage)
    assert (outcome.ref, outcome.user.name, outcome.size) == ("sha256:1", "app", 123)
    assert runtime.pulls == []
    assert runtime.events == [
        Event(
            type="Normal",
            reason="Pulled",
            message=f'Container image "{IMAGE}" already present on machine',
            container="main",
        )
    ]


@pytest.mark.requirement("V24", "V32")
def test_always_pulls_with_what_the_pod_is(tmp_path: Path) -> None:
    runtime = Runtime("sha256:2", present={IMAGE: "sha256:1"})
    outcome = ensure(runtime, tmp_path / "s", wanted(policy="Always"), handler="kata", annotations={"note": "y"})
    assert outcome.ref == "sha256:2"
    (request,) = runtime.pulls
    assert request.image == api_pb2.ImageSpec(
        image=IMAGE, user_specified_image=IMAGE, runtime_handler="kata", annotations={"note": "y"}
    )
    assert request.sandbox_config.metadata.name == "web"
    assert not request.HasField("auth")
    assert runtime.said() == [
        ("Normal", "Pulling", f'Pulling image "{IMAGE}"'),
        (
            "Normal",
            "Pulled",
            f'Successfully pulled image "{IMAGE}" in 1.5s (1.5s including waiting). Image size: 123 bytes.',
        ),
    ]


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("busybox", "busybox:latest"),
        ("r.example:5000/app", "r.example:5000/app:latest"),
        ("r.example/app:1", "r.example/app:1"),
        (f"r.example/app@sha256:{'0' * 64}", f"r.example/app@sha256:{'0' * 64}"),
        (f"r.example/app:1@sha256:{'0' * 64}", f"r.example/app:1@sha256:{'0' * 64}"),
    ],
)
def test_a_tag_that_is_left_out_is_filled_in(tmp_path: Path, image: str, asked: str) -> None:
    runtime = Runtime("sha256:1")
    assert ensure(runtime, tmp_path / "s", wanted(image)).ref == "sha256:1"
    assert runtime.pulls[0].image.image == asked
    assert runtime.events[0].message == f'Pulling image "{image}"'


@pytest.mark.requirement("V25")
def test_never_is_never(tmp_path: Path) -> None:
    runtime = Runtime()
    failure = ensure(runtime, tmp_path / "s", wanted(policy="Never"))
    text = f'Container image "{IMAGE}" is not present with pull policy of Never'
    assert (failure.waiting, failure.detail, failure.again) == ("ErrImageNeverPull", text, ASK_AGAIN_S)
    assert runtime.said() == [("Warning", "ErrImageNeverPull", text)]
    assert failure.event() == Event(
        type="Warning", reason="Failed", message="Error: ErrImageNeverPull", container="main"
    )


def test_a_name_that_is_none(tmp_path: Path) -> None:
    runtime = Runtime()
    failure = ensure(runtime, tmp_path / "s", wanted("App"))
    assert failure.waiting == "InvalidImageName"
    (said,) = runtime.said()
    assert said[:2] == ("Warning", "InspectFailed")
    assert said[2].startswith('Failed to apply default image tag "App": couldn\'t parse image name "App": ')
    assert failure.detail == said[2]
    assert runtime.asked == []


def test_a_runtime_that_cannot_look(tmp_path: Path) -> None:
    runtime = Runtime()
    runtime.inspection = PermissionDenied("no")
    failure = ensure(runtime, tmp_path / "s", wanted())
    text = f'Failed to inspect image "{IMAGE}": no'
    assert (failure.waiting, failure.detail) == ("ImageInspectError", text)
    assert runtime.said() == [("Warning", "InspectFailed", text)]


@pytest.mark.requirement("V27")
@pytest.mark.parametrize(
    ("error", "waiting", "detail"),
    [
        (NotFound("no such manifest"), "ErrImagePull", "no such manifest"),
        (
            RegistryUnavailable("RegistryUnavailable: r.example: refused"),
            "RegistryUnavailable",
            f"image pull failed for {IMAGE} because the registry is unavailable: r.example: refused",
        ),
        (
            RegistryUnavailable("RegistryUnavailable: r.example: refused", hint="check it"),
            "RegistryUnavailable",
            f"image pull failed for {IMAGE} because the registry is unavailable: r.example: refused; hint: check it",
        ),
        (PermissionDenied("no", hint="log in"), "ErrImagePull", "no; hint: log in"),
        (
            PermissionDenied("SignatureValidationFailed: unknown key"),
            "SignatureValidationFailed",
            f"image pull failed for {IMAGE} because the signature validation failed: unknown key",
        ),
        (InvalidArgument("no"), "ErrImagePull", "no"),
    ],
)
def test_a_pull_that_fails_is_tried_again_after_its_back_off(
    tmp_path: Path, error: PodkeepError, waiting: str, detail: str
) -> None:
    runtime = Runtime(error, error, "sha256:1", error)

    def later(seconds: float) -> Callable[[Images], Any]:
        async def step(images: Images) -> LocalImage:
            runtime.now += seconds
            return await images.ensure(wanted(policy="Always"), runtime.pod())

        return lambda images: step(images)

    first, waits, still, second, longer, pulled, after = runtime.ask(
        tmp_path / "s", later(0), later(1), later(8.5), later(1), later(19), later(2), later(0)
    )
    for failure in (first, second, after):
        assert (failure.waiting, failure.detail, failure.again) == (waiting, detail, SEEN_S)
        assert failure.message == f'Failed to pull image "{IMAGE}": {error.message}'
    text = f'Back-off pulling image "{IMAGE}": {waiting}: {detail}'
    for failure, left in ((waits, 9.0), (still, 0.5), (longer, 1.0)):
        assert (failure.waiting, failure.detail, failure.message) == ("ImagePullBackOff", text, text)
        assert failure.again == pytest.approx(left)
        assert failure.event().message == "Error: ImagePullBackOff"
    assert pulled.ref == "sha256:1"
    assert len(runtime.pulls) == 4
    round_trip = [
        ("Normal", "Pulling", f'Pulling image "{IMAGE}"'),
        ("Warning", "Failed", f'Failed to pull image "{IMAGE}": {error}'),
    ]
    back_off = ("Normal", "BackOff", f'Back-off pulling image "{IMAGE}"')
    assert runtime.said()[:7] == [*round_trip, back_off, back_off, *round_trip, back_off]


def test_each_pod_has_its_own_back_off(tmp_path: Path) -> None:
    runtime = Runtime(NotFound("no"), "sha256:1")
    other = PodPull(uid="other", sandbox=api_pb2.PodSandboxConfig(), report=runtime.events.append)
    failed, pulled = runtime.ask(
        tmp_path / "s",
        lambda images: images.ensure(wanted(), runtime.pod()),
        lambda images: images.ensure(wanted(), other),
    )
    assert (failed.waiting, pulled.ref) == ("ErrImagePull", "sha256:1")


def test_back_off_grows_to_five_minutes_and_is_forgotten() -> None:
    back_off, now, delays = PullBackOff(), 0.0, []
    for _ in range(7):
        back_off.failed("k", now, "why")
        delays.append(back_off.left("k", now))
        now += delays[-1]
        assert back_off.left("k", now) == 0
    assert delays == [10, 20, 40, 80, 160, 300, 300]
    assert back_off.why("k") == "why"
    back_off.failed("k", now + 601, "why")
    assert back_off.left("k", now + 601) == 10
    back_off.failed("other", now + 1300, "why")
    assert back_off.why("k") == ""


# ------------------------------------------------------------------------------------------------------- pull secrets


def ring(*users: str) -> Keyring:
    return Keyring([("r.example", Credentials(username=user, password="p")) for user in users])


@pytest.mark.requirement("V29")
def test_credentials_are_tried_in_turn_and_then_the_runtimes_own(tmp_path: Path) -> None:
    runtime = Runtime(PermissionDenied("one"), NotFound("two"), "sha256:1")
    assert ensure(runtime, tmp_path / "s", wanted(), keyring=ring("a", "b")).ref == "sha256:1"
    assert [request.auth.username for request in runtime.pulls] == ["a", "b", ""]
    assert [request.HasField("auth") for request in runtime.pulls] == [True, True, False]
    assert runtime.pulls[0].auth.password == "p"


@pytest.mark.parametrize(
    ("answers", "detail"),
    [
        ([PermissionDenied("no"), PermissionDenied("no")], "no"),
        ([PermissionDenied("no"), NotFound("nothing")], "[no, nothing]"),
        ([Unavailable("down")], "down"),
    ],
)
def test_what_all_credentials_came_to(tmp_path: Path, answers: list[PodkeepError], detail: str) -> None:
    runtime = Runtime(*answers)
    failure = ensure(runtime, tmp_path / "s", wanted(), keyring=ring("a"))
    assert (failure.waiting, failure.detail) == ("ErrImagePull", detail)
    assert runtime.answers == []


def test_a_registry_that_is_down_is_asked_once_whatever_the_credentials(tmp_path: Path) -> None:
    runtime = Runtime(RegistryUnavailable("RegistryUnavailable: r.example: refused"))
    failure = ensure(runtime, tmp_path / "s", wanted(), keyring=ring("a"))
    assert failure.waiting == "RegistryUnavailable"
    assert "RegistryUnavailable: r.example: refused" in failure.message
    assert runtime.answers == []


def test_credentials_of_another_registry_are_not_sent(tmp_path: Path) -> None:
    runtime = Runtime("sha256:1")
    assert ensure(runtime, tmp_path / "s", wanted("other.example/app:1"), keyring=ring("a")).ref == "sha256:1"
    assert not runtime.pulls[0].HasField("auth")


def parsed(*documents: dict[str, Any]) -> tuple[Pod, Sources]:
    found = manifest.parse(yaml.safe_dump_all(documents), source="f")
    return found.pods[0], Sources(config_maps=found.config_maps, secrets=found.secrets)


def docker_secret(name: str, user: str, *, legacy: bool = False) -> dict[str, Any]:
    auths = {"r.example": {"auth": base64.b64encode(f"{user}:p".encode()).decode()}}
    key, content = (".dockercfg", auths) if legacy else (".dockerconfigjson", {"auths": auths})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": f"kubernetes.io/{key[1:]}",
        "stringData": {key: json.dumps(content)},
    }


def with_secrets(*names: str, **spec: Any) -> dict[str, Any]:
    references = [{"name": name} for name in names]
    containers = [{"name": "c", "image": "i"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": "u"},
        "spec": {"containers": containers, "imagePullSecrets": references} | spec,
    }


@pytest.mark.requirement("V29")
def test_pull_secrets_of_both_forms_in_their_order() -> None:
    opaque = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "opaque"}, "stringData": {"k": "v"}}
    pod, sources = parsed(
        with_secrets("new", "old", "opaque", ""),
        docker_secret("old", "b", legacy=True),
        docker_secret("new", "a"),
        opaque,
    )
    found, missing = pull_secrets.keyring(pod, sources)
    assert [item.username for item in found.lookup("r.example/app")] == ["a", "b"]
    assert missing is None


def test_credentials_say_which_object_of_the_api_they_are_from() -> None:
    known, other = docker_secret("known", "a"), docker_secret("other", "b")
    known["metadata"]["uid"] = "uid-1"
    found, _ = pull_secrets.keyring(*parsed(with_secrets("known", "other"), known, other))
    assert [item.origin for item in found.lookup("r.example/app")] == ["default/known/uid-1", ""]


@pytest.mark.requirement("V29")
def test_a_pull_secret_that_is_missing_is_an_event_and_no_more() -> None:
    elsewhere = docker_secret("s", "x")
    elsewhere["metadata"]["namespace"] = "other"
    pod, sources = parsed(with_secrets("s", "here", "t"), docker_secret("here", "a"), elsewhere)
    found, missing = pull_secrets.keyring(pod, sources)
    assert [item.username for item in found.lookup("r.example/app")] == ["a"]
    assert missing == Event(
        type="Warning",
        reason="FailedToRetrieveImagePullSecret",
        message="Unable to retrieve some image pull secrets (s, t); attempting to pull the image may not succeed.",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "hosts",
    [
        ["*?" * 400_000 + ".example"],
        [f"*r{number:05d}*.example" for number in range(16_000)],
        [f"r.example/{number:05d}" for number in range(16_000)],
    ],
)
def test_pull_secrets_take_no_time_without_an_end(hosts: list[str]) -> None:
    """Each name of an image is compared with all that they hold. What is one too many is none; others count."""
    pod, sources = parsed(with_secrets("large", "s"), docker_secret("large", "x"), docker_secret("s", "a"))
    key, content = ("default", "large"), json.dumps({"auths": {host: {"auth": "eDp5"} for host in hosts}}).encode()
    secret = structs.replace(sources.secrets[key], data={".dockerconfigjson": content})
    sources = structs.replace(sources, secrets={**sources.secrets, key: secret})
    found, missing = pull_secrets.keyring(pod, sources)
    began = time.thread_time()
    assert [item.username for item in found.lookup("r.example/app")] == ["a"]
    assert time.thread_time() - began < 0.5
    assert missing is not None
    assert "secrets (large)" in missing.message


@pytest.mark.slow
def test_pull_secrets_are_bounded_all_together() -> None:
    names = [f"s{number}" for number in range(8)]
    documents = []
    for number, name in enumerate(names):
        documents.append(docker_secret(name, name))
        auths = {f"r{number}.example/{index}": {"auth": "eDp5"} for index in range(400)}
        documents[-1]["stringData"][".dockerconfigjson"] = json.dumps({"auths": auths})
    pod, sources = parsed(with_secrets(*names, "s0", "last"), *documents, docker_secret("last", "a"))
    found, missing = pull_secrets.keyring(pod, sources)
    assert [item.username for item in found.lookup("r.example/app")] == ["a"]
    assert missing is not None
    assert f"({', '.join(names[2:])})" in missing.message


# ------------------------------------------------------------------------------------------------------------- volumes


def volumes_pod() -> Pod:
    mounts = {"a": ["one"], "b": ["one", "two"], "c": []}
    containers = [
        {"name": name, "image": "i", "volumeMounts": [{"name": volume, "mountPath": f"/{volume}"} for volume in used]}
        for name, used in mounts.items()
    ]
    volumes = [
        {"name": "one", "image": {"reference": "r.example/one:1"}},
        {"name": "two", "image": {"reference": "r.example/two:1"}},
        {"name": "unused", "image": {"reference": "r.example/unused:1"}},
    ]
    return parsed(with_secrets(containers=containers, volumes=volumes))[0]


@pytest.mark.requirement("V20", "V26", "V27", "V114")
def test_a_volume_that_fails_keeps_those_waiting_that_mount_it(tmp_path: Path) -> None:
    pod = volumes_pod()
    a, b, c = pod.spec.containers
    runtime = Runtime("sha256:1", NotFound("no two"), "sha256:2")

    def work() -> list[Callable[[Images], Any]]:
        made: list[VolumeImages] = []

        def step(container: Any, seconds: float = 0) -> Callable[[Images], Any]:
            def start(images: Images) -> Any:
                if not made:
                    made.append(VolumeImages(pod, images))
                runtime.now += seconds
                return made[0].ensure(container, runtime.pod())

            return start

        return [step(c), step(a), step(b), step(b, 1), step(a), step(b, 9)]

    free, one, fails, waits, again, both = runtime.ask(tmp_path / "s", *work())
    assert free == {}
    assert (one["one"].reference, one["one"].ref) == ("r.example/one:1", "sha256:1")
    assert one == again
    assert (fails.waiting, fails.detail, fails.container) == ("ErrImagePull", "no two", "b")
    assert (waits.waiting, waits.container) == ("ImagePullBackOff", "b")
    assert {name: image.ref for name, image in both.items()} == {"one": "sha256:1", "two": "sha256:2"}
    assert [request.image.image for request in runtime.pulls] == [
        "r.example/one:1",
        "r.example/two:1",
        "r.example/two:1",
    ]


def test_an_ephemeral_container_may_be_the_first_to_mount_an_image(tmp_path: Path) -> None:
    """It came when the images of the pod were there."""
    pod = volumes_pod()
    mount = {"name": "unused", "mountPath": "/unused"}
    debugger = msgspec.convert({"name": "debugger", "image": "i", "volumeMounts": [mount]}, Container)
    runtime = Runtime("sha256:1", "sha256:2", NotFound("no"), "sha256:3")
    made: list[VolumeImages] = []

    def start(container: Container, seconds: float = 0) -> Callable[[Images], Any]:
        def begin(images: Images) -> Any:
            made[:] = made or [VolumeImages(pod, images)]
            runtime.now += seconds
            return made[0].ensure(container, runtime.pod())

        return begin

    steps = (start(pod.spec.containers[0]), start(debugger), start(debugger, 10))
    one, fails, found = runtime.ask(tmp_path / "s", *steps)
    assert one["one"].ref == "sha256:1"
    assert (fails.waiting, fails.container) == ("ErrImagePull", "debugger")
    assert (found["unused"].reference, found["unused"].ref) == ("r.example/unused:1", "sha256:3")


def test_containers_that_wait_for_one_image_hear_the_same(tmp_path: Path) -> None:
    document = with_secrets(
        containers=[
            {"name": name, "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]} for name in ("a", "b")
        ],
        volumes=[{"name": "v", "image": {"reference": "r.example/v:1"}}],
    )
    pod, _ = parsed(document)
    runtime = Runtime(NotFound("no"))
    made: list[VolumeImages] = []

    def step(index: int) -> Callable[[Images], Any]:
        def start(images: Images) -> Any:
            if not made:
                made.append(VolumeImages(pod, images))
            return made[0].ensure(pod.spec.containers[index], runtime.pod())

        return start

    outcomes = runtime.ask(tmp_path / "s", step(0), step(1), step(0), step(1))
    assert [(failure.container, failure.waiting) for failure in outcomes] == [
        ("a", "ErrImagePull"),
        ("b", "ErrImagePull"),
        ("a", "ImagePullBackOff"),
        ("b", "ImagePullBackOff"),
    ]
    assert len(runtime.pulls) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.85, "850ms"),
        (1, "1s"),
        (1.2345, "1.234s"),
        (62.5, "1m2.5s"),
        (120, "2m0s"),
        (3661, "1h1m1s"),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert durations.text(seconds) == text


@pytest.mark.requirement("V94", "V95", "V96")
def test_image_volumes_are_counted(tmp_path: Path) -> None:
    """Requested once for the pod, those that no container mounts not; each attempt that fails, and each success."""
    document = {
        "metadata": {"name": "web", "uid": "u"},
        "spec": {
            "volumes": [
                {"name": name, "image": {"reference": image, "pullPolicy": "Always"}}
                for name, image in (
                    ("a", IMAGE),
                    ("b", IMAGE),
                    ("c", "r.example/other:1"),
                    ("unused", "r.example/no:1"),
                )
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("a", "b", "c")],
                }
            ],
        },
    }
    pod = msgspec.convert(document, Pod)
    runtime = Runtime("sha256:1", NotFound("no such image"), "sha256:2")

    async def steps(images: Images) -> tuple[float, float, float]:
        volumes = VolumeImages(pod, images)
        container = pod.spec.containers[0]
        with pytest.raises(PullFailed):
            await volumes.ensure(container, runtime.pod())
        runtime.now += 60
        await volumes.ensure(container, runtime.pod())
        counted = (IMAGE_VOLUMES_REQUESTED, IMAGE_VOLUMES_MOUNTED, IMAGE_VOLUMES_FAILED)
        requested, mounted, failed = (images.metrics.value(metric) for metric in counted)
        return requested, mounted, failed

    assert runtime.ask(tmp_path / "s", steps) == [(3, 3, 1)]
