"""Taking a pod down: containers, sandboxes, then everything on the node, every step tried.

Used by the pod worker and by ``remove``. Doing it again is harmless, and finishes what was left the first time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

from podkeep.agent.convert import names
from podkeep.agent.poddirs import PodDirs
from podkeep.agent.resources import cgroup_names, podcgroups
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, Internal, NotFound, PodkeepError, Unimplemented
from podkeep.base.ids import PodUID
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2, podkeep_pb2
from podkeep.kernel.files.removal import remove_tree

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
"""How long the runtime may take to finish a sandbox whose caller has gone."""
_STEP_S = 0.05


async def running_containers(client: CriClient, uid: str) -> list[str]:
    """Return the IDs of a pod's containers that run.

    :raises PodkeepError: if the runtime does not answer.
    """
    selector = {names.POD_UID: uid}
    request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(label_selector=selector))
    own = names.with_labels((await client.runtime.ListContainers(request)).containers, selector)
    return [item.id for item in own if item.state == api_pb2.CONTAINER_RUNNING]


async def stop_containers(client: CriClient, ids: Iterable[str], grace: int) -> None:
    """Stop containers side by side; one that is gone counts as stopped.

    :param grace: seconds between the stop signal and SIGKILL.
    :raises PodkeepError: of the first that could not be stopped, after all were tried.
    """
    requests = [api_pb2.StopContainerRequest(container_id=name, timeout=grace) for name in ids]
    results = await asyncio.gather(
        *(client.runtime.StopContainer(request) for request in requests), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, NotFound):
            raise result


async def held_pods(client: CriClient) -> set[str]:
    """Return the UIDs of the pods that the runtime holds anything of.

    CRI lists no sandbox that is still being created; podkeep's runtime is asked for those too. The process that asked
    for such a sandbox may be dead: its pod's directory and IDs are in use all the same.
    """
    try:
        return set((await client.node.ListPodUIDs(podkeep_pb2.ListPodUIDsRequest())).uids)
    except Unimplemented:
        listed = await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())
        return {sandbox.metadata.uid for sandbox in listed.items}


async def remove_sandboxes(client: CriClient, uid: str) -> None:
    """Stop and remove every sandbox of pod ``uid`` with its containers, also one that is being made now.

    :raises FailedPrecondition: if one is not made or removed in time.
    :raises PodkeepError: of the first that could not be removed, after all were tried.
    """
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    while True:
        await _remove_listed(client, uid)
        if uid not in await held_pods(client):
            return
        if asyncio.get_running_loop().time() > deadline:
            raise FailedPrecondition(f"the runtime is still creating or removing a sandbox of pod {uid}")
        await asyncio.sleep(_STEP_S)


async def _remove_listed(client: CriClient, uid: str) -> None:
    problems = []
    for sandbox in await _sandboxes(client, uid):
        stop = client.runtime.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))
        problems += await _attempt(stop)
        remove = client.runtime.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id))
        problems += await _attempt(remove)
    if problems:
        raise problems[0]


async def _sandboxes(client: CriClient, uid: str) -> list[api_pb2.PodSandbox]:
    selector = {names.POD_UID: uid}
    request = api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter(label_selector=selector))
    return names.with_labels((await client.runtime.ListPodSandbox(request)).items, selector)


async def _attempt(call: Awaitable[object]) -> list[PodkeepError]:
    try:
        await call
    except NotFound:
        return []
    except PodkeepError as error:
        return [error]
    return []


def remove_node_state(dirs: PodDirs, config: Config, uid: PodUID) -> None:
    """Remove what the node holds of pod ``uid`` beside the runtime and its cgroup: volumes, files, logs, user IDs.

    Blocking. The pod must have no containers any more. If its directory is somebody else's, everything stays.

    :raises Internal: naming everything that could not be removed.
    """
    if dirs.is_foreign(uid):
        return
    problems = []
    steps: tuple[Callable[[], None], ...] = (
        partial(_remove_logs, Path(config.agent.pod_logs), uid),
        partial(dirs.remove, uid),
    )
    for step in steps:
        try:
            step()
        except (PodkeepError, OSError) as error:
            problems.append(str(error))
    if problems:
        raise Internal(f"pod {uid} is not completely removed: {'; '.join(problems)}")


def _remove_logs(root: Path, uid: str) -> None:
    """Remove the pod's directories of logs: ``<namespace>_<name>_<uid>``.

    A UID may hold ``_``; a namespace and a pod's name, which are DNS names, cannot.
    """
    try:
        found = [entry for entry in root.iterdir() if entry.name.split("_", 2)[2:] == [uid]]
    except FileNotFoundError:
        return
    for directory in found:
        remove_tree(directory)


async def remove_pod_state(client: CriClient, dirs: PodDirs, config: Config, uid: PodUID) -> None:
    """Remove everything of pod ``uid``, at the runtime and on the node. The caller holds the pod's lock.

    What containers may still use stays if the runtime could not remove them.

    :raises PodkeepError: naming what is left.
    """
    await remove_sandboxes(client, uid)
    # Under the lock: of two pods of a QoS class that end together, each would find the other in the level above and
    # leave it.
    async with dirs.held():
        await asyncio.to_thread(podcgroups.remove, cgroup_names.root(config), uid)
    await asyncio.to_thread(remove_node_state, dirs, config, uid)


async def settle(client: CriClient, dirs: PodDirs, config: Config, uid: PodUID) -> None:
    """Give back what a pod that has ended needs no more: its network, volumes, cgroup and user IDs.

    Its containers, logs and the record of whose directory it is stay. Doing it again is harmless.

    :raises PodkeepError: naming what is left.
    """
    for sandbox in await _sandboxes(client, uid):
        await client.runtime.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))

    async with dirs.held():
        await asyncio.to_thread(podcgroups.remove, cgroup_names.root(config), uid)
    await asyncio.to_thread(dirs.empty, uid)


async def reclaim_orphans(client: CriClient, dirs: PodDirs, config: Config) -> None:
    """Remove what pods left whose process died before they had a sandbox. The caller holds the root lock.

    An orphan that resists is reported in the log and keeps its IDs; it must not stop other pods.
    """
    held = await held_pods(client)
    for uid in await asyncio.to_thread(dirs.orphans, held):
        try:
            # The cgroup goes first: as long as it resists, the directory stays, and with it the record of the pod's
            # IDs.
            await asyncio.to_thread(podcgroups.remove, cgroup_names.root(config), uid)
            await asyncio.to_thread(remove_node_state, dirs, config, uid)
            log.info("removed what was left of pod %s", uid)
        except PodkeepError as error:
            log.warning("could not remove what is left of pod %s: %s", uid, error)
