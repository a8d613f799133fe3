"""Pods over a CRI socket, for tests: requests as short as the tests' intentions, and no trace when they are done.

:class:`Pods` is a synchronous front of ``podkeep.cri.client.CriClient``: it owns an event loop, remembers the sandboxes
it made and removes them when it is closed. Nothing here knows podkeep's runtime; any CRI v1 runtime would do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest

from podkeep.base.errors import PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from support.waiting import TIMEOUT_S, wait_for

Result = TypeVar("Result")
Triple = tuple[int, int, int]
"""A mapping as people write it: container ID, host ID, length."""

BLOCK: Triple = (0, 65536, 65536)
OTHER_BLOCK: Triple = (0, 131072, 65536)
SLEEP = ("sleep", "1000")
UNCONFINED = api.SecurityProfile(profile_type=api.SecurityProfile.Unconfined)
"""As ``apparmor`` of a container that mounts: the profile of containers forbids every mount, whoever has SYS_ADMIN."""
HOUR_S = 3600
"""A grace period nobody sits out: a call that waits for it fails by its own deadline, :data:`TIMEOUT_S`."""


def mappings(*triples: Triple) -> list[api.IDMapping]:
    """Return CRI's form of mappings."""
    return [api.IDMapping(container_id=inside, host_id=host, length=length) for inside, host, length in triples]


def userns(*uids: Triple, gids: Sequence[Triple] | None = None, mode: int = api.POD) -> api.UserNamespace:
    """Return a user namespace; the GIDs are mapped as the UIDs unless given."""
    return api.UserNamespace(
        mode=api.NamespaceMode.ValueType(mode), uids=mappings(*uids), gids=mappings(*(uids if gids is None else gids))
    )


def namespaces(*, user: api.UserNamespace | Triple | None = None, **modes: Any) -> api.NamespaceOption:
    """Return namespace options; the PID namespace is the container's own unless said otherwise, as the kubelet says."""
    options = api.NamespaceOption(**({"pid": api.CONTAINER} | modes))
    if user is not None:
        options.userns_options.CopyFrom(user if isinstance(user, api.UserNamespace) else userns(user))
    return options


def pod(
    name: str = "pod", *, options: api.NamespaceOption | None = None, attempt: int = 0, **fields: Any
) -> api.PodSandboxConfig:
    """Return a sandbox's configuration; ``fields`` are those of PodSandboxConfig, with ``sysctls`` and
    ``cgroup_parent`` beside.
    """
    linux = api.LinuxPodSandboxConfig(
        sysctls=fields.pop("sysctls", {}),
        cgroup_parent=fields.pop("cgroup_parent", ""),
        security_context=api.LinuxSandboxSecurityContext(namespace_options=options or namespaces()),
    )
    metadata = api.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="tests", attempt=attempt)
    return api.PodSandboxConfig(metadata=metadata, linux=linux, **fields)


def bind(
    host_path: Path | str, container_path: str, *triples: Triple, readonly: bool = False, **fields: Any
) -> api.Mount:
    """Return a mount of a host path, idmapped if mappings are given."""
    return api.Mount(
        host_path=str(host_path),
        container_path=container_path,
        readonly=readonly,
        uidMappings=mappings(*triples),
        gidMappings=mappings(*triples),
        **fields,
    )


