"""Who may use an image that is here: what pulls leave behind, and what pods without credentials get then."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.events import Event, PullFailed
from podkeep.agent.images.pull_records import (
    LEFT_S,
    MOST_CREDENTIALS,
    MOST_REPOSITORIES,
    Policy,
    PullRecords,
    Verification,
)
from podkeep.agent.images.puller import Images, LocalImage, PodPull, Wanted
from podkeep.base.errors import PermissionDenied, Unavailable
from podkeep.base.registries import reference
from podkeep.base.registries.docker_config import Credentials, Keyring
from podkeep.base.registries.reference import Reference
from podkeep.cri.v1 import api_pb2
from unit.cri.cri_endpoint import run, talking

NAME = reference.parse("r.example/team/app:1")
TAG = reference.parse("r.example/team/app:2")
OTHER = reference.parse("r.example/other/app:1")
DIGEST = f"{NAME.name}@sha256:{'1' * 64}"
MINE, YOURS = Credentials(username="me", password="m"), Credentials(username="you", password="y")
ID = "sha256:1"


def records(tmp_path: Path, policy: Policy = "NeverVerifyPreloadedImages", *allowed: str) -> PullRecords:
    return PullRecords(tmp_path / "image_manager", Verification(policy=policy, allowed=allowed))


def bring(found: PullRecords, credentials: Credentials | None) -> None:
    """Have a pull bring the image."""
    found.succeeded(found.begin(NAME), [ID], credentials)


def test_what_was_pulled_with_a_secret_is_for_who_has_it(tmp_path: Path) -> None:
    """After a restart of the agent too; another repository is another matter."""
    bring(records(tmp_path), MINE)
    found = records(tmp_path)
    assert found.may_use(NAME, ID, [YOURS, MINE], [NAME])
    assert not found.may_use(NAME, ID, [YOURS], [NAME])
    assert not found.may_use(NAME, ID, [], [NAME])
    assert not found.may_use(OTHER, ID, [MINE], [NAME, OTHER])


def test_a_secret_whose_credentials_were_rotated_is_the_same_secret(tmp_path: Path) -> None:
    """As KEP-2535 has it; another Secret of its name is another one."""
    bring(records(tmp_path), replace(MINE, origin="team/pull/uid-1"))
    found = records(tmp_path)
    assert found.may_use(NAME, ID, [replace(YOURS, origin="team/pull/uid-1")], [NAME])
    assert found.may_use(NAME, ID, [replace(MINE, origin="other/copy/uid-2")], [NAME])
    assert not found.may_use(NAME, ID, [replace(YOURS, origin="team/pull/uid-2")], [NAME])
    assert not found.may_use(NAME, ID, [YOURS], [NAME])
    bring(found, YOURS)
    assert not found.may_use(NAME, ID, [Credentials(username="x", password="x")], [NAME])


def test_what_was_pulled_without_is_for_everybody(tmp_path: Path) -> None:
    found = records(tmp_path)
    bring(found, MINE)
    bring(found, None)
    bring(found, YOURS)
    assert found.may_use(NAME, ID, [], [NAME])


def test_preloaded_images_and_pulls_that_a_crash_ended(tmp_path: Path) -> None:
    """Without a record an image is preloaded; one whose pull began counts as pulled until the pull has failed."""
    found = records(tmp_path)
    assert found.may_use(NAME, ID, [], [NAME])
    pull = found.begin(NAME)
    assert not records(tmp_path).may_use(NAME, ID, [], [NAME])
    found.failed(pull)
    assert found.may_use(NAME, ID, [], [NAME])


def test_pulls_of_agents_that_share_the_directory(tmp_path: Path) -> None:
    """Each ends its own; what an agent that crashed left is over as soon as an image of the name is pulled."""
    mine, yours = records(tmp_path), records(tmp_path)
    pull, other = mine.begin(NAME), yours.begin(NAME)
    yours.failed(other)
    assert not yours.may_use(NAME, ID, [], [NAME])
    crashed = yours.begin(NAME)
    os.close(crashed.lock)
    mine.failed(pull)
    assert not mine.may_use(NAME, ID, [], [NAME])
    bring(mine, MINE)
    assert list((tmp_path / "image_manager/pulling").iterdir()) == []
    running = yours.begin(NAME)
    bring(mine, MINE)
    assert list((tmp_path / "image_manager/pulling").iterdir()) == [running.path]
    yours.failed(running)


def test_what_is_left_of_pulls_has_an_end(tmp_path: Path) -> None:
    """However often a runtime does not answer."""
    found = records(tmp_path)
    for _ in range(3):
        found.unknown(found.begin(NAME))
    assert len(list((tmp_path / "image_manager/pulling").iterdir())) == 1
    assert not found.may_use(NAME, ID, [], [NAME])


def test_a_pull_that_brought_nothing_is_forgotten(tmp_path: Path) -> None:
    """As long as something is here under its name, or the pull may go on, it counts."""
    found, later = records(tmp_path), time.time() + LEFT_S + 1
    found.unknown(found.begin(NAME))
    found.unknown(found.begin(OTHER))
    running = found.begin(NAME)
    found.prune([], time.time() + LEFT_S - 60)
    found.prune([NAME, OTHER], later)
    assert not found.may_use(NAME, ID, [], [NAME])
    assert not found.may_use(OTHER, ID, [], [OTHER])
    found.prune([TAG, OTHER], later)
    assert not found.may_use(OTHER, ID, [], [OTHER])
    assert list((tmp_path / "image_manager/pulling").glob("*.left"))[1:] == []
    assert running.path.exists()
    found.failed(running)
    assert found.may_use(NAME, ID, [], [NAME])


def test_an_image_that_was_removed_is_forgotten(tmp_path: Path) -> None:
    found = records(tmp_path)
    bring(found, MINE)
    forgetting = [found.removing(ID), found.removing(ID)]
    for forget in forgetting:
        forget()
    assert found.may_use(NAME, ID, [], [NAME])


def test_what_a_pull_may_have_brought_stays_in_doubt_when_its_name_leads_elsewhere(tmp_path: Path) -> None:
    """Under its digest: the next pull of the name brought another image."""
    found, digest = records(tmp_path), reference.parse(DIGEST)
    found.unknown(found.begin(NAME))
    found.succeeded(found.begin(NAME, ID, [NAME, digest]), ["sha256:2"], None)
    assert not found.may_use(digest, ID, [MINE], [digest])
    assert found.may_use(NAME, "sha256:2", [], [NAME])
    found.unknown(found.begin(NAME, "sha256:2", [NAME]))
    assert found.may_use(NAME, "sha256:2", [], [NAME])


@pytest.mark.parametrize("before", [NAME, OTHER, reference.parse(f"{OTHER.name}@sha256:{'1' * 64}")])
@pytest.mark.parametrize("pulled", [NAME, TAG])
def test_a_preloaded_image_stays_so_whoever_pulls_it(tmp_path: Path, before: Reference, pulled: Reference) -> None:
    """With credentials that others do not have, under its own name, another tag, or from a repository of their own."""
    found, digest = records(tmp_path), reference.parse(DIGEST)
    pull = found.begin(pulled, *((ID, [before]) if before == pulled else ()))
    found.succeeded(pull, [ID], MINE, [before, pulled, digest])
    assert found.may_use(before, ID, [], [before, pulled, digest])
    running = found.begin(before, ID, [before, pulled, digest])
    assert found.may_use(before, ID, [], [before, pulled, digest])
    found.unknown(running)
    assert found.may_use(before, ID, [], [before, pulled, digest])
    assert not records(tmp_path, "AlwaysVerify").may_use(before, ID, [], [before, pulled, digest])


@pytest.mark.parametrize("how", ["left", "running", "pulled again"])
def test_a_preloaded_image_stays_so_whatever_becomes_of_a_copy_of_it(tmp_path: Path, how: str) -> None:
    """A pull of the copy may have had no end, so that the image has its names and nobody knows who pulled them."""
    found = records(tmp_path)
    names = [NAME, OTHER, reference.parse(f"{OTHER.name}@sha256:{'1' * 64}")]
    pull = found.begin(OTHER)
    if how != "running":
        found.unknown(pull)
    if how == "pulled again":
        found.succeeded(found.begin(OTHER), [ID], MINE, names)
    assert found.may_use(NAME, ID, [], names)
    found.succeeded(found.begin(NAME, ID, names), [ID], YOURS, [*names, reference.parse(DIGEST)])
    assert found.may_use(NAME, ID, [], names)


def test_a_preloaded_image_that_was_removed_comes_back_as_a_pulled_one(tmp_path: Path) -> None:
    """By others than the agent, or by an agent that crashed then: its record is still there."""
    found, names = records(tmp_path), [NAME, reference.parse(DIGEST)]
    found.succeeded(found.begin(NAME, ID, [NAME]), [ID], MINE, names)
    found.succeeded(found.begin(NAME, ID, names), [ID], MINE, names)
    assert found.may_use(NAME, ID, [], names)
    found.succeeded(found.begin(NAME), [ID], MINE, names)
    assert not found.may_use(NAME, ID, [YOURS], names)
    assert found.may_use(NAME, ID, [MINE], names)
    found.succeeded(found.begin(OTHER), [ID], None, [*names, OTHER])
    assert not found.may_use(NAME, ID, [YOURS], names)


@pytest.mark.slow
def test_of_an_image_there_is_an_end_to_how_many_repositories_are_kept(tmp_path: Path) -> None:
    """Those of the last pulls: one registry may have an image under any number of names."""
    found = records(tmp_path)
    bring(found, MINE)
    others = [reference.parse(f"r.example/copies/{number}:1") for number in range(MOST_REPOSITORIES)]
    for other in others[:-1]:
        found.succeeded(found.begin(other), [ID], None)
    bring(found, YOURS)
    found.succeeded(found.begin(others[-1]), [ID], None)
    assert found.may_use(NAME, ID, [MINE], [NAME])
    assert found.may_use(others[-1], ID, [], [NAME, *others])
    assert not found.may_use(others[0], ID, [], [NAME, *others])


@pytest.mark.parametrize("how", ["running", "left", "noted"])
def test_what_two_pulls_bring_is_not_preloaded(tmp_path: Path, how: str) -> None:
    """Nor is it by the name and the digest of the one that brought it first."""
    found, digest = records(tmp_path), reference.parse(f"{OTHER.name}@sha256:{'1' * 64}")
    names = [NAME, reference.parse(DIGEST), OTHER, digest]
    first, second = found.begin(NAME), found.begin(OTHER)
    if how == "left":
        found.unknown(first)
    elif how == "noted":
        found.succeeded(first, [ID], MINE, names[:2])
    found.succeeded(second, [ID], YOURS, names)
    if how == "running":
        found.succeeded(first, [ID], MINE, names)
    assert not found.may_use(NAME, ID, [], names)
    assert not found.may_use(OTHER, ID, [MINE], names)
    assert found.may_use(OTHER, ID, [YOURS], names)


def test_what_another_agent_pulls_now_is_not_preloaded(tmp_path: Path) -> None:
    """The next pull of the name sees the image, and does not take it for one that was there before."""
    found = records(tmp_path)
    first = found.begin(NAME)
    found.unknown(found.begin(NAME, ID, [NAME]))
    found.failed(first)
    assert not found.may_use(NAME, ID, [], [NAME])


def test_a_record_that_cannot_be_removed_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever collects images goes on."""
    place = tmp_path / "image_manager" / "pulled" / hashlib.sha256(ID.encode()).hexdigest()
    place.mkdir(parents=True)  # unlink(2) fails

    async def forget() -> None:
        async with talking(tmp_path / "s") as client:
            Images(client, records=records(tmp_path)).removing(ID)()

    run(forget())
    assert place.is_dir()
    assert "records of pulls are kept: " in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b'{"image": 1}', b"\xff"])
