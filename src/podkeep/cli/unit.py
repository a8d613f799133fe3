"""The systemd unit of the runtime, as text. Pure; ``podkeep runtime unit`` prints it."""

from __future__ import annotations

from collections.abc import Sequence

_UNIT = """\
[Unit]
Description=podkeep container runtime (CRI v1)
After=network.target local-fs.target
Before=kubelet.service

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


def runtime_unit(program: Sequence[str], global_options: Sequence[str]) -> str:
    """Return a unit file for ``podkeep runtime``.

    :param program: the command ``podkeep``, with an absolute path.
    :param global_options: options before the verb; paths in them are to be absolute.
    """
    return _UNIT.format(command=" ".join(quoted(word) for word in (*program, *global_options, "runtime")))


def quoted(word: str) -> str:
    """Return a word of a command line as a unit file has it (systemd.service(5), COMMAND LINES; specifiers)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = escaped == word and word and not any(character.isspace() or character in "';" for character in word)
    return word if plain else f'"{escaped}"'
