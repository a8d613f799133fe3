"""What can confine containers on this machine beside namespaces: security modules, and who makes cgroups."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from podkeep.base.errors import FailedPrecondition
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding
from podkeep.kernel import lsm, systemd
from podkeep.runtime.oci.apparmor_loader import PARSER

if TYPE_CHECKING:
    from podkeep.base.config import Config

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def examine(config: Config) -> list[Finding]:
    """Look at everything that can be read."""
    runtime = config.runtime
    return [
        finding.ok("security modules", ", ".join(lsm.active()) or "none that confines containers"),
        apparmor(lsm.apparmor_enabled(), switched_off=runtime.apparmor == "off", parser=_parser()),
        selinux(lsm.selinux_enabled(), switched_off=runtime.selinux == "off"),
        _cgroup_driver(runtime.cgroup_driver),
    ]


def _parser() -> str | None:
    return shutil.which(PARSER, path=_PATH)


def apparmor(enabled: bool, *, switched_off: bool, parser: str | None) -> Finding:
    """Judge whether containers run under AppArmor profiles."""
    if switched_off:
        return finding.ok("AppArmor", 'runtime.apparmor is "off"')
    if not enabled:
        return finding.ok("AppArmor", "not in this kernel: pods that name a profile are refused")
    if parser is None:
        why = "the default profile cannot be loaded: pods that ask for RuntimeDefault are refused, others run without"
        return finding.warning("AppArmor", f"enabled, without {PARSER}", why=why, fix="apt-get install apparmor")
    return finding.ok("AppArmor", f"enabled, {parser}")


def selinux(enabled: bool, *, switched_off: bool) -> Finding:
    """Judge whether containers get SELinux labels."""
    if switched_off:
        return finding.ok("SELinux", 'runtime.selinux is "off"')
    if not enabled:
        return finding.ok("SELinux", "off: labels that pods ask for are left alone")
    return finding.ok("SELinux", "on")


def _cgroup_driver(driver: str) -> Finding:
    if driver == "systemd":
        try:
            systemd.require()
        except FailedPrecondition as error:
            return finding.missing("cgroup driver", driver, why=error.message, fix=error.hint)
    return finding.ok("cgroup driver", driver)
