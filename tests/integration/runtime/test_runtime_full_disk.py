"""A disk without room: nothing begins there, and everything ends, for that is how a node gets its disk back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from podkeep.base.errors import ResourceExhausted
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mounts
from support.cri import Pods, error_of, pod
from support.mortal import Mortal


@pytest.fixture
def small(mortal: Mortal) -> Iterator[Path]:
    """The root directory of a daemon that is not started yet, on a file system of 48 MiB."""
    root = mortal.daemon.layout.root
    root.mkdir(mode=0o711)
    mounts.tmpfs(root, "mode=711,size=48m")
    yield root
    (root / "filler").unlink(missing_ok=True)
    mortal.close()
    mounts.unmount(root, lazy=True)


def fill(root: Path) -> None:
    """Take every byte that is free."""
    with (root / "filler").open("ab") as file:
        subprocess.run(["cat", "/dev/zero"], stdout=file, stderr=subprocess.DEVNULL, check=False)


def fill_database(pods: Pods, root: Path) -> None:
    """Make pods until the state database, which has some room of its own, is full as well."""
    for number in count():
        fill(root)
        try:
            pods.run(pod(f"filler{number}"))
        except ResourceExhausted:
            return


def test_pods_end_and_go_when_the_disk_is_full(mortal: Mortal, small: Path) -> None:
    pods = mortal.start()
    sandboxes = [pods.run(pod(f"pod{number}")) for number in range(3)]
    containers = [pods.launch(sandbox) for sandbox in sandboxes]
    before = mortal.daemon.resources()
    fill_database(pods, small)
    error_of(lambda: pods.run(pod("late")), ResourceExhausted)
    update = api.UpdateContainerResourcesRequest(
        container_id=containers[0], linux=api.LinuxContainerResources(cpu_shares=77)
    )
    error_of(lambda: pods.call("UpdateContainerResources", update), ResourceExhausted)
    assert pods.status(containers[0]).resources.linux.cpu_shares == 0
    pods.stop(containers[0])
    fill(small)
    pods.remove_container(containers[0])
    assert [item.id for item in pods.containers()] == containers[1:]
    fill(small)
    pods.stop_pod(sandboxes[1])
    assert pods.status(containers[1]).state == api.CONTAINER_EXITED
    fill(small)
    pods.remove(sandboxes[1])
    for sandbox in pods.sandboxes():
        fill(small)
        pods.remove(sandbox.id)
    assert pods.sandboxes() == pods.containers() == []
    after = mortal.daemon.resources()
    assert not set(after.processes) & {"crun", "conmon", "sleep"}
    assert len(after.mounts) < len(before.mounts)
    (small / "filler").unlink()
    again = pods.run(pod("pod0"))
    assert [item.id for item in pods.sandboxes()] == [again], "the name is free"
    pods.remove(again)
    assert mortal.daemon.resources().records == ()


def test_a_daemon_that_is_killed_before_an_end_is_stored_comes_to_the_same_end(mortal: Mortal, small: Path) -> None:
    pods = mortal.start()
    gone, stopped = pods.run(pod("gone")), pods.run(pod("stopped"))
    containers = [pods.launch(gone), pods.launch(stopped)]
    fill_database(pods, small)
    pods.remove(gone)
    fill(small)
    pods.stop_pod(stopped)
    mortal.daemon.kill()
    (small / "filler").unlink()
    pods = mortal.start()
    states = {item.id: item.state for item in pods.sandboxes()}
    assert states[stopped] == api.SANDBOX_NOTREADY
    assert states.get(gone, api.SANDBOX_NOTREADY) == api.SANDBOX_NOTREADY
    assert pods.status(containers[1]).state == api.CONTAINER_EXITED
    for sandbox in states:
        pods.remove(sandbox)
    assert mortal.daemon.resources().records == ()
    assert mortal.daemon.resources().data_directories == ()


def test_a_daemon_starts_on_a_full_disk(mortal: Mortal, small: Path) -> None:
    """After a crash or a reboot: the pods that filled the disk are there, and who would end them needs the runtime."""
    pods = mortal.start()
    before = pods.call("Status", api.StatusRequest()).runtime_handlers
    sandbox = pods.run(pod("full"))
    container = pods.launch(sandbox)
    for _ in range(2):  # what was put aside for the first time is put aside again
        fill_database(pods, small)
        mortal.daemon.kill()
        fill(small)
        pods = mortal.start()
        assert pods.status(container).state == api.CONTAINER_RUNNING
        assert pods.call("Status", api.StatusRequest()).runtime_handlers == before
        fill(small)
        for item in pods.sandboxes():
            if item.id != sandbox:
                pods.remove(item.id)
        (small / "filler").unlink()
        pods.remove(pods.run(pod("other")))
    pods.remove(sandbox)
    assert mortal.daemon.resources().records == ()
