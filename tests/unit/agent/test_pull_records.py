"""Who may use an image that is here: what pulls leave behind, and what pods without credentials get then."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.agent.events import Event, PullFailed
from podkeep.agent.images.pull_records import MOST_CREDENTIALS, Policy, PullRecords, Verification
from podkeep.agent.images.puller import Images, LocalImage, PodPull, Wanted
from podkeep.base import reference
from podkeep.base.docker_config import Credentials, Keyring
from podkeep.base.errors import PermissionDenied
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

NAME = reference.parse("r.example/team/app:1")
OTHER = reference.parse("r.example/other/app:1")
MINE, YOURS = Credentials(username="me", password="m"), Credentials(username="you", password="y")
ID = "sha256:1"


def records(tmp_path: Path, policy: Policy = "NeverVerifyPreloadedImages", *allowed: str) -> PullRecords:
    return PullRecords(tmp_path / "image_manager", Verification(policy=policy, allowed=allowed))


def test_what_was_pulled_with_a_secret_is_for_who_has_it(tmp_path: Path) -> None:
    """After a restart of the agent too; another repository is another matter."""
    records(tmp_path).succeeded(NAME, [ID], MINE)
    found = records(tmp_path)
    assert found.may_use(NAME, ID, [YOURS, MINE])
    assert not found.may_use(NAME, ID, [YOURS])
    assert not found.may_use(NAME, ID, [])
    assert not found.may_use(OTHER, ID, [MINE])


def test_what_was_pulled_without_is_for_everybody(tmp_path: Path) -> None:
    found = records(tmp_path)
    found.succeeded(NAME, [ID], MINE)
    found.succeeded(NAME, [ID], None)
    found.succeeded(NAME, [ID], YOURS)
    assert found.may_use(NAME, ID, [])


def test_preloaded_images_and_pulls_that_a_crash_ended(tmp_path: Path) -> None:
    """Without a record an image is preloaded; one whose pull began counts as pulled until the pull has failed."""
    found = records(tmp_path)
    assert found.may_use(NAME, ID, [])
    found.begin(NAME)
    assert not records(tmp_path).may_use(NAME, ID, [])
    found.failed(NAME)
    assert found.may_use(NAME, ID, [])


def test_an_image_that_was_removed_is_forgotten(tmp_path: Path) -> None:
    found = records(tmp_path)
    found.succeeded(NAME, [ID], MINE)
    found.forget(ID)
    found.forget(ID)
    assert found.may_use(NAME, ID, [])


@pytest.mark.parametrize("content", [b"", b"{", b'{"image": 1}', b"\xff"])
def test_a_record_that_cannot_be_read_lets_nobody_in(tmp_path: Path, content: bytes) -> None:
    found = records(tmp_path)
    found.succeeded(NAME, [ID], None)
    (record,) = (tmp_path / "image_manager/pulled").iterdir()
    record.write_bytes(content)
    assert not found.may_use(NAME, ID, [])


def test_no_password_is_on_the_disk(tmp_path: Path) -> None:
    """Nor is its hash one that can be made without the directory's key; and there is an end to how many are kept."""
    found = records(tmp_path)
    for number in range(MOST_CREDENTIALS + 1):
        found.succeeded(NAME, [ID], Credentials(username="me", password=f"password-{number}"))
    (record,) = (tmp_path / "image_manager/pulled").iterdir()
    assert b"password" not in record.read_bytes()
    assert not found.may_use(NAME, ID, [Credentials(username="me", password="password-0")])
    assert found.may_use(NAME, ID, [Credentials(username="me", password="password-1")])
    other = PullRecords(tmp_path / "elsewhere", Verification())
    other.succeeded(NAME, [ID], MINE)
    (copied,) = (tmp_path / "elsewhere/pulled").iterdir()
    record.write_bytes(copied.read_bytes())
    assert not found.may_use(NAME, ID, [MINE])


@pytest.mark.parametrize(
    ("policy", "allowed", "preloaded", "pulled"),
    [
        ("NeverVerify", (), True, True),
        ("NeverVerifyPreloadedImages", (), True, False),
        ("AlwaysVerify", (), False, False),
        ("NeverVerifyAllowlistedImages", (), False, False),
        ("NeverVerifyAllowlistedImages", ("r.example/team/app",), True, True),
        ("NeverVerifyAllowlistedImages", ("r.example/team/*",), True, True),
        ("NeverVerifyAllowlistedImages", ("r.example/te",), False, False),
    ],
)
def test_policies(tmp_path: Path, policy: Policy, allowed: tuple[str, ...], preloaded: bool, pulled: bool) -> None:
    """Of an image that a pod has no credentials for: may it be used if it was preloaded, and if somebody pulled it."""
    found = records(tmp_path, policy, *allowed)
    assert found.may_use(NAME, ID, []) is preloaded
    found.succeeded(NAME, [ID], MINE)
    assert found.may_use(NAME, ID, []) is pulled


def test_a_pod_without_the_secret_must_ask_the_registry(tmp_path: Path) -> None:
    """The one with it pulls; then it has the image without a pull, and the other one only if the registry gives it."""
    pulls: list[str] = []

    async def pull(request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        pulls.append(request.auth.username)
        if request.auth.username != "me":
            raise PermissionDenied("access denied")
        return api_pb2.PullImageResponse(image_ref=ID)

    async def status(request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        here = pulls and pulls[0] == "me"
        return api_pb2.ImageStatusResponse(image=api_pb2.Image(id=ID, size=1) if here else None)

    events: list[Event] = []

    async def have(images: Images, policy: str, *given: Credentials) -> str:
        keyring = Keyring([("r.example", item) for item in given])
        pod = PodPull(uid=f"{policy}{given}", sandbox=api_pb2.PodSandboxConfig(), report=events.append, keyring=keyring)
        try:
            found = await images.ensure(Wanted(image=str(NAME), policy=policy), pod)
        except PullFailed as failure:
            return failure.waiting
        assert isinstance(found, LocalImage)
        return found.ref

    async def work() -> list[str]:
        async with talking(tmp_path / "s", images={"PullImage": pull, "ImageStatus": status}) as client:
            images = Images(client, records=records(tmp_path))
            return [
                await have(images, "IfNotPresent", MINE),
                await have(images, "IfNotPresent", MINE),
                await have(images, "Never", MINE),
                await have(images, "Never"),
                await have(images, "IfNotPresent"),
            ]

    assert run(work()) == [ID, ID, ID, "ErrImageNeverPull", "ErrImagePull"]
    assert pulls == ["me", ""]
    said = [event.message for event in events if event.reason == "Pulled"]
    assert said[1] == f'Container image "{NAME}" already present on machine and can be accessed by the pod'
