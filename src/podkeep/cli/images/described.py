"""What the runtime tells about images, as rows for people and values for JSON. Pure, but for :func:`ask`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from podkeep.cli.core import output

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import ImageDescription, ImageUser

NONE = "<none>"
_SHORT = 12


async def ask(client: CriClient, images: Sequence[str], *, documents: bool = False) -> list[ImageDescription]:
    """Return what the runtime knows about ``images``, or about all.

    :raises NotFound: if a name leads to none.
    """
    from podkeep.cri.v1 import podkeep_pb2

    request = podkeep_pb2.DescribeImagesRequest(images=images, documents=documents)
    return [image async for image in client.node.DescribeImages(request)]


def values(image: ImageDescription) -> dict[str, Any]:
    """Return an image as values for JSON, as docs/images.md describes them: sizes in bytes, times in RFC 3339."""
    return {
        "id": image.id,
        "kind": image.kind,
        "artifact_type": image.artifact_type,
        "repo_tags": list(image.repo_tags),
        "repo_digests": list(image.repo_digests),
        "size": image.size,
        "shared_size": image.shared_size,
        "pulled_at": output.rfc3339(image.pulled_at),
        "pinned": image.pinned,
        "users": [_user_values(user) for user in image.users],
    }


def whole_values(image: ImageDescription) -> dict[str, Any]:
    """Return an image with its documents and layers as values for JSON."""
    documents = [_document_values(document.role, document.digest, document.data) for document in image.documents]
    layers = [
        {
            "id": layer.id,
            "kind": layer.kind,
            "title": layer.title,
            "driver": layer.driver,
            "size": layer.bytes,
            "inodes": layer.inodes,
            "images": layer.images,
        }
        for layer in image.layers
    ]
    return {**values(image), "documents": documents, "layers": layers}


def short(identity: str) -> str:
    """Return the twelve hex digits by which people know an image."""
    return identity.partition(":")[2][:_SHORT]


def names(image: ImageDescription) -> list[tuple[str, str, str]]:
    """Return repository, tag and digest for each row that an image gets: one for each tag, else for each digest.

    A digest is shown beside the tags of its repository.
    """
    digests: dict[str, str] = {}
    for name in image.repo_digests:
        repository, _, digest = name.partition("@")
        digests.setdefault(repository, digest)
    tagged = [tag.rpartition(":") for tag in image.repo_tags]
    if tagged:
        return [(repository, tag, digests.get(repository, NONE)) for repository, _, tag in tagged]
    return [(repository, NONE, digest) for repository, digest in digests.items()] or [(NONE, NONE, NONE)]


def type_of(image: ImageDescription) -> str:
    """Return ``image``, or the type of an artifact."""
    return image.artifact_type or image.kind


def age(image: ImageDescription, now: float) -> str:
    """Return how long ago an image was pulled; ``now`` in seconds since 1970."""
    return output.age(now - image.pulled_at / 1e9) if image.pulled_at else "unknown"


def user(found: ImageUser) -> str:
    """Return a container that uses an image as people know it."""
    how = " (volume)" if found.volume else ""
    return f"{found.pod_namespace}/{found.pod_name}/{found.container_name}{how}"


def _user_values(found: ImageUser) -> dict[str, Any]:
    return {
        "container_id": found.container_id,
        "container": found.container_name,
        "namespace": found.pod_namespace,
        "pod": found.pod_name,
        "volume": found.volume,
    }


def _document_values(role: str, digest: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError:  # the configuration of an artifact may be anything
        content = None
    return {"role": role, "digest": digest, "size": len(data), "content": content}
