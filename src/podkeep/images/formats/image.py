"""What the rest of podkeep knows about a stored image. Values only: no files, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from podkeep.base.errors import Internal, InvalidArgument
from podkeep.base.ids import Digest, ImageID
from podkeep.base.registries import reference

ImageKind = Literal["image", "artifact"]
LayerKind = Literal["tar", "file"]


class ImageRunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the image wants to be run (OCI image-spec, config.md, property ``config``).

    ``env`` holds ``NAME=value`` in order; ``user`` is the image's own text (``name``, ``uid``, ``name:group`` ...);
    ``volumes`` and ``exposed_ports`` are the keys of their maps.
    """

    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    labels: Mapping[str, str] = {}
    exposed_ports: tuple[str, ...] = ()


def encode_run(config: ImageRunConfig) -> bytes:
    """Return what a worker tells, and the database keeps, of how an image wants to be run."""
    return msgspec.json.encode(config)


def decode_run(data: bytes) -> ImageRunConfig:
    """Return what :func:`encode_run` was given.

    :raises Internal: if this is something else.
    """
    try:
        return msgspec.json.decode(data, type=ImageRunConfig)
    except (ValueError, RecursionError) as error:
        raise Internal(f"how an image wants to be run is not what is kept of that: {error}") from error


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A stored image or artifact.

    ``id`` is the digest of an image's configuration and of an artifact's manifest (artifacts share empty
    configurations). ``repo_tags`` are ``host/repository:tag``, ``repo_digests`` ``host/repository@digest``. ``size`` is
    bytes on disk, layers shared with other images included. ``layers`` are the IDs of its layers, base first: of an
    image its diff IDs (OCI image-spec, config.md, ``rootfs.diff_ids``). ``artifact_type`` is empty of an image;
    ``user`` and ``stop_signal`` are as in :class:`ImageRunConfig`, and empty of an artifact, whose configuration is not
    podkeep's to read. All else that the configuration says is read when a container is made
    (``ImageStore.run_config``): it may be megabytes of memory, and a node any number of images. ``pulled_at`` is when
    it was last pulled or loaded, in nanoseconds since 1970; 0 if that was not recorded. ``unusable`` is what is wrong
    with a configuration that an older podkeep took and this one does not: nothing of it is told, and no container is
    made of it.
    """

    id: ImageID
    kind: ImageKind = "image"
    artifact_type: str = ""
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    pinned: bool
    pulled_at: int = 0
    user: str = ""
    stop_signal: str = ""
    layers: tuple[Digest, ...]
    unusable: str = ""

    def name_for(self, specified: str, requested: str) -> str:
        """Return the whole name under which this image was asked for, else one that it has, else its ID.

        :param specified: what the user wrote (CRI: ImageSpec.user_specified_image); empty: not known.
        :param requested: what the request names: of a kubelet the ID, of other clients often a name.
        """
        names = (*self.repo_tags, *self.repo_digests)
        for text in (specified, requested):
            if (name := whole_name(text)) in names:
                return name
        # The tag may have moved between the pull and the request, which names an ID: it is still what was asked for.
        if specified and not self.id.removeprefix("sha256:").startswith(specified):
            return whole_name(specified) or next(iter(names), self.id)
        return next(iter(names), self.id)


def whole_name(text: str) -> str:
    """Return a name in full; an empty string if ``text`` is an ID or no name at all."""
    if not text or text.startswith("sha256:"):
        return ""
    try:
        return str(reference.parse(text))
    except InvalidArgument:
        return ""


class PullProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a pull: ``phase`` of ``digest`` (empty: of the whole image), ``done`` of ``total`` bytes.

    Phases of a layer: ``waiting``, ``downloading`` (``done`` counts compressed bytes, fetched and handed on to be
    unpacked), ``resuming`` (the connection broke), ``retrying`` (from its beginning, at the next server),
    ``unpacking`` (all is fetched), ``done``, ``exists`` (it was here already). Of an image: ``resolving``, ``done``,
    and ``saving`` of an archive.
    """

    image: str
    digest: str
    phase: str
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class RegistryAuth:
    """Credentials for one pull (CRI: AuthConfig). They are sent to the registry in the image's name, never to a
    mirror.

    ``auth`` is base64 of ``user:password``; ``registry_token`` is sent as a bearer token as it is; ``identity_token``
    is exchanged for one (OAuth 2 refresh token). With a ``server_address``, they are for that registry only.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    auth: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    server_address: str = ""
