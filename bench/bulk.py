"""The large images of a comparison of pulls, streamed to a registry as they are made: nothing is kept in memory or in
a file.

Three things are pulled: a tree of many files (the Python interpreter's own library), one file of a gibibyte that does
not compress (a model in an image), and one of several gibibytes that no tar is wrapped around (an artifact). Each is
the same in every run on one machine.
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import random
import sysconfig
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import images

FILES = 50_000
_GZIP = 31
"""zlib's window bits for a gzip wrapper (zlib.h, deflateInit2)."""
_PIECE = 1 << 20
_BLOCK = 512
_GROUP = 256
"""Small tar members sent at once, so that a send is no smaller than a piece of a large file."""
_EMPTY_CONFIG = b"{}"
_EMPTY = "application/vnd.oci.empty.v1+json"
_MODEL = "application/vnd.example.bench.model"


@dataclass(kw_only=True)
class Counted:
    """What went through a stream: its digest and bytes, once it is at its end."""

    digest: str = ""
    size: int = 0
    _hashing: Any = field(default_factory=hashlib.sha256)

    def through(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._hashing.update(piece)
            self.size += len(piece)
            yield piece
        self.digest = f"sha256:{self._hashing.hexdigest()}"


def push_image(tree: Iterable[bytes], registry: str, repository: str, *, level: int = 1) -> str:
    """Push an image with the one layer ``tree``, a plain tar that is compressed on the way: its reference.

    :param level: of the compression; 0 only wraps it.
    """
    plain = Counted()
    layer = _upload(registry, repository, _compressed(plain.through(tree), level), images.LAYER)
    config = images.config(("sh",), plain.digest)
    manifest = images.manifest(_upload(registry, repository, [json.dumps(config).encode()], images.CONFIG), [layer])
    return images.push_manifest(manifest, registry, repository)


def push_artifact(content: Iterable[bytes], registry: str, repository: str, title: str) -> str:
    """Push an artifact with the one file ``title``: its reference."""
    layer = _upload(registry, repository, content, "application/octet-stream")
    layer["annotations"] = {"org.opencontainers.image.title": title}
    config = _upload(registry, repository, [_EMPTY_CONFIG], _EMPTY)
    manifest = images.manifest(config, [layer]) | {"artifactType": _MODEL}
    return images.push_manifest(manifest, registry, repository)


def many_files(count: int = FILES, *, content: bool = True) -> Iterator[bytes]:
    """A tar of ``count`` files: the interpreter's library and what is installed in it, repeated while it lacks some.

    Without ``content`` only their names.
    """
    found = _library()
    if not found:
        raise FileNotFoundError(f"{_library_directory()}: no files")
    top = _library_directory()
    places = itertools.islice(((number, path) for number in itertools.count() for path in found), count)
    members = (
        # Times have fractions, as files copied into an image have: a PAX header for each.
        _member(
            f"app{number or ''}/{path.relative_to(top)}", path.read_bytes() if content else b"", path.stat().st_mtime
        )
        for number, path in places
    )
    while group := b"".join(itertools.islice(members, _GROUP)):
        yield group
    yield bytes(2 * _BLOCK)


def _library_directory() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _library() -> list[Path]:
    files = []
    for directory, directories, names in os.walk(_library_directory()):
        directories.sort()
        files += [Path(directory, name) for name in sorted(names)]
    return [path for path in files if path.is_file() and not path.is_symlink()]


def model(size: int) -> Iterator[bytes]:
    """A tar of one file of ``size`` bytes that does not compress."""
    header = tarfile.TarInfo("model.bin")
    header.size = size
    yield header.tobuf(tarfile.PAX_FORMAT)
    yield from noise(size)
    yield bytes(-size % _BLOCK + 2 * _BLOCK)


def noise(size: int) -> Iterator[bytes]:
    """``size`` bytes that do not compress, the same each time."""
    generator = random.Random(size)
    while size:
        piece = generator.randbytes(min(size, _PIECE))
        size -= len(piece)
        yield piece


def _member(name: str, content: bytes, mtime: float) -> bytes:
    header = tarfile.TarInfo(name)
    header.size, header.mtime = len(content), mtime
    return b"".join((header.tobuf(tarfile.PAX_FORMAT), content, bytes(-len(content) % _BLOCK)))


def _compressed(pieces: Iterable[bytes], level: int) -> Iterator[bytes]:
    packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _upload(registry: str, repository: str, content: Iterable[bytes], media_type: str) -> dict[str, Any]:
    """Send a blob whose length and digest are known at its end (distribution-spec, "Pushing a blob in chunks")."""
    counted = Counted()
    connection = http.client.HTTPConnection(registry, timeout=300)
    try:
        location = _location(connection, "POST", f"/v2/{repository}/blobs/uploads/", None)
        pieces = (piece for piece in counted.through(content) if piece)  # an empty chunk would end the body
        location = _location(connection, "PATCH", location, pieces)
        separator = "&" if "?" in location else "?"
        _location(connection, "PUT", f"{location}{separator}digest={counted.digest}", None)
    finally:
        connection.close()
    return {"mediaType": media_type, "digest": counted.digest, "size": counted.size}


def _location(connection: http.client.HTTPConnection, method: str, path: str, body: Iterable[bytes] | None) -> str:
    headers = {"Content-Type": "application/octet-stream"} if body is not None else {"Content-Length": "0"}
    connection.request(method, path, body=body, headers=headers, encode_chunked=True)
    response = connection.getresponse()
    said = response.read()
    if response.status >= 300:
        raise OSError(f"{method} {path}: the registry answered {response.status}: {said[:200]!r}")
    where = urlsplit(response.headers.get("Location", ""))
    return f"{where.path}?{where.query}" if where.query else where.path
