"""The unpack process: one untrusted layer, one root it cannot leave.

Started by the pull worker as a program of its own. Standard input is one JSON line with the request, then the
compressed layer; standard output is one JSON line with the result. Between the two it gives up every mount but the
layer's directory, the network, and all capabilities but those that making files of other users needs.

Request: ``root`` (directory), ``driver`` that will keep the layer (``erofs-metadata``: only what that is to be compared
with), ``kind``, ``title`` of a file, ``compression``,
``algorithm`` of the diff ID, ``max_bytes``, ``max_inodes``, ``max_memory`` (bytes) of a tree in memory.
Result: ``kind`` (of ``auto`` it is one or the other), ``digest`` of the plain tar, ``bytes`` and ``inodes`` on disk,
``data_bytes`` of a file's content, ``opaque`` directories, the ``driver`` that can keep it and the ``path`` below
``root`` of what is for it; or ``error``.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable
from itertools import chain
from typing import Any

from podkeep.base import failpoints
from podkeep.base.errors import PodkeepError
from podkeep.images import decompress, stages
from podkeep.images.erofs import keeping
from podkeep.images.rules import TreeError
from podkeep.images.tarstream import BLOCK, ByteSource, TarError, TarReader, is_tar
from podkeep.images.tree import BLOCK_BYTES, TreeWriter
from podkeep.kernel import allocator, confine
from podkeep.kernel.confine import Capability

_KEPT = (
    Capability.CHOWN,
    Capability.DAC_OVERRIDE,
    Capability.FOWNER,
    Capability.FSETID,
    Capability.MKNOD,
    Capability.SETFCAP,
)
_MAX_MEMORY = 1 << 30
"""Bytes of address space; a zstd window is the largest thing in it."""


def main() -> None:
    """Serve the one request on standard input and write the one result."""
    confine.die_with_parent()
    allocator.keep_buffers()
    line, rest = _request_line()
    if not line:
        return  # the worker needed fewer processes than it had ready
    try:
        result = _unpack(json.loads(line), rest)
    except (PodkeepError, TreeError, TarError, decompress.CompressionError) as error:
        result = {"error": str(error)}
    except MemoryError:
        result = {"error": f"unpacking needs more than {_MAX_MEMORY >> 20} MiB of memory"}
    failpoints.reach("unpack-done")
    os.write(1, json.dumps(result).encode() + b"\n")


def _request_line() -> tuple[bytes, bytes]:
    buffer = b""
    while b"\n" not in buffer:
        piece = os.read(0, decompress.CHUNK)
        if not piece:
            return b"", b""
        buffer += piece
    line, _, rest = buffer.partition(b"\n")
    return line, rest


def _unpack(request: dict[str, Any], rest: bytes) -> dict[str, Any]:
    decompress.preload(request["compression"])
    hashing = hashlib.new(request["algorithm"])
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confine.enter_root(request["root"])
    confine.drop_privileges(_KEPT)
    os.umask(0)
    failpoints.reach("unpack-confined")
    stages.quicken()
    pull = stages.Ahead(_measured(_reader(rest), request)).pull
    kind = request["kind"]
    if kind == "auto":
        start = _start(pull)
        kind, pull = "tar" if is_tar(start) else "file", _resumed(start, pull)
    if kind == "file":
        keep_file = keeping.keep_file if request["driver"] == "erofs" else _keep_file
        return keep_file("", request["title"], pull) | {"digest": ""}
    keep_tar = {"erofs": keeping.keep_tar, "erofs-metadata": keeping.rebuild}.get(request["driver"], _keep_tar)
    bounds = keeping.Bounds(inodes=request["max_inodes"], bytes=request["max_bytes"], memory=request["max_memory"])
    aside = stages.Aside(hashing.update)
    result = keep_tar("", aside.passing(pull), bounds)
    aside.finish()
    return result | {"digest": f"{request['algorithm']}:{hashing.hexdigest()}"}


def _keep_tar(directory: str, pull: Callable[[], bytes], bounds: keeping.Bounds) -> dict[str, Any]:
    """Keep a tar as files and directories."""
    root = os.open(f"{directory}/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    source = ByteSource(pull)
    writer = TreeWriter(root, max_inodes=bounds.inodes, max_bytes=bounds.bytes)
    reader = TarReader(source)
    for entry in reader:
        writer.apply(entry, reader.content())
    writer.finish()
    source.drain()  # the digest covers what follows the archive's end, too
    return {
        "kind": "tar",
        "driver": "directories",
        "path": "",
        "bytes": writer.size,
        "inodes": writer.inodes,
        "data_bytes": 0,
        "opaque": [os.fsdecode(path) for path in writer.opaque],
    }


def _keep_file(directory: str, title: str, pull: Callable[[], bytes]) -> dict[str, Any]:
    """Keep the content as one file, as it is."""
    try:
        fd = os.open(f"{directory}/{title}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            while piece := pull():
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            data = -(-os.fstat(fd).st_size // BLOCK_BYTES) * BLOCK_BYTES
        finally:
            os.close(fd)
        for path in (f"{directory}/{title}", f"{directory}/"):  # the registry knows no times
            os.utime(path, (0, 0))
    except OSError as error:
        raise TreeError(f"{title!r}: {error.strerror}") from error
    return {
        "kind": "file",
        "driver": "directories",
        "path": "",
        "bytes": BLOCK_BYTES + data,
        "inodes": 2,
        "data_bytes": data,
        "opaque": [],
    }


def _reader(rest: bytes) -> Callable[[int], bytes]:
    """Read standard input, after the bytes that came with the request."""
    pending = rest

    def read(count: int) -> bytes:
        nonlocal pending
        if pending:
            data, pending = pending[:count], pending[count:]
            return data
        return os.read(0, count)

    return read


def _start(pull: Callable[[], bytes]) -> bytes:
    """Return the first block and what came with it; less only if there is no more."""
    start = b""
    while len(start) < BLOCK and (piece := pull()):
        start += piece
    return start


def _resumed(start: bytes, pull: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return a function that returns ``start`` first and then what ``pull`` returns."""
    pieces = chain([start] if start else [], iter(pull, b""))
    return lambda: next(pieces, b"")


def _measured(read: Callable[[int], bytes], request: dict[str, Any]) -> Callable[[], bytes]:
    """Decompress and count."""
    pull_piece = decompress.decompressor(request["compression"], read)
    limit, seen = request["max_bytes"], 0

    def pull() -> bytes:
        nonlocal seen
        piece = pull_piece()
        seen += len(piece)
        if seen > limit:
            raise TarError(f"more than {limit} bytes uncompressed (images.max_layer_bytes)")
        return piece

    return pull


if __name__ == "__main__":
    main()
