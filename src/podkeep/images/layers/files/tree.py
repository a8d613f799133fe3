"""A layer's tree as files below one directory, and nowhere else: a layer as overlayfs takes it.

The back end of ``images.layers.tree`` for layers that are kept as directories. Used by the confined unpack process,
which is the second wall behind this one. Every directory is reached by its own path, in which no link is, from the root
(openat2(2), RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS) or step by step; the last component of a name is never followed.

Memory does not grow with the layer: what is to be done at the end (times of directories, which writing into them
changes) is written down in a nameless file.
"""

from __future__ import annotations

import bisect
import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from podkeep.base.errors import KernelCallError
from podkeep.images.layers import rules
from podkeep.images.layers.files.journal import Journal
from podkeep.images.layers.files.recording import Recorder
from podkeep.images.layers.rules import TreeError, shown
from podkeep.images.layers.tarstream import Entry, EntryKind
from podkeep.images.layers.tree import Directory, LayerTree, Leaf
from podkeep.kernel.files.openat import Resolve, closing, openat2, write_all
from podkeep.kernel.files.removal import remove_entry

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STRAIGHT = Resolve.BENEATH | Resolve.NO_SYMLINKS
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ACCESS_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"
_MAX_OPEN = 128


class FileDirectory(Directory):
    """A directory by its own path, empty for the root. It stays right whatever becomes of links that led there."""

    __slots__ = ("path",)

    def __init__(self, path: bytes) -> None:
        super().__init__(len(path) + 1 if path else 0)
        self.path = path

    def below(self, name: bytes) -> bytes:
        return self.path + b"/" + name if self.path else name


