"""Which media types layers have, and how a layer is kept by its type, its annotations and the node's policy. Pure.

Owns: the table of types of archives and their compressions, which types the layers of an image may have, which layers
of an artifact are files and what names those may have, and ``[images.media_types]`` and ``[images.artifact_types]`` (of
these only ``deny`` holds for images, too). Does not own: choosing between the rules of images and of artifacts
(``selection.py``), or making anything of a layer (``unpack.py``). Called by the worker.

Sources: OCI image-spec (layer.md, annotations.md, and manifest.md, "Guidelines for Artifact Usage"); ORAS, "artifact
concepts", for the ``io.deis.oras`` annotations and the type that ORAS gives to files when it is not told one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, Unimplemented

Treatment = Literal["tar", "tar+gzip", "tar+zstd", "file", "auto", "deny"]
ArtifactRule = Literal["allow", "files", "deny"]

_Rule = TypeVar("_Rule")

TITLE = "org.opencontainers.image.title"
ORAS_UNPACK = "io.deis.oras.content.unpack"
ORAS_DIGEST = "io.deis.oras.content.digest"
EMPTY = "application/vnd.oci.empty.v1+json"
OCI_TAR = "application/vnd.oci.image.layer.v1.tar"

_ARCHIVES: Mapping[str, Treatment] = {
    ".tar": "tar",
    ".tar+gzip": "tar+gzip",
    ".tar.gzip": "tar+gzip",
    ".tar+zstd": "tar+zstd",
    ".tar.zstd": "tar+zstd",
}
"""By how a media type ends. What begins a name here is the registered tree of its maker; the format comes last."""
_OCI_ENDINGS = (".tar", ".tar+gzip", ".tar+zstd")
_IMAGE_LAYERS = frozenset(
    start + ending
    for start, endings in {
        "application/vnd.oci.image.layer.v1": _OCI_ENDINGS,
        "application/vnd.oci.image.layer.nondistributable.v1": _OCI_ENDINGS,
        "application/vnd.docker.image.rootfs.diff": (".tar", ".tar.gzip", ".tar.zstd"),
        "application/vnd.docker.image.rootfs.foreign.diff": (".tar.gzip",),
    }.items()
    for ending in endings
)
"""The layers that an image may have, by their whole type: an image's diff IDs are those of tars, and an unknown type
may mean something else (encrypted layers end in ``+gzip+encrypted``)."""
_MAX_TITLE = 255
"""Bytes of a file's name (Linux, NAME_MAX)."""
WHITEOUT = ".wh."
"""How names begin that mean in an archive that something is gone (image-spec, layer.md)."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's configuration says; patterns (``*``, ``?``, ``[...]``) of media types and artifact types.

    A type that is named as it is goes before patterns, patterns in their order.
    """

    media_types: Mapping[str, Treatment] = {}
    artifact_types: Mapping[str, ArtifactRule] = {}


def treatment(media_type: str, annotations: Mapping[str, str], rule: ArtifactRule, policy: Policy) -> Treatment | None:
    """Return what to do with one layer of an artifact; None: it is the empty descriptor, without content.

    ``auto`` is ``tar`` if the content starts like a tar and ``file`` otherwise: ORAS calls every file of which it is
    told nothing else an OCI layer.

    :raises Unimplemented: if it is neither known as an archive nor has a title to be kept under.
    """
    titled = TITLE in annotations
    if media_type == EMPTY and not titled:
        return None
    set_ = _match(policy.media_types, media_type)
    if set_ is not None:
        return set_
    if rule == "files":
        return "file"
    known = _archive(media_type)
    if annotations.get(ORAS_UNPACK) == "true":
        return known or "tar+gzip"
    # ORAS gives this type to any file that it is not told another one for.
    if media_type == OCI_TAR and titled:
        return "auto"
    if known is None and not titled:
        raise Unimplemented(
            f"its type {media_type!r} is no archive that is known, and without {TITLE} it cannot be a file",
            hint=f'say what it is: "{media_type}" = {_archive_names()} under [images.media_types]',
        )
    return known or "file"


def image_layer_compression(media_type: str) -> str:
    """Return ``none``, ``gzip`` or ``zstd`` for the media type of an image's layer.

    :raises Unimplemented: for anything else, encrypted layers included.
    """
    archive = _archive(media_type)
    if archive is None or media_type not in _IMAGE_LAYERS:
        raise Unimplemented(
            f"layers of type {media_type!r} cannot be unpacked in an image",
            hint="build the image with layers of OCI's or docker's types; [images.media_types] is about artifacts",
        )
    return compression_of(archive)


def compression_of(archive: Treatment) -> str:
    """Return the compression of ``tar``, ``tar+gzip`` and the like, as ``DECOMPRESSORS`` has it."""
    return archive.partition("+")[2] or "none"


def _archive(media_type: str) -> Treatment | None:
    """Return which archive a type is by its end; None if it is not one."""
    return next((found for ending, found in _ARCHIVES.items() if media_type.endswith(ending)), None)


def refused(media_type: str, policy: Policy) -> bool:
    """Tell whether layers of this type are denied, those of images included."""
    return _match(policy.media_types, media_type) == "deny"


def artifact_rule(artifact_type: str, policy: Policy) -> ArtifactRule:
    """Return what the configuration says of artifacts of a type.

    :raises FailedPrecondition: if it denies them.
    """
    rule = _match(policy.artifact_types, artifact_type) or "allow"
    if rule == "deny":
        raise FailedPrecondition(
            f"artifacts of type {artifact_type!r} are not allowed on this node",
            hint="the configuration says so, under [images.artifact_types]",
        )
    return rule


def denied(media_type: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"layers of type {media_type!r} are not allowed on this node",
        hint="the configuration says so, under [images.media_types]",
    )


def title_of(annotations: Mapping[str, str]) -> str:
    """Return the name of the file that a layer is.

    :raises InvalidArgument: if it has none, or one that is not the name of a file in one directory.
    """
    title = annotations.get(TITLE)
    if title is None:
        raise InvalidArgument(f"it is to be a file, but has no name ({TITLE})")
    wrong = wrong_title(title)
    if wrong:
        raise InvalidArgument(
            f"its title {title[:100]!r} {wrong}", hint="push it again with the name of a file as its title"
        )
    return title


def wrong_title(title: str) -> str:
    """Return what keeps ``title`` from being the name of a file in one directory, or nothing."""
    if not title:
        return "is empty"
    if title in (".", ".."):
        return "is a directory"
    if "/" in title:
        return "has a '/': it is no name of a file"
    # Titles are shown on terminals, and become names of files.
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in title):
        return "has a control character"
    if len(title.encode()) > _MAX_TITLE:
        return f"is longer than {_MAX_TITLE} bytes"
    if title.startswith(WHITEOUT):
        return "is that of a whiteout"
    return ""


def check_distinct(titles: Iterable[str]) -> None:
    """Check that no two files have the same name.

    :raises InvalidArgument: naming the first that is there twice.
    """
    seen: set[str] = set()
    for title in titles:
        if title in seen:
            raise InvalidArgument(f"two of its layers have the title {title!r}", hint="push it again with other names")
        seen.add(title)


def _archive_names() -> str:
    *names, last = (f'"{name}"' for name in dict.fromkeys(_ARCHIVES.values()))
    return f"{', '.join(names)} or {last}"


def _match(rules: Mapping[str, _Rule], name: str) -> _Rule | None:
    # A type that is named as it is, whatever patterns stand before it.
    if name in rules:
        return rules[name]
    return next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), None)