class Pods:
    """A client that removes what it made; use it as a context manager. Calls raise ``base.errors`` classes."""

    def __init__(self, socket: str, image: str) -> None:
        self.image = image
        self._runner = asyncio.Runner()
        self._client = CriClient(socket)
        self._configs: dict[str, api.PodSandboxConfig] = {}

    def __enter__(self) -> Pods:
        self.wait(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for sandbox in list(self._configs):
                self.remove(sandbox)
        finally:
            self.close()

    def again(self) -> Pods:
        """Return a client of the same runtime that knows the same sandboxes, for a runtime that was started again."""
        client = Pods(str(self._client.socket), self.image)
        client._configs = dict(self._configs)
        return client

    def close(self) -> None:
        """Close the connection and leave the sandboxes as they are."""
        self.wait(self._client.__aexit__(None, None, None))
        self._runner.close()

    # calls

    def wait(self, operation: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end."""
        return self._runner.run(operation)

    def call(self, rpc: str, request: Any, *, service: str = "runtime", **options: Any) -> Any:
        """Call an RPC by name and return its answer."""

        async def calling() -> Any:
            return await getattr(getattr(self._client, service), rpc)(request, **options)

        return self.wait(calling())

    def call_all(self, calls: Iterable[tuple[str, Any]], *, service: str = "runtime", **options: Any) -> list[Any]:
        """Call RPCs of one service at the same time; an error stands in the place of the answer."""

        async def calling() -> list[Any]:
            stub = getattr(self._client, service)
            waiting: list[Awaitable[Any]] = [getattr(stub, rpc)(request, **options) for rpc, request in calls]
            return await asyncio.gather(*waiting, return_exceptions=True)

        return self.wait(calling())

    def collect(self, rpc: str, request: Any, *, service: str = "runtime") -> list[Any]:
        """Call a streaming RPC that ends by itself and return its messages."""

        async def reading() -> list[Any]:
            return [message async for message in getattr(getattr(self._client, service), rpc)(request)]

        return self.wait(reading())

    # images

    def pull(self, image: str = "") -> str:
        """Pull an image, or the one the containers use, and return its ID."""
        request = api.PullImageRequest(image=api.ImageSpec(image=image or self.image))
        return str(self.call("PullImage", request, service="images").image_ref)

    def image_status(self, reference: str) -> api.Image | None:
        """Return an image, or None if the runtime has none of this name."""
        request = api.ImageStatusRequest(image=api.ImageSpec(image=reference))
        answer: api.ImageStatusResponse = self.call("ImageStatus", request, service="images")
        return answer.image if answer.HasField("image") else None

    def images(self, reference: str = "") -> list[api.Image]:
        """Return the images, all of them or those of a name."""
        request = api.ListImagesRequest()
        if reference:
            request.filter.image.image = reference
        return list(self.call("ListImages", request, service="images").images)

    def remove_image(self, reference: str) -> None:
        """Remove an image, if it is there."""
        self.call("RemoveImage", api.RemoveImageRequest(image=api.ImageSpec(image=reference)), service="images")

    # sandboxes

    def run(self, config: api.PodSandboxConfig | None = None, *, handler: str = "") -> str:
        """Run a sandbox and return its ID; it is removed when the client is closed."""
        config = config or pod()
        answer = self.call("RunPodSandbox", api.RunPodSandboxRequest(config=config, runtime_handler=handler))
        return self.adopt(answer.pod_sandbox_id, config)

    def adopt(self, sandbox: str, config: api.PodSandboxConfig) -> str:
        """Count a sandbox among those to remove."""
        self._configs[sandbox] = config
        return sandbox

    def stop_pod(self, sandbox: str) -> None:
        """Stop a sandbox."""
        self.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox))

    def remove(self, sandbox: str) -> None:
        """Stop and remove a sandbox."""
        self.stop_pod(sandbox)
        self.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
        self._configs.pop(sandbox, None)

    def sandboxes(self, **chosen: Any) -> list[api.PodSandbox]:
        """Return the sandboxes; ``chosen`` are fields of PodSandboxFilter."""
        request = api.ListPodSandboxRequest(filter=api.PodSandboxFilter(**chosen))
        return list(self.call("ListPodSandbox", request).items)

    def pod_status(self, sandbox: str, *, verbose: bool = False) -> api.PodSandboxStatusResponse:
        """Return a sandbox's status."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=verbose)
        answer: api.PodSandboxStatusResponse = self.call("PodSandboxStatus", request)
        return answer

    def address(self, sandbox: str) -> str:
        """Return a sandbox's address."""
        return self.pod_status(sandbox).status.network.ip

    # containers

    def create_request(
        self,
        sandbox: str,
        *command: str,
        name: str = "main",
        attempt: int = 0,
        options: api.NamespaceOption | None = None,
        security: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> api.CreateContainerRequest:
        """Return a request for a container that runs ``command``.

        ``fields`` are those of ContainerConfig, ``security`` those of LinuxContainerSecurityContext; the namespace
        options are the sandbox's unless given.
        """
        config = self._configs.get(sandbox, api.PodSandboxConfig())
        context = api.LinuxContainerSecurityContext(
            namespace_options=options or config.linux.security_context.namespace_options, **(security or {})
        )
        linux = api.LinuxContainerConfig(security_context=context, resources=fields.pop("resources", None))
        image = fields.pop("image", self.image)
        container = api.ContainerConfig(
            metadata=api.ContainerMetadata(name=name, attempt=attempt),
            image=image if isinstance(image, api.ImageSpec) else api.ImageSpec(image=image),
            command=command or SLEEP,
            linux=linux,
            **fields,
        )
        return api.CreateContainerRequest(pod_sandbox_id=sandbox, config=container, sandbox_config=config)

    def create(self, sandbox: str, *command: str, **fields: Any) -> str:
        """Create a container and return its ID."""
        return str(self.call("CreateContainer", self.create_request(sandbox, *command, **fields)).container_id)

    def start(self, container: str) -> str:
        """Start a created container."""
        self.call("StartContainer", api.StartContainerRequest(container_id=container))
        return container

    def launch(self, sandbox: str, *command: str, **fields: Any) -> str:
        """Create and start a container and return its ID."""
        return self.start(self.create(sandbox, *command, **fields))

    def executed(self, container: str) -> str:
        """Return the container's ID once its first process, PID 1 of its own namespace, is busybox.

        Until then that is the OCI runtime, which has answered that the container is started, and which nobody may look
        into.
        """
        is_busybox = ("test", "/proc/1/exe", "-ef", "/proc/self/exe")
        wait_for(lambda: self.exec(container, *is_busybox).exit_code == 0, "the container's program")
        return container

    def stop(self, container: str, timeout: int = 0) -> None:
        """Stop a container; its answer must come :data:`TIMEOUT_S` after the grace period, an hour's at once."""
        limit = TIMEOUT_S + (timeout if timeout < HOUR_S else 0)
        self.call("StopContainer", api.StopContainerRequest(container_id=container, timeout=timeout), timeout=limit)

    def remove_container(self, container: str) -> None:
        """Remove a container."""
        self.call("RemoveContainer", api.RemoveContainerRequest(container_id=container))

    def containers(self, **chosen: Any) -> list[api.Container]:
        """Return the containers; ``chosen`` are fields of ContainerFilter."""
        request = api.ListContainersRequest(filter=api.ContainerFilter(**chosen))
        return list(self.call("ListContainers", request).containers)

    def status(self, container: str) -> api.ContainerStatus:
        """Return a container's status."""
        answer = self.call("ContainerStatus", api.ContainerStatusRequest(container_id=container))
        status: api.ContainerStatus = answer.status
        return status

    def classes(self, container: str) -> dict[str, str]:
        """Return a container's classes in force, as verbose status shows them."""
        request = api.ContainerStatusRequest(container_id=container, verbose=True)
        found: dict[str, str] = json.loads(self.call("ContainerStatus", request).info["info"])["classResources"]
        return found

    def host_pid(self, container: str) -> int:
        """Return the host's ID of a container's first process."""
        request = api.ContainerStatusRequest(container_id=container, verbose=True)
        return int(json.loads(self.call("ContainerStatus", request).info["info"])["pid"])

    def exited(self, container: str) -> api.ContainerStatus:
        """Wait until a container has ended and return its status."""

        def ended() -> api.ContainerStatus | None:
            status = self.status(container)
            return status if status.state == api.CONTAINER_EXITED else None

        status = wait_for(ended, f"the end of container {container}")
        assert status is not None
        return status

    def exec(self, container: str, *command: str, timeout: int = 0) -> api.ExecSyncResponse:
        """Run a command in a container."""
        request = api.ExecSyncRequest(container_id=container, cmd=command, timeout=timeout)
        answer: api.ExecSyncResponse = self.call("ExecSync", request)
        return answer

    def read(self, container: str, script: str) -> str:
        """Run a shell script in a container that must succeed, and return its output without the last newline."""
        answer = self.exec(container, "sh", "-c", script)
        assert answer.exit_code == 0, answer.stderr.decode()
        return answer.stdout.decode().removesuffix("\n")


def error_of(operation: Callable[[], object], kind: type[PodkeepError]) -> str:
    """Return the text of the error that ``operation`` must raise: of exactly this class and on one line."""
    with pytest.raises(PodkeepError) as caught:
        operation()
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"
    assert "\n" not in str(caught.value), f"not one line: {caught.value}"
    return str(caught.value)
