"""The unpack process: one untrusted layer, one root it cannot leave.

Started by the pull worker as a program of its own. Standard input is one line with the request, then the compressed
layer; standard output is one line with the report (``messages``). Between the two it gives up every mount but the
layer's directory, the network, all capabilities but those that making files of other users needs, and all system calls
but those for files.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import resource
import sys
from collections.abc import Callable

from podkeep.base import failpoints
from podkeep.base.errors import PodkeepError
from podkeep.images.layers import decompress, stages
from podkeep.images.layers.erofs import keeping  # noqa: F401 - for its form, which cannot be imported once it is confined
from podkeep.images.layers.forms import form_of
from podkeep.images.layers.messages import (
    Refused,
    Unpacked,
    UnpackRequest,
    decode_request,
    encode,
    is_full,
    legible,
)
from podkeep.images.layers.rules import Bounds, TreeError
from podkeep.images.layers.tarstream import TarError
from podkeep.kernel.process import allocator, confine, seccomp
from podkeep.kernel.process.confine import Capability

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
_MAX_OPEN = 256
_RATIO_FLOOR = 64 << 20
"""Bytes from which on the ratio of plain to compressed bytes is checked, in both directions."""


def main() -> None:
    """Serve the one request on standard input, write the one result and end.

    Without what an interpreter does at its end: threads may still decompress, and have no libraries to end with.
    """
    try:
        _serve()
    except BaseException:  # noqa: BLE001 - the end of this process, and what went wrong is said
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _serve() -> None:
    confine.die_with_parent()
    allocator.keep_buffers()
    gc.disable()  # a layer's tree is many objects, all of which are needed to the end
    line, rest = _request_line()
    if not line:
        return  # the worker needed fewer processes than it had ready
    try:
        report: Unpacked | Refused = _unpack(decode_request(line), rest)
    except (OSError, PodkeepError, TreeError, TarError, decompress.CompressionError) as error:
        report = Refused(error=legible(str(error)), full=is_full(error))
    except MemoryError:
        report = Refused(error=f"unpacking needs more than {_MAX_MEMORY >> 20} MiB of memory", full=False)
    failpoints.reach("unpack-done")
    os.write(1, encode(report) + b"\n")


def _request_line() -> tuple[bytes, bytes]:
    buffer = b""
    while b"\n" not in buffer:
        piece = os.read(0, decompress.CHUNK)
        if not piece:
            return b"", b""
        buffer += piece
    line, _, rest = buffer.partition(b"\n")
    return line, rest


def _unpack(request: UnpackRequest, rest: bytes) -> Unpacked:
    # Before enter_root: afterwards no library can be found any more.
    decompress.preload(request.compression)
    form = form_of(request.driver)
    hashing = hashlib.new(request.algorithm)
    # Beside the directory, which it is not to be a part of, and so before this process loses sight of it.
    record = form.open_record(request.root)
    _limit_resources(request.max_bytes)
    confine.enter_root(request.root)
    # In this order: entering the root takes CAP_SYS_ADMIN, and the filter allows neither mounts nor namespaces.
    confine.drop_privileges(_KEPT)
    os.umask(0)
    seccomp.allow_files_only()
    failpoints.reach("unpack-confined")
    stages.set_switch_interval()
    pull = stages.Ahead(_measured(decompress.reader(0, rest), request)).pull
    aside = stages.Aside(hashing.update)
    bounds = Bounds(inodes=request.max_inodes, bytes=request.max_bytes, memory=request.max_memory)
    tree = form.keep_tar("/", record, aside.passing(pull), bounds)
    aside.finish()
    return Unpacked(digest=f"{request.algorithm}:{hashing.hexdigest()}", tree=tree)


def _limit_resources(max_bytes: int) -> None:
    limits = {
        resource.RLIMIT_AS: _MAX_MEMORY,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: min(max_bytes + _MAX_MEMORY, 1 << 62),
        resource.RLIMIT_NOFILE: _MAX_OPEN,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))


def _measured(read: Callable[[int], bytes], request: UnpackRequest) -> Callable[[], bytes]:
    """Decompress and count."""
    limit, ratio = request.max_bytes, request.max_ratio
    taken = seen = 0

    def read_counted(count: int) -> bytes:
        nonlocal taken
        data = read(count)
        taken += len(data)
        # What decompresses to nothing (empty gzip members, skippable zstd frames) has no other end than this.
        if taken - seen > _RATIO_FLOOR:
            raise TarError(f"{taken} bytes of it come to {seen}")
        return data

    def take_turn() -> None:
        if request.turn is not None:
            # By process (F_SETLKW): it ends with this one.
            fcntl.lockf(request.turn, fcntl.LOCK_EX)

    pull_piece = decompress.decompressor(request.compression, read_counted, take_turn)

    def pull() -> bytes:
        nonlocal seen
        piece = pull_piece()
        seen += len(piece)
        if seen > limit:
            raise TarError(f"more than {limit} bytes uncompressed (images.max_layer_bytes)")
        if seen > _RATIO_FLOOR and seen > ratio * taken:
            raise TarError(f"grows more than {ratio}-fold: {taken} bytes to {seen} (images.max_unpack_ratio)")
        return piece

    return pull


if __name__ == "__main__":
    main()
