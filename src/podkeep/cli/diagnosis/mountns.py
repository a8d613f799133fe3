"""Whether container mounts are hidden, seen from everywhere that they should be, and by daemons that agree.

Asks before anything else moves the process: the host's mount namespace is the one that ``podkeep doctor`` was started
in, or that of PID 1 if it was started inside. What is wrong is judged by ``podkeep.mountns``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from podkeep.base.errors import PodkeepError
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding, Level
from podkeep.cli.mountns import namespace, status
from podkeep.kernel.mount import mountinfo
from podkeep.mountns import contents, installation, lifecycle, netns_directory, sync
from podkeep.mountns import daemons as processes
from podkeep.mountns.daemons import AGENT, KUBELET, RUNTIME, Daemon
from podkeep.mountns.pin import locate

if TYPE_CHECKING:
    from podkeep.cli.core.invocation import Invocation
    from podkeep.cli.mountns.status import Report
    from podkeep.mountns.installation import Finding as UnitFinding
    from podkeep.mountns.lifecycle import Status
    from podkeep.mountns.membership import Publication

_NAME = "container mounts"
_NETNS = "/run/netns"
_AGAIN = (
    "remove the pods and end the daemons, then `podkeep mountns stop` and `podkeep mountns start`; start the daemons"
)
"""Makes the namespace anew, with all that belongs to it."""


def examine(invocation: Invocation) -> list[Finding]:
    """Look at the namespace, the host, the units and the daemons; root only."""
    try:
        told = namespace.runtime(invocation)
        place = namespace.of_runtime(invocation, told)
        report = status.examine(invocation.config, place, told)
        _, root = locate(report.state.pin)
        with root:
            host = {entry.mount_point for entry in root.run(mountinfo.read)}
    except PodkeepError as error:
        return [finding.failed(_NAME, error, why="the runtime does not start", fix="podkeep mountns status")]
    hides = told.hidden if told is not None else report.enabled
    if not hides:
        return [shown(told, report.state), *daemons(report, processes.find(), hides=False), *_units()]
    return [
        hidden(report, may_make=place.may_make),
        *propagation(report),
        *netns(host, report.state),
        *_units(),
        *daemons(report, processes.find(), hides=True),
    ]


def shown(told: Publication | None, state: Status) -> Finding:
    """Judge a machine where nothing is hidden: that is one's choice, but what was hidden before should be gone."""
    said = "not hidden: mountns.enabled is false" if told is None else f"not hidden by the runtime (pid {told.pid})"
    if state.inode is None:
        return finding.ok(_NAME, said)
    said += f", and {sync.label(state.inode)} is pinned at {state.pin}"
    why = "of no use to podkeep; a kubelet in it would not see what the runtime mounts"
    return finding.warning(_NAME, said, why=why, fix="podkeep mountns uninstall; podkeep mountns stop")


def hidden(report: Report, *, may_make: bool) -> Finding:
    """Judge whether there is a namespace to hide them in."""
    state = report.state
    if state.inode is not None:
        said = f"hidden in {sync.label(state.inode)}, pinned at {state.pin} ({report.source})"
        return finding.ok(_NAME, f"{said}: {state.container_mounts} mounts that the host does not have")
    said = f"no mount namespace is pinned at {state.pin} ({report.source})"
    if report.mismatches or not may_make:
        why = "a daemon that is started now does not get to where the others are"
        fix = report.mismatches[0].hint if report.mismatches else namespace.started_by(report.source)
        return finding.missing(_NAME, said, why=why, fix=fix)
    return finding.ok(_NAME, f"hidden; {said} yet: the runtime makes one when it starts")


def propagation(report: Report) -> list[Finding]:
    """Judge the two guarantees: what the host mounts is seen inside, and what is mounted inside is seen by the others
    inside (OpenShift enhancement "hide container mount points").
    """
    name, state = "mounts of the host", report.state
    found = []
    if not contents.is_shared(report.host):
        why = "what it mounts from now on (a disk, an NFS share) is not seen by the runtime, nor in any volume"
        fix = "mount --make-rshared /"
        fix += f"; {_AGAIN}" if state.inode is not None else ""
        found.append(finding.warning(name, f"the host's / is {report.host}", why=why, fix=fix))
    elif state.inode is not None and not state.follows_host:
        why = "the host's / was not shared when the namespace was made: what the host mounts is not seen inside"
        found.append(finding.warning(name, f"/ is {state.propagation} inside", why=why, fix=_AGAIN))
    else:
        found.append(finding.ok(name, f"seen inside: / is {report.host} on the host"))
    if state.inode is not None and not state.is_shared:
        why = "containers do not see what is mounted there (HostToContainer, Bidirectional); no daemon starts"
        fix = f"nsenter --mount={state.pin} mount --make-rshared /"
        found.append(finding.missing("mounts inside", f"/ is {state.propagation}", why=why, fix=fix))
    return found


def netns(host: Iterable[str], state: Status) -> list[Finding]:
    """Judge whether `ip netns add` on the host would cover what is pinned below /run/netns inside."""
    if state.inode is None or str(netns_directory.resolved()) in set(host):
        return []
    why = "the next `ip netns add` on the host covers what is pinned there inside, as CRI-O and containerd do"
    return [finding.warning(_NETNS, "no mount point on the host", why=why, fix=_AGAIN)]


def _units() -> list[Finding]:
    try:
        return drop_ins(installation.findings())
    except PodkeepError as error:
        why, fix = "they cannot be compared with their units", "podkeep mountns install"
        return [finding.failed("drop-ins", error, why=why, fix=fix, level=Level.WARNING)]


def drop_ins(found: Sequence[UnitFinding]) -> list[Finding]:
    """Judge the drop-ins that wrap units' commands."""
    why = "the unit does not do what its file says"
    return [finding.warning(item.unit, item.message, why=why, fix=item.hint) for item in found]


def daemons(report: Report, found: Sequence[Daemon], *, hides: bool) -> list[Finding]:
    """Judge every daemon of the machine by the mount namespace that it is in."""
    results = []
    apart = {item.who: item for item in report.mismatches}
    # The configured runtime's, also if it is pinned no more.
    good = {report.state.inode, *(item.mine for item in report.mismatches)}
    for item in report.mismatches:
        if item.who == str(report.state.pin):
            why = "who is started or restarted now ends up apart from who runs"
            results.append(finding.warning("mount namespace", item.message, why=why, fix=item.hint))
    for daemon in found:
        where = _where(daemon, report.state)
        mismatch = apart.get(str(daemon))
        if mismatch is not None:
            why = "pods get volumes that are empty, or mounts are not seen"
            results.append(finding.warning(str(daemon), mismatch.message, why=why, fix=mismatch.hint))
        elif hides and daemon.name == RUNTIME and daemon.inode not in good:
            detail = f"{where}, another one than {report.state.pin}'s"
            why = "its pods and those of the configured runtime do not see each other's mounts"
            fix = "give both the same mountns.pin, if they are to share volumes"
            results.append(finding.warning(str(daemon), detail, why=why, fix=fix))
        elif hides and daemon.name not in {KUBELET, AGENT} and daemon.inode not in good:
            join = " ".join(["podkeep mountns install", *filter(None, [daemon.unit])])
            note = f"its containers and podkeep's do not see each other's mounts; `{join}` would join them"
            results.append(finding.ok(str(daemon), f"{where}: {note}"))
        else:
            results.append(finding.ok(str(daemon), where))
    return results


def _where(daemon: Daemon, state: lifecycle.Status) -> str:
    return f"in {sync.label(daemon.inode)}{', the pinned one' if daemon.inode == state.inode else ''}"
