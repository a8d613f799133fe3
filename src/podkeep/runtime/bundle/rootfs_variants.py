"""How a container with a user namespace gets its image with the pod's own owners: the three ways, and which work.

Owns: the ways and their probe (KEP-127, Resource exhaustion: "all variations"). Each is tried by doing it with a few
files, on the file system where images are: EROFS, which layers may be, can be idmapped since before it can be mounted
from files. Does not own: the trees that two of them need (``changed_trees.py``). Blocks, for some milliseconds.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path

import msgspec

from podkeep.base import failpoints
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.kernel.files import openat
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mounts, overlay
from podkeep.kernel.mount.overlay import OverlayFlag
from podkeep.kernel.namespace.idmap import block
from podkeep.runtime.bundle.copy_up import Purpose, copy_directory
from podkeep.runtime.bundle.owners import Owners

log = logging.getLogger(__name__)

AUTO = "auto"
PROBE_IDMAP = block(65536, 65536)
"""What the probe maps with: the first block that is nobody's of the machine."""
FILES = 16
"""Of the tree that a probe changes; what the costs are divided by."""
_PROBE = Purpose(what="the probe of a root file system", failpoint="rootfs.probe")
# With a set-user-ID bit, which a change of the owner clears unless it is put back.
_MODE = 0o4755
_CONTENT = b"of the image\n"


class Variant(Enum):
    """The ways, in the order of what they cost; the values are those of ``runtime.user_namespace_rootfs``."""

    IDMAPPED = "idmapped"
    METACOPY = "metacopy"
    COPY = "copy"

    @property
    def flags(self) -> OverlayFlag:
        """Return the options of an overlay that is made in this way."""
        return OverlayFlag.METACOPY if self is Variant.METACOPY else OverlayFlag.NONE


