"""How a pod is read from the runtime: the same from one that tells of containers with the sandbox and from others."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.convert import names
from podkeep.agent.observed import ContainerView, Observed, Observer, State
from podkeep.base.errors import Internal, NotFound
from podkeep.cri.v1 import api_pb2 as api
from unit.cri.cri_endpoint import run, talking

OWN, OTHERS = {names.POD_UID: "u1"}, {names.POD_UID: "u2"}


class Runtime:
    """One pod with a sandbox and two attempts of a container, the first of which has ended.

    :param at: when its answers are from; 0: it tells of no containers with the sandbox.
    """

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.addresses = ["192.0.2.1"]
        self.calls: Counter[str] = Counter()
        self.statuses = [
            api.ContainerStatus(
                id=f"c{attempt}",
                metadata=api.ContainerMetadata(name="main", attempt=attempt),
                state=api.CONTAINER_RUNNING if attempt else api.CONTAINER_EXITED,
                exit_code=0 if attempt else 3,
                annotations={names.CONTAINER_HASH: "h"},
                labels=OWN,
            )
            for attempt in (0, 1)
        ]

    @property
    def handlers(self) -> dict[str, Any]:
        return {
            "ListPodSandbox": self.list_sandboxes,
            "PodSandboxStatus": self.sandbox_status,
            "ListContainers": self.list_containers,
            "ContainerStatus": self.container_status,
        }

    async def list_sandboxes(self, _: Any) -> api.ListPodSandboxResponse:
        self.calls["ListPodSandbox"] += 1
        mine = api.PodSandbox(id="s1", state=api.SANDBOX_READY, created_at=5, labels=OWN)
        return api.ListPodSandboxResponse(items=[mine, api.PodSandbox(id="s2", labels=OTHERS)])

    async def sandbox_status(self, request: api.PodSandboxStatusRequest) -> api.PodSandboxStatusResponse:
        self.calls["PodSandboxStatus"] += 1
        if request.pod_sandbox_id != "s1":
            raise NotFound("of another pod")
        first, *others = self.addresses
        network = api.PodSandboxNetworkStatus(ip=first, additional_ips=[api.PodIP(ip=address) for address in others])
        status = api.PodSandboxStatus(id="s1", network=network)
        return api.PodSandboxStatusResponse(
            status=status, timestamp=self.at, containers_statuses=self.statuses if self.at else ()
        )

    async def list_containers(self, _: Any) -> api.ListContainersResponse:
        self.calls["ListContainers"] += 1
        listed = [api.Container(id=item.id, pod_sandbox_id="s1", labels=OWN) for item in self.statuses]
        return api.ListContainersResponse(containers=[*listed, api.Container(id="c9", labels=OTHERS)])

    async def container_status(self, request: api.ContainerStatusRequest) -> api.ContainerStatusResponse:
        self.calls["ContainerStatus"] += 1
        (status,) = (item for item in self.statuses if item.id == request.container_id)
        return api.ContainerStatusResponse(status=status)


def looks(socket: Path, runtime: Runtime, times: int = 1) -> tuple[Observed, int]:
    """Return what the last look saw, and when the runtime said it."""

    async def look() -> tuple[Observed, int]:
        async with talking(socket, runtime=runtime.handlers) as client:
            observer = Observer(client, "u1")
            for _ in range(times):
                observed = await observer.read()
            return observed, observer.at

    return run(look())


def test_both_kinds_of_runtime_show_the_same_pod(tmp_path: Path) -> None:
    plain, telling = looks(tmp_path / "a", Runtime()), looks(tmp_path / "b", Runtime(at=7))
    assert plain[0] == telling[0]
    assert (plain[1], telling[1]) == (0, 7)
    assert telling[0].sandbox is not None
    assert telling[0].sandbox.ips == ("192.0.2.1",)
    assert [(view.attempt, view.state) for view in telling[0].containers["main"]] == [
        (1, State.RUNNING),
        (0, State.EXITED),
    ]


def test_a_look_at_a_runtime_that_tells_of_containers_is_two_calls(tmp_path: Path) -> None:
    """It was one for each container, and one for their list: eleven for a pod with nine containers."""
    runtime = Runtime(at=7)
    looks(tmp_path / "s", runtime, times=3)
    assert runtime.calls == {"ListPodSandbox": 3, "PodSandboxStatus": 3}


def test_a_runtime_that_does_not_is_asked_once_for_what_cannot_change(tmp_path: Path) -> None:
    runtime = Runtime()
    looks(tmp_path / "s", runtime, times=3)
    assert runtime.calls == {"ListPodSandbox": 3, "PodSandboxStatus": 1, "ListContainers": 3, "ContainerStatus": 4}


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 7])
def test_attempts_that_the_runtime_has_no_more_are_forgotten(at: int, tmp_path: Path) -> None:
    """A container that crashes for a year has 100,000 of them."""
    runtime = Runtime(at=at)
    seen: list[str] = []

    async def look() -> None:
        async with talking(tmp_path / "s", runtime=runtime.handlers) as client:
            observer = Observer(client, "u1")
            for attempt in range(5):
                runtime.statuses[0].id = f"ended{attempt}"
                seen.extend(view.id for view in (await observer.read()).containers["main"][1:])
            gc.collect()
            views = [item for item in gc.get_objects() if isinstance(item, ContainerView)]
            assert [view.id for view in views if view.id in seen] == ["ended4"]

    run(look())
    assert seen == [f"ended{attempt}" for attempt in range(5)]


def test_a_status_without_a_name_is_not_believed(tmp_path: Path) -> None:
    runtime = Runtime(at=7)
    runtime.statuses[1].ClearField("metadata")
    with pytest.raises(Internal, match="no ID or no name"):
        looks(tmp_path / "s", runtime)


@pytest.mark.parametrize("name", ["..", "../../../etc", "a\0b"])
def test_a_name_that_leads_elsewhere_is_not_believed(name: str, tmp_path: Path) -> None:
    """It would be where logs are rotated and removed."""
    runtime = Runtime(at=7)
    runtime.statuses[1].metadata.name = name
    with pytest.raises(Internal, match="no ID or no name"):
        looks(tmp_path / "s", runtime)


@pytest.mark.slow
def test_what_no_status_can_tell_of_is_cut(tmp_path: Path) -> None:
    """The API refuses a status of megabytes, and a restartCount of more than 31 bits, and so the end of its pod."""
    runtime = Runtime(at=7)
    ended = runtime.statuses[1]
    ended.metadata.attempt = (1 << 32) - 1
    ended.reason, ended.image_ref, ended.image.image = ("x" * (1 << 20) for _ in range(3))
    ended.message = "x" * (7 << 20)
    observed, _ = looks(tmp_path / "s", runtime)
    (view,) = (view for view in observed.containers["main"] if view.id == ended.id)
    assert view.attempt + 1 < 1 << 31
    assert len(view.reason) + len(view.image) + len(view.image_ref) + len(view.message) < 100_000


@pytest.mark.parametrize("number", [-1, 1 << 31, 1 << 62])
def test_a_user_that_the_api_does_not_know_is_none(number: int, tmp_path: Path) -> None:
    runtime = Runtime(at=7)
    for status, (uid, gid, groups) in zip(runtime.statuses, [(number, 0, ()), (0, 0, (1, number))], strict=True):
        status.user.linux.uid, status.user.linux.gid = uid, gid
        status.user.linux.supplemental_groups.extend(groups)
    seen, _ = looks(tmp_path / "s", runtime)
    assert [view.user for view in seen.containers["main"]] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "seen"),
    [
        (["192.0.2.1", "192.0.2.2", "fd00::1", "fd00::2"], ("192.0.2.1", "fd00::1")),
        (["fd00::1", *(f"192.0.{number >> 8}.{number & 255}" for number in range(1 << 16))], ("fd00::1", "192.0.0.0")),
        (["fe80::1%eth0", "fe80::1%\n192.0.2.9 example.com", "192.0.2.1"], ("192.0.2.1",)),
    ],
    ids=["two", "thousands", "zones"],
)
def test_a_pod_has_one_address_of_each_family(told: list[str], seen: tuple[str, ...], tmp_path: Path) -> None:
    """The API takes no more in a status, and none with a zone."""
    runtime = Runtime(at=7)
    runtime.addresses = told
    observed, _ = looks(tmp_path / "s", runtime)
    assert observed.sandboxes[0].ips == seen
