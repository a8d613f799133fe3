"""What both ends of a CRI socket agree on: its address, the message limit, the environment of the gRPC library.

gRPC reads its environment once, so this module, which does not import ``grpc``, is imported before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from podkeep.base.errors import InvalidArgument

# podkeep starts programs from threads next to a running server. gRPC's fork handlers would stop its own threads around
# every fork to prepare for a child that goes on using gRPC, which ours never do: they exec.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# The library prints to stderr, past our log, even when a peer closes a connection in good order.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message either way; the kubelet's CRI client uses the same limit."""

MESSAGE_LIMITS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
"""Options of a gRPC channel or server."""

_MAX_SOCKET_PATH = 107
"""``sun_path`` holds 108 bytes with the closing NUL (unix(7))."""


def socket_path(address: str) -> Path:
    """Return the path in ``address``, which is an absolute path with or without ``unix://`` in front.

    :raises InvalidArgument: if it is neither, or longer than the kernel takes.
    """
    path = Path(address.removeprefix("unix://"))
    if not path.is_absolute():
        raise InvalidArgument(f"CRI socket {address!r} is not an absolute path or unix:///path")
    if (length := len(os.fsencode(path))) > _MAX_SOCKET_PATH:
        raise InvalidArgument(
            f"CRI socket {path} has a path of {length} bytes; the kernel takes {_MAX_SOCKET_PATH}",
            hint="choose a shorter path for runtime.socket",
        )
    return path


def target(socket: Path) -> str:
    """Return the gRPC name of a unix socket; it is a URI, so some characters of the path are percent-encoded."""
    return f"unix:{quote(os.fsencode(socket))}"
