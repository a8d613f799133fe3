"""What the runtime says about a pod: read in one go per cycle, turned into plain values.

Protobuf stops here. Everything is found by the pod's UID label, so a restarted agent finds what an earlier one made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from ipaddress import ip_address

import msgspec

from podkeep.agent.convert import names
from podkeep.api.status import ContainerUser, LinuxContainerUser
from podkeep.base.errors import Internal, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2


class State(Enum):
    """State of a container (CRI: ContainerState)."""

    CREATED = api_pb2.CONTAINER_CREATED
    RUNNING = api_pb2.CONTAINER_RUNNING
    EXITED = api_pb2.CONTAINER_EXITED
    UNKNOWN = api_pb2.CONTAINER_UNKNOWN


MAX_ATTEMPT = (1 << 31) - 2
"""Of a container: one more is still a restartCount, which has 32 bits with a sign (Kubernetes: ContainerStatus)."""
_MAX_ID = (1 << 31) - 1
"""Of a user or a group (Kubernetes: ContainerStatus); the API takes no other."""
_MAX_TEXT = 4096
"""Characters of a reason and of what an image is called. A status of more than the API takes would never be told, nor
would that its pod has ended, so that it could not be deleted."""
_MAX_MESSAGE = 64 << 10
"""Of a message, of which the status has the first few kilobytes."""
_STATES: Mapping[int, State] = {state.value: state for state in State}


class SandboxView(FrozenStruct, kw_only=True):
    """One sandbox of a pod."""

    id: str
    ready: bool
    attempt: int
    created_at: int
    """Nanoseconds since 1970."""
    ips: tuple[str, ...] = ()


class Confinement(FrozenStruct, kw_only=True):
    """Resources of a container in the kernel's units, as the runtime has them; 0 means no limit."""

    cpu_period_us: int = 0
    cpu_quota_us: int = 0
    cpu_shares: int = 0
    memory_limit_bytes: int = 0


