"""Writing tar entries as an overlayfs layer below one directory, and nowhere else.

Owns how entries become files; what a layer may hold is decided by ``rules``, where a name leads by ``parents``. The
last component of a name is never followed. Used by the confined unpack process, which is the second wall behind this
one.

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
from podkeep.images.layers.journal import Journal
from podkeep.images.layers.parents import LostError, OpenDirectory, Parents
from podkeep.images.layers.rules import TreeError, shown
from podkeep.images.layers.tarstream import Entry, EntryKind
from podkeep.kernel.removal import remove_entry

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ACCESS_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"


class TreeWriter:
    """Applies the entries of one layer below ``root``, an open directory that starts empty.

    ``opaque`` are the directories that hide what lower layers have (the extended attribute that says so needs more
    rights than this process has), by their own paths, sorted. ``lost`` says whether content was written and removed
    again.
    """

    def __init__(self, root: int, *, max_inodes: int, max_bytes: int = rules.NO_LIMIT) -> None:
        self._root = root
        self._budget = rules.Budget(max_entries=max_inodes, max_bytes=max_bytes)
        self._parents = Parents(root, self._budget.link)
        self._journal = Journal(root)
        self._journal.note(b"", 0, fresh=False)
        # In a set-group-ID directory new files get its group, so ownership must be set even for root:root.
        self._must_chown = bool(os.fstat(root).st_mode & stat.S_ISGID)
        for name in (_ACCESS_ACL, _DEFAULT_ACL):  # what the directory above may have handed down
            with suppress(OSError):
                os.removexattr(root, name)
        self.opaque: list[bytes] = []
        self.implied: set[bytes] = {b""}
        self._journal.note(b"", 0, fresh=False)
        self.lost = False

    def apply(self, entry: Entry, content: Iterable[memoryview]) -> bytes | None:
        """Write one entry. Of a file return its own path, in which no link is.

        :raises TreeError: naming the entry, if it breaks a rule or the file system refuses it.
        """
        try:
            return self._apply(entry, content)
        except (OSError, KernelCallError, ValueError) as error:
            number = error.errno if isinstance(error, (OSError, KernelCallError)) else None
            reason = os.strerror(number) if number else str(error)
            raise TreeError(f"entry {shown(entry.name)}: cannot write it: {reason}") from error

    def implied_directories(self) -> list[bytes]:
        """Return the directories that no entry came for, by their own paths; empty for the root."""
        found = []
        for path in sorted(self.implied):
            try:
                os.close(self._parents.open_straight(path))
            except KernelCallError:
                continue  # replaced by a later entry
            found.append(path)
        return found

    def finish(self) -> None:
        """Do what had to wait until nothing is written any more.

        :raises TreeError: if the file system refuses it.
        """
        self._parents.forget()
        try:
            for note in self._journal.notes():
                try:
                    fd = self._parents.open_straight(note.path, _DIRECTORY)
                except KernelCallError:
                    continue  # replaced by a later entry
                try:
                    if note.default_acl:
                        os.setxattr(fd, _DEFAULT_ACL, note.default_acl)
                    elif note.fresh and self._journal.any_acl:  # it may be another directory's of that name
                        with suppress(OSError):
                            os.removexattr(fd, _DEFAULT_ACL)
                    os.utime(fd, ns=(note.mtime, note.mtime))
                finally:
                    os.close(fd)
        except OSError as error:
            raise TreeError(f"directory {shown(note.path)}: cannot write it: {error.strerror}") from error

    def close(self) -> None:
        """Close what is open but the root, whether the layer was finished or not."""
        self._parents.forget()
        self._journal.close()

    def _apply(self, entry: Entry, content: Iterable[memoryview]) -> bytes | None:
        if entry.xattrs:
            rules.refuse_trusted(entry)
        path = rules.checked_name(entry.name, "its name", entry)
        if not path:
            self._root_directory(entry)
            return None
        if rules.is_ignored(path, entry):
            return None
        directory, _, name = path.rpartition(b"/")
        parent = self._parent(directory, entry)
        if name.startswith(rules.WHITEOUT):
            self._whiteout(entry, parent, name)
            return None
        self._budget.entry(entry.size)
        own = _below(parent, name)
        rules.check_path(len(own), entry)
        if entry.kind is EntryKind.FILE:
            self._file(entry, parent.fd, name, own, content)
            return own
        if entry.kind is EntryKind.DIRECTORY:
            self._directory(entry, parent.fd, name, own)
        elif entry.kind is EntryKind.HARDLINK:
            self._hard_link(entry, parent.fd, name, own)
        else:
            self._node(entry, parent.fd, name, own)
        return None

    def _root_directory(self, entry: Entry) -> None:
        if entry.kind is not EntryKind.DIRECTORY:
            raise TreeError(f"entry {shown(entry.name)}: the root is a {entry.kind.value}")
        self._attributes(self._root, b"", entry, fresh=False)
        self.implied.discard(b"")

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
            else:
                self._sparse(fd, entry, content)
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

    def _sparse(self, fd: int, entry: Entry, content: Iterable[memoryview]) -> None:
        os.ftruncate(fd, entry.size)
        pieces = iter(content)
        piece = memoryview(b"")
        for offset, length in entry.parts or ():
            os.lseek(fd, offset, os.SEEK_SET)
            while length:
                piece = piece or next(pieces)
                _write_all(fd, piece[:length])
                written = min(length, len(piece))
                piece, length = piece[written:], length - written

    def _directory(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        fresh = True
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            there = os.stat(name, dir_fd=parent, follow_symlinks=False)
            fresh = not stat.S_ISDIR(there.st_mode)
            if fresh:
                self._replace(parent, name, path)
                os.mkdir(name, 0o700, dir_fd=parent)
                if _is_whiteout(there):
                    self._make_opaque(path)
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            self._attributes(fd, path, entry, fresh=fresh)
            self.implied.discard(path)
        finally:
            os.close(fd)

    def _hard_link(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        target = rules.checked_name(entry.link, "its target", entry)
        above, _, last = target.rpartition(b"/")
        if not last:
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the root")
        source, there = self._link_source(entry, above, last)
        try:
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileExistsError:
            old = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if (old.st_dev, old.st_ino) == (there.st_dev, there.st_ino):
                return
            self._replace(parent, name, path)
            source, _ = self._link_source(entry, above, last)  # it may have been in what was replaced
            parent = self._parent(path.rpartition(b"/")[0], entry).fd
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    def _link_source(self, entry: Entry, above: bytes, last: bytes) -> tuple[int, os.stat_result]:
        source = self._parent(above, entry, create=False).fd
        missing = TreeError(
            f"entry {shown(entry.name)}: hard link to {shown(entry.link)}, which this layer does not have"
        )
        try:
            there = os.stat(last, dir_fd=source, follow_symlinks=False)
        except FileNotFoundError:
            raise missing from None
        if stat.S_ISDIR(there.st_mode):
            raise TreeError(f"entry {shown(entry.name)}: a hard link to the directory {shown(entry.link)}")
        if _is_whiteout(there):
            raise missing
        return source, there

    def _node(self, entry: Entry, parent: int, name: bytes, path: bytes) -> None:
        rules.refuse_devices(entry)
        if entry.kind is EntryKind.SYMLINK:
            rules.check_target(entry)
        try:
            _make_node(entry, parent, name)
        except FileExistsError:
            self._replace(parent, name, path)
            _make_node(entry, parent, name)
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.kind is not EntryKind.SYMLINK and entry.mode & 0o7000:
            os.chmod(name, entry.mode, dir_fd=parent)
        mtime = rules.modification_time(entry)
        os.utime(name, ns=(mtime, mtime), dir_fd=parent, follow_symlinks=False)

    def _whiteout(self, entry: Entry, parent: OpenDirectory, name: bytes) -> None:
        """OCI image-spec, layer.md, "Whiteouts"; kernel, overlayfs.rst, "whiteouts and opaque directories"."""
        if name == rules.OPAQUE:
            self._make_opaque(parent.path)
            return
        hidden = rules.hidden_name(name, entry)
        if hidden is None:
            return
        self._budget.entry()
        path = _below(parent, hidden)
        rules.check_path(len(path), entry)
        try:
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent.fd)
        except FileExistsError:
            # A whiteout hides lower layers only, never its own layer, in whichever order the two come.
            if stat.S_ISDIR(os.stat(hidden, dir_fd=parent.fd, follow_symlinks=False).st_mode):
                self._make_opaque(path)
            return
        if self._must_chown:
            os.chown(hidden, 0, 0, dir_fd=parent.fd, follow_symlinks=False)
        os.utime(hidden, ns=(0, 0), dir_fd=parent.fd, follow_symlinks=False)

    def _make_opaque(self, path: bytes) -> None:
        self._budget.opaque()
        where = bisect.bisect_left(self.opaque, path)
        if self.opaque[where : where + 1] != [path]:
            self.opaque.insert(where, path)

    def _attributes(self, fd: int, path: bytes, entry: Entry, *, fresh: bool) -> None:
        os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.mode)
        self._must_chown = self._must_chown or bool(entry.mode & stat.S_ISGID)
        default_acl = b""
        if entry.xattrs:
            kept = rules.kept_xattrs(entry)
            default_acl = kept.get(_DEFAULT_ACL, b"")
            _set_xattrs(fd, kept, entry)
            if not fresh:
                keys = [key for key in os.listxattr(fd) if key.startswith(("user.", "system.")) or key in kept]
                rules.check_directory({key: os.getxattr(fd, key) for key in keys}, entry)
            if default_acl:  # valid, then; until the end, files here must not inherit it
                os.removexattr(fd, _DEFAULT_ACL)
        self._journal.note(path, rules.modification_time(entry), fresh=fresh, default_acl=default_acl)

    def _parent(self, path: bytes, entry: Entry, *, create: bool = True) -> OpenDirectory:
        """Return the directory ``path``; missing directories are made, root's and mode 0755."""
        try:
            return self._parents.find(path)
        except LostError as lost:
            self._make_parents(path, lost, entry, create=create)
        return self._parents.find(path)

    def _make_parents(self, path: bytes, lost: LostError, entry: Entry, *, create: bool) -> None:
        who = f"entry {shown(entry.name)}: "
        parts = path.split(b"/")
        if lost.number == errno.EXDEV:
            raise TreeError(f"{who}its parent {shown(path)} is a symbolic link that leaves the layer")
        if lost.number == errno.ELOOP:
            raise TreeError(f"{who}its parent {shown(path)} is a symbolic link that leads in circles")
        if lost.number not in (errno.ENOENT, errno.ENOTDIR):
            raise OSError(lost.number, os.strerror(lost.number))
        above = self._parents.open_straight(lost.reached)
        try:
            name = parts[lost.part]
            hidden = lost.number == errno.ENOTDIR and not lost.linked and _is_whiteout(_look(name, above))
            if not create and (hidden or lost.number == errno.ENOENT):
                raise TreeError(f"{who}hard link to {shown(entry.link)}, which this layer does not have")
            if lost.number == errno.ENOTDIR and not hidden:
                raise TreeError(f"{who}its parent {shown(path)} is not a directory")
            if lost.linked:
                parent = shown(b"/".join(parts[: lost.part + 1]))
                raise TreeError(f"{who}its parent {parent} is a symbolic link to nothing")
            own = lost.reached
            for part in parts[lost.part :]:
                own = own + b"/" + part if own else part
                rules.check_path(len(own), entry)
                if hidden:
                    self._replace(above, part, own)
                    self._make_opaque(own)
                    hidden = False
                self._make_parent(above, part, own)
                os.close(above)
                above = -1
                above = self._parents.open_straight(own)
        finally:
            if above >= 0:
                os.close(above)

    def _make_parent(self, above: int, name: bytes, path: bytes) -> None:
        """Make a directory that no entry came for."""
        self._budget.implied(len(path))
        os.mkdir(name, 0o755, dir_fd=above)
        self.implied.add(path)
        if self._must_chown:
            os.chown(name, 0, 0, dir_fd=above)
            os.chmod(name, 0o755, dir_fd=above)
        self._journal.note(path, 0, fresh=True)

    def _replace(self, parent: int, name: bytes, path: bytes) -> None:
        """Remove what an earlier entry put there: in a tar the last one wins."""
        there = _look(name, parent)
        self.lost = self.lost or stat.S_ISDIR(there.st_mode) or (stat.S_ISREG(there.st_mode) and there.st_size > 0)
        if stat.S_ISDIR(there.st_mode):
            first, last = (bisect.bisect_left(self.opaque, path + after) for after in (b"/", b"0"))
            del self.opaque[first:last]
            where = bisect.bisect_left(self.opaque, path)
            if self.opaque[where : where + 1] == [path]:
                del self.opaque[where]
        remove_entry(parent, name)
        if stat.S_ISDIR(there.st_mode) or stat.S_ISLNK(there.st_mode):
            self._parents.forget(keep=parent)


def _below(parent: OpenDirectory, name: bytes) -> bytes:
    return parent.path + b"/" + name if parent.path else name


def _look(name: bytes, parent: int) -> os.stat_result:
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _is_whiteout(there: os.stat_result) -> bool:
    """No entry may bring a character device 0:0, so one that is here is a whiteout."""
    return stat.S_ISCHR(there.st_mode) and there.st_rdev == 0


def _make_node(entry: Entry, parent: int, name: bytes) -> None:
    if entry.kind is EntryKind.SYMLINK:
        os.symlink(entry.link, name, dir_fd=parent)
    elif entry.kind is EntryKind.FIFO:
        os.mkfifo(name, entry.mode & 0o777, dir_fd=parent)
    else:
        device = os.makedev(entry.major, entry.minor)
        os.mknod(name, stat.S_IFCHR | (entry.mode & 0o777), device, dir_fd=parent)


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


def _write_all(fd: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(fd, piece) :]
