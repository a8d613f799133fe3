"""The systemd unit of the runtime, as text. Pure; ``podkeep runtime unit`` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from podkeep.mountns import units
from podkeep.mountns.execstart import quoted

_UNIT = """\
[Unit]
Description=podkeep container runtime (CRI v1)
After=network.target local-fs.target
Before=kubelet.service
{dependencies}
[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/sh -c 'kill -HUP $MAINPID'
# Each container's monitor is in this unit's cgroup: only the runtime itself is ended, containers run on.
KillMode=process
Delegate=yes
Restart=always
RestartSec=1
TimeoutStartSec=60
TimeoutStopSec=30
WatchdogSec=60
OOMScoreAdjust=-999
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


_DEPENDENCIES = """\
# What it mounts for containers is hidden in a mount namespace that this service makes: `podkeep mountns install`.
Requires={service}
After={service}
"""


def runtime_unit(program: Sequence[str], global_options: Sequence[str], pin: Path | None) -> str:
    """Return a unit file for ``podkeep runtime``.

    :param program: the command ``podkeep``, with an absolute path.
    :param global_options: options before the verb; paths in them are to be absolute.
    :param pin: where the mount namespace is pinned that container mounts are hidden in; None: they are not.
    """
    words = [*program, *global_options, "runtime"]
    dependencies = ""
    if pin is not None:
        words.append(f"--mount-namespace={pin}")
        dependencies = _DEPENDENCIES.format(service=units.service_of(pin))
    return _UNIT.format(command=" ".join(quoted(word) for word in words), dependencies=dependencies)
