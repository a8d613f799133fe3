"""Requests made by chance, for every unary RPC: valid ones with something wrong, and plain nonsense.

The shape comes from the protobuf descriptors, the values from the names of the fields. They are chosen so that no
request can hurt the machine even if the runtime believed all of it: host paths are below the test's own directory or
harmless, commands come from a short list, cgroup parents are below the daemon's, values of sysctls that belong to the
whole machine are those that the machine has, and no privileged container is in the host's PID namespace.

IDs are written as placeholders (``@sandbox``), to be replaced when the request is sent, so that an example that fails
can be repeated in another run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2 as node

BIG = "x" * 10_000_000
UNKNOWN_ID = "0123456789abcdef" * 4
IDS = ("@sandbox", "@other", "@stopped", "@container", "@created", "@exited", "@prefix", "@truncated", UNKNOWN_ID)
ODD_TEXT = ("", "a\nb", "a\0b", "../..", "%s%n", "-rf", "é\u202e", " ", "a" * 300, "{}", "\x1b[2J", "'; true #")
COMMANDS = (["sleep", "1000"], ["true"], ["sh", "-c", "exit 3"], ["/no/such"], [""], ["sh\0", "x"], ["true", "a\nb"])
EXEC_COMMANDS = tuple(command for command in COMMANDS if command[0] != "sleep")
"""Without those that do not end by themselves."""
MACHINE_SYSCTLS = ("kernel.panic", "vm.swappiness", "kernel.msgmax", "fs.file-max")

NOT_CALLED = frozenset({"/podkeep.v1.Node/Shutdown"})
"""It does what it says."""


def unary_rpcs() -> dict[str, MethodDescriptor]:
    """Return every RPC that answers once, by its gRPC path."""
    services = [
        *api.DESCRIPTOR.services_by_name.values(),
        *node.DESCRIPTOR.services_by_name.values(),
    ]
    found = {
        f"/{service.full_name}/{method.name}": method
        for service in services
        for method in service.methods
        if not method.server_streaming
    }
    return {path: method for path, method in found.items() if path not in NOT_CALLED}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What requests may name: a directory of the test's own, an image, a cgroup parent."""

    directory: Path
    image: str
    cgroup_parent: str
    machine_sysctls: Mapping[str, str] = field(
        default_factory=lambda: {
            name: Path(f"/proc/sys/{name.replace('.', '/')}").read_text().strip() for name in MACHINE_SYSCTLS
        }
    )

    def prepare(self) -> None:
        """Make what the paths of :meth:`host_paths` lead to."""
        (self.directory / "data").mkdir()
        (self.directory / "file").write_text("content")
        (self.directory / "link").symlink_to("data")
        (self.directory / "loop").symlink_to("loop")
        (self.directory / "dangling").symlink_to("nowhere")
        (self.directory / "logs").mkdir()
        (self.directory / "outside").mkdir()

    def host_paths(self) -> list[str]:
        """Return paths of the test's own directory, and some that are none."""
        own = [str(self.directory / name) for name in ("data", "file", "link", "loop", "dangling", "missing", "file/x")]
        return [
            *own,
            f"{self.directory}/data/../data",
            "/no/such",
            "relative",
            "",
            f"{self.directory}/data\0",
            "/dev/null",
        ]


