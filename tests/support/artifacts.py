"""Artifacts as ORAS and other tools push them, made in Python and pushed over the registry's HTTP API."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.images import OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, compress, digest
from support.registry import Registry

EMPTY = "application/vnd.oci.empty.v1+json"
TITLE = "org.opencontainers.image.title"
UNPACK = "io.deis.oras.content.unpack"
CONTENT_DIGEST = "io.deis.oras.content.digest"

SEED_CONFIG = b'{\n  "architecture": "amd64",\n  "os": "linux"\n}\n'
"""What KEP-4639 has `jq` write: 47 bytes, as in its manifest."""
SEED_CONFIG_DIGEST = "sha256:4a2128b14c6c3699084cd60f24f80ae2c822f9bd799b24659f9691cbbfccae6b"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A layer: its bytes as they are pushed, and how the manifest describes them."""

    data: bytes
    media_type: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    def descriptor(self) -> dict[str, Any]:
        """Return what the manifest says."""
        described: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": digest(self.data),
            "size": len(self.data),
        }
        return described | ({"annotations": dict(self.annotations)} if self.annotations else {})


def file_part(title: str, data: bytes, media_type: str = OCI_LAYER) -> Part:
    """Return a file as ``oras push NAME title[:media_type]`` makes it: the type is ORAS's default for files."""
    return Part(data=data, media_type=media_type, annotations={TITLE: title})


def directory_part(title: str, plain: bytes) -> Part:
    """Return a directory as ``oras push NAME title/`` makes it of a tar: its names start with ``title``."""
    annotations = {TITLE: title, UNPACK: "true", CONTENT_DIGEST: digest(plain)}
    return Part(data=compress(plain, "gzip"), media_type=f"{OCI_LAYER}+gzip", annotations=annotations)


def tar_part(plain: bytes, compression: str = "gzip", *, title: str = "", media_type: str = "") -> Part:
    """Return an archive with the media type of an image's layer."""
    suffix = "" if compression == "none" else f"+{compression}"
    return Part(
        data=compress(plain, compression),
        media_type=media_type or OCI_LAYER + suffix,
        annotations={TITLE: title} if title else {},
    )


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A manifest, and the blobs it names by their digests."""

    manifest: bytes
    blobs: Mapping[str, bytes]
    media_type: str = OCI_MANIFEST

    @property
    def digest(self) -> str:
        """The digest of the manifest, which is the artifact's ID."""
        return digest(self.manifest)

    def descriptor(self, **more: Any) -> dict[str, Any]:
        """Return an index's entry for it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.manifest), **more}

    def push(
        self, registry: Registry, name: str, *, by_digest: bool = False, headers: Mapping[str, str] | None = None
    ) -> str:
        """Push it as ``repository:tag``, or by its digest alone; return its whole name."""
        repository, _, tag = name.partition(":")
        more = dict(headers or {})
        for key, data in self.blobs.items():
            _, answer, _ = registry.request("POST", f"/v2/{repository}/blobs/uploads/", data=b"", headers=more)
            location = answer["Location"]
            where = f"{location}{'&' if '?' in location else '?'}digest={key}"
            content = {"Content-Type": "application/octet-stream"}
            registry.request("PUT", where, data=data, headers=more | content)
        target = self.digest if by_digest else tag or "latest"
        content = {"Content-Type": self.media_type}
        registry.request("PUT", f"/v2/{repository}/manifests/{target}", data=self.manifest, headers=more | content)
        return f"{registry.host}/{repository}{'@' if by_digest else ':'}{target}"

    def layout(self, path: Path, name: str = "") -> Path:
        """Write it as an OCI layout."""
        blobs = path / "blobs/sha256"
        blobs.mkdir(parents=True)
        for data in (self.manifest, *self.blobs.values()):
            (blobs / digest(data)[7:]).write_bytes(data)
        annotations = {"annotations": {"org.opencontainers.image.ref.name": name}} if name else {}
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [self.descriptor(**annotations)]}
        (path / "index.json").write_text(json.dumps(index))
        (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        return path


def artifact(
    parts: Sequence[Part],
    *,
    artifact_type: str = "application/vnd.example.thing",
    config: bytes = b"{}",
    config_type: str = EMPTY,
    config_more: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Artifact:
    """Return an artifact of ``parts``; by default as ``oras push --artifact-type`` makes one.

    :param config_more: further fields of the configuration's descriptor (``data``).
    :param more: further fields of the manifest (``subject``, ``annotations``).
    """
    described = {"mediaType": config_type, "digest": digest(config), "size": len(config), **(config_more or {})}
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        **({"artifactType": artifact_type} if artifact_type else {}),
        "config": described,
        "layers": [part.descriptor() for part in parts],
        **(more or {}),
    }
    blobs = {digest(part.data): part.data for part in parts} | {digest(config): config}
    return Artifact(manifest=json.dumps(document, separators=(",", ":")).encode(), blobs=blobs)


def index(entries: Sequence[Mapping[str, Any]]) -> Artifact:
    """Return an index as something that can be pushed; what it lists must be there."""
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)}
    return Artifact(manifest=json.dumps(document).encode(), blobs={}, media_type=OCI_INDEX)


def seed() -> Artifact:
    """Return the artifact of KEP-4639, "Example using ORAS": its manifest field by field, its configuration byte by
    byte, and layers that GNU tar and gzip write (which hold a time, so their digests are not those of the KEP)."""
    layers = [
        Part(data=_gnu_tar(names), media_type=f"{OCI_LAYER}+gzip", annotations={TITLE: f"layer{number}.tar"})
        for number, names in enumerate(({"dir": None, "dir/file": b"layer0\n"}, {"file": b"layer1\n"}))
    ]
    assert f"sha256:{hashlib.sha256(SEED_CONFIG).hexdigest()}" == SEED_CONFIG_DIGEST
    created = {"annotations": {"org.opencontainers.image.created": "2024-06-14T07:49:06Z"}}
    return artifact(layers, artifact_type="", config=SEED_CONFIG, config_type=OCI_CONFIG, more=created)


def _gnu_tar(members: Mapping[str, bytes | None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.uname = info.gname = "user"
            info.uid = info.gid = 1000
            info.mtime = 1_718_351_346
            info.mode = 0o755 if data is None else 0o644
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return gzip.compress(buffer.getvalue(), mtime=1_718_351_346)
