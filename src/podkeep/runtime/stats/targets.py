"""Which cgroup, namespace and directory the statistics of a sandbox and a container are read from. Pure.

The CPU and memory of a pod are those of the cgroup that the caller made for the pod, where it made one (the kubelet
does, and sets the pod's limits on it): it also holds what the pod's memory-backed volumes take after the container that
wrote them is gone. Otherwise they are those of the sandbox's own cgroup.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from podkeep.base.ids import ContainerID, SandboxID
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.runtime.model.layout import Layout, container_cgroup, sandbox_cgroup
from podkeep.runtime.model.records import Container, NamespaceMode, Sandbox

_REMEMBERED = 1024
"""Paths of so many sandboxes and containers are put together only once; that is a third of the time of a list."""


class ContainerTarget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``cgroup`` is None for a container that has ended; ``written`` are the directories of what it writes to disk.

    They are its writable layer, its anonymous volumes, and the files of its pod (/etc/resolv.conf): nobody else counts
    them, and a pod could fill the disk by them. Those of the pod count for each of its containers.
    """

    container: Container
    cgroup: str | None
    written: tuple[str, ...]


class SandboxTarget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``network`` is the pin of the pod's network namespace; None on the host's network."""

    sandbox: Sandbox
    cgroup: str
    network: str | None
    containers: tuple[ContainerTarget, ...]


class Targets:
    """Finds targets below one layout; any thread may use it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._container = lru_cache(_REMEMBERED)(self._places_of_container)
        self._sandbox = lru_cache(_REMEMBERED)(self._places_of_sandbox)

    def container(self, container: Container, sandbox: Sandbox) -> ContainerTarget:
        cgroup, written = self._container(sandbox.config.cgroup_parent, sandbox.id, container.id)
        lives = container.status.state.lives
        return ContainerTarget(container=container, cgroup=cgroup if lives else None, written=written)

    def sandbox(self, sandbox: Sandbox, containers: Iterable[Container]) -> SandboxTarget:
        """Return where the statistics of a sandbox and of ``containers`` in it are."""
        config = sandbox.config
        cgroup, network = self._sandbox(config.cgroup_parent, sandbox.id, config.uid)
        return SandboxTarget(
            sandbox=sandbox,
            cgroup=cgroup,
            network=network if config.namespaces.network is NamespaceMode.POD else None,
            containers=tuple([self.container(item, sandbox) for item in containers]),
        )

    def _places_of_container(
        self, parent: str, sandbox: SandboxID, container: ContainerID
    ) -> tuple[str, tuple[str, ...]]:
        layout = self._layout
        written = (layout.writable_layer(container), layout.volumes(container), layout.sandbox_data(sandbox))
        return container_cgroup(parent, sandbox, container), tuple(map(str, written))

    def _places_of_sandbox(self, parent: str, sandbox: SandboxID, uid: str) -> tuple[str, str]:
        pin = self._layout.namespace_pin(sandbox, NamespaceKind.NET)
        return pod_cgroup(sandbox_cgroup(parent, sandbox), uid), str(pin)


def pod_cgroup(sandbox: str, uid: str) -> str:
    """Return the cgroup of the pod that has the cgroup ``sandbox`` in it: its parent, if that is named after the pod.

    The kubelet's names are ``pod<uid>`` and, with systemd, ``kubepods-…-pod<uid with _ for ->.slice``.
    """
    parent = sandbox.rpartition("/")[0]
    name = parent.rpartition("/")[2].removesuffix(".slice")
    mine = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    return parent if uid and name.endswith(mine) else sandbox
