"""What the kernel says about itself: version, limits, cgroups, forwarding, what confines containers. Looks only."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podkeep.agent import kubelets
from podkeep.agent.user_namespaces import blocks as userns
from podkeep.agent.user_namespaces import getsubids, subordinate_ids
from podkeep.base import spawn
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.cli.diagnosis import finding, known_holes
from podkeep.cli.diagnosis.finding import Finding, tried
from podkeep.kernel.cgroup import cgroup_dynmods, cgroups, systemd
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import lsm, procfs
from podkeep.runtime.network import port_filter
from podkeep.runtime.profiles import apparmor_loader

if TYPE_CHECKING:
    from podkeep.agent.kubelets import Kubelet
    from podkeep.base.config import AgentConfig, Config

IDMAPPED_OVERLAY = (5, 19)
"""Overlay takes idmapped layers."""
IDMAPPED_TMPFS = (6, 3)
"""tmpfs can be idmapped; Secrets, ConfigMaps and tokens live there (KEP-127, dependencies)."""

_USER_IDS = "user IDs of pods"
_TRAFFIC = "forwarding of pod traffic"
_SENDERS = "senders of pod traffic"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEEDED_CONTROLLERS = frozenset({"cpu", "memory", "pids"})


def examine(config: Config) -> list[Finding]:
    return [
        user(os.geteuid()),
        kernel(os.uname().release),
        *known_holes.of_kernel(os.uname().release, os.uname().version),
        user_namespaces(_number("/proc/sys/user/max_user_namespaces"), config.agent.max_pods),
        _user_ids(config.agent),
        _cgroups(),
        *_cgroup_moves(config),
        forwarding(_number("/proc/sys/net/ipv4/ip_forward")),
        resources(procfs.capability_bounding_set()),
        *(directory(name, Path(path)) for name, path in _directories(config).items()),
        *beside_kubelets(config, kubelets.find(config)),
        *examine_confinement(config),
    ]


def _directories(config: Config) -> dict[str, str]:
    return {
        "runtime.root": config.runtime.root,
        "runtime.run": config.runtime.run,
        "agent.root": config.agent.root,
    }


def directory(name: str, path: Path) -> Finding:
    """Judge whether a pod's root, a user without privileges outside, can reach into ``path``."""
    if (found := _unwritable(name, path)) is not None:
        return found
    closed = [parent for parent in (*reversed(path.parents), path) if parent.is_dir() and not _is_open(parent)]
    if not closed:
        return finding.ok(name, str(path))
    why = "the OCI runtime works there as the pod's root, whom the machine takes for a user without privileges"
    fix = f"chmod o+x {' '.join(str(parent) for parent in closed)}"
    return finding.missing(name, f"{path}: closed to other users", why=why, fix=fix)


def unwritable(config: Config) -> list[Finding]:
    """Return the directories without which no daemon serves, and in which nothing can be made; none if not root."""
    others = {"agent.pod_logs": config.agent.pod_logs, "runtime.socket": os.path.dirname(config.runtime.socket)}
    found = (_unwritable(name, Path(path)) for name, path in (_directories(config) | others).items())
    return [item for item in found if item is not None]


def _unwritable(name: str, path: Path) -> Finding | None:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if os.geteuid() != 0 or os.access(existing, os.W_OK):
        return None
    fix = f"set {name} to a directory that can be written; findmnt --target {existing}"
    return finding.missing(name, f"{path}: cannot be written", why="what pods need is made there", fix=fix)


def beside_kubelets(config: Config, found: Sequence[Kubelet]) -> list[Finding]:
    """Judge whether the agent shares a directory or a cgroup with a kubelet that runs."""
    why = "`podkeep run` refuses to make pods that a kubelet would take apart"
    return [
        finding.missing("kubelet", refusal.message, why=why, fix=refusal.hint)
        for refusal in kubelets.conflicts(config, found)
    ]


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXOTH)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def user(uid: int) -> Finding:
    if uid == 0:
        return finding.ok("user", "root")
    return finding.missing("user", f"UID {uid}", why="only root can run pods here", fix="sudo podkeep doctor")


def kernel(release: str) -> Finding:
    """Judge the kernel by its version; whether it can do what is needed is tried elsewhere."""
    match = re.match(r"(\d+)\.(\d+)", release)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    fix = "on Debian 12: apt-get install linux-image-amd64, and reboot"
    if number < IDMAPPED_OVERLAY:
        return finding.missing("kernel", release, why="images cannot be idmapped before Linux 5.19", fix=fix)
    if number < IDMAPPED_TMPFS:
        why = "tmpfs, so Secrets and ConfigMaps, cannot be idmapped before Linux 6.3"
        return finding.warning("kernel", release, why=why, fix="on Debian 12: install a kernel from bookworm-backports")
    return finding.ok("kernel", release)