class FileTree(LayerTree[FileDirectory, Iterable[memoryview]]):
    """Writes one layer below ``root``, an open directory that starts empty. Content is that of an entry's ``runs``.

    ``opaque`` are the directories that hide what lower layers have (the extended attribute that says so needs more
    rights than this process has), by their own paths, sorted.

    :param recorder: gets the runs of the content of each file that is kept.
    """

    def __init__(self, root: int, recorder: Recorder, *, max_inodes: int, max_bytes: int = rules.NO_LIMIT) -> None:
        super().__init__(FileDirectory(b""), max_inodes=max_inodes, max_bytes=max_bytes)
        self._root = root
        self._recorder = recorder
        self._open: dict[bytes, int] = {}
        """Descriptors of directories by their paths, the one that was used last at the end."""
        self._journal = Journal(root)
        self._journal.note(b"", 0, fresh=False)
        # In a set-group-ID directory new files get its group, so ownership must be set even for root:root.
        self._must_chown = bool(os.fstat(root).st_mode & stat.S_ISGID)
        for name in (_ACCESS_ACL, _DEFAULT_ACL):  # what the directory above may have handed down
            with suppress(OSError):
                os.removexattr(root, name)
        self.opaque: list[bytes] = []
        self._implied: set[bytes] = {b""}

    def implied(self) -> list[bytes]:
        """Return the paths of the directories that no entry came for, sorted; empty for the root."""
        found = []
        for path in sorted(self._implied):
            with suppress(KernelCallError):  # replaced by a later entry
                os.close(openat2(self._root, path or b".", _STEP, _STRAIGHT))
                found.append(path)
        return found

    def finish(self) -> None:
        """Do what had to wait until nothing is written any more.

        :raises TreeError: if the file system refuses it.
        """
        self._forget()
        path = b""
        try:
            for note in self._journal.notes():  # what it has not written yet is written here
                path = note.path
                try:
                    fd = openat2(self._root, note.path or b".", _DIRECTORY, _STRAIGHT)
                except KernelCallError:
                    continue  # replaced by a later entry
                with closing(fd):
                    if note.default_acl:
                        os.setxattr(fd, _DEFAULT_ACL, note.default_acl)
                    elif note.fresh and self._journal.any_acl:  # it may be another directory's of that name
                        with suppress(OSError):
                            os.removexattr(fd, _DEFAULT_ACL)
                    os.utime(fd, ns=(note.mtime, note.mtime))
        except OSError as error:
            raise TreeError(f"directory {shown(path)}: cannot write it: {error.strerror}") from error

    def close(self) -> None:
        """Close what is open but the root, whether the layer was finished or not."""
        self._forget()
        self._journal.close()

    def _walk(self, path: bytes) -> tuple[FileDirectory, int, int]:
        directory = FileDirectory(path)
        try:
            self._fd(directory)
        except (OSError, KernelCallError) as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return super()._walk(path)
        return directory, path.count(b"/") + 1, 0

    def _look(self, parent: FileDirectory, name: bytes) -> FileDirectory | Leaf | None:
        try:
            about = os.stat(name, dir_fd=self._fd(parent), follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(about.st_mode):
            return FileDirectory(parent.below(name))
        return Leaf(about.st_ino, about.st_mode, about.st_rdev, about.st_size)

    def _above(self, directory: FileDirectory) -> FileDirectory:
        above = FileDirectory(directory.path.rpartition(b"/")[0])
        if above.path and above.path not in self._open:  # one step, however deep it is
            self._keep(above.path, os.open(b"..", _STEP, dir_fd=self._fd(directory)))
        return above

    def _target(self, parent: FileDirectory, name: bytes, link: Leaf) -> bytes:
        return os.readlink(name, dir_fd=self._fd(parent))

    def _make_directory(self, parent: FileDirectory, name: bytes, *, implied: bool) -> FileDirectory:
        made = FileDirectory(parent.below(name))
        fd = self._fd(parent)
        os.mkdir(name, 0o755 if implied else 0o700, dir_fd=fd)
        if implied:
            self._implied.add(made.path)
            if self._must_chown:
                os.chown(name, 0, 0, dir_fd=fd)
                os.chmod(name, 0o755, dir_fd=fd)
            self._journal.note(made.path, 0, fresh=True)
        return made

    def _describe(self, directory: FileDirectory, entry: Entry, *, fresh: bool) -> None:
        with closing(os.open(b".", _DIRECTORY, dir_fd=self._fd(directory))) as fd:
            os.fchown(fd, entry.uid, entry.gid)
            os.fchmod(fd, entry.mode)
            self._must_chown = self._must_chown or bool(entry.mode & stat.S_ISGID)
            default_acl = b""
            if entry.xattrs:
                kept = rules.kept_xattrs(entry)
                default_acl = kept.get(_DEFAULT_ACL, b"")
                _set_xattrs(fd, kept, entry)
                # Attributes of earlier entries stay with a directory, so that their sum has to be looked at.
                if not fresh:
                    keys = [key for key in os.listxattr(fd) if key.startswith(("user.", "system.")) or key in kept]
                    rules.check_directory({key: os.getxattr(fd, key) for key in keys}, entry)
                if default_acl:  # valid, then; until the end, files here must not inherit it
                    os.removexattr(fd, _DEFAULT_ACL)
        self._journal.note(directory.path, rules.modification_time(entry), fresh=fresh, default_acl=default_acl)
        self._implied.discard(directory.path)

    def _set_opaque(self, directory: FileDirectory) -> None:
        where = bisect.bisect_left(self.opaque, directory.path)
        if self.opaque[where : where + 1] != [directory.path]:
            self.opaque.insert(where, directory.path)

    def _make(self, entry: Entry, parent: FileDirectory, name: bytes, content: Iterable[memoryview]) -> None:
        fd = self._fd(parent)
        if entry.kind is EntryKind.FILE:
            self._file(entry, fd, name, content)
            self._recorder.content(parent.below(name), entry.runs)
            return
        if entry.kind is EntryKind.SYMLINK:
            os.symlink(entry.link, name, dir_fd=fd)
        elif entry.kind is EntryKind.FIFO:
            os.mkfifo(name, entry.mode & 0o777, dir_fd=fd)
        else:
            os.mknod(name, stat.S_IFCHR | (entry.mode & 0o777), os.makedev(entry.major, entry.minor), dir_fd=fd)
        os.chown(name, entry.uid, entry.gid, dir_fd=fd, follow_symlinks=False)
        # After chown, which clears set-user-ID and set-group-ID bits.
        if entry.kind is not EntryKind.SYMLINK and entry.mode & 0o7000:
            os.chmod(name, entry.mode, dir_fd=fd)
        mtime = rules.modification_time(entry)
        os.utime(name, ns=(mtime, mtime), dir_fd=fd, follow_symlinks=False)

    def _file(self, entry: Entry, parent: int, name: bytes, content: Iterable[memoryview]) -> None:
        fd = os.open(name, _CREATE, entry.mode & 0o777, dir_fd=parent)
        try:
            if entry.parts is None:
                for piece in content:
                    write_all(fd, piece)
            else:
                _write_sparse(fd, entry, content)
            if entry.uid or entry.gid or self._must_chown:
                os.fchown(fd, entry.uid, entry.gid)
            if entry.mode & 0o7000:
                os.fchmod(fd, entry.mode)
            if entry.xattrs:
                _set_xattrs(fd, rules.kept_xattrs(entry), entry)
            mtime = rules.modification_time(entry)
            os.utime(fd, ns=(mtime, mtime))
        finally:
            os.close(fd)

    def _link(self, source: FileDirectory, last: bytes, there: Leaf, parent: FileDirectory, name: bytes) -> None:
        os.link(last, name, src_dir_fd=self._fd(source), dst_dir_fd=self._fd(parent), follow_symlinks=False)

    def _whiteout(self, parent: FileDirectory, name: bytes) -> None:
        fd = self._fd(parent)
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=fd)
        if self._must_chown:
            os.chown(name, 0, 0, dir_fd=fd, follow_symlinks=False)
        os.utime(name, ns=(0, 0), dir_fd=fd, follow_symlinks=False)

    def _remove(self, parent: FileDirectory, name: bytes, there: FileDirectory | Leaf) -> None:
        if isinstance(there, Leaf):
            if stat.S_ISREG(there.mode) and there.size:
                self._recorder.give_up()
        else:
            self._recorder.give_up()
            # What is below the directory: "0" is the character behind "/".
            first, last = (bisect.bisect_left(self.opaque, there.path + after) for after in (b"/", b"0"))
            del self.opaque[first:last]
            where = bisect.bisect_left(self.opaque, there.path)
            if self.opaque[where : where + 1] == [there.path]:
                del self.opaque[where]
            self._forget()
        remove_entry(self._fd(parent), name)

    def _fd(self, directory: FileDirectory) -> int:
        """Return a descriptor of a directory (``O_PATH``), good until :data:`_MAX_OPEN` others were asked for."""
        path = directory.path
        if not path:
            return self._root
        fd = self._open.pop(path, -1)
        if fd < 0:
            above, _, name = path.rpartition(b"/")
            parent = self._open.get(above) if above else self._root
            fd = openat2(self._root, path, _STEP, _STRAIGHT) if parent is None else os.open(name, _STEP, dir_fd=parent)
        self._keep(path, fd)
        return fd

    def _keep(self, path: bytes, fd: int) -> None:
        if len(self._open) >= _MAX_OPEN:
            # The one that was used longest ago: a use puts a descriptor at the end.
            os.close(self._open.pop(next(iter(self._open))))
        self._open[path] = fd

    def _forget(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


def _write_sparse(fd: int, entry: Entry, content: Iterable[memoryview]) -> None:
    # The size first: what no part covers stays a hole.
    os.ftruncate(fd, entry.size)
    pieces = iter(content)
    piece = memoryview(b"")
    for offset, length in entry.runs:
        os.lseek(fd, offset, os.SEEK_SET)
        while length:
            piece = piece or next(pieces)
            write_all(fd, piece[:length])
            written = min(length, len(piece))
            piece, length = piece[written:], length - written


def _set_xattrs(fd: int, xattrs: dict[str, bytes], entry: Entry) -> None:
    for key, value in xattrs.items():
        try:
            os.setxattr(fd, key, value)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.E2BIG, errno.ERANGE):
                raise TreeError(
                    f"entry {shown(entry.name)}: no space for its extended attributes on this file system"
                ) from error
            raise
