"""Mounting EROFS images that are files, with further files that hold the content (Linux 6.12).

Owns the mount options. Does not own: making images (``images.erofs``), or where they are attached
(``images.snapshots``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from podkeep.base.errors import KernelCallError
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountAttr

_MAX_STRING = 255
"""Bytes of an option's value (fsconfig(2))."""
_HINT = "files as EROFS images need Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE, and not to be on a tmpfs or overlay"


def mount_erofs(image: Path, devices: Sequence[Path] = (), *, attrs: MountAttr = MountAttr.NONE) -> int:
    """Return a detached, read-only mount of ``image``; the caller closes the descriptor.

    The files stay in use as long as the mount exists, also when they are removed.

    :param devices: the further devices of the image's table, in its order.
    :raises KernelCallError: if the kernel refuses; the hint is what the file system said, if it said something.
    """
    with ExitStack() as closing:
        context = mounts.fsopen("erofs")
        closing.callback(os.close, context)
        mounts.fsconfig_string(context, "source", _name(image, closing))
        for device in devices:
            mounts.fsconfig_string(context, "device", _name(device, closing))
        mounts.fsconfig_flag(context, "ro")
        try:
            mounts.fsconfig_create(context)
        except KernelCallError as error:
            # ENOTBLK: this kernel wants a block device as the source.
            hint = _HINT if error.errno in (errno.ENOTBLK, errno.ENODEV) else error.hint
            raise KernelCallError(f"{error.call} of erofs {image}", error.errno, hint=hint) from error
        return mounts.fsmount(context, attrs | MountAttr.RDONLY)


def _name(path: Path, closing: ExitStack) -> str:
    """Return a name of the file that is short enough, good until the image is mounted."""
    if len(os.fsencode(path)) <= _MAX_STRING:
        return str(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelCallError(f"open({str(path)!r})", error.errno or 0) from error
    # fsconfig(2) takes no longer strings, and store directories may lie deep: /proc gives the file a short name.
    closing.callback(os.close, fd)
    return f"/proc/self/fd/{fd}"
