"""Mounts below other bind mounts of a container: put together before the OCI runtime comes.

It would follow the links of a volume, which are the pod's, and make what something is mounted on as root wherever they
lead: in a directory that is closed to the pod's user, or, while another container of the pod exchanges things, where
nobody asked for it. So a volume with mounts below it is copied, each of these mounts is attached to the copy by a
descriptor of its mount point, and the OCI runtime binds the whole.

Links of a volume are still followed, as in the container: what they lead to is looked for in the volume or the image
that is there by then. But nothing is made where one leads, and what is put in the way meanwhile is an error. Owns:
finding and making mount points in volumes. Does not own: copies (``staging.py``), links of images (``targets.py``).
Called by ``staging.py``, with one object for each container; everything blocks.

A volume that passes mounts on to the machine (Bidirectional) is left to the OCI runtime with all that is below it, for
only privileged containers have one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, PodkeepError, reason_of
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mounts
from podkeep.runtime.bundle.targets import Walk
from podkeep.runtime.oci.mounts import OciMount, is_bind, is_virtual, normal

_PRIVATE, _SLAVE = frozenset({"private", "rprivate"}), frozenset({"slave", "rslave"})
_SHARED = frozenset({"shared", "rshared"})
_OF_TREE = {"bind": "rbind", "rro": "ro"}
"""Options of what others are mounted below, for the OCI runtime."""


@dataclass(kw_only=True)
class _Placed:
    """A bind mount that is there by now; ``tree`` is a descriptor of its copy, if it has one."""

    place: str
    item: OciMount
    left: bool
    tree: int | None = None
    top: _Placed | None = None
    """What the OCI runtime mounts, and this with it; None: this itself."""


@dataclass(kw_only=True)
class _Directory:
    """What is mounted at a path, and below it: by name, for paths may be long, and mounts many."""

    last: _Placed | None = None
    below: dict[str, _Directory] = field(default_factory=dict)


class Hands(FrozenStruct, kw_only=True):
    """What is done for a container: a detached copy of a mount's source, as its options say; attaching that where the
    OCI runtime finds it, which returns the path; making an empty directory (or else a file) as the pod's root."""

    copy: Callable[[OciMount], int]
    attach: Callable[[int], str]
    make: Callable[[int, str, bool], None]