def by_name(scene: Scene) -> dict[str, SearchStrategy[Any]]:
    """Return what goes into fields that must not hold just anything, by the field's name."""
    odd = st.sampled_from(ODD_TEXT)
    logs = [
        str(scene.directory / "logs"),
        f"{scene.directory}/logs/../outside",
        "relative",
        "",
        str(scene.directory / "loop"),
    ]
    container_paths = [
        "/volume",
        "/proc",
        "/",
        "relative",
        "/a/../..",
        "/dev/x",
        "/etc/passwd",
        "",
        "/v\0",
        "/sys",
        "/way/x",
    ]
    sysctls = st.dictionaries(
        st.sampled_from(
            ["net.ipv4.ip_forward", "net.ipv4.tcp_fin_timeout", "fs.mqueue.msg_max", "net/../kernel/panic", ""]
        ),
        st.sampled_from(["1", "30", "", "x", "1\n2"]),
        max_size=2,
    )
    machine = st.sampled_from(sorted(scene.machine_sysctls.items())).map(lambda pair: dict([pair]))
    seconds = st.sampled_from([0, 1, 2, -1, -(2**63)])
    images = [scene.image, f"{scene.image}x", "127.0.0.1:1/none:1", "UPPER", "a b", "", "sha256:" + "0" * 64, "@image"]
    paths = st.sampled_from(scene.host_paths())
    parent = scene.cgroup_parent
    return {
        "cgroup_parent": st.sampled_from(
            ["", parent, f"{parent}/below", "relative", f"{parent}/../..", f"{parent}//x"]
        ),
        "command": st.sampled_from(COMMANDS),
        "args": st.sampled_from([["x"], ["a\0b"], [""]]),
        "cmd": st.sampled_from(EXEC_COMMANDS),
        "container_path": st.sampled_from(container_paths),
        "host_path": paths,
        "path": paths,
        "location": st.sampled_from([str(scene.directory / "outside/archive"), "relative", "", "/dev/null/x"]),
        "localhost_ref": paths,
        "seccomp_profile_path": st.sampled_from(["", "runtime/default", "unconfined", "localhost/relative", "strange"]),
        "log_directory": st.sampled_from(logs),
        "log_path": st.sampled_from(["0.log", "a/b.log", "../outside/escaped.log", "", "x" * 300, "a\nb", "a\0"]),
        "image": st.sampled_from(images),
        "image_ref": st.sampled_from(images),
        "user_specified_image": st.sampled_from(images),
        "sysctls": st.one_of(sysctls, machine),
        "timeout": seconds,
        "runtime_handler": st.sampled_from(["", "", "crun", "none", "../x"]),
        "pod_sandbox_id": st.one_of(st.sampled_from(IDS), odd),
        "container_id": st.one_of(st.sampled_from(IDS), odd),
        "target_id": st.one_of(st.sampled_from(IDS), odd),
        "id": st.one_of(st.sampled_from(IDS), odd),
        "pod_cidr": st.sampled_from(["", "10.99.0.0/24", "nonsense", "::/0", "10.99.0.0/99"]),
    }


