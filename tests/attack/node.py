"""The node under attack: a real daemon on a scratch machine, pods in every state, and what must hold of it always.

Used by the campaigns (``attack.campaign``) and by the integration test that replays the corpus.
"""

from __future__ import annotations

import builtins
import itertools
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import podkeep.cri.transport as cri_transport

# isort: split
import grpc

from attack.archives import ESCAPED, REPOSITORY, Archive
from attack.calls import RPCS, Call
from attack.requests import MACHINE_SYSCTLS, SECRET
from podkeep.base.errors import PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods
from support.daemon import Daemon
from support.registry import HostileRegistry
from support.resources import Resources

Code = grpc.StatusCode
REFUSALS = frozenset(
    {
        Code.OK,
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.ALREADY_EXISTS,
        Code.FAILED_PRECONDITION,
        Code.UNIMPLEMENTED,
        Code.RESOURCE_EXHAUSTED,
    }
)
"""What a request may be answered with. INTERNAL means a defect, UNKNOWN that nobody thought of it."""
ALSO = {
    "PullImage": frozenset({Code.UNAVAILABLE, Code.PERMISSION_DENIED, Code.UNKNOWN}),
    "LoadImage": frozenset({Code.DEADLINE_EXCEEDED}),
    "ExecSync": frozenset({Code.DEADLINE_EXCEEDED}),
    "StopContainer": frozenset({Code.DEADLINE_EXCEEDED}),
    "CheckpointContainer": frozenset({Code.DEADLINE_EXCEEDED}),
    "GetContainerEvents": frozenset({Code.DEADLINE_EXCEEDED}),
    "WatchPulls": frozenset({Code.DEADLINE_EXCEEDED}),
}
"""What else, by RPC: a registry that is not there, a command that takes too long, a stream that its caller ends."""
DEADLINES_S = {"LoadImage": 5.0, "GetContainerEvents": 0.1, "WatchPulls": 0.1, "ExecSync": 5.0, "StopContainer": 5.0}
DEADLINE_S = 60.0
"""A limit against hanging, and no measure of speed."""
LET_GO_S = 60.0
"""The same for what is closed or removed behind an answer: connections, images of pulls that were given up."""
MEMORY_BYTES = 400 << 20
_EXCEPTIONS = "|".join(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
)
PYTHON = re.compile(rf"\b({_EXCEPTIONS})\b|Traceback|object at 0x|\[Errno|failed unexpectedly|codec can't|NoneType")
"""What a message has that was written by the interpreter, and not for a reader."""
_BAD_LOG = re.compile(
    r"\A\S+Z (ERROR|CRITICAL) |Traceback \(most recent|never (retrieved|awaited)"
    r"|\AException ignored|Fatal error on transport|Task was destroyed|Unhandled"
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a call ended; ``said`` is the error's text, ``data`` what was answered first."""

    code: grpc.StatusCode
    said: str = ""
    data: bytes = b""


class Hostile(HostileRegistry):
    """A registry that serves what it is told to."""

    def __init__(self) -> None:
        self.serves = Archive(files={}, pulled=True)
        super().__init__(None, lambda path, _headers: self.serves.answer(path))


class Node:
    """A daemon with pods in every state. ``directory`` is the campaign's own and can be reached by pods."""

    def __init__(self, daemon: Daemon, image: str, directory: Path, hostile: Hostile) -> None:
        self.daemon, self.directory = daemon, directory
        self._image, self._host = image, image.partition("/")[0]
        self._image_id = ""
        self._hostile = hostile
        self._numbers = itertools.count()
        self._own = self._newest = ""
        self._sockets: list[socket.socket] = []
        self._secrets = {SECRET}
        self._read = 0
        self._sysctls = {
            f"@sysctl{name.rpartition('.')[2]}": Path(f"/proc/sys/{name.replace('.', '/')}").read_text().strip()
            for name in MACHINE_SYSCTLS
        }

    def __enter__(self) -> Node:
        self._prepare()
        self._pods = Pods(self.daemon.socket, self._image)
        self._pods.__enter__()
        self._image_id = self._pods.pull()
        self._channel = grpc.insecure_channel(f"unix:{self.daemon.socket}", options=cri_transport.MESSAGE_LIMITS)
        assert list(self.wrong()) == []
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.alive:
                self.clear()  # also after a failure: containers outlive their daemon
        finally:
            self._channel.close()
            self._pods.close()
            for item in self._sockets:
                item.close()

    SETTINGS = ("runtime.criu=/bin/true",)
    """What its daemon is told beside: with a CRIU of any kind, a checkpoint gets as far as to its files."""

    @staticmethod
    def settings(*registries: str) -> str:
        """Return what is added to its daemon's configuration."""
        return "".join(f'[registries."{host}"]\ninsecure = true\n' for host in registries)

    def _prepare(self) -> None:
        """Make what the paths of requests lead to."""
        own = self.directory
        for name in ("data", "logs", "outside", "newline\nname"):
            (own / name).mkdir()
        (own / "file").write_text("content")
        (own / "logs/file").write_text("content")
        for name, target in (("link", "data"), ("loop", "loop"), ("dangling", "nowhere"), ("logs/loop", "loop")):
            (own / name).symlink_to(target)
        (own / "logs/link").symlink_to("../outside")
        for number in range(45):  # more links than the kernel follows
            (own / f"chain{number}").symlink_to(f"chain{number + 1}")
        (own / "chain45").mkdir()
        for name in ("fifo", "logs/fifo"):
            os.mkfifo(own / name)
        for name in ("socket", "logs/socket"):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(own / name))
            self._sockets.append(listening)
        (own / "seccomp.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
        (own / "notjson").write_bytes(b"{\xff")
        (own / "deep.json").write_text("[" * 100_000)
        (own / "image.tar").write_bytes(b"no archive")

    # calls

    def call(self, call: Call) -> Answer:
        """Send a request and return its answer."""
        names = self.names() if b"@" in call.request.SerializeToString() else {}
        answer = self.send(call.rpc, call.path, call.data(names))
        if call.rpc == "CreateContainer" and answer.code is Code.OK:
            self._newest = api.CreateContainerResponse.FromString(answer.data).container_id
        if call.rpc in {"Exec", "Attach", "PortForward"} and answer.code is Code.OK:
            self._secrets.add(api.ExecResponse.FromString(answer.data).url.rpartition("/")[2])
        return answer

    def offer(self, case: Archive) -> str:
        """Make an image ready to be pulled or loaded; return its name or its path."""
        if case.pulled:
            self._hostile.serves = case
            return f"{self._hostile.host}/{REPOSITORY}:1"
        path = self.directory / "hostile.tar"
        path.write_bytes(case.tar())
        return str(path)

    def url(self, call: Call) -> str:
        """Ask for a stream and return its URL; nothing if that was refused."""
        answer = self.call(call)
        return api.ExecResponse.FromString(answer.data).url if answer.code is Code.OK else ""

    def send(self, rpc: str, path: str, data: bytes) -> Answer:
        """Send bytes to an RPC."""
        deadline = DEADLINES_S.get(rpc, DEADLINE_S)
        try:
            if RPCS[rpc].server_streaming:
                parts = list(self._channel.unary_stream(path)(data, timeout=deadline))
                return Answer(code=Code.OK, data=parts[0] if parts else b"")
            return Answer(code=Code.OK, data=self._channel.unary_unary(path)(data, timeout=deadline))
        except grpc.RpcError as error:
            return Answer(code=error.code(), said=error.details() or "")

    def names(self) -> Mapping[str, str]:
        """Return what the placeholders of requests stand for now; what is missing is made."""
        try:
            return self._names()
        except PodkeepError:  # its pod was given limits with which nothing runs
            self._own = self._pod()
            return self._names()

    def _names(self) -> Mapping[str, str]:
        pods = self._pods
        sandboxes = {item.id: item.state for item in pods.sandboxes()}
        if sandboxes.get(self._own) != api.SANDBOX_READY:
            self._own = self._pod()
        ready = self._own
        ours = {item.state: item.id for item in pods.containers(pod_sandbox_id=ready)}
        if api.CONTAINER_RUNNING not in ours:
            ours[api.CONTAINER_RUNNING] = pods.start(self._container(ready))
        if api.CONTAINER_CREATED not in ours:
            ours[api.CONTAINER_CREATED] = self._container(ready)
        return {
            "@sandbox": ready,
            "@other": next((k for k, state in sandboxes.items() if state == api.SANDBOX_READY and k != ready), ready),
            "@stopped": next((k for k, state in sandboxes.items() if state == api.SANDBOX_NOTREADY), ready),
            "@container": ours[api.CONTAINER_RUNNING],
            "@created": ours[api.CONTAINER_CREATED],
            "@newest": self._newest or ours[api.CONTAINER_CREATED],
            "@exited": ours.get(api.CONTAINER_EXITED, ours[api.CONTAINER_CREATED]),
            "@prefix": ready[:12],
            "@truncated": ready[:11],
            "@longer": f"{ready}0",
            "@image": self._image,
            "@imageid": self._image_id,
            "@imageprefix": self._image_id.removeprefix("sha256:")[:12],
            "@imagex": f"{self._image}x",
            "@host": self._host,
            "@dir": str(self.directory),
            "@parent": self.daemon.cgroup_parent,
            "@new": f"new{next(self._numbers)}",
            **self._sysctls,
        }

    def _pod(self) -> str:
        config = api.PodSandboxConfig(log_directory=str(self.directory / "logs"))
        config.metadata.name = config.metadata.uid = f"own{next(self._numbers)}"
        config.metadata.namespace = "attack"
        config.linux.security_context.namespace_options.pid = api.CONTAINER
        return self._pods.run(config)

    def _container(self, sandbox: str) -> str:
        spec = api.ImageSpec(image=self._image)
        listed = api.ListImagesRequest(filter=api.ImageFilter(image=spec))
        if not self._pods.call("ListImages", listed, service="images").images:
            self._pods.pull()
        name = f"own{next(self._numbers)}"
        # What is sent to it comes back, on its standard streams and on a port.
        script = "trap 'exit 0' TERM; nc -ll -p 8080 -e cat & cat & sleep 1000 & wait"
        return self._pods.create(sandbox, "sh", "-c", script, name=name, log_path=f"{name}.log", stdin=True)

    # what must hold

    @property
    def alive(self) -> bool:
        """Whether the daemon that was started runs."""
        return self.daemon.process is not None and self.daemon.process.poll() is None

    def wrong(self) -> Iterator[str]:
        """Yield what is wrong now and was not when this was asked last: the daemon's end, its log, its memory."""
        if not self.alive:
            yield "the daemon has ended"
            return
        status = self.send("Status", "/runtime.v1.RuntimeService/Status", b"")
        if status.code is not Code.OK:
            yield f"Status answers {status.code.name}: {status.said}"
        yield from self._wrong_lines()
        if (resident := self.resident()) > MEMORY_BYTES:
            yield f"{resident >> 20} MiB resident"
        if left := sorted(path.name for path in (self.directory / "outside").iterdir() if path.name != "archive"):
            yield f"files were made outside: {left}"
        if os.path.lexists(ESCAPED):
            yield f"{ESCAPED} was made"

    def _wrong_lines(self) -> Iterator[str]:
        with self.daemon.log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        end = data.rfind(b"\n") + 1
        self._read += end
        text = data[:end].decode(errors="replace")
        for said in bad_records(text):
            yield f"the log says: {said}"
        for record in _records(text):
            if any(secret in record for secret in self._secrets):
                yield f"a secret is in the log: {record[:400]}"

    def resident(self) -> int:
        """Return the daemon's memory in bytes."""
        return resident(self.daemon.pid)

    # leaving nothing

    def clear(self) -> None:
        """Remove every sandbox."""
        for sandbox in self._pods.sandboxes():
            self._pods.remove(sandbox.id)

    def held(self) -> Held:
        """Return what the daemon holds; call it when everything was removed."""
        return Held(
            resources=self.daemon.resources(),
            descriptors=tuple(sorted(_descriptors(self.daemon.pid).elements())),
            threads=len(list(Path(f"/proc/{self.daemon.pid}/task").iterdir())),
        )

    def left(self, before: Held, *, threads: int) -> list[str]:
        """Return what the daemon still holds when it had time to let go of it: a leak is what stays.

        :param threads: how many may have been added, by pools.
        """
        deadline = time.monotonic() + LET_GO_S
        while (left := self.held().more_than(before, threads=threads)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def bad_records(text: str) -> Iterator[str]:
    """Yield what a daemon's log must not have: errors, and what Python writes of its own."""
    for record in _records(text):
        if _BAD_LOG.search(record):
            lines = [line.strip() for line in record.splitlines() if "^^^" not in line]
            yield " | ".join([re.sub(r"^\S+Z | \[\w+\]", "", lines[0]), *lines[-7:][::-1]])[:3000]


def _records(text: str) -> list[str]:
    return re.split(r"\n(?! )", text)


def resident(pid: int) -> int:
    """Return a process's memory in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a daemon holds when it has no pod."""

    resources: Resources
    descriptors: tuple[str, ...]
    threads: int

    def more_than(self, before: Held, *, threads: int) -> list[str]:
        """Return what is there and was not before; ``threads`` may have been added, by pools."""
        found = []
        for name in self.resources.__dataclass_fields__:
            here, there = Counter(getattr(self.resources, name)), Counter(getattr(before.resources, name))
            found += [f"{name}: {item}" for item in (here - there).elements()]
        found += [f"descriptor: {i}" for i in (Counter(self.descriptors) - Counter(before.descriptors)).elements()]
        if self.threads > before.threads + threads:
            found.append(f"{self.threads} threads, {before.threads} before")
        return found


def _descriptors(pid: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for item in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(item)
        except OSError:
            continue
        found[re.sub(r":\[\d+\]", "", target) if target.startswith(("socket:", "pipe:")) else target] += 1
    return found
