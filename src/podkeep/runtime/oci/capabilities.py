"""Which capabilities a container gets. Pure.

Names are written ``CAP_NET_ADMIN`` in the OCI configuration and ``NET_ADMIN`` (or either) in a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.model.records import Security

DEFAULT = frozenset(
    f"CAP_{name}"
    for name in (
        "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE NET_RAW "
        "SETFCAP SETGID SETPCAP SETUID SYS_CHROOT"
    ).split()
)
"""What a container has unless it asks for something else: the set that containerd gives, without MKNOD.

With that a container makes the node of a disk, which only its cgroup keeps it from opening. A user of the machine who
has the ID of one of its processes opens it: /proc/PID/root leads there. CRI-O does not give it either.
"""
KNOWN = frozenset(
    f"CAP_{name}"
    for name in (
        "AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH "
        "FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN "
        "NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT "
        "SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM"
    ).split()
)
"""capabilities(7)."""


def container_set(security: Security, available: Collection[str]) -> frozenset[str]:
    """Return the bounding, effective and permitted set of a container's first process.

    ``ALL`` adds or drops everything; a single addition wins over ``drop: ALL`` and a single drop over ``add: ALL``.
    What the daemon itself does not hold cannot be given: a privileged container gets what there is.

    :param available: the daemon's bounding set.
    :raises InvalidArgument: if a name is no capability, or one that was added by name is not available.
    """
    if security.privileged:
        return frozenset(available)
    add, drop = parse(security.add_capabilities), parse(security.drop_capabilities)
    # ALL means what there is; a capability that is named and missing is an error, for the program would fail later.
    missing = sorted(add - {"ALL"} - set(available))
    if missing:
        raise InvalidArgument(
            f"capabilities.add: {', '.join(missing)}: the runtime itself does not hold it",
            hint="leave it out, or give it to the runtime (systemd: CapabilityBoundingSet=)",
        )
    result = set() if "ALL" in drop else set(DEFAULT)
    if "ALL" in add:
        result = set(available)
    result = (result | (add - {"ALL"})) - (drop - {"ALL"})
    return frozenset(result & set(available))


def ambient_set(security: Security, bounding: Collection[str]) -> frozenset[str]:
    """Return the ambient and inheritable set: what a program started by an unprivileged user keeps.

    :param bounding: the container's bounding set; ``ALL`` means all of it.
    :raises InvalidArgument: if a name is no capability, or one that the container does not have.
    """
    asked = parse(security.ambient_capabilities)
    if "ALL" in asked:
        return frozenset(bounding)
    if missing := sorted(asked - set(bounding)):
        raise InvalidArgument(
            f"capabilities.add_ambient_capabilities: the container does not have {', '.join(missing)}",
            hint="add it to capabilities.add as well",
        )
    return asked


def parse(names: Iterable[str]) -> frozenset[str]:
    """Return names in the OCI form; ``ALL`` stays as it is.

    :raises InvalidArgument: if one is no capability.
    """
    result = set()
    for name in names:
        full = name.upper()
        if full in {"ALL", "CAP_ALL"}:
            result.add("ALL")
            continue
        full = full if full.startswith("CAP_") else f"CAP_{full}"
        if full not in KNOWN:
            raise InvalidArgument(f"unknown capability {name[:64]!r}", hint="capabilities(7) lists them")
        result.add(full)
    return frozenset(result)
