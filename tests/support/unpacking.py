"""The unpack process, run as the pull worker runs it, and what it made, written down so that trees can be compared."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from podkeep.base.ids import Digest
from podkeep.base.spawn import own_command
from podkeep.images.layers import messages
from podkeep.images.layers.forms import form_of
from podkeep.images.layers.messages import UnpackRequest
from podkeep.images.worker.layers import decode_report, mark_opaque
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.erofs import mount_erofs

REQUEST = UnpackRequest(
    root="",
    compression="none",
    algorithm="sha256",
    max_bytes=1 << 40,
    max_inodes=5_000_000,
    driver="directories",
    max_memory=64 << 20,
    max_ratio=1000,
)


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """What came of one layer: the process's report, and the most memory it had (``VmHWM``, bytes)."""

    report: messages.Unpacked | messages.Refused
    peak: int

    @property
    def error(self) -> str:
        """Why it was refused; empty if it was not."""
        return self.report.error if isinstance(self.report, messages.Refused) else ""

    @property
    def digest(self) -> Digest:
        """The digest of its plain tar."""
        assert isinstance(self.report, messages.Unpacked)
        return Digest(self.report.digest)

    @property
    def tree(self) -> messages.MadeTree:
        """What was made of it."""
        assert isinstance(self.report, messages.Unpacked)
        return self.report.tree


def unpack(root: Path, archive: bytes | Iterable[bytes], *, timeout: float = 60, **request: Any) -> Unpacked:
    """Unpack ``archive`` (a stream, if it is given in pieces) into the new directory ``root``.

    The process stands still when it is done, so that its memory can be read.
    """
    root.mkdir(mode=0o755)
    process = subprocess.Popen(
        own_command("podkeep.images.layers.unpack"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PODKEEP_FAILPOINTS": "unpack-done=stop"},
    )
    feeder = threading.Thread(
        target=_feed, args=(process, structs.replace(REQUEST, root=str(root), **request), archive)
    )
    errors: list[bytes] = []
    listener = threading.Thread(target=lambda: errors.append(process.stderr.read() if process.stderr else b""))
    try:
        feeder.start()
        listener.start()
        peak = _peak_when_done(process, timeout)
        output = process.stdout.read() if process.stdout else b""
        if not output:
            raise AssertionError(f"no result, exit status {process.wait()}: {b''.join(errors).decode()}")
        done = Unpacked(report=decode_report(output, form_of(request.get("driver", REQUEST.driver)).makes), peak=peak)
    finally:
        process.kill()
        process.wait()
        for thread in (feeder, listener):
            thread.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
    if not done.error:
        mark_opaque(root / done.tree.path, done.tree.opaque)
    return done


@contextlib.contextmanager
def mounted_layer(root: Path, done: Unpacked) -> Iterator[Path]:
    """Yield where the tree that ``unpack`` made can be looked at: in place, or mounted for that time."""
    if done.tree.driver != "erofs":
        yield root / done.tree.path
        return
    fd = mount_erofs(root / "meta.erofs", [root / "data"])
    target = root / "mounted"
    target.mkdir()
    try:
        mounts.attach(fd, target)
        yield target
    finally:
        os.close(fd)
        mounts.unmount(target)


def _feed(process: subprocess.Popen[bytes], request: UnpackRequest, archive: bytes | Iterable[bytes]) -> None:
    assert process.stdin
    pieces = [archive] if isinstance(archive, bytes) else archive
    with contextlib.suppress(BrokenPipeError):  # it refused what came before
        process.stdin.write(messages.encode(request) + b"\n")
        for piece in pieces:
            process.stdin.write(piece)
        process.stdin.close()


def _peak_when_done(process: subprocess.Popen[bytes], timeout: float) -> int:
    """Wait until the process stands still; let it go on."""
    deadline = time.monotonic() + timeout
    status = Path(f"/proc/{process.pid}/status")
    while True:
        values = dict(line.split(":", 1) for line in status.read_text().splitlines())
        if values["State"].split()[0] == "T":
            process.send_signal(18)
            return int(values["VmHWM"].split()[0]) << 10
        if values["State"].split()[0] == "Z":
            return 0
        assert time.monotonic() < deadline, f"not unpacked within {timeout} s"
        time.sleep(0.002)


def census(top: Path, *, without: Path | None = None) -> dict[str, tuple[object, ...]]:
    """Return everything below ``top``, and ``top`` itself: kind, mode, owner, size or target, content, times (of
    files and directories), attributes, and which names are one file.

    :param without: a directory below it that is shown as what it is, without what is in it.
    """
    found: dict[str, tuple[object, ...]] = {}
    first: dict[tuple[int, int], str] = {}
    for path in [os.fsencode(top), *_below(os.fsencode(top), os.fsencode(without) if without else None)]:
        about = os.lstat(path)
        name = _shown(path, top)
        twin = first.setdefault((about.st_dev, about.st_ino), name) if not stat.S_ISDIR(about.st_mode) else name
        found[name] = (
            stat.filemode(about.st_mode),
            about.st_uid,
            about.st_gid,
            _content(path, about),
            about.st_mtime_ns,
            {key: os.getxattr(path, key, follow_symlinks=False) for key in _attributes(path)},
            "" if twin == name else twin,
        )
    return found


def _shown(path: bytes, top: Path) -> str:
    return os.path.relpath(path, os.fsencode(top)).decode(errors="backslashreplace")


def _attributes(path: bytes) -> list[str]:
    return sorted(key for key in os.listxattr(path, follow_symlinks=False) if key != "security.selinux")


def _below(top: bytes, without: bytes | None) -> Iterable[bytes]:
    waiting = [top]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for found in sorted(entries, key=lambda entry: entry.name):
                yield found.path
                if found.is_dir(follow_symlinks=False) and found.path != without:
                    waiting.append(found.path)


def _content(path: bytes, about: os.stat_result) -> object:
    if stat.S_ISLNK(about.st_mode):
        return os.readlink(path)
    if stat.S_ISCHR(about.st_mode):
        return f"{os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
    if not stat.S_ISREG(about.st_mode):
        return None
    with Path(os.fsdecode(path)).open("rb") as file:
        return about.st_size, (hashlib.file_digest(file, "sha256").hexdigest() if about.st_size < 1 << 30 else "")


def outline(top: Path) -> dict[str, str]:
    """Return what is below ``top`` in short: ``f:content``, ``d``, ``d!`` (opaque), ``l:target``, ``w`` (whiteout),
    ``c:1:3``, ``p``, and ``=name`` for a further name of a file. An opaque root is shown as ``.``."""
    short: dict[str, str] = {}
    paths = {_shown(path, top): path for path in _below(os.fsencode(top), None)}
    for name, (mode, _, _, content, _, attributes, twin) in census(top).items():
        opaque = "!" if "trusted.overlay.opaque" in attributes else ""  # type: ignore[operator]
        if name == "." and not opaque:
            continue
        kind = str(mode)[0]
        if twin:
            short[name] = f"={twin}"
        elif kind == "-":
            size = content[0]  # type: ignore[index]
            path = os.path.join(os.fsencode(top), paths[name])
            short[name] = f"f:{Path(os.fsdecode(path)).read_text(errors='replace') if size < 100 else size}"
        elif kind == "l":
            short[name] = f"l:{os.fsdecode(content)}"  # type: ignore[arg-type]
        elif kind == "c":
            short[name] = "w" if content == "0:0" else f"c:{content}"
        else:
            short[name] = kind + opaque
    return short
