"""Which namespaces a pod's containers share with the node or each other, as CRI says it. Pure."""

from __future__ import annotations

from podkeep.agent.user_namespaces.model import PodUserNamespace
from podkeep.api.pod import PodSpec
from podkeep.cri import id_mappings
from podkeep.cri.v1 import api_pb2


def namespace_options(
    spec: PodSpec, user_namespace: PodUserNamespace | None, target_id: str = ""
) -> api_pb2.NamespaceOption:
    """Return the namespaces of a pod, or of one of its containers.

    :param user_namespace: the pod's own; ``None`` if it shares the node's.
    :param target_id: of an ephemeral container, the container whose processes it sees.
    """
    pid = api_pb2.NODE if spec.host_pid else api_pb2.POD if spec.share_process_namespace else api_pb2.CONTAINER
    pid = api_pb2.TARGET if target_id else pid
    return api_pb2.NamespaceOption(
        network=api_pb2.NODE if spec.host_network else api_pb2.POD,
        ipc=api_pb2.NODE if spec.host_ipc else api_pb2.POD,
        pid=pid,
        target_id=target_id,
        userns_options=_options(user_namespace),
    )


def _options(user_namespace: PodUserNamespace | None) -> api_pb2.UserNamespace:
    """Return the user namespace of a pod; sharing the node's is said explicitly (KEP-127, CRI changes)."""
    if user_namespace is None:
        return api_pb2.UserNamespace(mode=api_pb2.NODE)
    id_map = user_namespace.id_map
    return api_pb2.UserNamespace(
        mode=api_pb2.POD, uids=id_mappings.messages(id_map.uids), gids=id_mappings.messages(id_map.gids)
    )