def user_namespaces(limit: int | None, pods: int) -> Finding:
    """Judge the limit on user namespaces against the number of pods."""
    name = "user.max_user_namespaces"
    if limit is None:
        fix = "boot a kernel with CONFIG_USER_NS"
        return finding.missing(name, "not there", why="this kernel has no user namespaces", fix=fix)
    if limit >= pods:
        return finding.ok(name, str(limit))
    report = finding.missing if limit == 0 else finding.warning
    why = f"each pod with hostUsers: false needs one, and agent.max_pods is {pods}"
    return report(name, str(limit), why=why, fix=f"sysctl -w {name}={max(pods, 15000)}")


def _user_ids(agent: AgentConfig) -> Finding:
    try:
        return user_ids(getsubids.id_range(agent).without(subordinate_ids.read()))
    except (PodkeepError, OSError) as error:
        return finding.failed(_USER_IDS, error, why="no pod with hostUsers: false gets IDs")


def user_ids(id_range: userns.IdRange) -> Finding:
    """Judge how many blocks of IDs users leave to pods."""
    blocks = sum(1 for _ in id_range.starts())
    shown = f"{blocks} blocks of {id_range.length} from {id_range.first} on"
    shortage = id_range.shortage()
    if not shortage:
        return finding.ok(_USER_IDS, shown)
    report = finding.warning if blocks else finding.missing
    why = f"each pod with hostUsers: false needs one for itself, and agent.max_pods is {id_range.wanted}"
    fix = f"give users fewer IDs in {' and '.join(subordinate_ids.FILES)}"
    return report(_USER_IDS, f"{shown}; {shortage}", why=why, fix=fix)


def _cgroups() -> Finding:
    try:
        layout = cgroups.detect()
    except FailedPrecondition as error:
        return finding.failed("cgroups", error, why="containers are kept in cgroups")
    if layout.version == 2:
        controllers = (layout.hierarchies[0] / "cgroup.controllers").read_text().split()
        return cgroup_layout(version=2, hybrid=False, controllers=controllers)
    hybrid = any(
        entry.fs_type == "cgroup2" and Path(entry.mount_point).parent == cgroups.DEFAULT_ROOT
        for entry in mountinfo.read()
    )
    # A hierarchy of version 1 is a directory with the names of its controllers: cpu,cpuacct.
    controllers = [name for path in cgroups.DEFAULT_ROOT.iterdir() for name in path.name.split(",")]
    return cgroup_layout(version=1, hybrid=hybrid, controllers=controllers)


def cgroup_layout(*, version: int, hybrid: bool, controllers: Iterable[str]) -> Finding:
    absent = sorted(_NEEDED_CONTROLLERS - set(controllers))
    shown = "version 1, with a version 2 tree beside it (hybrid)" if hybrid else f"version {version}"
    if absent:
        why = f"no controller {', '.join(absent)}: limits on it cannot be set"
        fix = "boot with cgroup_enable=memory" if "memory" in absent else "boot with systemd.unified_cgroup_hierarchy=1"
        return finding.warning("cgroups", shown, why=why, fix=fix)
    if hybrid:
        shown += "; the runtime hides that tree from its containers"
    return finding.ok("cgroups", shown)


def _cgroup_moves(config: Config) -> list[Finding]:
    try:
        seconds = cgroup_dynmods.shortest_move(cgroups.detect())
    except (FailedPrecondition, OSError):
        return []  # told already, or nobody but root can look
    stays = cgroup_dynmods.stays(os.uname().release)
    expedited = bool(_number("/sys/kernel/rcu_expedited"))
    return [cgroup_moves(seconds, asked=config.runtime.favordynmods, stays=stays, expedited=expedited)]


def cgroup_moves(seconds: float, *, asked: bool, stays: bool, expedited: bool) -> Finding:
    """Judge how long a process takes to enter a cgroup.

    :param asked: what ``runtime.favordynmods`` says.
    :param stays: whether the kernel keeps favordynmods until the next boot.
    :param expedited: whether somebody has the kernel hurry all of its grace periods, which looks the same.
    """
    shown = f"a process enters one in {seconds * 1000:.1f} ms"
    if seconds < cgroup_dynmods.WAITS_S and expedited:
        costs = "which interrupts every processor for each of them"
        return finding.ok("cgroup moves", f"{shown}: /sys/kernel/rcu_expedited ends the wait for RCU, {costs}")
    if seconds < cgroup_dynmods.WAITS_S:
        lasts = "until the next boot" if stays else "while a hierarchy is mounted with it"
        return finding.ok("cgroup moves", f"{shown}: favordynmods is in force, {lasts}")
    if asked:
        return finding.ok("cgroup moves", f"{shown}; the runtime sets favordynmods when it starts")
    lasts = ", for the whole machine" + (" and until its next boot" if stays else "")
    return finding.ok("cgroup moves", f"{shown}, as each container must; runtime.favordynmods = true ends that{lasts}")


