"""The settings of a systemd service that stand in the way of starting its daemon in another mount namespace. Pure.

Owns: which settings give a service a mount namespace of its own, and which forbid it to enter one (systemd.exec(5)).
Called by ``execstart``, which refuses them. Does not own: reading a unit's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Settings = Mapping[tuple[str, str], tuple[str, ...]]
"""By section and key, every value since the last empty one, and that."""

_NO_SANDBOX = frozenset({"", "0", "no", "n", "false", "f", "off", "default", "all", "shared"})
_SANDBOX = frozenset(
    """BindLogSockets BindPaths BindReadOnlyPaths DynamicUser ExecPaths ExtensionDirectories ExtensionImages
    IPCNamespacePath InaccessiblePaths LogNamespace MountAPIVFS MountFlags MountImages NetworkNamespacePath NoExecPaths
    PrivateDevices PrivateIPC PrivateMounts PrivateNetwork PrivatePIDs PrivateTmp PrivateUsers ProcSubset
    ProtectControlGroups ProtectHome ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc
    ProtectSystem ReadOnlyPaths ReadWritePaths RootDirectory RootImage TemporaryFileSystem""".split()
)
"""Settings for which systemd starts a service in a mount (or user) namespace of its own."""
_LISTS = ("Paths", "Images", "Directories", "FileSystem")
"""What the names of those end with of which every value counts, not the last one."""

_TRUE = frozenset({"1", "yes", "y", "true", "t", "on"})
_FALSE = frozenset({"0", "no", "n", "false", "f", "off"})
_CAPABILITIES = ("cap_sys_admin", "cap_sys_chroot")
"""setns(2) of a mount namespace asks for both."""
_CALLS = frozenset({"setns", "@process", "@system-service", "@known"})
"""The system call, and the groups of systemd's that it is in."""


def left_behind(settings: Settings) -> list[str]:
    """Return the settings for which systemd makes a namespace that the daemon would leave, as ``Key=value``."""
    return sorted(
        f"{key}={value}"
        for (section, key), values in settings.items()
        for value in (values if key.endswith(_LISTS) else values[-1:])
        if section == "Service" and key in _SANDBOX and value.lower() not in _NO_SANDBOX
    )


def forbidding(settings: Settings) -> list[str]:
    """Return the settings that do not let the daemon enter a mount namespace, as ``Key=value`` with the last value."""
    return [f"{key}={settings['Service', key][-1]}" for key in _forbidding(settings)]


def _forbidding(settings: Settings) -> Iterator[str]:
    namespaces = settings.get(("Service", "RestrictNamespaces"), ())
    if not _allowed(namespaces, frozenset({"mnt"}), emptied=True):
        yield "RestrictNamespaces"
    bounding = settings.get(("Service", "CapabilityBoundingSet"), ())
    if not all(_allowed(bounding, frozenset({name}), emptied=False) for name in _CAPABILITIES):
        yield "CapabilityBoundingSet"
    if not _allowed(settings.get(("Service", "SystemCallFilter"), ()), _CALLS, emptied=True):
        yield "SystemCallFilter"


def _allowed(values: Sequence[str], names: frozenset[str], *, emptied: bool) -> bool:
    """Say whether a list lets one of ``names`` through; each value adds to it, or with ``~`` takes away.

    The first value tells whether the list is of what is allowed, or of what is not.

    :param emptied: whether the empty value takes the restriction back; else it allows nothing.
    """
    allowed, begun = True, False
    for value in values:
        words = {word.partition(":")[0] for word in value.lower().removeprefix("~").split()}
        inverted = value.startswith("~")
        if not words:
            allowed = inverted or emptied
            begun = not allowed
        elif words & (_TRUE | _FALSE):
            allowed, begun = bool(words & _FALSE), True
        elif names & words:
            allowed, begun = not inverted, True
        elif not begun:
            allowed, begun = inverted, True
    return allowed
