"""A runtime handler that is declared as one of virtual machines: what requests say of user namespaces is passed over.

Debian's runc 1.1 stands in for an OCI runtime without user namespaces: as a handler of the usual kind it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, Pods, bind, namespaces, pod, userns
from support.daemon import Daemon
from support.registry import Registry

HANDLERS = """
[runtime.handlers.crun]
path = "/usr/bin/crun"
[runtime.handlers.runc]
path = "/usr/sbin/runc"
[runtime.handlers.machines]
path = "/usr/sbin/runc"
kind = "vm"
"""


@pytest.fixture(scope="module")
def machines_daemon(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon with such a handler."""
    base = open_directory / f"machines-{os.urandom(3).hex()}"
    base.mkdir()
    with Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n{HANDLERS}') as daemon:
        yield daemon


@pytest.fixture
def machines(machines_daemon: Daemon, image: str) -> Iterator[Pods]:
    """A client of that daemon, which holds afterwards what it held before."""
    before = machines_daemon.resources()
    with Pods(machines_daemon.socket, image) as client:
        client.pull()
        yield client
    assert machines_daemon.resources() == before


@pytest.mark.requirement("U12")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("mapping", [BLOCK, userns((5, 65536, 0)), userns(mode=api.TARGET)])
def test_user_namespace_options_are_passed_over(
    machines: Pods, tmp_path: Path, mapping: api.UserNamespace, again: bool
) -> None:
    """Whatever they are; a container may repeat them or not; mappings of its mounts are passed over as well."""
    (tmp_path / "file").write_text("content")
    os.chown(tmp_path / "file", 7, 7)
    sandbox = machines.run(pod(options=namespaces(user=mapping)), handler="machines")
    options = {"options": namespaces(user=mapping)} if again else {}
    container = machines.launch(sandbox, mounts=[bind(tmp_path, "/volume", BLOCK)], **options)
    assert machines.read(container, "cat /proc/self/uid_map").split() == ["0", "0", "4294967295"]
    assert machines.read(container, "stat -c %u /volume/file") == "7"
    assert machines.pod_status(sandbox).status.linux.namespaces.options.userns_options.mode == api.NODE
    (mount,) = machines.status(container).mounts
    assert not mount.uidMappings
    assert not mount.gidMappings


@pytest.mark.requirement("U12")
def test_only_where_it_is_declared(machines: Pods) -> None:
    """It counts as one that runs pods with ``hostUsers: false``; the same program without the word does not."""
    handlers = machines.call("Status", api.StatusRequest()).runtime_handlers
    assert {item.name: item.features.user_namespaces for item in handlers} == {
        "": True,
        "crun": True,
        "runc": False,
        "machines": True,
    }
    sandbox = machines.run(pod(options=namespaces(user=BLOCK)), handler="crun")
    assert machines.read(machines.launch(sandbox), "cat /proc/self/uid_map").split() == ["0", "65536", "65536"]
