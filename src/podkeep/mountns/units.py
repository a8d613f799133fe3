"""The files that make systemd keep the namespace and start daemons in it, as text. Pure.

Owns: the service that makes the namespace, drop-ins for daemons, and ``nsenterCmns``. Called by ``installation``, which
writes them, and by ``machine_config``. Does not own: how a command line is wrapped (``execstart``).

The service comes in two kinds: one calls podkeep; the other needs nothing but util-linux, for machines without podkeep.
Both do what ``lifecycle`` does, step by step; docs/mount-namespace.md says what each step is for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from podkeep.base.errors import InvalidArgument
from podkeep.mountns import execstart
from podkeep.mountns.execstart import Entry, Unit, quoted
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN, UNIT

KUBENS_UNIT = "kubens.service"
DAEMONS = ("podkeep.service", "kubelet.service", "crio.service", "containerd.service")
"""The services that make mounts for containers."""
DROP_IN = "zz-container-mount-namespace.conf"
"""After a vendor's 10-kubeadm.conf and what ``systemctl edit`` writes, override.conf: the last ExecStart= counts."""
HELPER = PurePath("/usr/local/bin/nsenterCmns")
NOT_ENTERED = 125
"""Exit status of nsenterCmns if it could not run the command, as of chroot(1) and env(1)."""

_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._-]+){3,}")

_SERVICE = """\
[Unit]
Description=Manages a mount namespace that kubelet and crio share, hidden from the host
Documentation=man:mount_namespaces(7)
Before={before}

[Service]
Type=oneshot
RemainAfterExit=yes
{directory}Environment=RUNTIME_DIRECTORY={runtime_directory}
Environment=BIND_POINT={bind_point}
{steps}"""

_INSTALL = """
[Install]
WantedBy=multi-user.target
"""

_STEPS = """\
# The first `ip netns add` would mount over this directory, and cover what is pinned in it.
ExecStartPre=mkdir -p %t/netns
ExecStartPre=sh -c 'findmnt --mountpoint %t/netns || mount --bind %t/netns %t/netns'
ExecStartPre=mount --make-shared %t/netns
# A mount namespace cannot be pinned where the pin would propagate into it.
ExecStartPre=sh -c 'findmnt --mountpoint ${RUNTIME_DIRECTORY} || mount --bind ${RUNTIME_DIRECTORY} ${RUNTIME_DIRECTORY}'
ExecStartPre=mount --make-unbindable ${RUNTIME_DIRECTORY}
# What is pinned cannot be touched.
ExecStartPre=sh -c 'test -e ${BIND_POINT} || touch ${BIND_POINT}'
# One that is pinned is kept. Linux 6.18 numbers namespaces by CPU, and pins none below the number of the host's.
ExecStart=sh -c 'findmnt --types nsfs --mountpoint ${BIND_POINT} && exit; \\
    pin="unshare --mount=${BIND_POINT} --propagation slave mount --make-rshared /"; \\
    $$pin && exit; \\
    for cpu in /sys/devices/system/cpu/cpu[0-9]*; do taskset --cpu-list $${cpu##*/cpu} $$pin && exit; done; \\
    exit 1'
# Slave of the host alone is not enough: daemons and containers would not see each other's mounts.
ExecStart=sh -c 'nsenter --mount=${BIND_POINT} findmnt --noheadings --output PROPAGATION / | grep shared || \\
    nsenter --mount=${BIND_POINT} mount --make-rshared /'
"""


def runtime_directory(pin: Path) -> PurePath:
    """Return the directory of a pin, which becomes a mount point.

    :raises InvalidArgument: if nothing can be pinned there by a unit.
    """
    # The path stands in shell commands of the unit and of nsenterCmns, where nothing is quoted.
    if not _PLAIN_PATH.fullmatch(str(pin)) or ".." in pin.parts:
        raise InvalidArgument(
            f"mountns.pin: {str(pin)!r} cannot be used in a unit",
            hint=f"a file in a directory of its own, with plain characters, such as {DEFAULT_PIN}",
        )
    return PurePath(pin.parent)


def service_of(pin: Path) -> str:
    """Return the name of the service that pins the namespace at ``pin``."""
    return KUBENS_UNIT if pin == KUBENS_PIN else UNIT


