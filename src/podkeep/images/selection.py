"""From a verified manifest and configuration to the layers that must be fetched. Shared by pull and load."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import Digest
from podkeep.images import manifest
from podkeep.images.assembly import Assembly, BlobSource
from podkeep.images.channel import Channel
from podkeep.images.layers import LayerJob


def jobs_of(parsed: manifest.Manifest, diff_ids: Sequence[Digest], what: str) -> list[LayerJob]:
    """Pair the layers of a manifest with the diff IDs of its configuration.

    :raises InvalidArgument: if there are not as many of one as of the other.
    """
    if len(parsed.layers) != len(diff_ids):
        raise InvalidArgument(
            f"{what}: {len(parsed.layers)} layers, but the configuration has {len(diff_ids)} diff_ids"
        )
    return [
        LayerJob(
            diff_id=diff_id,
            compression=manifest.compression(layer.media_type),
            digest=layer.digest,
            size=layer.size,
        )
        for layer, diff_id in zip(parsed.layers, diff_ids, strict=True)
    ]


def fetch_missing(
    jobs: Sequence[LayerJob], sources: Sequence[BlobSource], assembly: Assembly, channel: Channel
) -> list[dict[str, Any]]:
    """Ask the store what it has, unpack the rest, and return a record per unpacked layer."""
    answer = channel.ask({"event": "want", "layers": [job.diff_id for job in jobs]})
    have = frozenset(answer["have"])
    for job in jobs:
        if job.diff_id in have:
            channel.progress(job.shown, "exists", job.size, job.size)
    return assembly.run([job for job in jobs if job.diff_id not in have], sources)


def image_record(
    *,
    config: bytes,
    config_digest: Digest,
    manifests: Sequence[tuple[Digest, bytes]],
    diff_ids: Sequence[Digest],
    unpacked: Sequence[dict[str, Any]],
    tags: Sequence[str],
    digests: Sequence[str],
) -> dict[str, Any]:
    """Return an image as the store expects it on the pipe; documents as base64."""
    return {
        "id": config_digest,
        "config": base64.b64encode(config).decode(),
        "manifests": [[digest, base64.b64encode(data).decode()] for digest, data in manifests],
        "layers": list(diff_ids),
        "unpacked": list(unpacked),
        "tags": list(tags),
        "digests": list(digests),
    }
