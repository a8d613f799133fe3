"""Looking after pods that run when the agent starts and the API does not answer.

A kubelet leaves them alone until it has heard of the API: what crashes then stays down. Here the objects of pods whose
sandbox runs are taken from their directories, and are as wanted as if the API had named them; what it says when it is
there counts from then on. A pod that does not run is not begun: somebody may have deleted it, or have it elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from podkeep.agent.convert import names
from podkeep.agent.pod import checkpoint
from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.api.pod import Pod
from podkeep.base.errors import PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

log = logging.getLogger(__name__)

WAIT_S = 5.0
"""How long the API may take to name the node's pods."""
_AGAIN_S = 5.0


async def adopt(client: CriClient, dirs: PodDirs, listed: asyncio.Event, take: Callable[[Sequence[Pod]], None]) -> None:
    """Hand over the pods that run if the API has not named its pods in time.

    :param listed: set once it has.
    """
    with suppress(TimeoutError):
        await asyncio.wait_for(listed.wait(), WAIT_S)
    while not listed.is_set():
        try:
            pods = await _running(client, dirs)
        except PodkeepError as error:
            log.debug("the pods that run are not known now: %s", error)
            await asyncio.sleep(_AGAIN_S)
            continue
        # The API may have answered while the runtime was asked: what it says counts alone then.
        if not listed.is_set():
            take(pods)
            log.warning("the API does not answer: %d pods that run are looked after as they were", len(pods))
        return


async def _running(client: CriClient, dirs: PodDirs) -> list[Pod]:
    ready = api_pb2.PodSandboxFilter(state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY))
    answer = await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(filter=ready))
    running = {item.labels.get(names.POD_UID) for item in answer.items if item.state == api_pb2.SANDBOX_READY}
    return await asyncio.to_thread(_kept, dirs, running)


def _kept(dirs: PodDirs, running: set[str | None]) -> list[Pod]:
    found = []
    for uid in dirs.managed():
        pod = checkpoint.read(dirs.directory(uid).path) if uid in running else None
        if pod is None:
            continue
        # `object.json` is taken at its word only for the pod whose directory it is in.
        if dirs.identity(uid) == PodIdentity(namespace=pod.metadata.namespace, name=pod.metadata.name):
            found.append(pod)
    return found