class ContainerView(FrozenStruct, kw_only=True):
    """One container of a pod, one attempt. Times in nanoseconds since 1970, 0 for never."""

    id: str
    name: str
    sandbox_id: str
    attempt: int
    state: State
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: int = 0
    finished_at: int = 0
    image: str = ""
    image_ref: str = ""
    mounted_images: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Which image is mounted at which path of the container."""
    recursive_mounts: frozenset[str] = frozenset()
    """At which paths the runtime has mounted read-only recursively."""
    hash: str = ""
    """Of its specification (``convert.container.container_hash``); empty if the runtime does not know it."""
    created_at: int = 0
    user: ContainerUser | None = None
    stop_signal: str = ""
    """Name of the signal (``SIGTERM``); empty if the runtime does not say it."""
    resources: Confinement | None = None
    """What the runtime says it is confined to; ``None`` if it says nothing."""

    @property
    def ran(self) -> float:
        """For how many seconds it ran, if it has ended."""
        return (self.finished_at - self.started_at) / 1e9 if self.started_at else 0.0


class Observed(FrozenStruct, kw_only=True):
    """A pod as the runtime has it: sandboxes newest first; for each container its attempts, newest first."""

    sandboxes: tuple[SandboxView, ...] = ()
    containers: Mapping[str, tuple[ContainerView, ...]] = msgspec.field(default_factory=dict)

    @property
    def sandbox(self) -> SandboxView | None:
        return self.sandboxes[0] if self.sandboxes else None

    def latest(self, name: str) -> ContainerView | None:
        attempts = self.containers.get(name, ())
        return attempts[0] if attempts else None

    def inside(self, sandbox: SandboxView) -> list[ContainerView]:
        return [view for views in self.containers.values() for view in views if view.sandbox_id == sandbox.id]


_SandboxLook = tuple[SandboxView, api_pb2.PodSandboxStatusResponse | None]
"""A sandbox, and the answer about it if that tells of its containers and of when that was."""


class Observer:
    """Reads one pod from the runtime. What cannot change any more (exits, addresses) is asked once."""

    def __init__(self, client: CriClient, uid: str) -> None:
        self._client = client
        self._labels = {names.POD_UID: uid}
        self._final: dict[str, ContainerView] = {}
        self._ips: dict[str, tuple[str, ...]] = {}
        self._tells = True
        self.at = 0
        """When the runtime said what was read last: nanoseconds of its clock; 0 if it does not say when."""

    async def read(self) -> Observed:
        """Return the pod as it is now.

        :raises PodkeepError: if the runtime does not answer.
        """
        listed = await self._client.runtime.ListPodSandbox(
            api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter(label_selector=self._labels))
        )
        looks = [await self._sandbox(item) for item in names.with_labels(listed.items, self._labels)]
        views = await self._containers(looks)
        # What the runtime has no more is forgotten: each attempt of a container has another ID.
        self._final = {view.id: view for view in views if view.state is State.EXITED}
        self._ips = {sandbox.id: sandbox.ips for sandbox, _ in looks if sandbox.ips}
        by_name: dict[str, list[ContainerView]] = {}
        for view in views:
            by_name.setdefault(view.name, []).append(view)
        ordered = {
            name: tuple(sorted(attempts, key=lambda view: (view.attempt, view.created_at), reverse=True))
            for name, attempts in by_name.items()
        }
        sandboxes = sorted((sandbox for sandbox, _ in looks), key=_age, reverse=True)
        return Observed(sandboxes=tuple(sandboxes), containers=ordered)

    async def _containers(self, looks: Sequence[_SandboxLook]) -> list[ContainerView]:
        """Return the pod's containers: as its sandboxes tell of them, or else as the runtime lists them.

        A call costs both sides more than what it says, so those that the answer before has made needless are left out.
        """
        told = [(sandbox.id, answer) for sandbox, answer in looks if answer is not None]
        self.at = 0
        if looks and len(told) == len(looks):
            # The oldest of them: an event after it may be missing in one of the answers.
            self.at = min(answer.timestamp for _, answer in told)
            return [self._view(status, sandbox) for sandbox, answer in told for status in answer.containers_statuses]
        answer = await self._client.runtime.ListContainers(
            api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(label_selector=self._labels))
        )
        views = [await self._container(item) for item in names.with_labels(answer.containers, self._labels)]
        return [view for view in views if view is not None]

    async def _sandbox(self, item: api_pb2.PodSandbox) -> _SandboxLook:
        ready = item.state == api_pb2.SANDBOX_READY
        answer: api_pb2.PodSandboxStatusResponse | None = None
        # A runtime that does not tell of containers with it is asked for addresses alone, and once.
        if self._tells or (ready and item.id not in self._ips):
            try:
                answer = await self._client.runtime.PodSandboxStatus(
                    api_pb2.PodSandboxStatusRequest(pod_sandbox_id=item.id)
                )
            except NotFound:
                ready = False
        # One that has none yet is asked again.
        if answer is not None and ready and item.id not in self._ips and (found := _addresses(answer.status.network)):
            self._ips[item.id] = found
        if answer is not None and not answer.timestamp:  # CRI, PodSandboxStatusResponse: of those that send events
            self._tells, answer = False, None
        view = SandboxView(
            id=item.id,
            ready=ready,
            attempt=min(item.metadata.attempt, MAX_ATTEMPT),
            created_at=item.created_at,
            ips=self._ips.get(item.id, ()),
        )
        return view, answer

    async def _container(self, item: api_pb2.Container) -> ContainerView | None:
        if item.id in self._final:
            return self._final[item.id]
        try:
            answer = await self._client.runtime.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=item.id))
        except NotFound:
            return None
        if answer.status.id != item.id:
            raise _unidentified(item.id)
        return self._view(answer.status, item.pod_sandbox_id)

    def _view(self, status: api_pb2.ContainerStatus, sandbox: str) -> ContainerView:
        if status.id in self._final:
            return self._final[status.id]
        if not status.id or not names.is_directory_name(status.metadata.name):
            raise _unidentified(status.id)
        view = ContainerView(
            id=status.id,
            name=status.metadata.name,
            sandbox_id=sandbox,
            attempt=min(status.metadata.attempt, MAX_ATTEMPT),
            state=_STATES.get(status.state, State.UNKNOWN),
            exit_code=status.exit_code,
            reason=status.reason[:_MAX_TEXT],
            message=status.message[:_MAX_MESSAGE],
            started_at=status.started_at,
            finished_at=status.finished_at,
            image=(status.image.user_specified_image or status.image.image)[:_MAX_TEXT],
            image_ref=status.image_ref[:_MAX_TEXT],
            mounted_images={
                mount.container_path: mount.image.image[:_MAX_TEXT]
                for mount in status.mounts
                if mount.HasField("image")
            },
            recursive_mounts=frozenset(mount.container_path for mount in status.mounts if mount.recursive_read_only),
            hash=status.annotations.get(names.CONTAINER_HASH, ""),
            created_at=status.created_at,
            user=_user(status),
            stop_signal=_stop_signal(status),
            resources=_confinement(status),
        )
        # An exit is final, so that a runtime without containers_statuses is not asked for it in each look.
        if view.state is State.EXITED:
            self._final[view.id] = view
        return view


def _age(sandbox: SandboxView) -> tuple[int, int]:
    return sandbox.attempt, sandbox.created_at


def _unidentified(container: str) -> Internal:
    """As a kubelet, which believes no status without them (cri-client, verifyContainerStatus)."""
    return Internal(f"the runtime's status of container {container} has no ID or no name of it")


def _addresses(network: api_pb2.PodSandboxNetworkStatus) -> tuple[str, ...]:
    """Return the first of each family, as a kubelet (sortPodIPs): a status can have no more."""
    found: dict[int, str] = {}
    for text in (network.ip, *(extra.ip for extra in network.additional_ips)):
        if version := _version(text):
            found.setdefault(version, text)
    return tuple(found.values())


def _version(text: str) -> int:
    """Return 4 or 6; 0 for what is no address, as one with a zone is for Kubernetes."""
    try:
        return 0 if "%" in text else ip_address(text).version
    except ValueError:
        return 0


def _user(status: api_pb2.ContainerStatus) -> ContainerUser | None:
    if not status.user.HasField("linux"):
        return None
    linux = status.user.linux
    if not all(0 <= number <= _MAX_ID for number in (linux.uid, linux.gid, *linux.supplemental_groups)):
        return None
    return ContainerUser(
        linux=LinuxContainerUser(uid=linux.uid, gid=linux.gid, supplemental_groups=tuple(linux.supplemental_groups))
    )


def _stop_signal(status: api_pb2.ContainerStatus) -> str:
    if status.stop_signal == api_pb2.RUNTIME_DEFAULT:
        return ""
    if status.stop_signal not in api_pb2.Signal.values():
        return ""
    return api_pb2.Signal.Name(status.stop_signal).replace("PLUS", "+").replace("MINUS", "-")


def _confinement(status: api_pb2.ContainerStatus) -> Confinement | None:
    if not status.resources.HasField("linux"):
        return None
    linux = status.resources.linux
    return Confinement(
        cpu_period_us=linux.cpu_period,
        cpu_quota_us=linux.cpu_quota,
        cpu_shares=linux.cpu_shares,
        memory_limit_bytes=linux.memory_limit_in_bytes,
    )
