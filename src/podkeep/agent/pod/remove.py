"""Removing a pod by name, whoever ran it: its containers, its sandbox, and everything the node holds of it.

Called by ``podkeep rm``. It works from outside of the runtime's mount namespace too: removing a directory detaches what
other namespaces have mounted there.
"""

from __future__ import annotations

import asyncio
import os

from podkeep.agent.convert import names
from podkeep.agent.pod import teardown
from podkeep.agent.poddirs import PodDirs, PodIdentity, places
from podkeep.base import waiting
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.base.ids import PodUID, parse_pod_uid
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

_TIMEOUT_S = 30.0
"""Seconds beyond the grace period that the process which runs a pod may take to remove it."""
_STEP_S = 0.05


async def remove_pod(client: CriClient, config: Config, name: str, namespace: str, grace: int | None) -> None:
    """Stop and remove the pod called ``name`` in ``namespace`` with all its state on the node.

    :param grace: seconds between the stop signal and SIGKILL; ``None``: as many as the pod's manifest says.
    :raises NotFound: if there is no such pod.
    :raises FailedPrecondition: if the process that runs the pod does not let go of it, or is the node agent.
    :raises PodkeepError: naming what could not be removed.
    """
    identity = PodIdentity(namespace=namespace, name=name)
    uids = await _find(client, config, identity)
    if not uids:
        raise NotFound(f"pod {namespace}/{name} not found", hint="`podkeep ps` lists pods")
    for uid in uids:
        where, dirs = await asyncio.to_thread(_place, config, uid)
        seconds = waiting.read(dirs.directory(uid).path).grace if grace is None else grace
        lock = await _own(dirs, uid, seconds, _run_by_agent(config, identity))
        try:
            await teardown.stop_containers(client, await teardown.running_containers(client, uid), seconds)
            await teardown.remove_pod_state(client, dirs, where, uid)
        finally:
            os.close(lock)


async def list_pods(client: CriClient, config: Config) -> list[tuple[str, str]]:
    """Return namespace and name of every pod on the node that :func:`remove_pod` can remove, each once.

    A sandbox without a pod's labels is another client's, who knows what else belongs to it.
    """
    listed = await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())
    found = {
        (sandbox.labels[names.POD_NAMESPACE], sandbox.labels[names.POD_NAME])
        for sandbox in listed.items
        if {names.POD_NAMESPACE, names.POD_NAME, names.POD_UID} <= sandbox.labels.keys()
    }

    def identities_of_directories() -> list[PodIdentity | None]:
        return [dirs.identity(uid) for _, dirs in places(config) for uid in dirs.all()]

    identities = await asyncio.to_thread(identities_of_directories)
    return sorted(found | {(item.namespace, item.name) for item in identities if item is not None})


def _place(config: Config, uid: PodUID) -> tuple[Config, PodDirs]:
    """Return where the directory of pod ``uid`` is, or would be."""
    found = places(config)
    return next((place for place in found if place[1].identity(uid) is not None), found[0])


async def _find(client: CriClient, config: Config, identity: PodIdentity) -> list[PodUID]:
    selector = {names.POD_NAMESPACE: identity.namespace, names.POD_NAME: identity.name}
    request = api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter(label_selector=selector))
    listed = await client.runtime.ListPodSandbox(request)
    # A sandbox without the label is another client's, who knows what else belongs to it.
    labels = [sandbox.labels.get(names.POD_UID) for sandbox in names.with_labels(listed.items, selector)]
    found = [parse_pod_uid(label) for label in labels if label]
    found += await asyncio.to_thread(lambda: [uid for _, dirs in places(config) for uid in dirs.find(identity)])
    return list(dict.fromkeys(found))


def _run_by_agent(config: Config, identity: PodIdentity) -> FailedPrecondition:
    place = config.agent.static_pod_path or "agent.static_pod_path"
    return FailedPrecondition(
        f"pod {identity.namespace}/{identity.name} is run by the node agent",
        hint=f"a static pod ends when its file is removed from {place}; delete any other in the API",
    )


async def _own(dirs: PodDirs, uid: PodUID, grace: int, of_agent: FailedPrecondition) -> int:
    """Return the pod's lock. A process that has it is asked to end the pod first, and given time for that.

    :param of_agent: raised if that is the node agent, which ends pods when their file or the API says so.
    """
    deadline = asyncio.get_running_loop().time() + grace + _TIMEOUT_S
    asked = False
    while True:
        try:
            return dirs.own(uid)
        except FailedPrecondition as error:
            if await asyncio.to_thread(dirs.is_managed, uid):
                raise of_agent from error
            if asyncio.get_running_loop().time() > deadline:
                raise
        if not asked:
            await asyncio.to_thread(dirs.request_deletion, uid, grace)
            asked = True
        await asyncio.sleep(_STEP_S)
