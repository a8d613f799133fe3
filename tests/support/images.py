"""Container images made in Python: Debian's static busybox as an OCI layout, with further layers on top."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

BUSYBOX = Path("/bin/busybox")
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1::/:/bin/false
app:x:1000:1000::/home/app:/bin/sh
nobody:x:65534:65534::/:/bin/false
"""
GROUP = "root:x:0:\ndaemon:x:1:\nstaff:x:50:app\napp:x:1000:\nnogroup:x:65534:\n"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A tar member; ``name`` is written as it is, so a hostile one stays hostile."""

    name: str
    kind: bytes = tarfile.REGTYPE
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1_700_000_000
    link: str = ""
    device: tuple[int, int] = (0, 0)
    pax: Mapping[str, str] = field(default_factory=dict)


def file(name: str, data: bytes | str = b"", mode: int = 0o644, **more: Any) -> Member:
    """Return a regular file."""
    return Member(name=name, data=data.encode() if isinstance(data, str) else data, mode=mode, **more)


def directory(name: str, mode: int = 0o755, **more: Any) -> Member:
    """Return a directory."""
    return Member(name=name, kind=tarfile.DIRTYPE, mode=mode, **more)


def symlink(name: str, target: str, **more: Any) -> Member:
    """Return a symbolic link."""
    return Member(name=name, kind=tarfile.SYMTYPE, link=target, mode=0o777, **more)


def hardlink(name: str, target: str, **more: Any) -> Member:
    """Return a hard link."""
    return Member(name=name, kind=tarfile.LNKTYPE, link=target, **more)


def tar(members: Iterable[Member]) -> bytes:
    """Return a PAX tar of ``members`` in their order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.mode, info.uid, info.gid = member.kind, member.mode, member.uid, member.gid
            info.mtime, info.linkname, info.size = member.mtime, member.link, len(member.data)  # type: ignore[assignment]
            info.devmajor, info.devminor = member.device
            info.pax_headers = dict(member.pax)
            archive.addfile(info, io.BytesIO(member.data))
    return buffer.getvalue()


def compress(data: bytes, compression: str) -> bytes:
    """Return ``data`` as ``gzip``, ``zstd`` or, for ``none``, as it is."""
    return {
        "none": lambda: data,
        "gzip": lambda: gzip.compress(data, compresslevel=1, mtime=0),
        "zstd": lambda: zstandard.ZstdCompressor(level=1).compress(data),
    }[compression]()


def digest(data: bytes) -> str:
    """Return the sha256 digest in OCI form."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def busybox_members() -> list[Member]:
    """Return the base layer: busybox, a link per applet, users, and the directories a container expects."""
    applets = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    return [
        *(directory(name) for name in ("bin", "etc", "dev", "proc", "sys", "run", "var", "home", "usr", "usr/bin")),
        directory("root", 0o700),
        directory("tmp", 0o1777),
        directory("home/app", 0o755, uid=1000, gid=1000),
        file("bin/busybox", BUSYBOX.read_bytes(), 0o755),
        *(symlink(f"bin/{applet}", "busybox") for applet in applets if applet != "busybox"),
        file("etc/passwd", PASSWD),
        file("etc/group", GROUP),
        file("etc/os-release", "ID=busybox\nPRETTY_NAME=busybox\n"),
    ]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An OCI layout on disk. ``manifest_digest`` is of the top document: the index where there is one."""

    path: Path
    manifest_digest: str
    image_id: str
    diff_ids: tuple[str, ...]
    layer_digests: tuple[str, ...]

    def blob(self, wanted: str) -> bytes:
        """Return a blob."""
        return self.blob_path(wanted).read_bytes()

    def blob_path(self, wanted: str) -> Path:
        """Return where a blob is."""
        return self.path / "blobs" / wanted.replace(":", "/")

    def top(self) -> dict[str, Any]:
        """Return the descriptor of the top document."""
        index: dict[str, Any] = json.loads((self.path / "index.json").read_bytes())
        entry: dict[str, Any] = index["manifests"][0]
        return entry

    def tar(self, target: Path) -> Path:
        """Write the layout as a tar (the OCI archive form)."""
        with tarfile.open(target, "w") as archive:
            for path in sorted(self.path.rglob("*")):
                archive.add(path, arcname=str(path.relative_to(self.path)), recursive=False)
        return target

    def docker_archive(self, target: Path, tags: Sequence[str]) -> Path:
        """Write the image as ``docker save`` did before it wrote layouts: plain layer tars named by directory."""
        manifest = json.loads(self.blob(self.manifest_digest))
        config = self.blob(manifest["config"]["digest"])
        files = {f"{digest(config)[7:]}.json": config}
        names = []
        for layer in manifest["layers"]:
            data = self.blob(layer["digest"])
            plain = gzip.decompress(data) if layer["mediaType"].endswith("gzip") else data
            names.append(f"{digest(plain)[7:]}/layer.tar")
            files[names[-1]] = plain
        entry = {"Config": f"{digest(config)[7:]}.json", "RepoTags": list(tags) or None, "Layers": names}
        files["manifest.json"] = json.dumps([entry]).encode()
        target.write_bytes(tar(file(name, data) for name, data in files.items()))
        return target


