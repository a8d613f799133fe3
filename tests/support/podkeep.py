"""Running ``podkeep`` as a user does, where no runtime is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support import forked


def podkeep(
    *arguments: str,
    insecure: str = "",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    status: int = 0,
) -> tuple[str, str]:
    """Run the command to its end, and return what it wrote on standard output and standard error.

    :param insecure: host of a registry that speaks plain HTTP.
    :param status: how it must end.
    """
    settings = ["--set", f'registries."{insecure}".insecure=true'] if insecure else []
    # Nobody's own logins have a part in a test.
    clean = {"HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent"}
    done = forked.run(
        [sys.executable, "-m", "podkeep", *settings, *arguments],
        cwd=cwd,
        env={**os.environ, **clean, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr
