"""What confines every container beside its own request: the machine's security modules and the configuration.

Owns: finding out, once, when the daemon starts, which security modules are on and which of them the configuration uses;
reading what the daemon itself may hand out. Does not own: what a single container gets, which is decided by the pure
modules of ``oci/``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from podkeep.base.config import RuntimeConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, refused
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.files import openat
from podkeep.kernel.process import lsm, procfs
from podkeep.runtime.model.records import Sandbox, Security, SELinuxOptions
from podkeep.runtime.oci import apparmor, rlimits, selinux
from podkeep.runtime.oci.apparmor import AppArmorSupport
from podkeep.runtime.oci.resources import ResourceFacts
from podkeep.runtime.oci.rlimits import Rlimit
from podkeep.runtime.oci.selinux import Labels, SELinux
from podkeep.runtime.oci.spec import HostFacts
from podkeep.runtime.oci.sysctls import DefaultSysctls, check_defaults
from podkeep.runtime.profiles import apparmor_loader

log = logging.getLogger(__name__)

HUGE_PAGES = Path("/sys/kernel/mm/hugepages")
_PROFILE_LIMIT = 4 << 20
"""Bytes of a seccomp profile."""


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """What every container and sandbox gets. The default confines with nothing but what each request asks for."""

    selinux: SELinux = field(default_factory=SELinux)
    apparmor: AppArmorSupport = field(default_factory=AppArmorSupport)
    sysctls: DefaultSysctls = field(default_factory=DefaultSysctls)
    rlimits: tuple[Rlimit, ...] = ()
    pids_limit: int = 0
    seccomp_profile: Path | None = None
    """The file of the profile that RuntimeDefault means."""

    @classmethod
    def from_config(cls, config: RuntimeConfig) -> Confinement:
        """Look at the machine, and load the default AppArmor profile if it is to be used.

        :raises InvalidArgument: if a value of the configuration is not understood.
        """
        check_defaults(config.default_sysctls)
        modules = SELinux()
        if config.selinux == "auto" and lsm.selinux_enabled():
            modules = SELinux.from_policy(lsm.selinux_contexts())
        return cls(
            selinux=modules,
            apparmor=_prepare_apparmor(config),
            sysctls=DefaultSysctls(
                unprivileged_ports=config.unprivileged_ports,
                unprivileged_icmp=config.unprivileged_icmp,
                others=config.default_sysctls,
            ),
            rlimits=rlimits.parse(config.default_rlimits),
            pids_limit=config.pids_limit,
            seccomp_profile=Path(config.seccomp_profile),
        )

    @cached_property
    def default_seccomp(self) -> Mapping[str, Any] | None:
        """The parsed profile that RuntimeDefault means.

        :raises PodkeepError: as :func:`read_profile`.
        """
        return None if self.seccomp_profile is None else read_profile(self.seccomp_profile)

    def apparmor_profile(self, security: Security) -> str:
        """Return the profile of a container, empty for none.

        :raises FailedPrecondition: if it asks for one that cannot be enforced.
        """
        return apparmor.profile(
            security.apparmor, self.apparmor, privileged=security.privileged, loaded=lsm.apparmor_profiles
        )

    def labels(self, sandbox: Sandbox, security: Security | None = None) -> Labels:
        """Return the SELinux labels of one of the pod's containers, or of what all of them share."""
        return selinux.container_labels(
            self.selinux,
            container=security.selinux if security else SELinuxOptions(),
            sandbox=sandbox.config.selinux,
            pod_level=sandbox.status.selinux_level,
            privileged=security is not None and security.privileged,
        )

    def new_level(self, taken: Iterable[str]) -> str:
        """Return the SELinux level for a new pod; empty where SELinux is off.

        :param taken: the levels of the other pods.
        :raises ResourceExhausted: if there is none left.
        """
        return selinux.allocate(set(taken)) if self.selinux.enabled else ""

    def describe(self) -> dict[str, str]:
        """Return what is in force, for the verbose status."""
        return {
            "lsm": ",".join(lsm.active()) or "none",
            "apparmor": self.apparmor.why_not or self.apparmor.why_no_default or apparmor.DEFAULT_PROFILE,
            "selinux": f"{self.selinux.process}" if self.selinux.enabled else "off",
        }

    def host_facts(self, cgroups: Cgroups) -> HostFacts:
        """Return what the machine and this process can give to containers."""
        capabilities = procfs.capability_bounding_set()
        return HostFacts(
            capabilities=capabilities,
            machine=os.uname().machine,
            oom_score_floor=oom_score_floor(capabilities),
            has_mqueue=Path("/dev/mqueue").is_dir(),
            resources=resource_facts(cgroups, pids_limit=self.pids_limit),
            # Not even with CAP_SYS_RESOURCE more than its own: a process in a user namespace has that for the
            # namespace only.
            rlimits=tuple(rlimits.to_oci(self.rlimits, ceilings=rlimits.own_ceilings())),
        )


def _prepare_apparmor(config: RuntimeConfig) -> AppArmorSupport:
    """Load the default profile where profiles are used.

    Without the parser a machine still runs containers that ask for nothing, as unconfined as everywhere without it; one
    that asks for the default profile is refused.
    """
    if config.apparmor == "off":
        return AppArmorSupport(why_not='runtime.apparmor is "off"')
    if not lsm.apparmor_enabled():
        return AppArmorSupport()
    try:
        apparmor_loader.load_default()
    except FailedPrecondition as error:
        # Profiles stay loaded when a daemon ends: an earlier one may have loaded it while the parser was there.
        if apparmor.DEFAULT_PROFILE not in lsm.apparmor_profiles():
            log.warning("AppArmor profile %s cannot be loaded: %s", apparmor.DEFAULT_PROFILE, error)
            return AppArmorSupport(why_not="", why_no_default=error.message)
        log.warning("AppArmor profile %s stays as it was loaded: %s", apparmor.DEFAULT_PROFILE, error)
    return AppArmorSupport(why_not="")


def oom_score_floor(capabilities: Collection[str]) -> int:
    """Return the lowest oom_score_adj that this process may give: without CAP_SYS_RESOURCE its own."""
    return -1000 if "CAP_SYS_RESOURCE" in capabilities else int(Path("/proc/self/oom_score_adj").read_text())


def resource_facts(cgroups: Cgroups, *, pids_limit: int = 0, pages: Path = HUGE_PAGES) -> ResourceFacts:
    """Return what the cgroups of this machine can limit."""
    return ResourceFacts(
        version=cgroups.version,
        swap=_counts_swap(cgroups),
        hugetlb=_limits_huge_pages(cgroups),
        page_sizes=_page_sizes(pages),
        pids_limit=pids_limit,
    )


def _counts_swap(cgroups: Cgroups) -> bool:
    if cgroups.version == 1:
        return any((top / "memory.memsw.limit_in_bytes").exists() for top in cgroups.layout.hierarchies)
    # The root of version 2 has no such file; what is below has it if the kernel counts.
    return any(any(top.glob("*/memory.swap.max")) for top in cgroups.layout.hierarchies)


def _limits_huge_pages(cgroups: Cgroups) -> bool:
    if cgroups.version == 1:
        return any(top.name == "hugetlb" for top in cgroups.layout.hierarchies)
    return any("hugetlb" in (top / "cgroup.controllers").read_text().split() for top in cgroups.layout.hierarchies)


def _page_sizes(directory: Path) -> frozenset[str]:
    """Return the sizes of the machine's huge pages as CRI and cgroups write them: 2MB, 1GB, 64KB."""
    result = set()
    for entry in directory.glob("hugepages-*kB"):
        size, unit = int(entry.name.removeprefix("hugepages-").removesuffix("kB")), 0
        while size % 1024 == 0 and unit < 2:
            size, unit = size // 1024, unit + 1
        result.add(f"{size}{('KB', 'MB', 'GB')[unit]}")
    return frozenset(result)


def read_profile(path: Path) -> Mapping[str, Any]:
    """Return a parsed seccomp profile, the node's default one or one that a request names.

    :raises NotFound: if there is no such file.
    :raises InvalidArgument: if it is no profile.
    """
    try:
        profile = json.loads(_read_regular(path, _PROFILE_LIMIT))
    except FileNotFoundError as error:
        raise NotFound(
            f"seccomp profile {path} does not exist", hint="`podkeep doctor` says what is missing"
        ) from error
    # A client names the file: JSON may be nested as deeply as the limit of bytes allows.
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"seccomp profile {path} is not JSON: {error}") from error
    except OSError as error:
        raise refused("seccomp profile", error) from error
    if not isinstance(profile, dict) or "defaultAction" not in profile:
        raise InvalidArgument(f"seccomp profile {path} has no defaultAction")
    return profile


def _read_regular(path: Path, limit: int) -> bytes:
    """Return a file whose path a request names.

    :raises InvalidArgument: if it is no regular file, or longer than ``limit`` bytes.
    :raises OSError: if there is none, or it cannot be read.
    """
    fd = openat.open_named_regular(path)
    if fd is None:
        raise InvalidArgument(f"{path} is not a regular file")
    with openat.closing(fd):
        # One byte more than allowed tells a file that is too long from one that just fits, whatever fstat(2) says.
        data = openat.read_bytes(fd, limit + 1)
    if len(data) > limit:
        raise InvalidArgument(f"{path} has more than {limit} bytes")
    return data
