"""Whether a peer has closed is seen although its last bytes, and so its end, have not arrived."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

import pytest

from podkeep.kernel.network import tcp


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_peer_whose_end_is_stuck_behind_its_bytes(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
        with server:
            own, peer = server.getsockname()[:2], server.getpeername()[:2]
            assert not tcp.peer_has_closed(own, peer)
            client.setblocking(False)
            with suppress(BlockingIOError):
                while client.send(bytes(1 << 16)):
                    pass
            client.close()
            poll = select.poll()
            poll.register(server, select.POLLRDHUP)
            assert poll.poll(0) == []
            assert tcp.peer_has_closed(own, peer)


def test_an_unknown_connection_is_not_said_to_be_closed() -> None:
    assert not tcp.peer_has_closed(("127.0.0.1", 1), ("127.0.0.1", 2))
    assert not tcp.peer_has_closed(("nonsense", 1), ("nonsense", 2))
