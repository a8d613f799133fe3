"""The systemd unit of ``podkeep node``: installing and removing it."""

from __future__ import annotations

from pathlib import Path

from podkeep.base import atomicfile, spawn
from podkeep.base.errors import CommandFailed, FailedPrecondition, NotFound, refused

PATH = Path("/etc/systemd/system/podkeep-node.service")
_TIMEOUT_S = 120.0


def install(text: str, *, start: bool) -> dict[str, str]:
    """Write the unit, and have systemd start it with the machine and, with ``start``, (again) now.

    :returns: what was done, for people and programs.
    :raises FailedPrecondition: if systemd is not this machine's init, or refuses.
    """
    _require_systemd()
    try:
        atomicfile.write(PATH, text.encode(), mode=0o644)
    except OSError as error:
        raise refused(f"{PATH} cannot be written", error) from error
    _systemctl("daemon-reload")
    _systemctl("enable", PATH.name)
    if start:
        _systemctl("restart", PATH.name)
    return {"unit": str(PATH), "state": "runs" if start else "starts with the next boot"}


def uninstall() -> Path:
    """End the service and remove its unit.

    :raises NotFound: if it is not installed.
    :raises FailedPrecondition: if systemd is not this machine's init, or refuses.
    """
    _require_systemd()
    if not PATH.exists():
        raise NotFound(f"{PATH} is not installed")
    _systemctl("disable", "--now", PATH.name)
    try:
        PATH.unlink()
    except OSError as error:
        raise refused(f"{PATH} cannot be removed", error) from error
    _systemctl("daemon-reload")
    return PATH


def _require_systemd() -> None:
    if not Path("/run/systemd/system").is_dir():
        raise FailedPrecondition(
            "systemd does not run this machine", hint="`podkeep node` runs under any supervisor, or by itself"
        )


def _systemctl(*arguments: str) -> None:
    try:
        spawn.run(["systemctl", *arguments], timeout=_TIMEOUT_S).check()
    except CommandFailed as error:
        raise FailedPrecondition(error.message, hint=f"`journalctl -u {PATH.name}` says why") from error
