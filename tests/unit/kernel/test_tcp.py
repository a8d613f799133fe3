"""Whether a peer has closed is seen although its last bytes, and so its end, have not arrived."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import pytest

from podkeep.kernel.network import tcp
from support.waiting import TIMEOUT_S

CONNECTIONS = 200


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_peer_whose_end_is_stuck_behind_its_bytes(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
        with server:
            own, peer = server.getsockname()[:2], server.getpeername()[:2]
            assert not tcp.Closings(0).has(own, peer)
            client.setblocking(False)
            with suppress(BlockingIOError):
                while client.send(bytes(1 << 16)):
                    pass
            client.close()
            poll = select.poll()
            poll.register(server, select.POLLRDHUP)
            assert poll.poll(0) == []
            assert tcp.Closings(0).has(own, peer)


def test_an_unknown_connection_is_not_said_to_be_closed() -> None:
    assert not tcp.Closings(0).has(("127.0.0.1", 1), ("127.0.0.1", 2))
    assert not tcp.Closings(0).has(("nonsense", 1), ("nonsense", 2))


def test_the_table_is_read_once_for_all_that_ask_at_a_time() -> None:
    """Hundreds of streams whose clients have stopped took a processor of each daemon that they went through."""
    ends = []
    with ExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS))
        for _ in range(CONNECTIONS):
            closing.enter_context(socket.create_connection(listener.getsockname()))
            server = closing.enter_context(listener.accept()[0])
            ends.append((server.getsockname(), server.getpeername()))
        alone = min(_cpu_seconds(ends[:1]) for _ in range(5))
        assert _cpu_seconds(ends) < CONNECTIONS / 5 * alone


def _cpu_seconds(ends: Sequence[tuple[tuple[str, int], tuple[str, int]]]) -> float:
    """Return what it takes to ask about connections."""
    closings = tcp.Closings(TIMEOUT_S)
    before = time.process_time()
    assert not any(closings.has(own, peer) for own, peer in ends)
    return time.process_time() - before
