"""Whether the agent mounts volumes where the runtime will look for them.

Owns: asking the runtime which mount namespace it is in, and refusing when that is another one. Does not own: joining,
which must happen before there is a thread (``podkeep.mountns.membership``). Called by ``podkeep run`` before its first
pod, and to be called by an agent that runs on whenever the runtime has answered again after an interruption.

What the agent joined was named by a file, and the file may be older than the runtime that answers: it was restarted
between the reading and the joining, or killed and started elsewhere, or the process whose ID the file names ended and
its ID is another's. So the runtime that answers is asked in the end, over the connection that the pods will use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base import peer
from podkeep.base.frozen import FrozenStruct
from podkeep.cri.v1 import api_pb2
from podkeep.mountns.sync import require_same

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient


class RuntimeNamespace(FrozenStruct, kw_only=True):
    """Inode of a runtime's mount namespace, and whether it hides its mounts there; None: it does not say."""

    inode: int
    hidden: bool | None = None


async def require_runtime_here(client: CriClient, own: int) -> api_pb2.StatusResponse:
    """Return what the runtime says of itself, if it is in the mount namespace ``own``.

    :param own: inode of the mount namespace that the agent mounts volumes in.
    :raises FailedPrecondition: naming both inodes, and what fixes it, if it is in another one.
    :raises Unavailable: if it does not answer.
    """
    answer = await client.runtime.Status(api_pb2.StatusRequest(verbose=True))
    there = reported(answer.info.get("mountNamespace", "")) or of_listener(client.socket)
    if there is not None:
        require_same(own, there.inode, hidden=there.hidden)
    return answer


def reported(info: str) -> RuntimeNamespace | None:
    """Return what podkeep's runtime says in verbose Status; other runtimes say nothing."""
    try:
        content = json.loads(info)
        return RuntimeNamespace(inode=int(content["inode"]), hidden=bool(content["hidden"]))
    except (ValueError, KeyError, TypeError):
        return None


def of_listener(path: Path) -> RuntimeNamespace | None:
    """Return where the process is that listens on a unix socket (unix(7), SO_PEERCRED); None: that cannot be seen."""
    try:
        return RuntimeNamespace(inode=Path(f"/proc/{peer.listener(str(path))}/ns/mnt").stat().st_ino)
    except OSError:
        return None
