"""From records to what is put into classes."""

from __future__ import annotations

from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.cgroup_driver.pod_cgroups import limited
from podkeep.runtime.class_resources.model import Level, Target
from podkeep.runtime.model.layout import container_cgroup, sandbox_cgroup
from podkeep.runtime.model.records import Container, Sandbox


def container_target(cgroups: Cgroups, sandbox: Sandbox, container: Container) -> Target:
    """Return a container that its OCI runtime made; looks for its cgroup.

    The record of a container that is being created has no process yet.
    """
    return Target(
        level=Level.CONTAINER,
        id=container.id,
        name=f"{_pod(sandbox)}/{container.config.name}",
        cgroup=limited(cgroups, container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id)),
        process=container.status.process,
    )


def sandbox_target(sandbox: Sandbox) -> Target:
    """Return a pod sandbox with its own cgroup, which is above those of its containers."""
    return Target(
        level=Level.POD,
        id=sandbox.id,
        name=_pod(sandbox),
        cgroup=sandbox_cgroup(sandbox.config.cgroup_parent, sandbox.id),
    )


def _pod(sandbox: Sandbox) -> str:
    return f"{sandbox.config.namespace}/{sandbox.config.name}"
