"""Which cgroup, namespace and directory the statistics of a sandbox and a container are read from. Pure.

The CPU and memory of a pod are those of the cgroup that the caller made for the pod, where it made one (the kubelet
does, and sets the pod's limits on it): it also holds what the pod's memory-backed volumes take after the container that
wrote them is gone. Otherwise they are those of the sandbox's own cgroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from podkeep.kernel.namespaces import NamespaceKind
from podkeep.runtime.layout import Layout, container_cgroup, sandbox_cgroup
from podkeep.runtime.records import Container, ContainerState, NamespaceMode, Sandbox


@dataclass(frozen=True, kw_only=True)
class ContainerTarget:
    """``cgroup`` is None for a container that has ended; ``layer`` is the directory of its writable layer."""

    container: Container
    cgroup: str | None
    layer: Path


@dataclass(frozen=True, kw_only=True)
class SandboxTarget:
    """``network`` is the pin of the pod's network namespace; None on the host's network."""

    sandbox: Sandbox
    cgroup: str
    network: Path | None
    containers: tuple[ContainerTarget, ...]


def container_target(container: Container, sandbox: Sandbox, layout: Layout) -> ContainerTarget:
    """Return where a container's statistics are."""
    lives = container.status.state in {ContainerState.CREATED, ContainerState.RUNNING}
    return ContainerTarget(
        container=container,
        cgroup=container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id) if lives else None,
        layer=layout.writable_layer(container.id),
    )


def sandbox_target(sandbox: Sandbox, containers: tuple[ContainerTarget, ...], layout: Layout) -> SandboxTarget:
    """Return where a sandbox's statistics are."""
    own_network = sandbox.config.namespaces.network is NamespaceMode.POD
    return SandboxTarget(
        sandbox=sandbox,
        cgroup=pod_cgroup(sandbox_cgroup(sandbox.config.cgroup_parent, sandbox.id), sandbox.config.uid),
        network=layout.namespace_pin(sandbox.id, NamespaceKind.NET) if own_network else None,
        containers=containers,
    )


def pod_cgroup(sandbox: str, uid: str) -> str:
    """Return the cgroup of the pod that has the cgroup ``sandbox`` in it: its parent, if that is named after the pod.

    The kubelet's names are ``pod<uid>`` and, with systemd, ``kubepods-…-pod<uid with _ for ->.slice``.
    """
    parent = str(PurePosixPath(sandbox).parent)
    name = PurePosixPath(parent).name.removesuffix(".slice")
    mine = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    return parent if uid and name.endswith(mine) else sandbox
