"""``podkeep artifact``: publishing files and directories, and listing what refers to an image.

Works on a registry from this process; no runtime is needed. What is in a runtime is an image like others: ``podkeep
image``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.base.registries.docker_config import Credentials
    from podkeep.base.registries.reference import Reference
    from podkeep.cli.images.progress import Display
    from podkeep.images.publish.packing import Blob, Compression
    from podkeep.images.publish.pushing import Artifact, Subject
    from podkeep.images.registry.referrers import Referrer
    from podkeep.images.registry.registry import Registry

_COLUMNS: forms.Columns[Referrer] = {
    "DIGEST": lambda item: item.digest,
    "ARTIFACT TYPE": lambda item: item.artifact_type,
    "SIZE": lambda item: forms.size(item.size),
    "CREATED": lambda item: str(item.created or ""),
}
_CREATED = "org.opencontainers.image.created"
_TIMEOUT_S = 600.0
"""Seconds without a sign of life: a registry may copy a blob of some GiB before it answers."""
_DEFAULT_CONFIG_TYPE = "application/vnd.unknown.config.v1+json"


@click.group(name="artifact")
def command() -> None:
    """Publish files as OCI artifacts, and list what refers to an image."""


@command.command(name="push")
@click.argument("reference")
@click.argument("paths", nargs=-1, required=True, metavar="PATH[:MEDIA-TYPE]...")
@click.option("--artifact-type", default="", metavar="TYPE", help="What the artifact is, as a media type.")
@click.option("--annotation", "annotations", multiple=True, metavar="KEY=VALUE", help="Annotation of the manifest.")
@click.option("--config", default="", metavar="FILE[:TYPE]", help="Configuration (default: an empty one).")
@click.option("--subject", default="", metavar="IMAGE", help="The image that the artifact refers to.")
@click.option(
    "--contents", is_flag=True, help="Put a directory's content at the root of the volume, not the directory."
)
@click.option(
    "--compression",
    type=click.Choice(["gzip", "zstd", "none"]),
    default="gzip",
    show_default=True,
    help="Of directories; files are pushed as they are.",
)
@forms.output_option
@pass_invocation
def push(invocation: Invocation, /, reference: str, paths: tuple[str, ...], output: str, **options: Any) -> None:
    """Publish files and directories under REFERENCE, so that pods can mount them as an image volume.

    A file becomes a file of the same name at the root of the volume, a directory a directory of the same name. With
    --subject and without a tag in REFERENCE the artifact gets no tag: it is found by what it refers to.
    """
    from podkeep.base.registries.reference import is_media_type, parse
    from podkeep.images.publish import packing, pushing

    target, wanted = parse(reference), _Options(**options)
    if target.digest or target.artifact_type:
        raise InvalidArgument(f"{reference!r} names something that exists", hint="push to host/repository:tag")
    if wanted.artifact_type and not is_media_type(wanted.artifact_type):
        said = f"--artifact-type: {wanted.artifact_type!r} is not a media type"
        raise InvalidArgument(said, hint="write it as type/subtype")
    tag = "" if wanted.subject and not _has_tag(reference) else target.tag
    sources = [packing.parse_source(path) for path in paths]
    packing.check_sources(sources, contents=wanted.contents)
    registry = _registry(invocation, target, "pull,push")
    with ExitStack() as stack, _Shown(f"{target.name}:{tag}" if tag else target.name, sys.stderr) as shown:
        subject = _subject(invocation, wanted.subject, registry, target) if wanted.subject else None
        layers = []
        for source in sources:
            layers.append(
                packing.pack(
                    source,
                    contents=wanted.contents,
                    compression=wanted.compression,
                    # Never the present: the same directory has the same digest whenever it is pushed.
                    mtime=_epoch() or 0,
                    count=shown.counting(str(source.path)),
                )
            )
            stack.callback(layers[-1].close)
        configuration = _configuration(wanted.config)
        if configuration:
            stack.callback(configuration.close)
        artifact = pushing.Artifact(
            artifact_type=wanted.artifact_type or ("" if configuration else pushing.UNKNOWN_ARTIFACT),
            layers=layers,
            config=configuration,
            annotations=_annotations(wanted.annotations, attached=subject is not None),
            subject=subject,
        )
        digest = pushing.push(registry, tag, artifact, shown.pushed)
    _echo_pushed(target, tag, digest, artifact, form=output)


class _Options(FrozenStruct, kw_only=True):
    """Options of ``push`` as they were given."""

    artifact_type: str
    annotations: tuple[str, ...]
    config: str
    subject: str
    contents: bool
    compression: Compression


class _Shown:
    """Shows what happens to each path: on a terminal bars, else a line for each step."""

    def __init__(self, image: str, stream: IO[str]) -> None:
        from podkeep.cli.images.progress import display_for

        self._image = image
        self._display: Display = display_for(stream)

    def __enter__(self) -> _Shown:
        self._display.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._display.__exit__(*exception)

    def counting(self, path: str) -> Callable[[int], None]:
        """Return what is to be told how many more bytes of ``path`` were read."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            self._show(path, "reading", done, 0)

        return count

    def pushed(self, blob: Blob, phase: str, done: int) -> None:
        self._show(blob.shown, phase, done, blob.size)

    def _show(self, path: str, phase: str, done: int, total: int) -> None:
        from podkeep.cri.v1.podkeep_pb2 import PullProgress

        name = path.rstrip("/").rpartition("/")[2] or path
        self._display.update(PullProgress(image=self._image, digest=name, phase=phase, done=done, total=total))


