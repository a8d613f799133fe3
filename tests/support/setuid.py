"""A program with a set-user-ID bit, as any user may start it: su(1), sudo(8)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = 65534
_SCRIPT = "import os, sys; {} print(flush=True); sys.stdin.read()"


@contextmanager
def started(name: str, *arguments: str, changes_user: bool = False) -> Iterator[int]:
    """Have a user without privileges run a program of root's, called ``name``; yield its process ID.

    :param changes_user: whether it also makes itself root's altogether, as sudo does.
    """
    script = _SCRIPT.format("os.setresuid(0, 0, 0);" if changes_user else "")
    # Not below /tmp, where there may be no set-user-ID programs.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        program = Path(shutil.copy(os.path.realpath(sys.executable), Path(directory) / name))
        program.chmod(0o4755)
        command = [str(program), "-ISE", "-c", script, *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=USER, group=USER, extra_groups=[], cwd="/"
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            status = Path(f"/proc/{process.pid}/status").read_text().partition("Uid:")[2].split()[:4]
            assert status == (["0"] * 4 if changes_user else [str(USER), "0", "0", "0"])
            try:
                yield process.pid
            finally:
                process.communicate()
