"""Pods over any CRI v1 socket: the calls a kubelet makes to bring one up and down, each timed.

Owns the sandboxes it made: leaving the context removes what is left, also after an error. Knows nothing of how the
runtime behind the socket was started.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from bench.samples import Samples
from podkeep.cri.v1 import api_pb2 as pb
from podkeep.cri.v1 import api_pb2_grpc

CALL_SECONDS = 120.0
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]
IDS_PER_POD = 65536
"""KEP-127: each pod has its own 64k block of IDs."""


MOUNTED = "/volume"
MEMORY = "/memory"


class Unmeasurable(Exception):
    """The runtime answered, but not with what was to be measured; the message says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """What kind of pod is measured: one container of ``image`` that sleeps."""

    image: str
    userns: bool = False
    host_network: bool = False
    handler: str = ""
    cgroup_parent: str = ""
    volume: str = ""
    """An image that the container sees at :data:`MOUNTED`."""
    host_path: str = ""
    """A directory, such as a volume in memory, that the container sees at :data:`MEMORY`."""
    command: tuple[str, ...] = ("sleep", "3600")
    classes: Mapping[str, str] = field(default_factory=dict)
    """Types of class resources to the classes that the container is in."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A running pod: its sandbox and its one container, by CRI ID."""

    sandbox: str
    container: str


class Pods(AbstractContextManager["Pods"]):
    """A connection to one CRI socket that makes and removes pods; threads may share it."""

    def __init__(self, socket: Path | str) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=_CHANNEL_OPTIONS)
        self.runtime = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self.images = api_pb2_grpc.ImageServiceStub(self._channel)
        self._logs = tempfile.TemporaryDirectory(prefix="podkeep-bench-logs-")
        self._slots = itertools.count(1)
        self._live: dict[str, None] = {}
        self._lock = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for sandbox in list(self._live):
                self._remove_sandbox(sandbox, Samples())
        finally:
            self._channel.close()
            self._logs.cleanup()

    def version(self, *, wait_seconds: float = 10.0) -> pb.VersionResponse:
        """Name and version of the runtime; waits for its socket up to ``wait_seconds``."""
        return self.runtime.Version(pb.VersionRequest(), timeout=wait_seconds, wait_for_ready=True)

    def pull(self, image: str) -> str:
        """Pull ``image`` and return the reference the runtime gives it."""
        request = pb.PullImageRequest(image=pb.ImageSpec(image=image))
        return self.images.PullImage(request, timeout=CALL_SECONDS).image_ref

    def remove_image(self, image: str) -> None:
        """Remove ``image``, if it is there."""
        request = pb.RemoveImageRequest(image=pb.ImageSpec(image=image))
        self.images.RemoveImage(request, timeout=CALL_SECONDS)

    def up(self, options: PodOptions, samples: Samples) -> Pod:
        """Sandbox, container and start, timed as RunPodSandbox, CreateContainer, StartContainer and ``pod up``."""
        config = self._sandbox_config(options)
        container = _container_config(options, config)
        with samples.timed("pod up"):
            run = pb.RunPodSandboxRequest(config=config, runtime_handler=options.handler)
            sandbox = self._call(samples, "RunPodSandbox", run).pod_sandbox_id
            with self._lock:
                self._live[sandbox] = None
            create = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=container, sandbox_config=config)
            id_ = self._call(samples, "CreateContainer", create).container_id
            self._call(samples, "StartContainer", pb.StartContainerRequest(container_id=id_))
        return Pod(sandbox=sandbox, container=id_)

    def execute(self, pod: Pod, samples: Samples) -> None:
        """``true`` in the container, timed as ExecSync."""
        with samples.timed("ExecSync"):
            self.output(pod, ["true"])

    def output(self, pod: Pod, command: Sequence[str]) -> str:
        """What ``command`` prints in the container.

        :raises Unmeasurable: for any exit code but 0.
        """
        request = pb.ExecSyncRequest(container_id=pod.container, cmd=command, timeout=10)
        response = self.runtime.ExecSync(request, timeout=CALL_SECONDS)
        if response.exit_code != 0:
            raise Unmeasurable(f"{' '.join(command)} in a pod ended with {response.exit_code}: {response.stderr!r}")
        return response.stdout.decode()

    def down(self, pod: Pod, samples: Samples) -> None:
        """Stop and remove container and sandbox, timed per call and as ``pod down``."""
        with samples.timed("pod down"):
            self._call(samples, "StopContainer", pb.StopContainerRequest(container_id=pod.container, timeout=0))
            self._call(samples, "RemoveContainer", pb.RemoveContainerRequest(container_id=pod.container))
            self._remove_sandbox(pod.sandbox, samples)

    def _remove_sandbox(self, sandbox: str, samples: Samples) -> None:
        self._call(samples, "StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        self._call(samples, "RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
        with self._lock:
            self._live.pop(sandbox, None)

    def _call(self, samples: Samples, name: str, request: Any) -> Any:
        method: Callable[..., Any] = getattr(self.runtime, name)
        with samples.timed(name):
            return method(request, timeout=CALL_SECONDS)

    def _sandbox_config(self, options: PodOptions) -> pb.PodSandboxConfig:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        namespaces = pb.NamespaceOption(
            network=pb.NODE if options.host_network else pb.POD, pid=pb.CONTAINER, ipc=pb.POD
        )
        if options.userns:
            block = pb.IDMapping(host_id=IDS_PER_POD * next(self._slots), container_id=0, length=IDS_PER_POD)
            namespaces.userns_options.CopyFrom(pb.UserNamespace(mode=pb.POD, uids=[block], gids=[block]))
        logs = Path(self._logs.name) / name
        logs.mkdir()
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=str(uuid.uuid4()), namespace="bench", attempt=0),
            hostname="" if options.host_network else name,
            log_directory=str(logs),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=options.cgroup_parent,
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=namespaces),
            ),
        )


def _container_config(options: PodOptions, sandbox: pb.PodSandboxConfig) -> pb.ContainerConfig:
    security = pb.LinuxContainerSecurityContext(
        namespace_options=sandbox.linux.security_context.namespace_options,
    )
    mounts = []
    if options.volume:
        mounts.append(pb.Mount(container_path=MOUNTED, image=pb.ImageSpec(image=options.volume), readonly=True))
    if options.host_path:
        mounts.append(pb.Mount(container_path=MEMORY, host_path=options.host_path))
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        image=pb.ImageSpec(image=options.image, user_specified_image=options.image),
        command=list(options.command),
        mounts=mounts,
        log_path="main.log",
        linux=pb.LinuxContainerConfig(security_context=security),
        class_resources=pb.ContainerClassResources(classes=options.classes) if options.classes else None,
    )