class LayoutBuilder:
    """Puts blobs and an index together; what it is told is written, right or wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        """Store a blob and return its descriptor."""
        (self.path / "blobs/sha256" / digest(data)[7:]).write_bytes(data)
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    def json(self, document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
        """Store a JSON document and return its descriptor."""
        return self.blob(json.dumps(document).encode(), media_type)

    def image(
        self,
        layers: Sequence[bytes],
        *,
        config: Mapping[str, Any] | None = None,
        compression: str | Sequence[str] = "gzip",
        architecture: str = "amd64",
        docker: bool = False,
    ) -> dict[str, Any]:
        """Store an image of plain layer tars and return the descriptor of its manifest."""
        kinds = [compression] * len(layers) if isinstance(compression, str) else list(compression)
        document = {
            "architecture": architecture,
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
            "history": [{"created_by": "test"} for _ in layers],
        }
        descriptors = []
        for layer, kind in zip(layers, kinds, strict=True):
            suffix = "" if kind == "none" else f"+{kind}"
            descriptors.append(self.blob(compress(layer, kind), DOCKER_LAYER if docker else OCI_LAYER + suffix))
        manifest = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST if docker else OCI_MANIFEST,
            "config": self.json(document, DOCKER_CONFIG if docker else OCI_CONFIG),
            "layers": descriptors,
        }
        return self.json(manifest, manifest["mediaType"])

    def index(self, entries: Sequence[Mapping[str, Any]], *, docker: bool = False) -> dict[str, Any]:
        """Store an index of entries (descriptors with ``platform``) and return its descriptor."""
        media_type = DOCKER_LIST if docker else OCI_INDEX
        document = {"schemaVersion": 2, "mediaType": media_type, "manifests": list(entries)}
        return self.json(document, media_type)

    def finish(self, top: Mapping[str, Any], name: str = "") -> Layout:
        """Write index.json so that ``name`` leads to ``top``."""
        entry = dict(top)
        if name:
            entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
        (self.path / "index.json").write_text(json.dumps(index))
        manifest = json.loads((self.path / "blobs" / top["digest"].replace(":", "/")).read_bytes())
        if "manifests" in manifest:
            manifest = json.loads(
                (self.path / "blobs" / manifest["manifests"][0]["digest"].replace(":", "/")).read_bytes()
            )
        config = json.loads((self.path / "blobs" / manifest["config"]["digest"].replace(":", "/")).read_bytes())
        return Layout(
            path=self.path,
            manifest_digest=top["digest"],
            image_id=manifest["config"]["digest"],
            diff_ids=tuple(config["rootfs"]["diff_ids"]),
            layer_digests=tuple(layer["digest"] for layer in manifest["layers"]),
        )


def busybox_layout(
    path: Path,
    *,
    name: str = "busybox:latest",
    config: Mapping[str, Any] | None = None,
    layers: Sequence[Sequence[Member]] = (),
    compression: str | Sequence[str] = "gzip",
    docker: bool = False,
) -> Layout:
    """Build a busybox image at ``path`` (made anew) and return its layout.

    :param config: OCI image configuration ``config`` (User, Env, Entrypoint, Cmd, Volumes, StopSignal, WorkingDir ...),
        on top of a usable default.
    :param layers: further layers, each a list of members, base first.
    :param compression: of every layer, or one per layer with the base first.
    """
    shutil.rmtree(path, ignore_errors=True)
    builder = LayoutBuilder(path)
    run = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["sh"]} | dict(config or {})
    tars = [tar(busybox_members()), *(tar(members) for members in layers)]
    return builder.finish(builder.image(tars, config=run, compression=compression, docker=docker), name)


def layers_layout(
    path: Path, layers: Sequence[Sequence[Member]], *, name: str = "layers:latest", compression: str = "gzip"
) -> Layout:
    """Build an image of nothing but ``layers``."""
    shutil.rmtree(path, ignore_errors=True)
    builder = LayoutBuilder(path)
    return builder.finish(builder.image([tar(members) for members in layers], compression=compression), name)
