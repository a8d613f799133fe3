"""Which namespaces a pod's containers share with the node or each other, as CRI says it. Pure."""

from __future__ import annotations

from podkeep.agent.user_namespaces.blocks import BLOCK_LENGTH
from podkeep.api.pod import PodSpec
from podkeep.cri.v1 import api_pb2


def namespace_options(spec: PodSpec, userns_start: int | None, target_id: str = "") -> api_pb2.NamespaceOption:
    """Return the namespaces of a pod, or of one of its containers.

    :param userns_start: first host ID of the pod's block; ``None`` if it shares the node's user namespace.
    :param target_id: of an ephemeral container, the container whose processes it sees.
    """
    pid = api_pb2.NODE if spec.host_pid else api_pb2.POD if spec.share_process_namespace else api_pb2.CONTAINER
    pid = api_pb2.TARGET if target_id else pid
    return api_pb2.NamespaceOption(
        network=api_pb2.NODE if spec.host_network else api_pb2.POD,
        ipc=api_pb2.NODE if spec.host_ipc else api_pb2.POD,
        pid=pid,
        target_id=target_id,
        userns_options=user_namespace(userns_start),
    )


def user_namespace(start: int | None) -> api_pb2.UserNamespace:
    """Return the user namespace of a pod; sharing the node's is said explicitly (KEP-127, CRI changes)."""
    if start is None:
        return api_pb2.UserNamespace(mode=api_pb2.NODE)
    mapping = id_mappings(start)
    return api_pb2.UserNamespace(mode=api_pb2.POD, uids=mapping, gids=mapping)


def id_mappings(start: int | None) -> list[api_pb2.IDMapping]:
    """Return the mapping of a pod's block, for a user namespace or a mount; empty without one."""
    if start is None:
        return []
    return [api_pb2.IDMapping(host_id=start, container_id=0, length=BLOCK_LENGTH)]