def service(pin: Path, *, podkeep: Sequence[str] | None, keep: bool = False, enabled: bool = False) -> str:
    """Return the service that makes the namespace.

    :param podkeep: the command ``podkeep``, with an absolute path, and its global options; None: with util-linux only.
    :param keep: stopping the service leaves the namespace, and starting it uses that again.
    :param enabled: can be started at boot by itself; without, the daemons' drop-ins start it.
    :raises InvalidArgument: if nothing can be pinned there by a unit.
    """
    directory = runtime_directory(pin)
    below_run = directory.is_relative_to("/run")
    named = f"%t/{directory.relative_to('/run')}" if below_run else str(directory)
    if podkeep is None:
        steps = _STEPS if keep else f"{_STEPS}ExecStop=umount -R ${{RUNTIME_DIRECTORY}}\n"
    else:
        command = " ".join(quoted(word) for word in (*podkeep, "--set", f"mountns.pin={pin}", "mountns"))
        steps = f"ExecStart={command} start\n"
        # Containers run on while daemons restart: what they are in is not torn down.
        steps += "" if keep else f"ExecStop={command} stop --if-unused\n"
    made_by_systemd = directory.relative_to("/run") if below_run else None
    text = _SERVICE.format(
        before=" ".join(DAEMONS),
        directory=_directory(made_by_systemd, preserved=keep or podkeep is not None),
        runtime_directory=named,
        bind_point=f"{named}/{pin.name}",
        steps=steps if below_run or podkeep is not None else f"ExecStartPre=mkdir -p ${{RUNTIME_DIRECTORY}}\n{steps}",
    )
    return text + _INSTALL if enabled else text


def _directory(name: PurePath | None, *, preserved: bool) -> str:
    if name is None:
        return ""
    # systemd must not clean up under a pin that stays.
    return f"RuntimeDirectory={name}\n" + ("RuntimeDirectoryPreserve=yes\n" if preserved else "")


def drop_in(unit: Unit, entry: Entry) -> str:
    """Return a drop-in with which the daemon of ``unit`` starts in the namespace; empty if it does so already.

    :raises FailedPrecondition: if it cannot, naming the setting of the unit.
    """
    service_name = service_of(entry.pin)
    inside = execstart.enters(unit, entry.pin)
    # Entering is not enough: without both the daemon may be started before the namespace is there.
    if inside and service_name in unit.names("Requires") & unit.names("After"):
        return ""
    text = f"[Unit]\nRequires={service_name}\nAfter={service_name}\n"
    if not inside:
        command = execstart.command_of(unit)
        text += f"\n[Service]\n{ORIGINAL}{command}\nExecStart=\nExecStart={execstart.wrap(unit, entry)}\n"
    return text


ORIGINAL = "# The unit without this file: ExecStart="
"""What the line of a drop-in begins with that has the command it was made from."""


def original(text: str) -> str | None:
    """Return the command that a drop-in was made from; None if it changes no command."""
    found = [line.removeprefix(ORIGINAL) for line in text.splitlines() if line.startswith(ORIGINAL)]
    return found[0] if found else None


def helper(pin: Path) -> str:
    """Return the shell script ``nsenterCmns``: runs a command, or a shell, in the namespace.

    :raises InvalidArgument: if nothing can be pinned there by a unit.
    """
    runtime_directory(pin)
    return _HELPER.format(pin=pin, service=service_of(pin), failed=NOT_ENTERED)


_HELPER = """\
#!/bin/sh
# Runs a command, or a shell, in the mount namespace of containers, whose mounts the host does not see:
#
#   nsenterCmns [COMMAND [ARGUMENT...]]
#
# The exit status is the command's; {failed}: there is no namespace, or it cannot be entered.
pin=${{KUBENSMNT:-{pin}}}
elsewhere=
if [ "$pin" != {pin} ]; then elsewhere="unset KUBENSMNT, or start what pins one there"; fi

fail() {{
    printf 'nsenterCmns: %s\\n' "$*" >&2
    exit {failed}
}}

# What is mounted on the pin, as PID 1 sees it: from inside of the namespace the pin cannot be seen.
mounts=$(cat /proc/1/mountinfo) || fail "cannot read the mount table of PID 1; run this as root"
root=
while read -r _ _ _ where point _; do
    if [ "$point" = "$pin" ]; then root=$where; fi
done <<END
$mounts
END

case $root in
mnt:*) ;;
"")
    if [ -e "/proc/1/root$pin" ]; then
        fail "nothing is pinned at $pin, the file there is a left-over; ${{elsewhere:-see: systemctl status {service}}}"
    fi
    fail "no mount namespace is pinned at $pin; ${{elsewhere:-start it: systemctl start {service}}}" ;;
*) fail "what is mounted at $pin is no mount namespace but $root" ;;
esac

[ $# -gt 0 ] || set -- "${{SHELL:-/bin/sh}}"
if [ "$(readlink /proc/self/ns/mnt)" = "$root" ]; then
    exec "$@"
fi

command -v nsenter >/dev/null || fail "there is no program nsenter; install util-linux"
nsenter --mount="/proc/1/root$pin" true || fail "cannot enter the mount namespace pinned at $pin; run this as root"
# Entering a mount namespace leads to its root directory: back to where we are.
exec nsenter --mount="/proc/1/root$pin" sh -c '
    cd -- "$0" || echo "nsenterCmns: the working directory is /" >&2
    exec "$@"' "$PWD" "$@"
"""
