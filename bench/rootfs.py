"""``python -m bench.rootfs``: what each way to give an image the owners of a pod costs on this machine.

As root; half a minute. One image with many small files, on the file system of ``--directory``; each way is taken
``--times`` times, into an overlay as a container gets it. Prints the table of docs/user-namespaces.md. Times are the
median; CPU time is this process's own, which is less sensitive to what else the machine does.

Nothing is removed before the end: ext4 without a journal takes an inode again only a minute after its file was removed,
and until then walks over all of these for each new file (kernel, fs/ext4/ialloc.c, ``recently_deleted``).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from podkeep.kernel import libc
from podkeep.kernel.files import openat, tree_size
from podkeep.kernel.mount import mounts, overlay
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from podkeep.runtime.bundle.copy_up import copy_directory
from podkeep.runtime.bundle.owners import Owners
from podkeep.runtime.bundle.rootfs_variants import PROBE_IDMAP, Variant

_FILES_IN_DIRECTORY = 20


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Seconds on the clock and of the processor, bytes and inodes on disk."""

    seconds: float
    cpu: float
    used_bytes: int
    inodes: int


def make_image(top: Path, files: int, size: int) -> int:
    """Make a tree of ``files`` files of ``size`` bytes, and return how many entries it has."""
    for number in range(files):
        directory = top / str(number // _FILES_IN_DIRECTORY)
        directory.mkdir(exist_ok=True)
        (directory / str(number)).write_bytes(os.urandom(size))
    return files + len(list(top.iterdir())) + 1


def take(variant: Variant, image: Path, place: Path, userns: int) -> Taken:
    """Mount ``image`` with other owners in ``place``, which is made, look at it, and unmount it."""
    tree, upper, work, target = (place / name for name in ("tree", "upper", "work", "target"))
    for directory in (place, tree, upper, work, target):
        directory.mkdir()
    with ExitStack() as closing:

        def opened(fd: int) -> int:
            closing.callback(os.close, fd)
            return fd

        started, cpu = time.perf_counter(), _cpu()
        if variant is Variant.IDMAPPED:
            lowers = [opened(mounts.clone_tree(image, idmap_userns=userns))]
        else:
            data = variant is Variant.COPY
            source, made = opened(openat.open_directory(image)), opened(openat.open_directory(tree))
            copy_directory(source, made, threading.Event(), owners=Owners(PROBE_IDMAP), data=data)
            lowers = [opened(mounts.clone_tree(layer)) for layer in ((tree,) if data else (tree, image))]
        overlay.mount_overlay(lowers, upper=upper, work=work, target=target, flags=variant.flags)
        seconds, cpu = time.perf_counter() - started, _cpu() - cpu
        closing.callback(mounts.unmount, target, lazy=True)
        owner = (target / "0" / "0").stat().st_uid
        if owner != PROBE_IDMAP.host_uid(0):
            raise SystemExit(f"{variant.value}: the owner is {owner}")
    size = tree_size.measure(str(tree))
    assert size is not None
    return Taken(seconds=seconds, cpu=cpu, used_bytes=size.used_bytes, inodes=size.inodes - 1)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", default="/var/tmp", help="where to work: on the file system of runtime.root")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--size", type=int, default=4096, help="bytes of each file")
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    with NamespaceHelper() as helper, tempfile.TemporaryDirectory(dir=given.directory, prefix="rootfs-") as name:
        libc.unshare(libc.CloneFlag.NEWNS)
        mounts.set_propagation("/", mounts.Propagation.PRIVATE, recursive=True)
        directory = Path(name)
        (directory / "image").mkdir()
        entries = make_image(directory / "image", given.files, given.size)
        print(f"{entries} entries, {given.files * given.size / 1e6:.0f} MB of data\n")
        print("| variant | time | for each entry | CPU for each entry | on disk | inodes |\n|---|---|---|---|---|---|")
        with openat.closing(helper.user_namespace(PROBE_IDMAP)) as userns:
            for variant in Variant:
                places = [directory / f"{variant.value}-{number}" for number in range(given.times)]
                taken = [take(variant, directory / "image", place, userns) for place in places]
                seconds = statistics.median(item.seconds for item in taken)
                cpu = statistics.median(item.cpu for item in taken)
                last = taken[-1]
                print(
                    f"| `{variant.value}` | {seconds * 1e3:.1f} ms | {seconds / entries * 1e6:.1f} µs |"
                    f" {cpu / entries * 1e6:.1f} µs | {last.used_bytes / 1e6:.1f} MB | {last.inodes} |"
                )


if __name__ == "__main__":
    main()
