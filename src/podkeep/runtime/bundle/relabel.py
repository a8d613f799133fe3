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

from podkeep.base.errors import InvalidArgument
from podkeep.kernel.files import openat

ATTRIBUTE = "security.selinux"
_REFUSED = frozenset(
    "/ /bin /boot /dev /etc /etc/passwd /etc/pki /etc/shadow /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin"
    " /srv /sys /tmp /usr /usr/bin /usr/lib /usr/lib64 /usr/local /usr/sbin /usr/share /var /var/cache /var/lib"
    " /var/log /var/run /var/spool /var/tmp".split()
)
"""What belongs to the machine (Filesystem Hierarchy Standard): with another label it would not start again."""
_MAX_ENTRIES = 100_000_000
_NO_LABELS = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP})


def relabel(path: str, label: str) -> None:
    """Give everything at and below ``path``, which has no symbolic link, the label; what has it already is left alone.

    Links are labelled, not followed. A file system without labels is passed over; so is what vanishes meanwhile.

    :raises InvalidArgument: if the path is the machine's.
    :raises FailedPrecondition: if somebody put a symbolic link into it since it was resolved.
    :raises ResourceExhausted: if there are more files, or deeper ones, than a walk takes.
    :raises OSError: if the kernel refuses: the policy does not know the label, or the file system is read-only.
    """
    if path in _REFUSED or path.startswith(("/proc/", "/sys/")) or os.path.dirname(path) == "/home":
        raise InvalidArgument(
            f"SELinux relabeling of {path} is not allowed", hint="mount a directory of the pod's own, or do not ask"
        )
    value = label.encode() + b"\0"
    with openat.closing(openat.open_resolved(path)) as top:
        own = f"/proc/self/fd/{top}"
        _write(own, value, follow=True)
        if not stat.S_ISDIR(os.fstat(top).st_mode):
            return
        with openat.closing(openat.reopen(top, os.O_RDONLY | os.O_DIRECTORY)) as directory:
            # A volume may have other volumes mounted below, which the container gets as well (one_mount=False).
            for found in openat.walk(directory, max_entries=_MAX_ENTRIES, one_mount=False):
                # By the descriptor, so that nobody brings us elsewhere by a link in place of the directory.
                _write(f"/proc/self/fd/{found.directory}/{found.name}", value, follow=False)


def _write(path: str, value: bytes, *, follow: bool) -> None:
    """Label what is at a path. ``follow``: it is that of a descriptor, which is not a link's."""
    try:
        with suppress(OSError):
            if os.getxattr(path, ATTRIBUTE, follow_symlinks=follow).rstrip(b"\0") == value.rstrip(b"\0"):
                return
        os.setxattr(path, ATTRIBUTE, value, follow_symlinks=follow)
    except OSError as error:
        if error.errno not in openat.NOT_THERE | _NO_LABELS:
            raise
