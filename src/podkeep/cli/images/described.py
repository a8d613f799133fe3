"""What the runtime tells about images, as text for people and values for JSON. Pure, but for :func:`ask`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from podkeep.base.text import rfc3339
from podkeep.cli.core import output
from podkeep.cli.core.output import fields

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import ImageDescription

NONE = "<none>"
_MAX_DEPTH = 100
"""How deep the JSON of a document may nest to be shown; Python writes some hundred more."""


async def ask(client: CriClient, images: Sequence[str] = (), *, documents: bool = False) -> list[ImageDescription]:
    """Return what the runtime knows about ``images``, or about all.

    :raises NotFound: if a name leads to none.
    """
    from podkeep.cri.v1 import podkeep_pb2

    request = podkeep_pb2.DescribeImagesRequest(images=images, documents=documents)
    return [image async for image in client.node.DescribeImages(request)]


def values(image: ImageDescription) -> dict[str, Any]:
    """Return an image as values for JSON, as docs/images.md describes them: sizes in bytes, times in RFC 3339."""
    return {
        **fields(image, "id", "kind", "artifact_type", "repo_tags", "repo_digests", "size", "shared_size"),
        "pulled_at": rfc3339.of_nanoseconds(image.pulled_at),
        "pinned": image.pinned,
        "users": [
            {
                "container_id": user.container_id,
                "container": user.container_name,
                "namespace": user.pod_namespace,
                "pod": user.pod_name,
                "volume": user.volume,
            }
            for user in image.users
        ],
    }


def whole_values(image: ImageDescription) -> dict[str, Any]:
    """Return an image with its documents and layers as values for JSON."""
    documents = [
        {**fields(document, "role", "digest"), "size": len(document.data), "content": _content(document.data)}
        for document in image.documents
    ]
    layers = [
        {**fields(layer, "id", "kind", "title", "driver"), "size": layer.bytes, **fields(layer, "inodes", "images")}
        for layer in image.layers
    ]
    return {**values(image), "documents": documents, "layers": layers}


def _content(document: bytes) -> object:
    try:
        content: object = json.loads(document)
    except (ValueError, RecursionError):  # the configuration of an artifact may be anything
        return None
    level = [content]
    for _ in range(_MAX_DEPTH):
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [below for item in inner for below in (item.values() if isinstance(item, dict) else item)]
    return None if level else content


def type_of(image: ImageDescription) -> str:
    """Return ``image``, or the type of an artifact."""
    return image.artifact_type or image.kind


def age(image: ImageDescription) -> str:
    return output.since(image.pulled_at) if image.pulled_at else "unknown"
