"""Writing tar entries as an overlayfs layer below one directory, and nowhere else.

Owns how entries become files; what a layer may hold is decided by ``rules``. Parents are resolved by the kernel with
openat2(RESOLVE_BENEATH); the last component is never followed. Used by the confined unpack process, which is the
second wall behind this one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from podkeep.base.errors import KernelCallError
from podkeep.images import rules
from podkeep.images.rules import TreeError, shown
from podkeep.images.tarstream import Entry, EntryKind
from podkeep.kernel.openat import Resolve, openat2
from podkeep.kernel.removal import remove_entry

_MAX_OPEN_PARENTS = 128
_BENEATH = Resolve.BENEATH | Resolve.NO_MAGICLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
BLOCK_BYTES = 4096


class TreeWriter:
    """Applies the entries of one layer below ``root``, an open directory that starts empty.

    ``inodes`` and ``size`` (bytes on disk, rounded up to blocks) count what was written; ``opaque`` are the
    directories that hide what lower layers have: the extended attribute that says so needs more rights than this
    process has.
    """

    def __init__(self, root: int, *, max_inodes: int) -> None:
        self._root = root
        self._max_inodes = max_inodes
        self._parents: dict[bytes, int] = {}
        self._mtimes: dict[bytes, int] = {}
        self._whiteouts: set[bytes] = set()
        # In a set-group-ID directory new files get its group, so ownership must be set even for root:root.
        self._must_chown = bool(os.fstat(root).st_mode & stat.S_ISGID)
        self.opaque: dict[bytes, None] = {}
        self.inodes = 1
        self.size = BLOCK_BYTES

    def apply(self, entry: Entry, content: Iterable[memoryview]) -> None:
        """Write one entry.

        :raises TreeError: naming the entry, if it breaks a rule or the file system refuses it.
        """
        try:
            self._apply(entry, content)
        except (OSError, KernelCallError, ValueError) as error:
            number = error.errno if isinstance(error, (OSError, KernelCallError)) else None
            reason = os.strerror(number) if number else str(error)
            raise TreeError(f"entry {shown(entry.name)}: cannot write it: {reason}") from error

    def finish(self) -> None:
        """Set the times of directories, which writing into them changed, and close what is open."""
        self._forget_parents()
        for path, mtime in self._mtimes.items():
            try:
                fd = openat2(self._root, path or b".", _DIRECTORY, _BENEATH)
            except KernelCallError:
                continue  # replaced by a later entry
            try:
                os.utime(fd, ns=(mtime, mtime))
            finally:
                os.close(fd)

    def _apply(self, entry: Entry, content: Iterable[memoryview]) -> None:
        path = rules.checked_name(entry.name, "its name", entry)
        rules.refuse_trusted(entry)
        if not path:
            self._root_directory(entry)
            return
        directory, _, name = path.rpartition(b"/")
        if name.startswith(rules.WHITEOUT):
            self._whiteout(entry, directory, name)
            return
        parent = self._parent(directory, entry)
        self._count()
        if entry.kind is EntryKind.FILE:
            self._file(entry, parent, name, path, content)
        elif entry.kind is EntryKind.DIRECTORY:
            self._directory(entry, parent, name, path)
        elif entry.kind is EntryKind.HARDLINK:
            self._hard_link(entry, parent, name, path)
        else:
            self._node(entry, parent, name, path)

    def _root_directory(self, entry: Entry) -> None:
        if entry.kind is not EntryKind.DIRECTORY:
            raise TreeError(f"entry {shown(entry.name)}: the root is a {entry.kind.value}")
        self._attributes(self._root, entry)
        self._mtimes[b""] = entry.mtime

    def _file(self, entry: Entry, parent: int, name: bytes, path: bytes, content: Iterable[memoryview]) -> None:
        try:
            fd = os.open(name, _CREATE, entry.mode & 0o777, dir_fd=parent)
        except FileExistsError:
            self._replace(parent, name, path)
            fd = os.open(name, _CREATE, entry.mode & 0o777, dir_fd=parent)
        try:
            if entry.parts is None:
                for piece in content:
                    _write_all(fd, piece)
                self.size += -(-entry.size // BLOCK_BYTES) * BLOCK_BYTES
            else:
                self._sparse(fd, entry, content)
            if entry.uid or entry.gid or self._must_chown:
                os.fchown(fd, entry.uid, entry.gid)
            if entry.mode & 0o7000:
                os.fchmod(fd, entry.mode)
            if entry.xattrs:
                _set_xattrs(fd, entry)
            os.utime(fd, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def _sparse(self, fd: int, entry: Entry, content: Iterable[memoryview]) -> None:
        os.ftruncate(fd, entry.size)
        pieces = iter(content)
        piece = memoryview(b"")
        for offset, length in entry.parts or ():
            os.lseek(fd, offset, os.SEEK_SET)
            self.size += -(-length // BLOCK_BYTES) * BLOCK_BYTES
            while length:
                piece = piece or next(pieces)
                _write_all(fd, piece[:length])
                written = min(length, len(piece))
                piece, length = piece[written:], length - written

    def _directory(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        replaced_whiteout = path in self._whiteouts
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                self._replace(parent, name, path)
                os.mkdir(name, 0o700, dir_fd=parent)
        if replaced_whiteout:
            self.opaque[path] = None
        self.size += BLOCK_BYTES
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            self._attributes(fd, entry)
        finally:
            os.close(fd)
        self._mtimes[path] = entry.mtime

    def _hard_link(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        target = rules.checked_name(entry.link, "its target", entry)
        directory, _, last = target.rpartition(b"/")
        if not last:
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the root")
        source = self._parent(directory, entry, create=False)
        try:
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileExistsError:
            old, new = (os.stat(n, dir_fd=d, follow_symlinks=False) for n, d in ((last, source), (name, parent)))
            if (old.st_dev, old.st_ino) != (new.st_dev, new.st_ino):
                self._replace(parent, name, path)
                source = self._parent(directory, entry, create=False)
                parent = self._parent(path.rpartition(b"/")[0], entry)
                os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise TreeError(
                f"entry {shown(entry.name)}: hard link to {shown(entry.link)}, which this layer does not have"
            ) from None

    def _node(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        rules.refuse_devices(entry)
        try:
            _make_node(entry, parent, name)
        except FileExistsError:
            self._replace(parent, name, path)
            _make_node(entry, parent, name)
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.kind is not EntryKind.SYMLINK and entry.mode & 0o7000:
            os.chmod(name, entry.mode, dir_fd=parent)
        os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)

    def _whiteout(self, entry: Entry, directory: bytes, name: bytes) -> None:
        """OCI image-spec, layer.md, "Whiteouts"; kernel, overlayfs.rst, "whiteouts and opaque directories"."""
        parent = self._parent(directory, entry)
        if name == rules.OPAQUE:
            self.opaque[directory] = None
            return
        hidden = rules.hidden_name(name, entry)
        if hidden is None:
            return
        path = directory + b"/" + hidden if directory else hidden
        self._count()
        try:
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
        except FileExistsError:
            # A whiteout hides lower layers only, never its own layer, in whichever order the two come.
            if stat.S_ISDIR(os.stat(hidden, dir_fd=parent, follow_symlinks=False).st_mode):
                self.opaque[path] = None
            return
        self._whiteouts.add(path)

    def _attributes(self, fd: int, entry: Entry) -> None:
        os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.mode)
        self._must_chown = self._must_chown or bool(entry.mode & stat.S_ISGID)
        if entry.xattrs:
            _set_xattrs(fd, entry)

    def _parent(self, path: bytes, entry: Entry, *, create: bool = True) -> int:
        """Return a descriptor of the directory ``path``; missing directories are made, root's and mode 0755."""
        if not path:
            return self._root
        fd = self._parents.get(path)
        if fd is None:
            fd = self._open_parent(path, entry, create=create)
            if len(self._parents) >= _MAX_OPEN_PARENTS:
                self._forget_parents()
            self._parents[path] = fd
        return fd

    def _open_parent(self, path: bytes, entry: Entry, *, create: bool) -> int:
        missing: list[bytes] = []
        existing = path
        while True:
            try:
                fd = openat2(self._root, existing or b".", os.O_PATH | os.O_DIRECTORY, _BENEATH)
                break
            except KernelCallError as error:
                self._refuse_unless_missing(existing, entry, error, create=create)
            missing.append(existing)
            existing = existing.rpartition(b"/")[0]
        for directory in reversed(missing):
            try:
                self._make_parent(fd, directory, entry)
            finally:
                os.close(fd)
            fd = openat2(self._root, directory, os.O_PATH | os.O_DIRECTORY, _BENEATH)
        return fd

    def _refuse_unless_missing(self, path: bytes, entry: Entry, error: KernelCallError, *, create: bool) -> None:
        who = f"entry {shown(entry.name)}: "
        if error.errno in (errno.EXDEV, errno.ELOOP):
            raise TreeError(f"{who}its parent {shown(path)} is a symbolic link that leaves the layer") from error
        if not create and error.errno == errno.ENOENT:
            raise TreeError(f"{who}hard link to {shown(entry.link)}, which this layer does not have") from error
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise error
        if error.errno == errno.ENOTDIR and not self._below_whiteout(path):
            raise TreeError(f"{who}its parent {shown(path)} is not a directory") from error

    def _make_parent(self, above: int, path: bytes, entry: Entry) -> None:
        """Make a directory that no entry came for; a whiteout of it becomes an opaque directory."""
        name = path.rpartition(b"/")[2]
        if path in self._whiteouts:
            os.unlink(name, dir_fd=above)
            self._whiteouts.discard(path)
            self.opaque[path] = None
        self._count()
        try:
            os.mkdir(name, 0o755, dir_fd=above)
        except FileExistsError as error:
            raise TreeError(
                f"entry {shown(entry.name)}: its parent {shown(path)} is a symbolic link to nothing"
            ) from error
        if self._must_chown:
            os.chown(name, 0, 0, dir_fd=above)
        self._mtimes.setdefault(path, 0)
        self.size += BLOCK_BYTES

    def _below_whiteout(self, path: bytes) -> bool:
        """Tell whether ``path`` or a directory above it is hidden by a whiteout, which a directory may replace."""
        if not self._whiteouts:
            return False
        parts = path.split(b"/")
        return any(b"/".join(parts[:depth]) in self._whiteouts for depth in range(1, len(parts) + 1))

    def _replace(self, parent: int, name: bytes, path: bytes) -> None:
        """Remove what an earlier entry put there: in a tar the last one wins."""
        self._whiteouts.discard(path)
        remove_entry(parent, name)
        kept = {fd for key, fd in self._parents.items() if fd == parent}
        for key in [key for key, fd in self._parents.items() if fd not in kept]:
            os.close(self._parents.pop(key))

    def _forget_parents(self) -> None:
        for fd in self._parents.values():
            os.close(fd)
        self._parents.clear()

    def _count(self) -> None:
        self.inodes += 1
        if self.inodes > self._max_inodes:
            raise TreeError(f"more than {self._max_inodes} entries (images.max_layer_inodes)")


def _make_node(entry: Entry, parent: int, name: bytes) -> None:
    if entry.kind is EntryKind.SYMLINK:
        os.symlink(entry.link, name, dir_fd=parent)
    elif entry.kind is EntryKind.FIFO:
        os.mkfifo(name, entry.mode & 0o777, dir_fd=parent)
    else:
        device = os.makedev(entry.major, entry.minor)
        os.mknod(name, stat.S_IFCHR | (entry.mode & 0o777), device, dir_fd=parent)


def _set_xattrs(fd: int, entry: Entry) -> None:
    for key, value in rules.kept_xattrs(entry).items():
        os.setxattr(fd, key, value)


def _write_all(fd: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(fd, piece) :]
