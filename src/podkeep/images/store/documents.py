"""What is recorded of an image beside its layers: its documents, its names, and what a worker is told of its layers.

Reads records and changes nothing. Used by ``maintenance`` and ``checking``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from podkeep.base.ids import Digest
from podkeep.images.formats import manifest
from podkeep.images.formats.image import Image
from podkeep.images.messages import StoredLayer
from podkeep.images.store.database import LayerRecord
from podkeep.images.store.store import ImageStore


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document of an image; ``role`` is ``index``, ``manifest`` or ``configuration``."""

    role: str
    digest: Digest
    data: bytes


def documents_of(store: ImageStore, image: Image) -> list[Document]:
    """Return the documents of an image: indexes and manifests, then the configuration. Blocks.

    :raises NotFound: if the image was removed meanwhile.
    :raises InvalidArgument: if a manifest is damaged so that it cannot be read.
    """
    config, manifests = store.documents(image.id)
    documents = []
    for digest, data in manifests.items():
        role = "index" if manifest.is_index(manifest.parse_document(data, digest), "") else "manifest"
        documents.append(Document(role=role, digest=digest, data=data))
    wanted = _config_digest(image, config, manifests.values())
    return [*documents, Document(role="configuration", digest=wanted, data=config)]


def names_of(image: Image) -> tuple[str, ...]:
    """Return what an image is called: its tags, or without any its digests."""
    return image.repo_tags or image.repo_digests


def _config_digest(image: Image, config: bytes, manifests: Iterable[bytes]) -> Digest:
    """Return the digest that a configuration must have."""
    if image.kind == "image":
        return Digest(image.id)
    for data in manifests:
        described = manifest.parse_document(data, image.id).get("config")
        if isinstance(described, dict) and isinstance(described.get("digest"), str):
            return Digest(described["digest"])
    return manifest.digest_of(config)


def stored_layer(layer: LayerRecord) -> StoredLayer:
    """Return what a worker is told of a layer that it reads."""
    return StoredLayer(
        id=layer.id,
        driver=layer.driver,
        digest=layer.blob if layer.kind == "file" and layer.blob else layer.id,
        metadata=layer.metadata,
        implied=layer.implied,
        bytes=layer.bytes,
        inodes=layer.inodes,
    )
