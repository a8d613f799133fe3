"""Paths and names: where things are, and that names fit their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.ids import ContainerID, HandlerName, SandboxID, new_id
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.runtime.model.layout import Layout, container_cgroup, sandbox_cgroup, veth_name

LAYOUT = Layout(root=Path("/r"), run=Path("/n"))
POD, ONE = SandboxID("a" * 64), ContainerID("c" * 64)


def test_what_outlives_a_reboot_is_below_the_root_and_the_rest_is_not() -> None:
    persistent = [LAYOUT.state, LAYOUT.images, LAYOUT.sandbox_data(POD), LAYOUT.container_data(ONE)]
    volatile = [
        LAYOUT.exits,
        LAYOUT.lock,
        LAYOUT.sandbox_run(POD),
        LAYOUT.shm(POD),
        LAYOUT.infra_bundle(POD),
        LAYOUT.bundle(ONE),
        LAYOUT.rootfs(ONE),
        LAYOUT.exit_file(ONE),
        LAYOUT.handler_root(HandlerName("crun")),
        *(LAYOUT.namespace_pin(POD, kind) for kind in NamespaceKind),
    ]
    assert all(path.is_relative_to("/r") for path in persistent)
    assert all(path.is_relative_to("/n") for path in volatile)
    assert len(set(persistent + volatile)) == len(persistent + volatile)


def test_everything_of_a_sandbox_or_container_goes_with_its_directory() -> None:
    run = LAYOUT.sandbox_run(POD)
    pins = [LAYOUT.namespace_pin(POD, kind) for kind in NamespaceKind]
    assert all(path.is_relative_to(run) for path in (*pins, LAYOUT.shm(POD), LAYOUT.infra_bundle(POD)))
    assert LAYOUT.rootfs(ONE).is_relative_to(LAYOUT.bundle(ONE))


def test_parents_are_among_the_directories_that_always_exist() -> None:
    shared = LAYOUT.shared_directories()
    for path in (LAYOUT.sandbox_data(POD), LAYOUT.sandbox_run(POD), LAYOUT.container_data(ONE), LAYOUT.bundle(ONE)):
        assert path.parent in shared
    assert LAYOUT.exits in shared
    for number, directory in enumerate(shared):
        assert directory.parent in (*shared[:number], Path("/"))


def test_a_cables_name_fits_the_kernel() -> None:
    names = {veth_name(SandboxID(new_id())) for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) <= 15 and name.isalnum() for name in names)


@pytest.mark.parametrize(
    ("parent", "expected"),
    [("/podkeep", "/podkeep/pod-s"), ("/", "/pod-s"), ("/kubepods/burstable/pod1/", "/kubepods/burstable/pod1/pod-s")],
)
def test_cgroups(parent: str, expected: str) -> None:
    assert sandbox_cgroup(parent, SandboxID("s")) == expected
    assert container_cgroup(parent, SandboxID("s"), ContainerID("c")) == f"{expected}/c"
