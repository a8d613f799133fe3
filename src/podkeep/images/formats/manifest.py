"""Decoding of manifests, indexes and image configurations: bytes that were verified, but whose author is not trusted.

Pure functions over JSON. OCI image-spec (manifest.md, image-index.md, config.md, descriptor.md) and docker's
"Image Manifest Version 2, Schema 2". Field errors name the document and the field. Does not own: which types layers may
have (``media_types.py``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, Unimplemented
from podkeep.base.ids import Digest, parse_digest
from podkeep.base.text.printable import listed
from podkeep.images.formats import texts
from podkeep.images.formats.image import ImageRunConfig
from podkeep.images.formats.texts import Many, Text

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
OCI_ARTIFACT_MANIFEST = "application/vnd.oci.artifact.manifest.v1+json"
IMAGE_NAME = "io.containerd.image.name"
REF_NAME = "org.opencontainers.image.ref.name"
"""Annotations of an entry in the index of a layout: the whole name of an image, and its tag or its name."""
EMPTY_OBJECT = b"{}"
_IMAGES = (OCI_CONFIG, DOCKER_CONFIG)
ACCEPTED = (OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST)

MAX_MANIFEST_BYTES = 4 << 20
"""Bytes; what registries are told to accept at least, and nobody needs more (distribution-spec, "Pushing
manifests")."""
MAX_CONFIG_BYTES = 4 << 20
"""Bytes; the limit of containers/image, so of CRI-O, skopeo and podman. With an index and a manifest it fits into one
message."""
MAX_LAYERS = 500
"""Lower directories overlayfs takes (kernel, fs/overlayfs, OVL_MAX_STACK)."""

_NAME = r"[0-9A-Za-z][-!#$&^_.+0-9A-Za-z]{0,126}"
_MEDIA_TYPE = re.compile(rf"{_NAME}/{_NAME}(; ?[ -~]{{1,255}})?")
"""RFC 6838, section 4.2, with parameters."""
_MAX_SIZE = (1 << 63) - 1
"""The number is one of 64 bits with a sign (descriptor.md, ``size``), as it is in messages about progress."""
_TYPE = Text(most=512, lines=True)
_DATA = Text(most=MAX_MANIFEST_BYTES)
"""The document that has it is no longer."""
_OFFERED = 10
"""Platforms of an index that an error names."""

_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
    "loongarch64": "loong64",
}


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A blob as its parent document describes it; ``size`` in bytes. ``data`` is the blob itself, if the document holds
    it (descriptor.md, "Embedded Content"); nobody compared it with the digest."""

    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = {}
    data: bytes | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An image manifest: its configuration and its layers, base first. ``artifact_type`` is what it says it is, else
    the type of its configuration (manifest.md, "Guidelines for Artifact Usage")."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str = OCI_CONFIG

    @property
    def may_be_image(self) -> bool:
        """Whether this can be a container image: a manifest that says it is something else is not."""
        return self.config.media_type in _IMAGES and self.artifact_type in _IMAGES


class ImageConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """What podkeep reads from an image configuration; ``diff_ids`` base first."""

    run: ImageRunConfig
    diff_ids: tuple[Digest, ...]


def node_architecture() -> str:
    """Return this machine's architecture as images call it (Go's GOARCH)."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def verify(data: bytes, digest: Digest, what: str) -> None:
    """Compare bytes with their digest.

    :raises FailedPrecondition: naming both digests.
    """
    found = digest_of(data, digest.partition(":")[0])
    if found != digest:
        raise FailedPrecondition(f"{what}: expected digest {digest}, the content has {found}")


def blob_name(digest: str) -> str:
    """Return where a layout has the blob ``digest``."""
    return "blobs/" + digest.replace(":", "/")


def digest_of(data: bytes, algorithm: str = "sha256") -> Digest:
    return Digest(f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}")


def is_index(document: Mapping[str, Any], media_type: str) -> bool:
    """Tell an index (manifest list) from a manifest: by the declared type, else by what the document holds."""
    # The document's own word goes before what a registry says of it: the digest is of the document.
    declared = document.get("mediaType") or media_type
    if declared in ACCEPTED:
        return declared in (OCI_INDEX, DOCKER_LIST)
    return "manifests" in document


def check_kind(document: Mapping[str, Any], media_type: str, what: str) -> None:
    """Check that a document cannot be read in two ways (OCI image-spec, the advisory GHSA-77vh-xpmg-72qh).

    :param media_type: what it came as; nothing, if that was not said.
    :raises InvalidArgument: if it is a manifest by one sign and an index by another.
    """
    declared = document.get("mediaType")
    kinds = {kind in (OCI_INDEX, DOCKER_LIST) for kind in (media_type, declared) if kind in ACCEPTED}
    if len(kinds) > 1:
        raise InvalidArgument(f"{what}: it came as {media_type}, and calls itself {declared}")
    if document.get("manifests") and (document.get("layers") or document.get("config")):
        raise InvalidArgument(f"{what} is a manifest and an index at the same time")