_INTEGERS = {
    FieldDescriptor.TYPE_INT32: [0, 1, 80, 65535, 65536, -1, 2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_UINT32: [0, 1, 65536, 1_000_000, 2**32 - 1],
    FieldDescriptor.TYPE_INT64: [0, 1, 2, 1000, 100_000, 1 << 26, -1, 2**63 - 1, -(2**63)],
    FieldDescriptor.TYPE_UINT64: [0, 1, 1 << 21, 2**64 - 1],
}
_WORDS = (
    "a",
    "ALL",
    "NET_ADMIN",
    "CAP_CHOWN",
    "FLY",
    "2MB",
    "memory.max",
    "../cgroup.procs",
    "0",
    "0-9999",
    "rwm",
    "tmp",
)


class Maker:
    """Draws messages; one per test."""

    def __init__(self, scene: Scene) -> None:
        self._named = by_name(scene)
        self._scene = scene
        self._texts = st.one_of(st.sampled_from([*ODD_TEXT, *_WORDS] * 3 + [BIG]), st.text(max_size=8))

    def message(self, draw: DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
        """Draw a message in which few fields are given."""
        result = message_factory.GetMessageClass(descriptor)()
        if not descriptor.fields or depth > 6:
            return result
        wanted = draw(st.lists(st.sampled_from(list(descriptor.fields)), max_size=3, unique_by=lambda item: item.name))
        for item in wanted:
            self._fill(draw, result, item, depth)
        return result

    def _fill(self, draw: DrawFn, result: Message, item: FieldDescriptor, depth: int) -> None:
        own = self._own(item)
        target = getattr(result, item.name)
        if _is_map(item):
            values = draw(own) if own is not None else draw(st.dictionaries(self._texts, self._texts, max_size=2))
            if item.message_type.fields_by_name["value"].message_type is None:
                target.update(values)
        elif item.is_repeated:
            if item.message_type is not None:
                for _ in range(draw(st.integers(1, 2))):
                    target.append(self.message(draw, item.message_type, depth + 1))
            else:
                values = draw(own) if own is not None else draw(st.lists(self._scalar(item), min_size=1, max_size=2))
                target.extend(values)
        elif item.message_type is not None:
            target.SetInParent()
            target.MergeFrom(self.message(draw, item.message_type, depth + 1))
        else:
            setattr(result, item.name, draw(self._scalar(item) if own is None else own))

    def _own(self, item: FieldDescriptor) -> SearchStrategy[Any] | None:
        if _is_map(item) or item.type == FieldDescriptor.TYPE_STRING or item.name == "timeout":
            return self._named.get(item.name)
        return None

    def _scalar(self, item: FieldDescriptor) -> SearchStrategy[Any]:
        if item.type == FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        if item.type == FieldDescriptor.TYPE_ENUM:
            return st.sampled_from([*(value.number for value in item.enum_type.values), 99, -1])
        if item.type == FieldDescriptor.TYPE_STRING:
            return self._texts
        if item.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=8)
        if item.type == FieldDescriptor.TYPE_DOUBLE:
            return st.floats()
        return st.sampled_from(_INTEGERS[item.type])

    def request(self, draw: DrawFn, method: MethodDescriptor) -> Message:
        """Draw a request: mostly one that would do, with something in it that was not there."""
        odd = self.message(draw, method.input_type)
        base = self._sound(method.name)
        if base is None or draw(st.integers(0, 9)) == 0:
            return odd
        if draw(st.booleans()):
            base.MergeFrom(odd)
        return tamed(base)

    def _sound(self, rpc: str) -> Message | None:
        make: Callable[[], Message] | None = {
            "RunPodSandbox": lambda: api.RunPodSandboxRequest(config=self._pod()),
            "CreateContainer": lambda: api.CreateContainerRequest(
                pod_sandbox_id="@sandbox", config=self._container(), sandbox_config=self._pod()
            ),
            "StartContainer": lambda: api.StartContainerRequest(container_id="@created"),
            "StopContainer": lambda: api.StopContainerRequest(container_id="@container"),
            "RemoveContainer": lambda: api.RemoveContainerRequest(container_id="@exited"),
            "ContainerStatus": lambda: api.ContainerStatusRequest(container_id="@container"),
            "ContainerStats": lambda: api.ContainerStatsRequest(container_id="@container"),
            "PodSandboxStats": lambda: api.PodSandboxStatsRequest(pod_sandbox_id="@sandbox"),
            "PodSandboxStatus": lambda: api.PodSandboxStatusRequest(pod_sandbox_id="@sandbox"),
            "ExecSync": lambda: api.ExecSyncRequest(container_id="@container", cmd=["true"]),
            "Exec": lambda: api.ExecRequest(container_id="@container", cmd=["true"], stdout=True),
            "Attach": lambda: api.AttachRequest(container_id="@container", stdout=True),
            "PortForward": lambda: api.PortForwardRequest(pod_sandbox_id="@sandbox", port=[80]),
            "UpdateContainerResources": lambda: api.UpdateContainerResourcesRequest(container_id="@container"),
            "UpdatePodSandboxResources": lambda: api.UpdatePodSandboxResourcesRequest(pod_sandbox_id="@sandbox"),
            "PullImage": lambda: api.PullImageRequest(image=api.ImageSpec(image=self._scene.image)),
        }.get(rpc)
        return make() if make else None

    def _pod(self) -> api.PodSandboxConfig:
        config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="@new", uid="@new", namespace="generated"))
        config.linux.security_context.namespace_options.pid = api.CONTAINER
        return config

    def _container(self) -> api.ContainerConfig:
        config = api.ContainerConfig(metadata=api.ContainerMetadata(name="@new"))
        config.image.image = self._scene.image
        config.command.extend(["sleep", "1000"])
        config.linux.security_context.namespace_options.pid = api.CONTAINER
        return config


def tamed(request: Message) -> Message:
    """Take from a request what no generated container may have: privileges in the host's PID namespace."""
    contexts: list[Any] = []
    if isinstance(request, api.RunPodSandboxRequest):
        contexts.append(request.config.linux.security_context)
    if isinstance(request, api.CreateContainerRequest):
        contexts += [request.config.linux.security_context, request.sandbox_config.linux.security_context]
    for context in contexts:
        if context.namespace_options.pid == api.NODE:
            context.privileged = False
    return request


def _is_map(item: FieldDescriptor) -> bool:
    return item.message_type is not None and item.message_type.GetOptions().map_entry


def replaced(request: Message, names: Mapping[str, str]) -> Message:
    """Return a request with what its placeholders stand for now; a placeholder for what is not there becomes an ID."""
    result = type(request)()
    result.CopyFrom(request)
    _replace(result, names)
    return result


def _replace(message: Message, names: Mapping[str, str]) -> None:
    for item, value in message.ListFields():
        if _is_map(item):
            continue
        if item.message_type is not None:
            for below in value if item.is_repeated else [value]:
                _replace(below, names)
        elif item.type == FieldDescriptor.TYPE_STRING and not item.is_repeated and value.startswith("@"):
            setattr(message, item.name, names.get(value, UNKNOWN_ID))