def test_a_record_that_cannot_be_read_lets_nobody_in(tmp_path: Path, content: bytes) -> None:
    found = records(tmp_path)
    bring(found, None)
    (record,) = (tmp_path / "image_manager/pulled").iterdir()
    record.write_bytes(content)
    assert not found.may_use(NAME, ID, [], [NAME])


@pytest.mark.slow
def test_no_password_is_on_the_disk(tmp_path: Path) -> None:
    """Nor is its hash one that can be made without the directory's key; and there is an end to how many are kept."""
    found = records(tmp_path)
    for number in range(MOST_CREDENTIALS + 1):
        bring(found, Credentials(username="me", password=f"password-{number}"))
    (record,) = (tmp_path / "image_manager/pulled").iterdir()
    assert b"password" not in record.read_bytes()
    assert not found.may_use(NAME, ID, [Credentials(username="me", password="password-0")], [NAME])
    assert found.may_use(NAME, ID, [Credentials(username="me", password="password-1")], [NAME])
    other = PullRecords(tmp_path / "elsewhere", Verification())
    bring(other, MINE)
    (copied,) = (tmp_path / "elsewhere/pulled").iterdir()
    record.write_bytes(copied.read_bytes())
    assert not found.may_use(NAME, ID, [MINE], [NAME])


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
    assert found.may_use(NAME, ID, [], [NAME]) is preloaded
    bring(found, MINE)
    assert found.may_use(NAME, ID, [], [NAME]) is pulled


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