def _echo_pushed(target: Reference, tag: str, digest: str, artifact: Artifact, *, form: str) -> None:
    whole = f"{target.name}@{digest}"
    layers = [{"path": blob.shown, **forms.fields(blob, "media_type", "digest", "size")} for blob in artifact.layers]
    head = {"reference": whole, "tag": tag, "digest": digest, "artifact_type": artifact.artifact_type}
    forms.show(form, {**head, "layers": layers}, [whole])


@command.command(name="referrers")
@click.argument("reference", metavar="IMAGE")
@click.option("--artifact-type", default="", metavar="TYPE", help="Only those of this type.")
@forms.output_option
@pass_invocation
def referrers(invocation: Invocation, reference: str, artifact_type: str, output: str) -> None:
    """List the artifacts in a registry that refer to an image: to its index and to its manifest for this machine."""
    from podkeep.base.registries.reference import parse
    from podkeep.images.registry import referrers as listing

    name = parse(reference)
    registry = _registry(invocation, name, "pull")
    wanted = artifact_type or name.artifact_type
    found: dict[str, Referrer] = {}
    for subject in listing.subjects(registry, name):
        found |= {item.digest: item for item in listing.list_referrers(registry, subject, wanted)}
    newest_first = sorted(
        found.values(), key=lambda item: item.created.timestamp() if item.created else 0.0, reverse=True
    )
    values = [
        {
            "reference": f"{name.name}@{item.digest}",
            **forms.fields(item, "digest", "artifact_type", "media_type", "size", "annotations"),
        }
        for item in newest_first
    ]
    forms.show(output, values, forms.table(_COLUMNS, newest_first))


def _has_tag(reference: str) -> bool:
    return ":" in reference.rpartition("/")[2]


def _annotations(texts: Sequence[str], *, attached: bool) -> dict[str, str]:
    """Return the manifest's annotations; of several referrers the newest is chosen, so each says when it was made."""
    result = {}
    if attached:
        result[_CREATED] = rfc3339.of_seconds(_epoch() or time.time())
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidArgument(f"--annotation: {text!r} is not KEY=VALUE")
        result[key] = value
    return result


def _epoch() -> int | None:
    """Return the time that everything made now is to carry (reproducible-builds.org, SOURCE_DATE_EPOCH)."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 11:
        raise InvalidArgument(f"SOURCE_DATE_EPOCH: {text!r} is not a number of seconds since 1970")
    return int(text)


def _configuration(text: str) -> Blob | None:
    from podkeep.images.publish import packing

    if not text:
        return None
    source = packing.parse_source(text)
    return packing.file_blob(source.path, source.media_type or _DEFAULT_CONFIG_TYPE)


def _subject(invocation: Invocation, text: str, registry: Registry, target: Reference) -> Subject:
    from podkeep.base.registries.reference import parse
    from podkeep.images.publish import pushing

    name = parse(text)
    place = registry if name.name == target.name else _registry(invocation, name, "pull")
    return pushing.subject_of(place, name.target, name.digest)


def _registry(invocation: Invocation, name: Reference, actions: str) -> Registry:
    """Return the registry of a name, without its mirrors, with the credentials that this user has for it."""
    from msgspec import structs

    from podkeep.images.formats.image import RegistryAuth
    from podkeep.images.registry import endpoints
    from podkeep.images.registry.registry import Registry

    endpoint = endpoints.for_worker(name, invocation.config.registries, progress_timeout=_TIMEOUT_S)[-1]
    given = tuple(RegistryAuth(**credentials.told()) for credentials in _credentials(name))
    return Registry(structs.replace(endpoint, credentials=given), name.repository, actions=actions)


def _credentials(name: Reference) -> tuple[Credentials, ...]:
    """Return what the user is logged in with: the files of podman, skopeo and docker, the first that knows the name."""
    from podkeep.images.registry.credentials import from_docker

    for path in _login_files():
        if path.exists() and (found := from_docker(path, name.name, what=str(path))):
            return found
    return ()


def _login_files() -> list[Path]:
    if given := os.environ.get("REGISTRY_AUTH_FILE"):
        return [Path(given)]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    docker = os.environ.get("DOCKER_CONFIG")
    return [
        Path(runtime) / "containers/auth.json",
        Path(docker) / "config.json" if docker else Path.home() / ".docker/config.json",
    ]
