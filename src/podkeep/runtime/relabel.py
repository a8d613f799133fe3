"""SELinux labels of the files that a container gets mounted (CRI: Mount.selinux_relabel).

Owns: writing a label onto a tree, and refusing those of the machine. Does not own: which label (``oci/selinux.py``): it
has the pod's own level, so that no other pod reaches the files. Called by ``container_executor.py`` where SELinux is
on; blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from podkeep.base.errors import InvalidArgument, KernelCallError
from podkeep.kernel import openat
from podkeep.kernel.openat import Resolve

ATTRIBUTE = "security.selinux"
_REFUSED = frozenset(
    "/ /bin /boot /dev /etc /etc/passwd /etc/pki /etc/shadow /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin"
    " /srv /sys /tmp /usr /usr/bin /usr/lib /usr/lib64 /usr/local /usr/sbin /usr/share /var /var/cache /var/lib"
    " /var/log /var/run /var/spool /var/tmp".split()
)
"""What belongs to the machine (Filesystem Hierarchy Standard): with another label it would not start again."""
_CONFINED = Resolve.BENEATH | Resolve.NO_SYMLINKS
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_NO_LABELS = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP})


def relabel(path: str, label: str) -> None:
    """Give everything at and below ``path``, which has no symbolic link, the label; what has it already is left alone.

    Links are labelled, not followed. A file system without labels is passed over; so is what vanishes meanwhile.

    :raises InvalidArgument: if the path is the machine's.
    :raises OSError: if the kernel refuses: the policy does not know the label, or the file system is read-only.
    """
    if path in _REFUSED or path.startswith(("/proc/", "/sys/")) or os.path.dirname(path) == "/home":
        raise InvalidArgument(
            f"SELinux relabeling of {path} is not allowed", hint="mount a directory of the pod's own, or do not ask"
        )
    value = label.encode() + b"\0"
    _write(path, value)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        waiting = [b"."]
        while waiting:
            waiting += _relabel_entries(top, waiting.pop(), value)
    finally:
        os.close(top)


def _relabel_entries(top: int, directory: bytes, value: bytes) -> list[bytes]:
    """Label what is right in a directory; return the directories in it."""
    try:
        fd = openat.openat2(top, directory, os.O_RDONLY | os.O_DIRECTORY, _CONFINED)
    except KernelCallError as error:
        if error.errno in _GONE:
            return []
        raise
    try:
        found = []
        for name in os.listdir(fd):
            # By the descriptor, so that nobody brings us elsewhere by a link in place of the directory.
            _write(f"/proc/self/fd/{fd}/{name}", value)
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    found.append(os.path.join(directory, os.fsencode(name)))
        return found
    finally:
        os.close(fd)


def _write(path: str, value: bytes) -> None:
    try:
        with suppress(OSError):
            if os.getxattr(path, ATTRIBUTE, follow_symlinks=False).rstrip(b"\0") == value.rstrip(b"\0"):
                return
        os.setxattr(path, ATTRIBUTE, value, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _GONE | _NO_LABELS:
            raise