def parse_document(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in ``data``.

    :raises InvalidArgument: if it is not one, or is a schema this version does not read.
    """
    try:
        # Decoded here: json.loads guesses UTF-16 and UTF-32, too, which other readers of the same bytes refuse.
        document = json.loads(data.decode(), parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)
        if b"\\u" in data:
            # An escape may be half of a pair, which is no text: no message and no record could hold it.
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} is not JSON in UTF-8: {_json_problem(error)}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"{what} is not a JSON object")
    if document.get("schemaVersion") == 1:
        raise Unimplemented(f"{what} is a docker schema 1 manifest", hint="push the image again with a newer tool")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    # Infinity, as Python would write it again, is no JSON.
    if math.isinf(number := float(text)):
        raise ValueError(f"{texts.short(text)} is larger than numbers are")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # Python's own words name a setting of Python
        raise ValueError(f"a number of {len(text.removeprefix('-'))} digits") from error


def _json_problem(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"it has {error.object[error.start]!r}, half of a surrogate pair"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is {error.object[error.start]:#04x}, and part of no character"
    return "it is too deep" if isinstance(error, RecursionError) else str(error)


def choose(document: Mapping[str, Any], architecture: str, what: str) -> Descriptor:
    """Return the index entry for Linux on ``architecture``; the highest variant wins, then the first entry.

    An entry that names no architecture (artifacts have none) is for every one, if there is none for this one.

    :raises NotFound: if there is none; the message lists what there is.
    """
    offered: list[str] = []
    best: tuple[tuple[bool, str], Descriptor] | None = None
    entries = _list(document, "manifests", what)
    texts.check_count(len(entries), texts.ENTRIES, f"{what}: manifests")
    for number, entry in enumerate(entries):
        described = descriptor(entry, f"{what}: manifests[{number}]")
        place = f"{what}: manifests[{number}].platform"
        wanted = entry.get("platform") or {}
        if not isinstance(wanted, dict):
            raise InvalidArgument(f"{place} is not an object")
        system, machine = ((_string(wanted, name, place, texts.WORD)) for name in ("os", "architecture"))
        system, machine = system or "linux", machine or architecture
        variant = _string(wanted, "variant", place, texts.WORD)
        # An entry that names this architecture goes before one that names none.
        rank = bool(wanted.get("architecture")), variant
        offered.append(f"{system}/{machine}" + (f"/{variant}" if variant else ""))
        if system == "linux" and machine == architecture and (best is None or rank > best[0]):
            best = (rank, described)
    if best is None:
        raise NotFound(f"{what}: no image for linux/{architecture}; there is {listed(offered, _OFFERED) or 'nothing'}")
    return best[1]


def parse_manifest(document: Mapping[str, Any], what: str) -> Manifest:
    """Return a manifest as a value.

    :raises InvalidArgument: naming the field that is missing or wrong.
    :raises Unimplemented: if it is a kind of manifest that image-spec 1.1 did away with.
    """
    if document.get("mediaType") == OCI_ARTIFACT_MANIFEST:
        raise Unimplemented(
            f"{what} is an artifact manifest as image-spec 1.1 had it before its release",
            hint="push it again with a newer tool",
        )
    config = descriptor(document.get("config"), f"{what}: config")
    entries = _list(document, "layers", what)
    # Refused before any layer is fetched: overlayfs could not mount them.
    if len(entries) > MAX_LAYERS:
        raise InvalidArgument(f"{what} has {len(entries)} layers, more than {MAX_LAYERS}")
    layers = tuple(descriptor(entry, f"{what}: layers[{number}]") for number, entry in enumerate(entries))
    string_map(document, "annotations", what)
    if config.size > MAX_CONFIG_BYTES:
        raise InvalidArgument(f"{what}: the configuration has {config.size} bytes, more than {MAX_CONFIG_BYTES}")
    artifact_type = media_type_in(document, "artifactType", what) or config.media_type
    return Manifest(config=config, layers=layers, artifact_type=artifact_type)


def embedded(described: Descriptor, what: str) -> bytes | None:
    """Return a blob that need not be fetched: the document holds it, or it is the empty object.

    :raises FailedPrecondition: if what the document holds does not match the digest.
    """
    if described.data is None:
        return EMPTY_OBJECT if described.digest == digest_of(EMPTY_OBJECT) else None
    # The size first: nothing is hashed that is not as long as it says.
    if len(described.data) != described.size:
        raise FailedPrecondition(f"{what}: expected {described.size} bytes, its data has {len(described.data)}")
    verify(described.data, described.digest, what)
    return described.data


def parse_configuration(data: bytes, what: str) -> ImageConfiguration:
    """Return what podkeep needs from an image configuration.

    :raises InvalidArgument: naming the field that is wrong.
    """
    document = parse_document(data, what)
    rootfs = _object(document, "rootfs", what)
    run = _run_config(_object(document, "config", what), what)
    _check_rest(document, what)
    return ImageConfiguration(
        run=run,
        diff_ids=tuple(
            parse_digest(text) for text in strings(rootfs, "diff_ids", what, Many(count=MAX_LAYERS, each=texts.WORD))
        ),
    )


def _run_config(run: Mapping[str, Any], what: str) -> ImageRunConfig:
    found = ImageRunConfig(
        env=strings(run, "Env", what, texts.ARGUMENTS),
        entrypoint=strings(run, "Entrypoint", what, texts.ARGUMENTS),
        cmd=strings(run, "Cmd", what, texts.ARGUMENTS),
        user=_string(run, "User", what, texts.USER),
        working_dir=_string(run, "WorkingDir", what, texts.PATH),
        volumes=_keys(run, "Volumes", what, texts.PATHS),
        stop_signal=_string(run, "StopSignal", what, texts.WORD),
        labels=string_map(run, "Labels", what),
        exposed_ports=_keys(run, "ExposedPorts", what, texts.PORTS),
    )
    every = (*found.env, *found.entrypoint, *found.cmd, *found.volumes, *found.exposed_ports)
    texts.check_together((*every, *found.labels, *found.labels.values()), texts.RUN_BYTES, f"{what}: config")
    return found


def _check_rest(document: Mapping[str, Any], what: str) -> None:
    """Check the texts that others show, who get the document as it is (config.md, "Properties")."""
    for name in ("architecture", "os", "os.version", "variant", "created"):
        _string(document, name, what, texts.WORD)
    strings(document, "os.features", what, texts.FEATURES)
    _string(document, "author", what, texts.VALUE)
    steps = _list(document, "history", what)
    texts.check_count(len(steps), texts.HISTORY, f"{what}: history")
    for number, step in enumerate(steps):
        place = f"{what}: history[{number}]"
        if not isinstance(step, dict):
            raise InvalidArgument(f"{place} is not an object")
        _string(step, "created", place, texts.WORD)
        for name in ("created_by", "author", "comment"):
            _string(step, name, place, texts.VALUE)


def descriptor(entry: object, what: str) -> Descriptor:
    """Return a descriptor as a value.

    :raises InvalidArgument: naming the field that is missing or wrong.
    """
    if not isinstance(entry, dict):
        raise InvalidArgument(f"{what} is missing or not an object")
    size = entry.get("size")
    # JSON's true is an int to Python.
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
        raise InvalidArgument(f"{what}.size is not a number of bytes")
    try:
        digest = parse_digest(_string(entry, "digest", what, texts.WORD))
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}.digest: {error.message}") from error
    strings(entry, "urls", what, texts.URLS)
    return Descriptor(
        media_type=media_type_in(entry, "mediaType", what),
        digest=digest,
        size=size,
        annotations=string_map(entry, "annotations", what),
        data=_data(entry, what),
    )


def media_type_in(entry: Mapping[str, Any], name: str, what: str) -> str:
    """Return a media type that a document has in a field; a missing one is empty.

    :raises InvalidArgument: naming the field, if it is something else.
    """
    text = _string(entry, name, what, _TYPE)
    if text and not _MEDIA_TYPE.fullmatch(text):
        raise InvalidArgument(f"{what}: {name} {texts.short(text)} is not a media type")
    return text


def _data(entry: Mapping[str, Any], what: str) -> bytes | None:
    text = _string(entry, "data", what, _DATA)
    try:
        return base64.b64decode(text, validate=True) if text else None
    except ValueError as error:
        raise InvalidArgument(f"{what}.data is not base64") from error


def _list(document: Mapping[str, Any], name: str, what: str) -> Sequence[Any]:
    value = document.get(name)
    if value is None:
        value = []
    if not isinstance(value, list):
        raise InvalidArgument(f"{what}: {name} is not a list")
    return value


def _object(document: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what}: {name} is not an object")
    return value


def _keys(document: Mapping[str, Any], name: str, what: str, limit: Many) -> tuple[str, ...]:
    return texts.check_many(_object(document, name, what), limit, f"{what}: {name}")


def strings(document: Mapping[str, Any], name: str, what: str, limit: Many) -> tuple[str, ...]:
    """Return a list of strings; a missing one is empty.

    :raises InvalidArgument: naming the field, if it is something else or beyond the limit.
    """
    value = _list(document, name, what)
    if not all(isinstance(item, str) for item in value):
        raise InvalidArgument(f"{what}: {name} holds something that is not a string")
    return texts.check_many(value, limit, f"{what}: {name}")


def string_map(document: Mapping[str, Any], name: str, what: str) -> dict[str, str]:
    """Return a map of strings; a missing one is empty.

    :raises InvalidArgument: naming the field, if it is something else or beyond the limits of labels and annotations.
    """
    value = _object(document, name, what)
    if not all(isinstance(item, str) for item in value.values()):
        raise InvalidArgument(f"{what}: {name} holds something that is not a string")
    return texts.check_map(value, texts.KEYS, f"{what}: {name}")


def _string(document: Mapping[str, Any], name: str, what: str, limit: Text) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what}: {name} is not a string")
    return texts.check(value, limit, f"{what}: {name}")
