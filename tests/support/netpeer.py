"""Somebody to talk to in a network namespace: servers that answer with the address of who asked, and clients."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from support.daemon import Daemon

TIMEOUT_S = 5.0
_TICK_S = 0.05


def netns_of(daemon: Daemon, sandbox: str) -> int:
    """Return a descriptor of a sandbox's network namespace; the caller closes it."""
    assert daemon.process is not None
    # The pin is a mount in the daemon's mount namespace.
    pin = daemon.layout.run / "sandboxes" / sandbox / "ns" / NamespaceKind.NET.value
    return os.open(f"/proc/{daemon.process.pid}/root{pin}", os.O_RDONLY | os.O_CLOEXEC)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Server:
    """Serves a port of every address of one family in a network namespace until it is closed."""

    def __init__(
        self, netns: int, port: int, *, kind: str = "tcp", family: socket.AddressFamily = socket.AF_INET
    ) -> None:
        self._kind = kind
        self._stop = threading.Event()

        def make() -> socket.socket:
            made = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(("", port))
            if kind == "tcp":
                made.listen()
            return made

        self._socket = run_in_netns(netns, make)
        self._socket.settimeout(_TICK_S)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                if self._kind == "udp":
                    data, peer = self._socket.recvfrom(64)
                    self._socket.sendto(data + b" " + peer[0].encode(), peer)
                    continue
                connection, peer = self._socket.accept()
            except TimeoutError:
                continue
            with connection:
                connection.sendall(b"hello " + peer[0].encode())

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


def ask(netns: int | None, address: str, port: int, *, kind: str = "tcp", timeout: float = TIMEOUT_S) -> str:
    """Ask a :class:`Server` from a network namespace (None: this one) and return from which address that came.

    :raises OSError: if nobody answers.
    """

    def asking() -> str:
        with socket.socket(_family(address), socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as client:
            client.settimeout(timeout)
            client.connect((address, port))
            if kind == "udp":
                client.send(b"hello")
            word, peer = client.recv(256).decode().split()
            assert word == "hello"
            return peer

    return asking() if netns is None else run_in_netns(netns, asking)


@contextmanager
def outside(name: str, *, here: tuple[str, ...], there: tuple[str, ...]) -> Iterator[int]:
    """A machine next to this one: a network namespace on the other end of a cable, with default routes to here.

    :param here: addresses with prefix of this end, ``there`` of the other.
    """
    with NamespaceHelper() as helper:
        fd = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET})))[NamespaceKind.NET]
        try:
            inside = f"/proc/{os.getpid()}/fd/{fd}"
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _ip("link", "set", name, "up")
            for address in here:
                _ip("address", "add", address, "dev", name, *(("nodad",) if ":" in address else ()))
            run_in_netns(fd, lambda: _ip("link", "set", "eth0", "up"))
            for address, router in zip(there, here, strict=True):
                nodad = ("nodad",) if ":" in address else ()
                run_in_netns(fd, lambda a=address, n=nodad: _ip("address", "add", a, "dev", "eth0", *n))  # type: ignore[misc]
                via = router.partition("/")[0]
                run_in_netns(fd, lambda v=via: _ip("route", "add", "default", "via", v))  # type: ignore[misc]
            yield fd
        finally:
            _ip("link", "delete", name)
            os.close(fd)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
