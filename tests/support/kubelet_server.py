"""As much of a kubelet's HTTPS server as the API asks for, which also fails: the name of the container says how."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from podkeep.apiserver.server import certificates
from podkeep.apiserver.server.certificates import Files
from support.waiting import TIMEOUT_S


@dataclass
class Asked:
    """One request; ``gone`` is set when its connection has ended."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    user: str
    gone: threading.Event = field(default_factory=threading.Event)


class KubeletServer:
    """Has a certificate of an API's authority, and takes clients of that authority only; for the scratch machine.

    :param root: the API's directory.
    :param node: whose certificate it has, for ``address``.
    """

    def __init__(self, root: Path, directory: Path, node: str, address: str = "127.0.0.1") -> None:
        files = Files(root)
        pair = certificates.issue(files, certificates.of_node(node, [address])[1], int(time.time()))
        paths = directory / f"{node}.crt", directory / f"{node}.key"
        for path, text in zip(paths, (pair.certificate, pair.key), strict=True):
            path.write_text(text)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.certificate("ca")))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(*paths)
        self._context = context
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port: int = self._listener.getsockname()[1]
        self.asked: list[Asked] = []
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> KubeletServer:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, TIMEOUT_S)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(TIMEOUT_S)
                thread = threading.Thread(target=self._serve, args=[connection])
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, self._context.wrap_socket(connection, server_side=True) as tls:
            data = b""
            while b"\r\n\r\n" not in data:
                if not (piece := tls.recv(65536)):
                    return
                data += piece
            head, _, rest = data.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, target, _ = first.split(" ")
            pairs = (line.split(": ", 1) for line in lines)
            subject = dict(item[0] for item in (tls.getpeercert() or {})["subject"])
            asked = Asked(
                method,
                urlsplit(target).path,
                parse_qs(urlsplit(target).query),
                {name.lower(): value for name, value in pairs},
                subject["commonName"],
            )
            with self._changed:
                self.asked.append(asked)
                self._changed.notify_all()
            try:
                _answer(tls, asked, rest)
            finally:
                asked.gone.set()


def _answer(tls: ssl.SSLSocket, asked: Asked, rest: bytes) -> None:
    container = asked.path.rpartition("/")[2]
    if asked.headers.get("upgrade") and container != "refusing":
        tls.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n")
        tls.sendall(b"Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nearly ")
        while data := rest or tls.recv(65536):
            rest = b""
            tls.sendall(data.upper())
            if data.endswith(b"bye"):
                return
    elif container == "refusing":
        text = b'container "refusing" in pod "web" is waiting to start: ContainerCreating'
        tls.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
    elif container == "moving":
        tls.sendall(b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
    elif container == "babbling":
        tls.sendall(b"what is this\r\n\r\n")
    elif container == "breaking":
        tls.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        tls.unwrap()
    elif container == "silent":
        tls.recv(1)
    elif "follow" in asked.query:
        tls.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n")
        tls.recv(1)
    elif asked.path == "/echo":
        while len(rest) < int(asked.headers.get("content-length", "0")):
            rest += tls.recv(65536)
        head = f"HTTP/1.1 299 Own\r\nX-Own: yes\r\nLocation: /there\r\nContent-Length: {len(rest)}\r\n\r\n"
        tls.sendall(head.encode() + rest)
    else:
        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Type: text/plain\r\n\r\nhello\n")
