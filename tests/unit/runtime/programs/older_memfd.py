"""Say how an OCI runtime is executed where memfd_create(2) refuses MFD_EXEC: ``older_memfd.py ERRNO PATH``.

EINVAL is what a kernel before 6.3 says to that flag, EACCES what one with ``vm.memfd_noexec=2`` says.
"""

import ctypes
import errno
import json
import logging
import os
import platform
import struct
import subprocess
import sys

from podkeep.kernel.process import seccomp
from podkeep.runtime.oci import sealed

_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}[platform.machine()]
_SECOND_ARGUMENT = 24
_MFD_EXEC = 0x10
_PR_SET_NO_NEW_PRIVS = 38


def refuse(code: int) -> None:
    """Have the kernel answer as one that does not take the flag (seccomp(2))."""
    instructions = b"".join(
        struct.pack("=HBBI", *one)
        for one in (
            (seccomp._LOAD, 0, 0, seccomp._NUMBER),
            (seccomp._EQUAL, 0, 3, _MEMFD_CREATE),
            (seccomp._LOAD, 0, 0, _SECOND_ARGUMENT),
            (seccomp._ANY_BIT, 0, 1, _MFD_EXEC),
            (seccomp._RETURN, 0, 0, seccomp._ERRNO | code),
            (seccomp._RETURN, 0, 0, seccomp._ALLOW),
        )
    )
    # Without it, only CAP_SYS_ADMIN may set a filter.
    if seccomp._prctl(_PR_SET_NO_NEW_PRIVS, 1, None, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    program = seccomp._Program(len(instructions) // 8, instructions)
    if seccomp._prctl(seccomp._PR_SET_SECCOMP, seccomp._MODE_FILTER, ctypes.byref(program), 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
refuse(int(sys.argv[1]))
try:
    os.close(os.memfd_create("probe", _MFD_EXEC))
except OSError as error:
    refused = errno.errorcode[error.errno or 0]
else:
    refused = ""
path = sys.argv[2]
command = sealed.command(path)
copied = command != path and os.readlink(command).startswith("/memfd:")
said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
try:
    if copied:
        os.truncate(command, 0)
    changed = copied
except PermissionError:
    changed = False
print(json.dumps({"refused": refused, "copied": copied, "changed": changed, "said": said}))
