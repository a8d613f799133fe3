"""From a verified manifest and configuration to the layers that must be fetched. Shared by pull and load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, Unimplemented
from podkeep.base.ids import Digest, ImageID, parse_digest
from podkeep.images.formats import manifest, media_types
from podkeep.images.formats.image import ImageKind, ImageRunConfig, encode_run
from podkeep.images.formats.media_types import Policy
from podkeep.images.messages import FetchedImage, NewLayer, Wanted
from podkeep.images.worker.assembly import Assembly, BlobSource
from podkeep.images.worker.channel import Channel
from podkeep.images.worker.layers import LayerJob


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest is, how it wants to be run, and what has to be made of its layers, base first."""

    id: Digest
    kind: ImageKind
    artifact_type: str
    run: ImageRunConfig = ImageRunConfig()
    jobs: tuple[LayerJob, ...]


def select(parsed: manifest.Manifest, digest: Digest, config: bytes, policy: Policy, what: str) -> Selection:
    """Tell an image from an artifact, and say what becomes of the layers.

    An image is what says so by its types, and whose configuration has diff IDs. Without them there is nothing to run,
    whatever the types say, but the layers can be mounted.

    :param digest: of the manifest.
    :raises InvalidArgument: naming the layer and what is wrong with it.
    :raises FailedPrecondition: if the policy does not allow it.
    :raises Unimplemented: if a layer is nothing that podkeep knows.
    """
    if parsed.may_be_image:
        found = manifest.parse_configuration(config, f"{what}: configuration")
        if found.diff_ids or not parsed.layers:
            jobs = _image_jobs(parsed, found.diff_ids, policy, what)
            return Selection(id=parsed.config.digest, kind="image", artifact_type="", run=found.run, jobs=jobs)
    with _naming(what):
        rule = media_types.artifact_rule(parsed.artifact_type, policy)
    jobs = _artifact_jobs(parsed, rule, policy, what)
    return Selection(id=digest, kind="artifact", artifact_type=parsed.artifact_type, jobs=jobs)


def _image_jobs(
    parsed: manifest.Manifest, diff_ids: Sequence[Digest], policy: Policy, what: str
) -> tuple[LayerJob, ...]:
    if len(parsed.layers) != len(diff_ids):
        raise InvalidArgument(
            f"{what}: {len(parsed.layers)} layers, but the configuration has {len(diff_ids)} diff_ids"
        )
    jobs = []
    for number, (layer, diff_id) in enumerate(zip(parsed.layers, diff_ids, strict=True)):
        with _naming(f"{what}: layers[{number}]"):
            if media_types.refused(layer.media_type, policy):
                raise media_types.denied(layer.media_type)
            compression = media_types.image_layer_compression(layer.media_type)
        jobs.append(LayerJob(layer=diff_id, compression=compression, digest=layer.digest, size=layer.size))
    return tuple(jobs)


def _artifact_jobs(
    parsed: manifest.Manifest, rule: media_types.ArtifactRule, policy: Policy, what: str
) -> tuple[LayerJob, ...]:
    jobs = []
    for number, layer in enumerate(parsed.layers):
        with _naming(f"{what}: layers[{number}]"):
            job = _artifact_job(layer, rule, policy)
        if job is not None:
            jobs.append(job)
    with _naming(what):
        media_types.check_distinct(job.title for job in jobs if job.title)
    return tuple(jobs)


def _artifact_job(layer: manifest.Descriptor, rule: media_types.ArtifactRule, policy: Policy) -> LayerJob | None:
    treatment = media_types.treatment(layer.media_type, layer.annotations, rule, policy)
    if treatment is None:
        return None
    if treatment == "deny":
        raise media_types.denied(layer.media_type)
    if treatment in ("file", "auto"):
        job = LayerJob(
            layer=None,
            kind="auto",
            title=media_types.title_of(layer.annotations),
            compression="none",
            digest=layer.digest,
            size=layer.size,
        )
        return job.as_file() if treatment == "file" else job
    said = layer.annotations.get(media_types.ORAS_DIGEST, "")
    return LayerJob(
        # What ORAS says of a directory is its diff ID.
        layer=parse_digest(said) if said and layer.annotations.get(media_types.ORAS_UNPACK) == "true" else None,
        compression=media_types.compression_of(treatment),
        digest=layer.digest,
        size=layer.size,
    )


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except (InvalidArgument, FailedPrecondition, Unimplemented) as error:
        raise type(error)(f"{what}: {error.message}", hint=error.hint) from error


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What an image is made of: the IDs of all ``layers``, base first, and those that are ``new``."""

    layers: tuple[Digest, ...]
    new: tuple[NewLayer, ...]


def fetch_missing(
    jobs: Sequence[LayerJob], sources: Sequence[BlobSource], assembly: Assembly, channel: Channel
) -> Fetched:
    """Ask the store what it has, and unpack the rest; a blob that makes several layers is fetched once."""
    answer = channel.ask(Wanted(layers=tuple(job.wanted() for job in jobs)))
    have: dict[LayerJob, Digest] = {}
    retitled: list[LayerJob] = []
    for job, available in zip(jobs, answer.layers, strict=True):
        if available.layer or available.same_file:
            channel.progress(job.shown, "exists", job.size, job.size)
        if available.layer:
            have[job] = available.layer
        elif available.same_file:
            retitled.append(job)
    missing = [job for job in dict.fromkeys(jobs) if job not in have and job not in retitled]
    # Of jobs with one content the first stands for all: reversed, its entry is the last that is written.
    first = {job.content: job for job in reversed(missing)}
    made = assembly.run(list(first.values())[::-1], sources)
    have |= {job: layer.layer for job, layer in made.items()}
    for job in missing:
        source = first[job.content]
        if made[source].kind == "tar":
            have[job] = have[source]
        # One content under several titles is fetched once; the store links it to the others.
        elif job is not source:
            retitled.append(job)
    files = {job: job.retitled() for job in retitled}
    have |= {job: file.layer for job, file in files.items()}
    return Fetched(layers=tuple(have[job] for job in jobs), new=(*made.values(), *files.values()))


def fetched_image(
    *,
    selection: Selection,
    config: bytes,
    manifests: Sequence[tuple[Digest, bytes]],
    layers: Fetched,
    tags: Sequence[str],
    digests: Sequence[str],
) -> FetchedImage:
    """Return an image as the store is told it."""
    return FetchedImage(
        id=ImageID(selection.id),
        kind=selection.kind,
        artifact_type=selection.artifact_type,
        config=config,
        run=encode_run(selection.run),
        manifests=tuple(manifests),
        layers=layers.layers,
        new=layers.new,
        tags=tuple(tags),
        digests=tuple(digests),
    )
