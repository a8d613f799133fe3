"""The systemd unit of ``podkeep node``: its text, installing and removing it (systemd.unit(5), systemd.service(5))."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from podkeep.base import atomicfile, spawn
from podkeep.base.errors import CommandFailed, FailedPrecondition, NotFound, refused

PATH = Path("/etc/systemd/system/podkeep-node.service")
_TIMEOUT_S = 120.0

_UNIT = """\
[Unit]
Description=podkeep node (container runtime, Kubernetes API, node agent)
Wants=network-online.target
After=network-online.target local-fs.target time-sync.target
# `podkeep runtime` as a service of its own has the same directories; containers run on while it is replaced.
Conflicts=podkeep.service
After=podkeep.service

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/sh -c 'kill -HUP $MAINPID'
# Each container's monitor is in this unit's cgroup: the supervisor ends its daemons itself, containers run on.
KillMode=process
Delegate=yes
Restart=always
RestartSec=1
TimeoutStartSec=90
TimeoutStopSec=120
WatchdogSec=120
OOMScoreAdjust=-999
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


def unit(program: Sequence[str], options: Sequence[str]) -> str:
    """Return the unit's text.

    :param program: the command ``podkeep``, with an absolute path; ``options`` go before the verb.
    """
    from podkeep.mountns.execstart import quoted

    return _UNIT.format(command=" ".join(quoted(word) for word in (*program, *options, "node")))


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