def forwarding(value: int | None) -> Finding:
    """Judge whether pods get past this machine."""
    if value == 1:
        return finding.ok("net.ipv4.ip_forward", "1")
    why = "pods reach this machine and each other, but nothing beyond"
    fix = "sysctl -w net.ipv4.ip_forward=1"
    return finding.warning("net.ipv4.ip_forward", "0" if value == 0 else "not there", why=why, fix=fix)


def resources(capabilities: frozenset[str]) -> Finding:
    """Judge what this process may grant to containers."""
    if "CAP_SYS_RESOURCE" in capabilities:
        return finding.ok("CAP_SYS_RESOURCE", "granted")
    why = "oom_score_adj of containers is not lowered, and privileged containers run without this capability"
    fix = "start podkeep outside of the container or service that drops it"
    return finding.warning("CAP_SYS_RESOURCE", "not granted", why=why, fix=fix)


def examine_confinement(config: Config) -> list[Finding]:
    """Look at what can confine containers beside namespaces: security modules, and who makes cgroups."""
    runtime = config.runtime

    def cgroup_driver() -> str:
        if runtime.cgroup_driver == "systemd":
            systemd.require()
        return runtime.cgroup_driver

    return [
        finding.ok("security modules", ", ".join(lsm.active()) or "none that confines containers"),
        apparmor(
            lsm.apparmor_enabled(),
            switched_off=runtime.apparmor == "off",
            parser=shutil.which(apparmor_loader.PARSER, path=_PATH),
        ),
        selinux(lsm.selinux_enabled(), switched_off=runtime.selinux == "off"),
        tried("cgroup driver", cgroup_driver, why="the runtime makes no cgroups with this driver"),
    ]


def apparmor(enabled: bool, *, switched_off: bool, parser: str | None) -> Finding:
    if switched_off:
        return finding.ok("AppArmor", 'runtime.apparmor is "off"')
    if not enabled:
        return finding.ok("AppArmor", "not in this kernel: pods that name a profile are refused")
    if parser is None:
        why = "the default profile cannot be loaded: pods that ask for RuntimeDefault are refused, others run without"
        return finding.warning(
            "AppArmor", f"enabled, without {apparmor_loader.PARSER}", why=why, fix="apt-get install apparmor"
        )
    return finding.ok("AppArmor", f"enabled, {parser}")


def selinux(enabled: bool, *, switched_off: bool) -> Finding:
    if switched_off:
        return finding.ok("SELinux", 'runtime.selinux is "off"')
    if not enabled:
        return finding.ok("SELinux", "off: labels that pods ask for are left alone")
    return finding.ok("SELinux", "on")


def examine_firewall(config: Config) -> list[Finding]:
    """Look at the chains that see what is forwarded; nothing where nft is missing or pods are connected by CNI."""
    if config.network.mode == "cni":
        return []
    try:
        listed = spawn.run(["nft", "--json", "--terse", "list", "ruleset"])
        objects = json.loads(listed.check().stdout)["nftables"]
    except (PodkeepError, ValueError, KeyError):
        # That nft is missing or broken is another finding.
        return []
    # The kernel looks at the rules and does not take them.
    rules = port_filter.definition("podkeep-check", [])
    checked = spawn.run(["nft", "--check", "-f", "-"], stdin=rules.encode())
    return [firewall(objects, config.network.bridge), senders(can_filter=checked.returncode == 0)]


def senders(*, can_filter: bool) -> Finding:
    """Judge whether the kernel takes the rules of ``runtime/network/port_filter.py``."""
    if can_filter:
        return finding.ok(_SENDERS, "each pod sends from its own addresses only")
    return finding.warning(
        _SENDERS,
        "the kernel has no nftables of family bridge",
        why="a pod with CAP_NET_RAW, a default of containers, can receive what is sent to others",
        fix="use a kernel with CONFIG_NF_TABLES_BRIDGE, or `modprobe nf_tables` where it is a module",
    )


def firewall(objects: list[dict[str, Any]], bridge: str) -> Finding:
    """Judge nft's list of the rules: a chain that drops by policy and has no rule that names the bridge stops pods."""
    rules = [item["rule"] for item in objects if "rule" in item]
    for chain in (item["chain"] for item in objects if "chain" in item):
        if chain.get("hook") != "forward" or chain.get("policy") != "drop":
            continue
        beside = [rule for rule in rules if (rule["family"], rule["table"]) == (chain["family"], chain["table"])]
        if not any(f'"{bridge}"' in json.dumps(rule) for rule in beside):
            where = f"{chain['family']} {chain['table']} {chain['name']}"
            return finding.warning(
                _TRAFFIC,
                f"dropped by policy of nftables chain {where}",
                why="pods reach nothing outside, and are reached by nobody",
                fix="; ".join(f"nft insert rule {where} {side} {bridge} accept" for side in ("iifname", "oifname")),
            )
    return finding.ok(_TRAFFIC, "no firewall in the way")
