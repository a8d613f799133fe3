"""Whether memory ran out for a container that ended, from what the kernel counted in its cgroup.

systemd removes a scope, and its count with it, as soon as its last process has ended. The cgroup of the sandbox keeps
counting it (version 2): what is counted there and not by containers that live is of those that ended. What was found so
far is in the sandbox's record, so that it belongs to no later end.
"""

from __future__ import annotations

from collections.abc import Iterable

from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.kernel.cgroup import cgroup_stats
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.cgroup_driver import pod_cgroups
from podkeep.runtime.model.layout import container_cgroup, sandbox_cgroup
from podkeep.runtime.model.records import Sandbox


class OomKills(FrozenStruct, kw_only=True):
    """How many processes were killed: of the container, and of all containers of its sandbox that have ended."""

    own: int
    ended: int


def at_end(cgroups: Cgroups, sandbox: Sandbox, container: ContainerID, living: Iterable[ContainerID]) -> OomKills:
    """Return what belongs to a container that ended.

    If its cgroup is gone, these are the kills of the sandbox's cgroup less those of living containers and those noted
    before. If two containers end at once and both cgroups are gone, the first call returns the kills of both.

    :param sandbox: its sandbox; the record says what was found for containers that ended before.
    :param living: the other containers of the sandbox that have not ended.
    :raises KernelCallError: if the kernel refuses to say.
    """
    parent, noted = sandbox.config.cgroup_parent, sandbox.status.oom_kills
    # Before those of the living: what is killed in between makes the rest smaller, and blames none that ended.
    total = cgroup_stats.oom_kills(cgroups, sandbox_cgroup(parent, sandbox.id)) or 0
    own = _of_container(cgroups, parent, sandbox, container)
    if total <= noted:
        return OomKills(own=own or 0, ended=noted)
    elsewhere = sum(_of_container(cgroups, parent, sandbox, other) or 0 for other in living)
    ended = max(total - elsewhere, noted)
    return OomKills(own=ended - noted if own is None else own, ended=ended)


def _of_container(cgroups: Cgroups, parent: str, sandbox: Sandbox, container: ContainerID) -> int | None:
    path = container_cgroup(parent, sandbox.id, container)
    return cgroup_stats.oom_kills(cgroups, pod_cgroups.limited(cgroups, path))