class Nesting(Walk):
    """The mounts of one container, whose root file system is behind descriptor ``root``; they are added in order."""

    def __init__(self, root: int, hands: Hands) -> None:
        super().__init__(root)
        self._hands = hands
        self._copies: list[int] = []
        self._top = _Directory()
        self._result: list[OciMount] = []
        self._through = False  # whether links of volumes are followed now

    def add(self, item: OciMount) -> None:
        """Take one more mount in OCI's form.

        :raises InvalidArgument: if links lead to where nothing can be mounted.
        :raises FailedPrecondition: if there is no mount point, and none can be made.
        """
        new = item.copy()
        path = normal(item["destination"])
        if not is_bind(item):
            self._result.append(new)
            return
        place = super().resolve(path)
        over = self._over(place)
        placed = _Placed(place=place, item=new, left=not _SHARED.isdisjoint(item["options"]))
        if over is not None and not over.left and not placed.left:
            # Only below a volume: there a link of the volume, which the OCI runtime would follow, may stand in the way.
            placed.place = self._followed(path, place)
            over = self._over(placed.place)
        if over is not None and (over.left or placed.left):
            placed.left = True
            if placed.place != place:
                new["destination"] = placed.place
        elif over is not None and not (over.place == placed.place and over.top is None):
            self._put(placed, over, may_make=placed.place == place)
        elif placed.place != place:
            # A link of a volume leads to what the OCI runtime mounts, or back to the image. It gets no path with that
            # link, which may lead elsewhere by then; on this one nobody but this container can put another.
            new["destination"] = placed.place
        if placed.top is None:
            self._result.append(new)
        self._note(placed)

    def mounts(self) -> list[OciMount]:
        """Return what is left to the OCI runtime."""
        return self._result

    def close(self) -> None:
        """Close the descriptors of copies, also of mounts that could not be added."""
        for copy in self._copies:
            os.close(copy)

    def _copy(self, item: OciMount) -> int:
        copy = self._hands.copy(item)
        self._copies.append(copy)
        return copy

    def _followed(self, path: str, place: str) -> str:
        """Return where a path below a volume is, with the volume's links followed."""
        self._through = True
        try:
            found = self.resolve(path)
        finally:
            self._through = False
        if found != place and is_virtual(found):
            raise InvalidArgument(f"{path} leads to {found} by a link of the volume: nothing can be mounted there")
        return found

    @property
    def by(self) -> str:
        """Whose links are followed now."""
        return "by a link of the volume" if self._through else super().by

    def target(self, inner: str, *, covered: bool) -> str | None:
        """Return what the link at ``inner`` says, one of the image or, when they are followed, of a volume."""
        if not covered:
            return super().target(inner, covered=False)
        over = self._over(inner) if self._through else None
        if over is None or over.left or over.place == inner:
            return None
        return _link_of(self._tree(over), inner[len(over.place) + 1 :])

    def _note(self, placed: _Placed) -> None:
        directory = self._top
        for name in filter(None, placed.place.split("/")):
            directory = directory.below.setdefault(name, _Directory())
        directory.last, directory.below = placed, {}  # what was mounted below is covered
        self.covered.add(placed.place)

    def _over(self, path: str) -> _Placed | None:
        """Return what is mounted last at ``path`` or nearest above it; the image's root is None."""
        directory, found = self._top, self._top.last
        for name in filter(None, path.split("/")):
            below = directory.below.get(name)
            if below is None:
                break
            directory, found = below, below.last or found
        return found

    def _tree(self, placed: _Placed) -> int:
        """Return a descriptor of the copy of a mount, which the OCI runtime mounts from now on."""
        if placed.tree is None:
            placed.tree = self._copy(placed.item)
            placed.item["source"] = self._hands.attach(placed.tree)
            # With what is mounted below it, of which some may be writable.
            placed.item["options"] = [_OF_TREE.get(option, option) for option in placed.item["options"]]
        return placed.tree

    def _put(self, placed: _Placed, over: _Placed, *, may_make: bool) -> None:
        """Attach a mount below another one."""
        tree = self._tree(over)
        placed.tree = self._copy(placed.item)
        placed.top = over.top or over
        if not _SLAVE.isdisjoint(placed.item["options"]):
            # The copy of the one above is private by itself. The OCI runtime would take what the machine mounts from
            # this one, too (crun 1.8.1 takes the propagation of a recursive mount for that of all below).
            options = placed.top.item["options"]
            placed.top.item["options"] = [option for option in options if option not in _PRIVATE]
        is_directory = stat.S_ISDIR(os.fstat(placed.tree).st_mode)
        names = [name for name in placed.place[len(over.place) :].split("/") if name]
        try:
            with openat.closing(self._mount_point(tree, names, is_directory, may_make=may_make)) as point:
                if stat.S_ISDIR(os.fstat(point).st_mode) != is_directory:
                    raise FailedPrecondition("one of the two is a directory, the other is not")
                mounts.attach(placed.tree, point)
        except (PodkeepError, OSError) as error:
            raise FailedPrecondition(
                f"{normal(placed.item['destination'])}: nothing can be mounted there, in the volume at {over.place}:"
                f" {reason_of(error)}",
                hint="make an empty directory or file there in the volume, or choose another path",
            ) from error

    def _mount_point(self, tree: int, names: list[str], is_directory: bool, *, may_make: bool) -> int:
        """Open what is to be mounted on. There is no link on the way, unless it was put there meanwhile."""
        fd = os.dup(tree)
        try:
            for number, name in enumerate(names):
                below = _open(fd, name)
                if below is None:
                    if not may_make:
                        raise FailedPrecondition("a link of the volume leads to what does not exist")
                    # As the pod's root: with a user namespace nothing is made in a directory that is closed to it.
                    self._hands.make(fd, name, is_directory or number < len(names) - 1)
                    below = _open(fd, name)
                if below is None:
                    raise FailedPrecondition("it was removed meanwhile")
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd


def _open(fd: int, name: str) -> int | None:
    """Open what has a name in a directory, but no link; None: nothing has."""
    try:
        return openat.openat2(fd, os.fsencode(name), os.O_PATH, openat.CONFINED)
    except KernelCallError as error:
        if error.errno == errno.ENOENT:
            return None
        if error.errno == errno.ELOOP:
            raise FailedPrecondition("a symbolic link has been put there meanwhile") from error
        if error.errno == errno.ENOTDIR:
            raise FailedPrecondition("something above it is no directory") from error
        raise


def _link_of(tree: int, path: str) -> str | None:
    """Return what the link at a path of a volume says; None if there is none."""
    try:
        with openat.closing(openat.openat2(tree, os.fsencode(path), os.O_PATH | os.O_NOFOLLOW, openat.CONFINED)) as fd:
            return os.readlink("", dir_fd=fd) if stat.S_ISLNK(os.fstat(fd).st_mode) else None
    except KernelCallError:
        return None