class Half:
    """A runtime that has an image before it answers the request that pulls it, which is the one with the secret."""

    def __init__(self) -> None:
        self.here, self.answer = asyncio.Event(), asyncio.Event()
        self.lost = False

    async def pull(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        if request.auth.username != "me":
            raise PermissionDenied("access denied")
        self.here.set()
        await self.answer.wait()
        return api_pb2.PullImageResponse(image_ref=ID)

    async def status(self, _: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        if self.lost:
            raise Unavailable("going down")
        image = api_pb2.Image(id=ID, size=1, repo_tags=[str(NAME)], repo_digests=[DIGEST])
        return api_pb2.ImageStatusResponse(image=image if self.here.is_set() else None)


async def outcome(images: Images, policy: str, *given: Credentials, name: str = str(NAME)) -> str:
    """Return the ID of the image that a pod with some credentials gets, or why it waits."""
    keyring = Keyring([("r.example", item) for item in given])
    pod = PodPull(uid=f"{policy}{given}", sandbox=api_pb2.PodSandboxConfig(), report=lambda _: None, keyring=keyring)
    try:
        return (await images.ensure(Wanted(image=name, policy=policy), pod)).ref
    except PullFailed as failure:
        return failure.waiting


def half(tmp_path: Path, body: Callable[[Half, Images], Coroutine[Any, Any, list[str]]]) -> list[str]:
    async def work() -> list[str]:
        runtime = Half()
        handlers = {"PullImage": runtime.pull, "ImageStatus": runtime.status}
        async with talking(tmp_path / "s", images=handlers) as client:
            return await body(runtime, Images(client, records=records(tmp_path)))

    return run(work())


def test_a_pull_that_fails_says_nothing_of_another_of_the_same_name(tmp_path: Path) -> None:
    """The image of the other is here already, and is no preloaded one, by tag or digest."""

    async def body(runtime: Half, images: Images) -> list[str]:
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(outcome(images, "Always", MINE))
            await runtime.here.wait()
            found = [
                await outcome(images, "Always"),
                await outcome(images, "Never"),
                await outcome(images, "Never", name=DIGEST),
                await outcome(images, "Never", name=ID),
            ]
            runtime.answer.set()
        return [*found, await pulling, await outcome(images, "Never"), await outcome(images, "Never", MINE)]

    never = "ErrImageNeverPull"
    assert half(tmp_path, body) == ["ErrImagePull", never, never, never, ID, never, ID]
    assert list((tmp_path / "image_manager/pulling").iterdir()) == []


@pytest.mark.parametrize("how", ["cancelled", "lost"])
def test_a_pull_of_which_nothing_was_heard_may_have_brought_an_image(tmp_path: Path, how: str) -> None:
    """Until an image of that name is pulled; another one that fails does not matter."""

    async def body(runtime: Half, images: Images) -> list[str]:
        pulling = asyncio.create_task(outcome(images, "Always", MINE))
        await runtime.here.wait()
        if how == "lost":
            runtime.lost = True
            runtime.answer.set()
        else:
            pulling.cancel()
        await asyncio.wait([pulling])
        runtime.lost = False
        runtime.answer.set()
        return [
            await outcome(images, "Never"),
            await outcome(images, "Never", name=DIGEST),
            await outcome(images, "Never", name=ID),
            await outcome(images, "Always"),
            await outcome(images, "Never"),
            # That of a pod whose last pull failed waits.
            await outcome(images, "Always", MINE, YOURS),
            await outcome(images, "Never", MINE),
            await outcome(images, "Never"),
        ]

    never = "ErrImageNeverPull"
    assert half(tmp_path, body) == [never, never, never, "ErrImagePull", never, ID, ID, never]
    assert list((tmp_path / "image_manager/pulling").iterdir()) == []


class Stocked:
    """A runtime with one image that was loaded by hand, whose pulls have no end."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def pull(self, _: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        self.asked.set()
        never: asyncio.Future[api_pb2.PullImageResponse] = asyncio.get_running_loop().create_future()
        return await never

    async def status(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        image = api_pb2.Image(id=ID, size=1, repo_tags=[str(NAME)], repo_digests=[DIGEST])
        here = request.image.image in (ID, str(NAME), DIGEST)
        return api_pb2.ImageStatusResponse(image=image if here else None)


@pytest.mark.parametrize("name", [f"{NAME.name}:2", str(NAME), DIGEST])
def test_a_pull_without_an_end_takes_no_preloaded_image_away(tmp_path: Path, name: str) -> None:
    """Nor one that was given up, whoever asked for it: another tag of the repository, or the image itself."""

    async def work() -> list[str]:
        runtime = Stocked()
        async with talking(tmp_path / "s", images={"PullImage": runtime.pull, "ImageStatus": runtime.status}) as client:
            images = Images(client, records=records(tmp_path))
            found = []
            for _ in range(2):
                pulling = asyncio.create_task(outcome(images, "Always", name=name))
                await runtime.asked.wait()
                found += [await outcome(images, "Never"), await outcome(images, "Never", name=DIGEST)]
                pulling.cancel()
                await asyncio.wait([pulling])
                runtime.asked.clear()
                found.append(await outcome(images, "Never"))
            return found

    assert run(work()) == [ID] * 6


@pytest.mark.parametrize("image", [ID, "sha256:1111"])
def test_an_image_by_its_id_is_of_no_repository_of_the_list(tmp_path: Path, image: str) -> None:
    """As a name it has a repository, docker.io/library/sha256, which says nothing of where the image is from."""

    async def status(_: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        return api_pb2.ImageStatusResponse(image=api_pb2.Image(id=ID, size=1, repo_tags=[str(NAME)]))

    async def work() -> list[str]:
        async with talking(tmp_path / "s", images={"ImageStatus": status}) as client:
            found = records(tmp_path, "NeverVerifyAllowlistedImages", "docker.io/library/*", "r.example/other/*")
            images = Images(client, records=found)
            return [await outcome(images, "Never", name=image), await outcome(images, "Never")]

    assert run(work()) == ["ErrImageNeverPull"] * 2
