"""The systemd unit of a verb that serves: its text (systemd.unit(5), systemd.service(5), systemd.exec(5)).

Owns: what the units of ``podkeep runtime``, ``agent`` and ``node`` have in common. Does not own: installing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core.output import EXIT_CONFIGURATION
from podkeep.mountns import units
from podkeep.mountns.execstart import quoted

# OOMScoreAdjust is a kubelet's own (oomScoreAdj): the kernel ends pods before what looks after them.
_UNIT = """\
[Unit]
Description={description}
{order}
{dependencies}
[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
{containers}Restart=always
RestartSec=1
# The configuration is refused: that is told once, and the unit is failed until somebody has corrected it.
RestartPreventExitStatus={refused}
{timeouts}
OOMScoreAdjust=-999
{limits}
[Install]
WantedBy=multi-user.target
"""
_DEPENDENCIES = """\
# What it mounts for {whose} is hidden in a mount namespace that this service makes: `podkeep mountns install`.
Requires={service}
After={service}
"""
_CONTAINERS = """\
ExecReload=/bin/sh -c 'kill -HUP $MAINPID'
# Each container's monitor is in this unit's cgroup: {ended}, containers run on.
KillMode=process
Delegate=yes
"""
_LIMITS = """\
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
"""


class Service(FrozenStruct, kw_only=True):
    """What one verb's unit has of its own.

    :ivar order: lines of [Unit] that say what it starts after, and what it ends.
    :ivar timeouts: lines of [Service].
    :ivar mounts_for: whose mounts it makes, if it makes any in the mount namespace that it is started in.
    :ivar ended: what ends when the service does, if monitors of containers are in its cgroup.
    """

    verb: str
    description: str
    order: str
    timeouts: str
    mounts_for: str = ""
    ended: str = ""

    def unit(self, program: Sequence[str], global_options: Sequence[str], pin: Path | None = None) -> str:
        """Return the unit's text.

        :param program: the command ``podkeep``, with an absolute path.
        :param global_options: options before the verb; paths in them are to be absolute.
        :param pin: where the mount namespace is pinned that the service is to be in; None: the machine's own.
        """
        words, dependencies = [*program, *global_options, self.verb], ""
        if pin is not None:
            words.append(f"--mount-namespace={pin}")
            dependencies = _DEPENDENCIES.format(whose=self.mounts_for, service=units.service_of(pin))
        return _UNIT.format(
            description=self.description,
            order=self.order,
            dependencies=dependencies,
            command=" ".join(quoted(word) for word in words),
            containers=_CONTAINERS.format(ended=self.ended) if self.ended else "",
            timeouts=self.timeouts,
            refused=EXIT_CONFIGURATION,
            limits=_LIMITS if self.ended else "",
        )


RUNTIME = Service(
    verb="runtime",
    description="podkeep container runtime (CRI v1)",
    order="After=network.target local-fs.target\nBefore=kubelet.service",
    timeouts="TimeoutStartSec=60\nTimeoutStopSec=30\nWatchdogSec=60",
    mounts_for="containers",
    ended="only the runtime itself is ended",
)
AGENT = Service(
    verb="agent",
    description="podkeep node agent",
    order="""\
Wants=network-online.target podkeep.service
After=network-online.target podkeep.service
Conflicts=kubelet.service podkeep-node.service""",
    timeouts="TimeoutStartSec=infinity",
    mounts_for="pods",
)
NODE = Service(
    verb="node",
    description="podkeep node (container runtime, Kubernetes API, node agent)",
    order="""\
Wants=network-online.target
After=network-online.target local-fs.target time-sync.target
# `podkeep runtime` as a service of its own has the same directories; containers run on while it is replaced.
Conflicts=podkeep.service
After=podkeep.service""",
    timeouts="TimeoutStartSec=90\nTimeoutStopSec=120\nWatchdogSec=120",
    ended="the supervisor ends its daemons itself",
)
