"""An HTTP proxy for tests: it tunnels and forwards, and everything it is asked for leads to one server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Proxy:
    """Listens on a loopback port. ``asked`` lists the first line and the headers of every request.

    :param target: ``host:port`` that every connection is made to, whatever is asked for.
    :param refuse: status to answer instead.
    """

    def __init__(self, target: str, *, refuse: int = 0) -> None:
        self.asked: list[str] = []
        self._target = target.rpartition(":")
        self._refuse = refuse
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._start(self._serve, client)

    def _start(self, target: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = client.recv(65536)
            if not piece:
                return
            head += piece
        self.asked.append(head.decode())
        if self._refuse:
            client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self._refuse)
            client.close()
            return
        server = socket.create_connection((self._target[0], int(self._target[2])))
        self._sockets.append(server)
        if head.startswith(b"CONNECT "):
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            # A server takes a whole URL as it takes a path, save this one.
            method, url, rest = head.split(b" ", 2)
            server.sendall(method + b" /" + url.split(b"/", 3)[3] + b" " + rest)
        self._start(self._copy, client, server)
        self._copy(server, client)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Stop, and wait for the end of every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for item in self._sockets:
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for item in self._sockets:
            item.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
