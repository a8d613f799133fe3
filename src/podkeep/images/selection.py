"""From a verified manifest and configuration to the layers that must be fetched. Shared by pull and load."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
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
            layer=diff_id,
            compression=manifest.compression(layer.media_type),
            digest=layer.digest,
            size=layer.size,
        )
        for layer, diff_id in zip(parsed.layers, diff_ids, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What an image is made of: the IDs of all ``layers``, base first, and a record for each that is ``new``.

    A new one without a ``path`` is a file whose content the store has, or is given here, under another title.
    """

    layers: tuple[Digest, ...]
    new: tuple[dict[str, Any], ...]


def fetch_missing(
    jobs: Sequence[LayerJob], sources: Sequence[BlobSource], assembly: Assembly, channel: Channel
) -> Fetched:
    """Ask the store what it has, and unpack the rest; a blob that makes several layers is fetched once."""
    answer = channel.ask({"event": "want", "layers": [job.as_json() for job in jobs]})
    have: dict[LayerJob, Digest] = {}
    twins: list[LayerJob] = []
    for job, here, twin in zip(jobs, answer["have"], answer["twins"], strict=True):
        if here or twin:
            channel.progress(job.shown, "exists", job.size, job.size)
        if here:
            have[job] = here
        elif twin:
            twins.append(job)
    missing = [job for job in dict.fromkeys(jobs) if job not in have and job not in twins]
    first = {job.content: job for job in reversed(missing)}
    made = assembly.run(list(first.values())[::-1], sources)
    new = list(made.values())
    have |= {job: record["layer"] for job, record in made.items()}
    for job in missing:
        source = first[job.content]
        if job is source:
            continue
        if job.kind == "file":
            twins.append(job)
        else:
            have[job] = have[source]
    for job in twins:
        assert job.layer is not None  # of a file it is known
        new.append(job.as_json())
        have[job] = job.layer
    return Fetched(layers=tuple(have[job] for job in jobs), new=tuple(new))


def image_record(
    *,
    config: bytes,
    config_digest: Digest,
    manifests: Sequence[tuple[Digest, bytes]],
    fetched: Fetched,
    tags: Sequence[str],
    digests: Sequence[str],
) -> dict[str, Any]:
    """Return an image as the store expects it on the pipe; documents as base64."""
    return {
        "id": config_digest,
        "kind": "image",
        "artifact_type": "",
        "config": base64.b64encode(config).decode(),
        "manifests": [[digest, base64.b64encode(data).decode()] for digest, data in manifests],
        "layers": list(fetched.layers),
        "new": list(fetched.new),
        "tags": list(tags),
        "digests": list(digests),
    }