class Tried(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the probe of one way found out.

    ``seconds``: for a tree of ``files`` files, with mounting it; ``why_not`` is empty if it works.
    """

    variant: str
    why_not: str = ""
    seconds: float = 0.0
    files: int = FILES


class Cost(msgspec.Struct, kw_only=True, rename="camel"):
    """What giving images other owners in one way took since the daemon started.

    ``entries``: files and directories of the trees that were made.
    """

    times: int = 0
    entries: int = 0
    seconds: float = 0.0


class Costs:
    """What the ways cost while the daemon runs. Thread-safe."""

    def __init__(
        self,
        on_made: Callable[[str, float], None] = lambda _variant, _seconds: None,
        on_waited: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """
        :param on_made: told of each time that an image was given other owners, by way and seconds.
        :param on_waited: told of seconds that a request waited for that, also while another one did it.
        """
        self._on_made, self._on_waited = on_made, on_waited
        self._lock = threading.Lock()
        self._costs: dict[str, Cost] = {}

    def made(self, variant: Variant, seconds: float, *, entries: int = 0) -> None:
        with self._lock:
            cost = self._costs.setdefault(variant.value, Cost())
            cost.times, cost.entries, cost.seconds = cost.times + 1, cost.entries + entries, cost.seconds + seconds
        self._on_made(variant.value, seconds)
        self._on_waited(seconds)

    def waited(self, seconds: float) -> None:
        self._on_waited(seconds)

    def of(self, variant: Variant) -> Cost:
        """Return what one way took until now."""
        with self._lock:
            return msgspec.structs.replace(self._costs.get(variant.value, Cost()))


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """``variant`` is None if none works; ``tried`` are those that were tried until it was chosen."""

    variant: Variant | None
    tried: tuple[Tried, ...] = ()

    @property
    def why_not(self) -> str:
        """Why none works; empty if one does."""
        if self.variant is not None:
            return ""
        reasons = "; ".join(f"{item.variant}: {item.why_not}" for item in self.tried)
        return f"images cannot be given the owners of a pod: {reasons}"


def choose(wanted: str, attempt: Callable[[Variant], Tried]) -> Choice:
    """Return the first way that works, or the one that is ``wanted``.

    :raises FailedPrecondition: if one other than ``auto`` is wanted and does not work.
    """
    tried: list[Tried] = []
    for variant in Variant if wanted == AUTO else (Variant(wanted),):
        tried.append(attempt(variant))
        if not tried[-1].why_not:
            return Choice(variant=variant, tried=tuple(tried))
        log.info("root file systems of pods in user namespaces: %s does not work: %s", variant.value, tried[-1].why_not)
    if wanted != AUTO:
        raise FailedPrecondition(
            f"runtime.user_namespace_rootfs = {wanted!r} does not work here: {tried[-1].why_not}",
            hint='set it to "auto", which takes one that does; `podkeep doctor` tries all of them',
        )
    return Choice(variant=None, tried=tuple(tried))


def attempt(variant: Variant, directory: Path, userns: Callable[[], int]) -> Tried:
    """Try one way in ``directory``, which is made on the file system to try it on, and removed.

    :param userns: makes a user namespace with :data:`PROBE_IDMAP` and returns a descriptor, which is closed.
    """
    clean_up(directory)
    started = time.monotonic()
    try:
        try:
            failpoints.reach(f"rootfs.{variant.value}")
            # The files of the image are not what is measured: the clock begins anew after them.
            places = _places(directory)
            started = time.monotonic()
            with _mounted(variant, places, userns):
                took = time.monotonic() - started
                _check(places["target"])
        finally:
            clean_up(directory)
    except (PodkeepError, OSError) as error:
        return Tried(variant=variant.value, why_not=str(error), seconds=time.monotonic() - started)
    return Tried(variant=variant.value, seconds=took)


def clean_up(directory: Path) -> None:
    """Remove what a probe, perhaps of a killed daemon, made."""
    mounts.unmount(directory / "target", lazy=True)
    remove_tree(directory)


def _places(directory: Path) -> dict[str, Path]:
    directory.mkdir(mode=0o700)
    places = {name: directory / name for name in ("image", "tree", "upper", "work", "target")}
    for place in places.values():
        place.mkdir()
    for number in range(FILES):
        path = places["image"] / str(number)
        path.write_bytes(_CONTENT)
        path.chmod(_MODE)
    return places


@contextmanager
def _mounted(variant: Variant, places: dict[str, Path], userns: Callable[[], int]) -> Iterator[None]:
    with ExitStack() as closing:

        def opened(fd: int) -> int:
            closing.callback(os.close, fd)
            return fd

        if variant is Variant.IDMAPPED:
            lowers = [opened(mounts.clone_tree(places["image"], idmap_userns=opened(userns())))]
        else:
            source, target = (opened(openat.open_directory(places[name])) for name in ("image", "tree"))
            data = variant is Variant.COPY
            copy_directory(source, target, threading.Event(), owners=Owners(PROBE_IDMAP), data=data, purpose=_PROBE)
            lowers = [opened(mounts.clone_tree(places[name])) for name in (("tree",) if data else ("tree", "image"))]
        overlay.mount_overlay(
            lowers,
            upper=places["upper"],
            work=places["work"],
            target=places["target"],
            flags=variant.flags,
        )
        closing.callback(mounts.unmount, places["target"], lazy=True)
        yield


def _check(root: Path) -> None:
    """Check the last of the files.

    :raises FailedPrecondition: saying what of it is not as it was in the image, or as it should be.
    """
    path, owner = root / str(FILES - 1), PROBE_IDMAP.host_uid(0)
    found, content = path.stat(), path.read_bytes()
    if (found.st_uid, found.st_gid) != (owner, owner):
        raise FailedPrecondition(f"accepted, but owner 0 appears as {found.st_uid} and not as {owner}")
    if stat.S_IMODE(found.st_mode) != _MODE or content != _CONTENT:
        raise FailedPrecondition("accepted, but the file is not what it was")


class Variants:
    """The chosen way, and what is known of the others. Thread-safe."""

    def __init__(self, wanted: str, attempt: Callable[[Variant], Tried]) -> None:
        """Choose.

        :raises FailedPrecondition: as :func:`choose`.
        """
        self.wanted, self.choice, self._attempt = wanted, choose(wanted, attempt), attempt
        self._tried = {item.variant: item for item in self.choice.tried}
        self._trying = threading.Lock()

    def all(self) -> Sequence[Tried]:
        """Return what is known of each way; those that were not needed until now are tried."""
        # One at a time: they are tried in the same directory.
        with self._trying:
            for variant in Variant:
                if variant.value not in self._tried:
                    self._tried[variant.value] = self._attempt(variant)
            return [self._tried[variant.value] for variant in Variant]

    def describe(self, costs: Costs) -> dict[str, object]:
        """Return what a person wants to know: what was asked for, what is used, and what each way costs."""
        used = self.choice.variant
        ways = [
            {**msgspec.to_builtins(item), "used": msgspec.to_builtins(costs.of(Variant(item.variant)))}
            for item in self.all()
        ]
        return {
            "wanted": self.wanted,
            "variant": used.value if used else "",
            "whyNot": self.choice.why_not,
            "ways": ways,
        }
