"""The two images of a comparison, built from the machine's own static programs and pushed to a loopback registry.

A busybox for the containers, and catatonit as the pause image that containerd's sandboxes need. Speaks the OCI
distribution API over plain HTTP, uploads only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
CATATONIT = Path("/usr/bin/catatonit")
_APPLETS = ("cat", "sh", "sleep", "true")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True)
class TinyImage:
    """One layer: a static program at ``path``, and links to it; ``command`` is the image's Cmd."""

    program: Path
    path: str
    links: tuple[str, ...] = ()
    command: tuple[str, ...]

    def layer(self) -> bytes:
        """The uncompressed layer, the same bytes each time."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            content = self.program.read_bytes()
            for name in sorted({str(Path(path).parent) for path in (self.path, *self.links)} - {"."}):
                directory = tarfile.TarInfo(name)
                directory.type, directory.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(directory)
            member = tarfile.TarInfo(self.path)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
            for link in self.links:
                member = tarfile.TarInfo(link)
                member.type, member.linkname = tarfile.SYMTYPE, f"/{self.path}"
                archive.addfile(member)
        return buffer.getvalue()


def config(command: tuple[str, ...], diff_id: str) -> dict[str, Any]:
    """The configuration of an image with one layer."""
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }


def manifest(config_blob: dict[str, Any], layers: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of uploaded blobs."""
    return {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_blob, "layers": layers}


def busybox() -> TinyImage:
    links = tuple(f"bin/{applet}" for applet in _APPLETS)
    return TinyImage(program=BUSYBOX, path="bin/busybox", links=links, command=("sh",))


def pause() -> TinyImage:
    return TinyImage(program=CATATONIT, path="pause", command=("/pause", "-P"))


def push(image: TinyImage, registry: str, repository: str) -> str:
    """Push ``image`` as ``registry/repository:1`` and return that reference.

    :raises urllib.error.URLError: if the registry is not there or refuses.
    """
    base = f"http://{registry}/v2/{repository}"
    layer = image.layer()
    layer_blob = gzip.compress(layer, mtime=0)
    config_blob = json.dumps(config(image.command, _digest(layer))).encode()
    layers = [_upload(base, layer_blob, LAYER)]
    return push_manifest(manifest(_upload(base, config_blob, CONFIG), layers), registry, repository)


def push_manifest(document: dict[str, Any], registry: str, repository: str) -> str:
    """Push a manifest whose blobs are there as ``registry/repository:1`` and return that reference."""
    url = f"http://{registry}/v2/{repository}/manifests/1"
    _send("PUT", url, json.dumps(document).encode(), {"Content-Type": MANIFEST})
    return f"{registry}/{repository}:1"


def _upload(base: str, blob: bytes, media_type: str) -> dict[str, Any]:
    location = _send("POST", f"{base}/blobs/uploads/", b"", {})["Location"]
    separator = "&" if "?" in location else "?"
    url = f"{location}{separator}digest={_digest(blob)}"
    _send("PUT", url, blob, {"Content-Type": "application/octet-stream"})
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _send(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as response:
        return dict(response.headers)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
