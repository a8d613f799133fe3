"""Which sysctls a pod sandbox gets. Pure.

Only what belongs to one of the pod's own namespaces can be set; which sysctls these are is in
``kernel/namespace/nshelper.py``, which also writes them. Beside the request's there are the configuration's, for every
pod that has the namespace. Those of a network interface are written when there is one, by ``sandbox_executor.py``.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping

import msgspec

from podkeep.base.errors import InvalidArgument, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.namespace import nshelper
from podkeep.kernel.namespace.idmap import IdMap

MAX_SYSCTLS = 256
MAX_LENGTH = 1024
"""Characters of a name, and of a value."""
PORT_START = "net.ipv4.ip_unprivileged_port_start"
PING_GROUPS = "net.ipv4.ping_group_range"
LAST_GROUP = 2**31 - 1
"""The highest group that ``ping_group_range`` takes."""
_INTERFACES = re.compile(r"/proc/sys/net/ipv[46]/(conf|neigh)/(?!(all|default|lo)/)[^/]+/")
"""Files of an interface that a new network namespace has not."""
_WRONG = frozenset(
    {
        *(errno.EINVAL, errno.ERANGE, errno.EOVERFLOW),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
        *(errno.EACCES, errno.EPERM, errno.EROFS),
    }
)
"""What the kernel says to a value that is none, to a name that it has not, and to a sysctl that is not the pod's."""


class DefaultSysctls(FrozenStruct, kw_only=True):
    """What every pod gets; a request wins over it.

    ``unprivileged_ports``: any user of a pod may listen on ports below 1024; ``unprivileged_icmp``: any may ping.
    """

    unprivileged_ports: bool = True
    unprivileged_icmp: bool = True
    others: Mapping[str, str] = msgspec.field(default_factory=dict)


def check(sysctls: Mapping[str, str], kinds: Collection[str]) -> None:
    """Check a request's sysctls before anything is made for it.

    :param kinds: names of the namespaces that the sandbox has of its own, as in ``NamespaceKind``.
    :raises InvalidArgument: naming the sysctl that is malformed, given twice, or would change the machine.
    """
    if len(sysctls) > MAX_SYSCTLS:
        raise InvalidArgument(f"config.linux.sysctls: {len(sysctls)} entries; at most {MAX_SYSCTLS} are possible")
    seen: dict[str, str] = {}
    for name, value in sysctls.items():
        if len(name) > MAX_LENGTH or len(value) > MAX_LENGTH:
            raise InvalidArgument(f"config.linux.sysctls: {name[:64]!r} has more than {MAX_LENGTH} characters")
        if not value or not all(character.isprintable() or character == "\t" for character in value):
            raise InvalidArgument(
                f"config.linux.sysctls: {name!r}: the value {value[:64]!r} is empty or holds a control character"
            )
        path = _path(name, value, kinds)
        # net.ipv4.x and net/ipv4/x are one file: which value would win is not defined.
        if path in seen:
            raise InvalidArgument(f"config.linux.sysctls: {seen[path]!r} and {name!r} are the same")
        seen[path] = name


def effective(
    asked: Mapping[str, str], defaults: DefaultSysctls, kinds: Collection[str], userns: IdMap | None
) -> dict[str, str]:
    """Return what is written for a sandbox: the defaults of the namespaces that it has, and what was asked for."""
    wanted = dict(defaults.others)
    if defaults.unprivileged_ports:
        wanted.setdefault(PORT_START, "0")
    if defaults.unprivileged_icmp:
        # Groups that are not mapped in the writer's user namespace are refused, or leave nobody who may ping (kernel,
        # ipv4_ping_group_range).
        wanted.setdefault(PING_GROUPS, f"0 {_last_group(userns)}")
    paths = {_path(name, value, kinds) for name, value in asked.items()}
    result = {}
    for name, value in wanted.items():
        try:
            path = _path(name, value, kinds)
        except InvalidArgument:
            continue  # The sandbox shares that namespace with the machine.
        # Compared as paths, for a request may write a name with slashes.
        if path not in paths:
            result[name] = value
    return {**result, **asked}


def split(wanted: Mapping[str, str], kinds: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what can be written into new namespaces, and what only when the pod has its network interface."""
    first: dict[str, str] = {}
    later: dict[str, str] = {}
    for name, value in wanted.items():
        (later if _INTERFACES.match(_path(name, value, kinds)) else first)[name] = value
    return first, later


def refuse_asked(error: KernelCallError, asked: Mapping[str, str], kinds: Collection[str]) -> None:
    """Do nothing, unless a request asked for the sysctl whose writing failed with ``error``.

    :raises InvalidArgument: naming it.
    """
    for name, value in asked.items():
        if error.errno in _WRONG and error.call == nshelper.sysctl_call(_path(name, value, kinds), value):
            raise InvalidArgument(f"config.linux.sysctls: {name!r}: {error.message}", hint=error.hint) from error


def check_defaults(sysctls: Mapping[str, str]) -> None:
    """Check the configuration's sysctls.

    :raises InvalidArgument: naming the one that no pod could have.
    """
    try:
        check(sysctls, tuple(nshelper.KIND_FLAGS))
    except InvalidArgument as error:
        raise InvalidArgument(
            error.message.replace("config.linux.sysctls", "runtime.default_sysctls"), hint=error.hint
        ) from error


def _path(name: str, value: str, kinds: Collection[str]) -> str:
    try:
        return nshelper.sysctl_path(name, value, list(kinds))[0]
    except InvalidArgument as error:
        raise InvalidArgument(f"config.linux.sysctls: {error.message}", hint=error.hint) from error


def _last_group(userns: IdMap | None) -> int:
    """Return the last group, from 0 on without a gap, that exists in a user namespace."""
    if userns is None:
        return LAST_GROUP
    last = -1
    for item in sorted(userns.gids, key=lambda one: one.container_id):
        if item.container_id != last + 1:
            break
        last = item.container_id + item.length - 1
    return min(max(last, 0), LAST_GROUP)
