"""What the rest of podkeep knows about a stored image. Values only: no files, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from podkeep.base.ids import Digest, ImageID


@dataclass(frozen=True, kw_only=True)
class ImageRunConfig:
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
    labels: Mapping[str, str] = field(default_factory=dict)
    exposed_ports: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Image:
    """A stored image.

    ``id`` is the digest of its configuration. ``repo_tags`` are ``host/repository:tag``, ``repo_digests``
    ``host/repository@digest``. ``size`` is bytes on disk, layers shared with other images included.
    ``layers`` are diff IDs, base first (OCI image-spec, config.md, ``rootfs.diff_ids``).
    """

    id: ImageID
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    pinned: bool
    config: ImageRunConfig
    layers: tuple[Digest, ...]


@dataclass(frozen=True, kw_only=True)
class PullProgress:
    """One step of a pull: ``phase`` of ``digest`` (empty: of the whole image), ``done`` of ``total`` bytes.

    Phases: ``resolving``, ``downloading`` (``done`` counts compressed bytes fetched and unpacked), ``done``,
    ``exists`` (the layer was here already).
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
    is exchanged for one (OAuth 2 refresh token).
    """

    username: str = ""
    password: str = field(default="", repr=False)
    auth: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
