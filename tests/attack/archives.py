"""Hostile images made by chance: layers, configurations, manifests and indices, mutated, with digests that fit or not.

Making them is pure: the same source of chance makes the same case. A case is the files of an OCI layout, loaded from a
tar or pulled from a registry that serves them.
"""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import random
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from support import tarmaker
from support.images import OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, digest
from support.registry import Answer

ESCAPED = "/tmp/podkeep-attack-escaped"
"""What no layer may make."""
REPOSITORY = "hostile"
_SOUND_NAMES = (
    b"a",
    b"b/c",
    b"b/",
    b"d/",
    b".wh.x",
    b"d/.wh..wh..opq",
    b"etc/passwd",
    b"etc/group",
    b"link",
    b"\xff\xfe",
    b"a\nb",
)
_NAMES = (
    b"a",
    b"a/b",
    b"a/b/c",
    b"d/",
    b"..",
    b"../../../../../../.." + ESCAPED.encode(),
    ESCAPED.encode(),
    b"a/../b",
    b".",
    b"",
    b".wh.a",
    b".wh..wh..opq",
    b"a/.wh.b",
    b".wh.",
    b".wh..wh.x",
    b"a/.wh..wh..opq",
    b"n" * 255,
    b"n" * 256,
    b"d/" * 1000,
    b"\xff\xfe",
    b"a\nb",
    b"etc/passwd",
    b"etc/group",
    b"link",
    b"link/x",
    b"dev/null",
    b"a/b/" + b"c" * 200,
    b"./a",
    b"//a",
    b"a//b",
    b"\x1b[2J",
)
_PAX = (
    (b"path", b"p"),
    (b"path", b"../x"),
    (b"path", b"a\0b"),
    (b"linkpath", b"/etc"),
    (b"size", b"-1"),
    (b"size", b"9" * 19),
    (b"mtime", b"1e9"),
    (b"mtime", b"-1.5"),
    (b"uid", b"4294967295"),
    (b"uid", b"65536"),
    (b"gid", b"-1"),
    (b"SCHILY.xattr.security.capability", b"\x01\0\0\x02" + bytes(16)),
    (b"SCHILY.xattr.user.a", b"x" * 70000),
    (b"SCHILY.xattr.trusted.overlay.opaque", b"y"),
    (b"SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
    (b"SCHILY.xattr.security.selinux", b"x\0"),
    (b"SCHILY.xattr.system.posix_acl_access", b"x"),
    (b"SCHILY.xattr.", b"x"),
    (b"GNU.sparse.map", b"0,1"),
    (b"GNU.sparse.major", b"1"),
    (b"GNU.sparse.size", b"9" * 18),
    (b"comment", b"c" * 9999),
    (b"hdrcharset", b"BINARY"),
    (b"atime", b"x"),
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63 - 1,
    2**64,
    1e400,
    "",
    "x",
    "x" * 5000,
    "x" * 200_000,
    [],
    {},
    [None],
    {"a": None},
    "\ud800",
    "\0",
    "²",
    "9" * 5000,
    "a\nb",
    "sha256:" + "0" * 64,
    "sha256:x",
    "sha512:" + "0" * 128,
    "../..",
    "1000:1000",
    "root",
    "a:b:c",
    "é",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "linux",
    "windows",
    "arm64",
    "SIGKILL",
    "SIGRTMIN+99",
    "/a/../..",
    "relative",
    ["a"] * 5000,
    [1, "a", None],
    "=",
    "a=b",
    "PATH=",
)
_TEXT_FIELDS = ("User", "WorkingDir", "StopSignal", "Env", "Entrypoint", "Cmd", "Volumes", "Labels", "ExposedPorts")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """The files of an OCI layout; ``pulled``: from a registry, else loaded from a tar."""

    files: Mapping[str, bytes]
    pulled: bool

    def tar(self) -> bytes:
        """Return the archive to load."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in self.files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    def answer(self, path: str) -> Answer:
        """Return what a registry that has it answers to a request."""
        kind, _, name = path.rpartition("/")
        try:
            top = json.loads(self.files["index.json"])["manifests"][0]
            wanted = name if ":" in name else str(top["digest"])
            body = self.files[f"blobs/{wanted.replace(':', '/')}"]
            media = "application/octet-stream"
            if kind.endswith("/manifests"):
                media = str(json.loads(body)["mediaType"] if ":" in name else top["mediaType"])
            return Answer(
                body=body,
                headers={"Content-Type": media.encode("latin-1", "replace").decode("latin-1").replace("\n", "")[:200]},
            )
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return Answer(status=404)


def make(rng: random.Random) -> Archive:
    """Return a case."""
    layers = [_layer(rng) for _ in range(rng.choices((0, 1, 2, 3), (5, 60, 25, 10))[0])]
    files: dict[str, bytes] = {}
    fields = {name: _config_value(rng, name) for name in _TEXT_FIELDS if rng.random() < 0.12}
    config: Any = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/a"], **fields},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        "history": [{"created_by": "attack"} for _ in layers],
    }
    entries = []
    for layer in layers:
        suffix, data = rng.choice((("", layer), ("+gzip", gzip.compress(layer, 1, mtime=0)), ("+zstd", _zstd(layer))))
        if rng.random() < 0.04:
            data = _mutated(rng, data)
        entries.append(_blob(files, data, OCI_LAYER + suffix))
    manifest: Any = {"schemaVersion": 2, "mediaType": OCI_MANIFEST}
    manifest["config"] = _blob(files, _document(rng, config, 0.2), OCI_CONFIG)
    manifest["layers"] = entries
    top = _blob(files, _document(rng, manifest, 0.1), OCI_MANIFEST)
    if rng.random() < 0.2:
        platform = {"architecture": "amd64", "os": "linux"}
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [{**top, "platform": platform}]}
        top = _blob(files, _document(rng, index, 0.3), OCI_INDEX)
    top["annotations"] = {"org.opencontainers.image.ref.name": f"localhost/{REPOSITORY}:1"}
    files["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    outer = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [top]}
    files["index.json"] = _document(rng, outer, 0.08)
    if rng.random() < 0.05:
        name = rng.choice(sorted(files))
        files[name] = _mutated(rng, files[name])
    if rng.random() < 0.03:
        del files[rng.choice(sorted(files))]
    return Archive(files=files, pulled=rng.random() < 0.5)


def _config_value(rng: random.Random, name: str) -> Any:
    """Return a value of a field of a configuration, mostly of its type."""
    if rng.random() < 0.04:
        return _value(rng)
    texts = [value for value in _VALUES if isinstance(value, str)]
    if name in {"Env", "Entrypoint", "Cmd"}:
        return rng.choices(texts, k=rng.randint(0, 3))
    if name in {"Volumes", "ExposedPorts"}:
        return {text: {} for text in rng.choices(texts, k=2)}
    return {"a": rng.choice(texts), rng.choice(texts): "b"} if name == "Labels" else rng.choice(texts)


def _blob(files: dict[str, bytes], data: bytes, media_type: str) -> dict[str, Any]:
    files[f"blobs/{digest(data).replace(':', '/')}"] = data
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _layer(rng: random.Random) -> bytes:
    parts = []
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.1:
            pairs = [rng.choice(_PAX) for _ in range(rng.randint(1, 2))]
            parts.append(tarmaker.pax(pairs, rng.choice((b"x", b"x", b"x", b"g"))))
        elif rng.random() < 0.03:
            parts.append(tarmaker.long_name(rng.choice(_NAMES), rng.choice((b"L", b"K"))))
        parts.append(_member(rng))
    data = b"".join(parts) + tarmaker.END
    if rng.random() < 0.1:
        data = _mutated(rng, data)
    return data


def _member(rng: random.Random) -> bytes:
    chance = rng.random()
    name = (
        rng.choice(_NAMES)
        if chance < 0.12
        else rng.choice(_SOUND_NAMES)
        if chance < 0.6
        else b"f%d" % rng.randrange(20)
    )
    more: dict[str, Any] = {}
    if rng.random() < 0.04:
        field = rng.choice(("mode", "uid", "gid", "mtime"))
        number = rng.choice((-1, 2**31, 2**40, 0o7777))
        more[field] = tarmaker.base256(number, 12 if field == "mtime" else 8)
    kind = rng.choices(
        (b"0", b"5", b"2", b"1", b"3", b"4", b"6", b"7", b"S", b"Z", b"\0"), (60, 15, 12, 4, 2, 2, 2, 0.3, 0.3, 0.3, 2)
    )[0]
    if kind in b"21":
        more["link"] = rng.choice((*_NAMES, b"/etc/passwd", b"/proc/self/root", ESCAPED.encode()))[:100]
    if kind in b"34":
        more["device"] = rng.choice(((1, 3), (0, 0), (8, 0), (1, 1), (2**20, 1)))
    data = rng.choice((b"", b"x", b"root:x:0:0::/:/bin/sh\n", b"x" * 5000)) if kind in b"07\0" else b""
    if rng.random() < 0.03:
        more["size"] = rng.choice((tarmaker.base256(1 << 40, 12), tarmaker.base256(-1, 12), 511, 10**9))
    if len(name) > 100:
        return tarmaker.pax({b"path": name}) + tarmaker.entry(b"long", kind, data, **more)
    return tarmaker.entry(name, kind, data, **more)


def _mutated(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return rng.randbytes(4)
    at = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + rng.randbytes(rng.randint(1, 600)) + data[at:]
        case 3:
            return data[:at] + data[at + rng.randint(1, 512) :]
        case _:
            return data + data


def _document(rng: random.Random, document: Any, chance: float) -> bytes:
    """Return a JSON document, with something wrong in it by chance."""
    if rng.random() >= chance:
        return json.dumps(document).encode()
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(document))
        if not places:
            break
        holder, key = rng.choice(places)
        if rng.random() < 0.15:
            del holder[key]
        elif isinstance(holder, dict) and rng.random() < 0.1:
            holder[rng.choice(("x", "", "urls", "data", "subject", "artifactType", "\ud800"))] = _value(rng)
        else:
            holder[key] = _value(rng)
    text = json.dumps(document)
    match rng.randrange(30):
        case 0:
            return b"[" * 50_000 + text.encode()
        case 1:
            return text.encode("utf-16")
        case 2:
            return b"\xef\xbb\xbf" + text.encode()
        case 3:
            return (text[:-1] + ', "layers": [], "layers": null}').encode()
        case 4:
            return text.replace(": ", ": " + "9" * 5000, 1).encode()
    return text.encode()


def _value(rng: random.Random) -> Any:
    """Return an odd value of its own: changing it changes no other, nor can it come to be in itself."""
    return copy.deepcopy(rng.choice(_VALUES))


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        found.append((document, key))
        found += _places(document[key])
    return found


def archive_text(case: Archive, found: str) -> str:
    """Return a case as the text of a file of the corpus: what is text as text, everything else compressed."""
    files = {}
    for name, data in case.files.items():
        if name.startswith("blobs/") and not data.startswith(b"{"):
            files[name] = {"zlib": base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()}
        else:
            files[name] = {"text": data.decode("latin-1")}
    return json.dumps({"found": found, "pulled": case.pulled, "files": files}, indent=1) + "\n"


def read_archive(path: Path) -> Archive:
    """Return a case of the corpus."""
    document = json.loads(path.read_text())
    files = {
        name: item["text"].encode("latin-1") if "text" in item else gzip.decompress(base64.b64decode(item["zlib"]))
        for name, item in document["files"].items()
    }
    return Archive(files=files, pulled=document["pulled"])
