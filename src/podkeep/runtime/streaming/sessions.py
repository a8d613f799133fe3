"""From a container or a sandbox to the session that a client's connection starts.

Owns: the checks when a session is asked for, and again when its client comes, up to a minute later. Does not own: the
sessions themselves (``exec.py``, ``attach.py``, ``port_forward.py``) or messages (``rpc/streaming.py``).
"""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from weakref import WeakValueDictionary

from podkeep.base.errors import FailedPrecondition, InvalidArgument, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.namespace.namespaces import NamespaceKind, open_pinned, run_in_netns
from podkeep.runtime.lifecycle.container_executor import ContainerExecutor
from podkeep.runtime.lifecycle.sandboxes import Sandboxes
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import NamespaceMode, Sandbox, SandboxState
from podkeep.runtime.model.state import State
from podkeep.runtime.oci.exec import ExecProcess, ExecStdio
from podkeep.runtime.streaming import attach
from podkeep.runtime.streaming import exec as exec_session
from podkeep.runtime.streaming.attach import Attachment
from podkeep.runtime.streaming.command_streams import CommandStreams, Size
from podkeep.runtime.streaming.port_forward import MAX_PORTS, ForwardRequest
from podkeep.runtime.streaming.remote_command import CommandRequest, Session

MAX_COMMAND_BYTES = 1 << 20
"""Bytes of a command's arguments; the kernel takes twice that (execve(2), with the environment)."""
CONNECT_TIMEOUT_S = 10.0
"""How long a pod may take to accept a connection."""
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Wanted(FrozenStruct, kw_only=True):
    """The streams of a request (CRI: ExecRequest, AttachRequest)."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    def check(self) -> None:
        """Check a request.

        :raises InvalidArgument: if it names no stream, or standard error beside a terminal.
        """
        if not (self.stdin or self.stdout or self.stderr):
            raise InvalidArgument("one of stdin, stdout and stderr must be set")
        if self.tty and self.stderr:
            raise InvalidArgument("tty and stderr exclude each other", hint="a terminal has one output: set stdout")


class Sessions:
    """Makes sessions for the containers and sandboxes of one runtime."""

    def __init__(self, state: State, sandboxes: Sandboxes, containers: ContainerExecutor, layout: Layout) -> None:
        self._state, self._sandboxes, self._containers, self._layout = state, sandboxes, containers, layout
        # Weak: a pod's lock goes with the last of its sessions.
        self._resizing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # A killed daemon leaves sockets behind.
        for path in layout.terminals.iterdir():
            path.unlink()

    def exec(self, text: str, command: tuple[str, ...], wanted: Wanted) -> CommandRequest:
        """Return the session that runs a command in a container.

        :raises NotFound: if there is no such container.
        :raises FailedPrecondition: if it does not run.
        :raises InvalidArgument: if the command is empty or the streams make no sense.
        """
        wanted.check()
        if not command:
            raise InvalidArgument("exec: the request has no command")
        for argument in command:
            if "\0" in argument:
                raise InvalidArgument("exec: an argument of the command holds a NUL character")
        size = sum(len(argument.encode(errors="surrogatepass")) for argument in command)
        if size > MAX_COMMAND_BYTES:
            raise InvalidArgument(
                f"exec: the command has {size} bytes, and may have {MAX_COMMAND_BYTES}",
                hint="pass what is long through the command's standard input",
            )
        container = self._state.running_container(text)

        async def session(streams: CommandStreams) -> bytes:
            resizing = self._resizing.setdefault(container.sandbox_id, asyncio.Lock())
            return await exec_session.run(
                streams, lambda size: self._start(container.id, command, wanted, size), resizing
            )

        return _request(session, wanted, container.sandbox_id, size)

    def attach(self, text: str, wanted: Wanted) -> CommandRequest:
        """Return the session that attaches to a container's own streams; see :meth:`exec` for the errors."""
        wanted.check()
        container = self._state.running_container(text)

        async def session(streams: CommandStreams) -> bytes:
            # Up to a minute has passed since the request: it may have ended.
            self._state.running_container(container.id)
            target = Attachment(bundle=self._layout.bundle(container.id), tty=container.config.tty)
            return await attach.run(streams, target)

        return _request(session, wanted, self._state.running_container(text).sandbox_id)

    def port_forward(self, text: str, ports: tuple[int, ...]) -> ForwardRequest:
        """Return the session that connects to ports of a pod.

        :raises NotFound: if there is no such sandbox.
        :raises FailedPrecondition: if it is not ready.
        :raises InvalidArgument: if a number is no port.
        """
        if len(ports) > MAX_PORTS:
            raise InvalidArgument(f"port: {len(ports)} ports in one request", hint=f"ask for {MAX_PORTS} at a time")
        for port in ports:
            if not 0 < port < 1 << 16:
                raise InvalidArgument(f"port: {port} is no port", hint="use 1 to 65535")
        sandbox = self._ready(text)

        async def connect(port: int) -> socket.socket:
            return await self._connect(self._ready(sandbox.id), port)

        return ForwardRequest(pod=sandbox.id, connect=connect, ports=ports)

    def _ready(self, text: str) -> Sandbox:
        sandbox = self._state.sandbox(text)
        if sandbox.status.state is not SandboxState.READY:
            raise FailedPrecondition(f"pod sandbox {sandbox.id} is {sandbox.status.state.value}, not ready")
        return sandbox

    def _start(self, text: str, command: tuple[str, ...], wanted: Wanted, size: Size | None) -> ExecProcess:
        container = self._state.running_container(text)
        sandbox = self._state.sandbox(container.sandbox_id)
        driver = self._sandboxes.driver(sandbox)
        bundle = self._layout.bundle(container.id)
        process, enter = self._containers.command(container, sandbox, command)
        if wanted.tty and not any(entry.startswith("TERM=") for entry in process["env"]):
            # The container itself may have no terminal; the peers say the same.
            process["env"] = [*process["env"], "TERM=xterm"]
        if wanted.tty and size is not None:
            process["consoleSize"] = {"width": size.width, "height": size.height}
        stdio = ExecStdio(stdin=wanted.stdin, stdout=wanted.stdout, stderr=wanted.stderr, tty=wanted.tty)
        return driver.exec(
            container.id,
            bundle,
            process,
            stdio=stdio,
            sockets=self._layout.terminals,
            checked=partial(self._state.shares_processes, container),
            enter=enter,
        )

    async def _connect(self, sandbox: Sandbox, port: int) -> socket.socket:
        """Connect to loopback inside a pod, IPv4 first.

        :raises Unavailable: if nothing accepts.
        """
        failures = []
        for family, address in _LOOPBACK:
            sock = None
            try:
                sock = await asyncio.to_thread(self._socket, sandbox, family)
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await asyncio.get_running_loop().sock_connect(sock, (address, port))
            except (OSError, TimeoutError) as error:
                if sock is not None:
                    sock.close()
                reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no answer"
                failures.append(f"{address}: {reason}")
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
            else:
                return sock
        raise Unavailable(f"failed to connect to port {port} inside the pod: {'; '.join(failures)}")

    def _socket(self, sandbox: Sandbox, family: socket.AddressFamily) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which asyncio leaves out without a protocol
            return sock

        if sandbox.config.namespaces.network is NamespaceMode.NODE:
            return make()
        namespace = open_pinned(self._layout.namespace_pin(sandbox.id, NamespaceKind.NET))
        try:
            # A socket stays in the namespace in which it was made.
            return run_in_netns(namespace, make)
        finally:
            os.close(namespace)


def _request(session: Session, wanted: Wanted, pod: str, size: int = 0) -> CommandRequest:
    return CommandRequest(
        session=session,
        pod=pod,
        size=size,
        stdin=wanted.stdin,
        stdout=wanted.stdout,
        stderr=wanted.stderr,
        tty=wanted.tty,
    )
