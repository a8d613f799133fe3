"""The user namespace of one pod, as the agent decided it: its mapping, and how volumes get along with it. Pure."""

from __future__ import annotations

from podkeep.agent.user_namespaces.blocks import Block
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.namespace import idmap
from podkeep.kernel.namespace.idmap import IdMap


class PodUserNamespace(FrozenStruct, kw_only=True):
    """A user namespace that a pod has for itself; a pod that shares the node's has none of these.

    :ivar id_map: which IDs of the pod are which of the node.
    :ivar idmapped_volumes: the runtime shifts the owners of volumes' files by idmapped mounts, so that on disk they are
        what they would be without a user namespace. Without it mounts are plain, and a file on disk belongs to whom it
        is to belong to on the node (KEP-127 draft, volumes).
    """

    id_map: IdMap
    idmapped_volumes: bool

    def volume_owner(self) -> tuple[int, int]:
        """Return the UID and GID on disk of a file that the pod is to see as its root's."""
        if self.idmapped_volumes:
            return 0, 0
        return self.id_map.host_uid(0), self.id_map.host_gid(0)


def of(given: Block | IdMap) -> PodUserNamespace:
    """Return the user namespace of a pod with a block of its own, or with the mapping of the node."""
    return PodUserNamespace(id_map=given, idmapped_volumes=False) if isinstance(given, IdMap) else of_block(given)


def of_block(block: Block) -> PodUserNamespace:
    return PodUserNamespace(id_map=idmap.block(block.first, block.length), idmapped_volumes=True)
