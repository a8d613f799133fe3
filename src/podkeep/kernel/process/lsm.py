"""Which security modules the running kernel enforces, and what they know.

Owns: reading AppArmor's and SELinux's state. Does not own: what a container gets (``runtime/oci/apparmor.py``,
``runtime/oci/selinux.py``), or loading a profile (``runtime/profiles/apparmor_loader.py``).
"""

from __future__ import annotations

from pathlib import Path

from podkeep.kernel.mount import mountinfo
from podkeep.kernel.tables import lines, read_text

APPARMOR_SWITCH = Path("/sys/module/apparmor/parameters/enabled")
APPARMOR_PROFILES = Path("/sys/kernel/security/apparmor/profiles")
SELINUX_POLICIES = Path("/etc/selinux")
LSM_LIST = Path("/sys/kernel/security/lsm")
DEFAULT_SELINUX_POLICY = "targeted"


def active() -> tuple[str, ...]:
    """Return the names of the security modules in the kernel's order; empty where it does not list them.

    Without securityfs only what AppArmor and SELinux say themselves is known.
    """
    try:
        return tuple(name for name in read_text(LSM_LIST).strip().split(",") if name)
    except OSError:
        known = {"selinux": selinux_enabled(), "apparmor": apparmor_enabled()}
        return tuple(name for name, enabled in known.items() if enabled)


def apparmor_enabled(switch: Path = APPARMOR_SWITCH) -> bool:
    """Return whether the kernel enforces AppArmor profiles."""
    try:
        return read_text(switch).startswith("Y")
    except OSError:
        return False


def apparmor_profiles(table: Path = APPARMOR_PROFILES) -> frozenset[str]:
    """Return the names of the loaded AppArmor profiles; none if the kernel's table cannot be read.

    A line of the table is ``name (mode)``; the name may hold spaces and parentheses.
    """
    try:
        names = lines(read_text(table))
    except OSError:
        return frozenset()
    return frozenset(line.rpartition(" (")[0] for line in names if " (" in line)


def selinux_enabled() -> bool:
    """Return whether SELinux is on: its file system is mounted only then (selinux(8))."""
    return any(entry.fs_type == "selinuxfs" for entry in mountinfo.read())


def selinux_contexts(policies: Path = SELINUX_POLICIES) -> dict[str, str]:
    """Return the contexts that the machine's policy has for containers: ``process``, ``file`` and others.

    They are in ``contexts/lxc_contexts`` of the policy that ``config`` names; empty where the policy has none.
    """
    policy = _settings(policies / "config").get("SELINUXTYPE", DEFAULT_SELINUX_POLICY)
    return {key: value.strip('"') for key, value in _settings(policies / policy / "contexts" / "lxc_contexts").items()}


def _settings(path: Path) -> dict[str, str]:
    try:
        found = lines(read_text(path))
    except OSError:
        return {}
    pairs = (line.partition("=") for line in found if not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}
