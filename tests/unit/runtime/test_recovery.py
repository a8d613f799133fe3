"""A daemon that starts again: one pod that cannot be cleaned up must not keep it from serving the others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runtime_values import container, sandbox

from podkeep.base.config import HandlerConfig, ImagesConfig, NetworkConfig
from podkeep.base.errors import PodkeepError, ResourceExhausted
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.images.store.store import ImageStore
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.mount import mounts
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from podkeep.kernel.process import procfs
from podkeep.runtime.bundle.changed_trees import ChangedTrees
from podkeep.runtime.bundle.image_layers import ImageLayers
from podkeep.runtime.bundle.image_volumes import ImageVolumes
from podkeep.runtime.bundle.leftovers import Leftovers
from podkeep.runtime.bundle.rootfs_variants import Costs
from podkeep.runtime.bundle.staging import Staging
from podkeep.runtime.lifecycle.container_executor import ContainerExecutor
from podkeep.runtime.lifecycle.handlers import HandlerTable
from podkeep.runtime.lifecycle.recovery import TIMEOUT_S, Recovery
from podkeep.runtime.lifecycle.sandbox_executor import SandboxExecutor
from podkeep.runtime.lifecycle.sandboxes import Sandboxes
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import (
    ContainerState,
    NamespaceMode,
    NamespaceOptions,
    NetworkAttachment,
    Sandbox,
    SandboxState,
)
from podkeep.runtime.model.state import State
from podkeep.runtime.network.networks import Networks
from podkeep.runtime.oci.confinement import Confinement
from support.descriptors import open_descriptors

ORPHAN = "d" * 64


class House:
    """Records and directories as a daemon left them."""

    def __init__(self, base: Path, disk: Path | None = None) -> None:
        self.layout = Layout(root=base / "root", run=base / "run")
        for directory in self.layout.shared_directories():
            directory.mkdir(parents=True, exist_ok=True)
        self.disk = disk or self.layout.root
        """Where the records are."""
        self.records = State(self.disk / "state.db")
        self.executor = SandboxExecutor(
            layout=self.layout,
            helper=NamespaceHelper(),
            cgroups=Cgroups(),
            networks=Networks(NetworkConfig(mode="bridge"), self.layout, self.records),
            catatonit="catatonit",
        )

    def fill(self) -> None:
        """Leave the records no room."""
        with (self.disk / "filler").open("wb") as file:
            subprocess.run(["cat", "/dev/zero"], stdout=file, stderr=subprocess.DEVNULL, check=False)
        # The database's log has some room of its own.
        with suppress(ResourceExhausted):
            while True:
                self.records.note_pod_cidr("", "")

    def recover(self, *, timeout: float = TIMEOUT_S) -> None:
        handlers = HandlerTable.from_config(
            {"crun": HandlerConfig(path="crun")}, "crun", conmon="conmon", layout=self.layout
        )
        images = ImageStore.open(self.layout.images, config=ImagesConfig(), registries={})
        staging = Staging(self.layout, self.executor.helper)
        trees = ChangedTrees(self.layout.changed_trees, images, boot_id="this", costs=Costs())
        layers = ImageLayers(images=images, trees=trees)
        containers = ContainerExecutor(
            layout=self.layout,
            layers=layers,
            cgroups=self.executor.cgroups,
            staging=staging,
            image_volumes=ImageVolumes(layers=layers, staging=staging),
        )
        Recovery(
            state=self.records,
            layout=self.layout,
            handlers=handlers,
            cgroups=self.executor.cgroups,
            classes=self.executor.classes,
            sandboxes=self.executor,
            containers=containers,
            leftovers=Leftovers(self.layout.leftovers),
            deadline=time.monotonic() + timeout,
        ).run()
        images.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.records.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[House]:
    """One whose records are on a disk that can be filled."""
    (tmp_path / "disk").mkdir()
    mounts.tmpfs(tmp_path / "disk", "size=512k")
    made = House(tmp_path, tmp_path / "disk")
    made.records.note_boot(procfs.boot_id())
    yield made
    (made.disk / "filler").unlink(missing_ok=True)
    made.records.close()
    mounts.unmount(made.disk)


@pytest.mark.parametrize("state", [SandboxState.CREATING, SandboxState.REMOVING])
@pytest.mark.parametrize("with_container", [False, True])
def test_what_cannot_be_undone_is_shown_again_also_when_the_disk_is_full(
    small: House, state: SandboxState, with_container: bool
) -> None:
    """A client that removes pods to get its disk back removes what it sees in a list."""
    records = small.records
    records.add_sandbox(sandbox(state=state, handler="gone", cgroup_parent="/podkeep-unit"))
    if with_container:
        for name in "bc":
            made = container(name * 64, name=name)
            records.add_container(made)
            records.set_container(made.id, msgspec.structs.replace(made.status, state=ContainerState.REMOVING))
    small.fill()
    small.recover()
    assert [item.status.state for item in records.sandboxes()] == [SandboxState.NOTREADY]
    assert {item.status.state for item in records.containers()} == (
        {ContainerState.EXITED} if with_container else set()
    )


@pytest.mark.parametrize("state", [ContainerState.CREATED, ContainerState.RUNNING])
def test_the_machine_was_rebooted_and_its_disk_is_full(small: House, state: ContainerState) -> None:
    records, me = small.records, procfs.identify(os.getpid())
    records.note_boot("of last week")
    pod, inside = _on_the_host(), container()
    records.add_sandbox(pod)
    records.add_container(inside)
    records.set_container(inside.id, msgspec.structs.replace(inside.status, state=state, process=me, monitor=me))
    small.fill()
    small.recover()
    assert [item.status.state for item in records.sandboxes()] == [SandboxState.NOTREADY]
    assert [item.status.state for item in records.containers()] == [ContainerState.EXITED]
    assert records.boot == procfs.boot_id()
    # Written before anything that comes later: what is started in this boot is no process of the last one.
    (small.disk / "filler").unlink()
    records.add_sandbox(sandbox("e" * 64, attempt=1))
    later = State(small.disk / "state.db")
    assert (later.boot, len(later.sandboxes())) == (procfs.boot_id(), 2)
    later.close()


@pytest.mark.parametrize("state", [SandboxState.CREATING, SandboxState.REMOVING])
@pytest.mark.parametrize("with_container", [False, True])
def test_pods_of_a_handler_that_is_configured_no_more(house: House, state: SandboxState, with_container: bool) -> None:
    records = house.records
    records.add_sandbox(sandbox(state=state, handler="gone", cgroup_parent="/podkeep-unit"))
    if with_container:
        records.add_container(container())
        status = records.containers()[0].status
        records.set_container(records.containers()[0].id, type(status)(state=ContainerState.REMOVING, created_at=1))
    house.recover()
    # Shown again, so that RemovePodSandbox can retry when the handler is back.
    assert [item.status.state for item in records.sandboxes()] == [SandboxState.NOTREADY]
    assert [item.status.state for item in records.containers()] == ([ContainerState.EXITED] if with_container else [])


@pytest.mark.slow
@pytest.mark.parametrize("state", [ContainerState.REMOVING, ContainerState.RUNNING])
def test_whatever_is_wrong_with_one_record_the_others_are_looked_after(house: House, state: ContainerState) -> None:
    """A record may even name a sandbox that is not there, or a cgroup that no kernel takes."""
    records = house.records
    shared = NamespaceOptions(pid=NamespaceMode.POD)
    lost = container(sandbox_id=ORPHAN, namespaces=shared)
    records.add_container(lost)
    records.set_container(lost.id, msgspec.structs.replace(lost.status, state=state))
    records.add_sandbox(sandbox(state=SandboxState.REMOVING, cgroup_parent="no/path"))
    records.add_sandbox(sandbox("e" * 64, state=SandboxState.REMOVING, cgroup_parent="/podkeep-unit", attempt=1))
    house.recover()
    assert [item.id for item in records.sandboxes()] == ["a" * 64]
    assert [item.status.state for item in records.containers()] == [ContainerState.EXITED]


def test_an_address_stays_taken_until_its_sandbox_could_be_stopped(house: House) -> None:
    records = house.records
    pod = sandbox(handler="gone", cgroup_parent="/podkeep-unit")
    records.add_sandbox(pod)
    subnet = IPv4Network("10.0.0.0/29")
    first = records.take_address(pod.id, subnet)
    house.recover()
    assert records.sandbox(pod.id).status.state is SandboxState.NOTREADY
    assert records.take_address(SandboxID("b" * 64), subnet) != first
    assert len({records.take_address(SandboxID(letter * 64), subnet) for letter in "cde"} | {first}) == 4


def test_the_lock_of_a_sandbox_that_is_gone_is_not_kept(house: House) -> None:
    """A CreateContainer may ask for it when the sandbox was removed meanwhile."""
    handlers = HandlerTable.from_config(
        {"crun": HandlerConfig(path="crun")}, "crun", conmon="conmon", layout=house.layout
    )
    executor = house.executor
    sandboxes = Sandboxes(house.records, executor, handlers, executor.networks, executor.classes, Confinement())
    gone = SandboxID(ORPHAN)

    async def main() -> None:
        async with sandboxes.lock(gone):
            assert sandboxes.lock(gone).locked(), "one lock for all who want it"
        assert not sandboxes.lock(gone).locked()
        assert gone not in sandboxes._locks

    asyncio.run(main())


def _on_the_host(**fields: Any) -> Sandbox:
    options = NamespaceOptions(network=NamespaceMode.NODE, ipc=NamespaceMode.NODE, pid=NamespaceMode.CONTAINER)
    return sandbox(namespaces=options, cgroup_parent="/podkeep-unit", **fields)


@pytest.mark.parametrize("boot", ["", "same", "other"])
def test_another_boot_is_noticed_whatever_processes_have_the_old_numbers(house: House, boot: str) -> None:
    records = house.records
    if boot:
        records.note_boot(procfs.boot_id() if boot == "same" else "of last week")
    pod, inside, me = _on_the_host(), container(), procfs.identify(os.getpid())
    house.layout.sandbox_run(pod.id).mkdir()
    records.add_sandbox(pod)
    # A parent that a client may have made anew since, and a process that somebody else may be now: this one.
    records.set_sandbox(pod.id, msgspec.structs.replace(pod.status, infra=me, made_cgroups=("/podkeep-unit",)))
    records.add_container(inside)
    live = msgspec.structs.replace(inside.status, state=ContainerState.RUNNING, process=me, monitor=me)
    records.set_container(inside.id, live)
    house.recover()
    gone = boot == "other"
    now, status = records.sandbox(pod.id).status, records.container(inside.id).status
    assert now.state is (SandboxState.NOTREADY if gone else SandboxState.READY)
    assert (now.infra, now.made_cgroups) == ((None, ()) if gone else (me, ("/podkeep-unit",)))
    assert status.state is (ContainerState.EXITED if gone else ContainerState.RUNNING)
    assert status.process == (None if gone else me)
    assert status.message == ("the machine was rebooted before it ended" if gone else "")
    assert records.boot == procfs.boot_id()


def test_a_sandbox_whose_run_directory_is_gone_is_not_whole(house: House) -> None:
    """Somebody emptied /run: also a pod without namespaces of its own is over."""
    house.records.add_sandbox(_on_the_host())
    house.recover()
    assert [item.status.state for item in house.records.sandboxes()] == [SandboxState.NOTREADY]


def test_what_a_killed_stop_left_is_finished(house: House) -> None:
    house.records.add_sandbox(_on_the_host(state=SandboxState.NOTREADY))
    left = house.layout.sandbox_run(SandboxID("a" * 64))
    (left / "ns").mkdir(parents=True)
    house.recover()
    assert not left.exists()
    assert [item.status.state for item in house.records.sandboxes()] == [SandboxState.NOTREADY]


@pytest.mark.parametrize("state", [SandboxState.NOTREADY, SandboxState.READY])
def test_a_stop_that_was_killed_when_only_its_note_was_missing_is_finished(house: House, state: SandboxState) -> None:
    """Nothing of the pod is left but its record, with host ports of an address that is free."""
    pod = sandbox(state=state, cgroup_parent="/podkeep-unit")
    status = msgspec.structs.replace(pod.status, address="10.0.0.2", network=NetworkAttachment())
    house.records.add_sandbox(msgspec.structs.replace(pod, status=status))
    house.recover()
    (after,) = house.records.sandboxes()
    assert (after.status.state, after.status.network) == (SandboxState.NOTREADY, None)


@pytest.mark.slow
@pytest.mark.parametrize("state", list(SandboxState))
def test_what_takes_too_long_is_left_to_the_client(house: House, state: SandboxState) -> None:
    """A pod that is shown, not ready, and with its address still taken, so that a client stops and removes it."""
    pod = sandbox(state=state, cgroup_parent="/podkeep-unit")
    subnet = IPv4Network("10.0.0.0/29")
    house.records.add_sandbox(pod)
    address = house.records.take_address(pod.id, subnet)
    noted = msgspec.structs.replace(pod.status, address=address, network=NetworkAttachment())
    house.records.set_sandbox(pod.id, noted)
    house.recover(timeout=0.0)
    (after,) = house.records.sandboxes()
    assert after.status == msgspec.structs.replace(noted, state=SandboxState.NOTREADY)
    assert house.records.addresses() == [address]
    house.recover()
    assert [item.status.network for item in house.records.sandboxes()] == [None]
    assert house.records.addresses() == []


def _tops(layout: Layout) -> list[Path]:
    return [top / kind for top in (layout.root, layout.run) for kind in ("sandboxes", "containers")]


def test_directories_that_no_record_names_are_removed(house: House) -> None:
    house.records.add_sandbox(_on_the_host())
    for top in _tops(house.layout):
        for name in (ORPHAN, "a" * 64, "mine", "d" * 63):
            (top / name / "upper").mkdir(parents=True)
    (house.layout.exits / ORPHAN).touch()
    house.recover()
    for top in _tops(house.layout):
        assert {path.name for path in top.iterdir()} == {"a" * 64, "mine", "d" * 63}
    assert list(house.layout.exits.iterdir()) == []


def test_a_directory_without_a_record_that_is_in_use_stays(house: House) -> None:
    """The records were lost in another way, and the container lives: its files are not taken from it."""
    left = house.layout.container_data(ContainerID(ORPHAN))
    left.mkdir()
    with subprocess.Popen(["sh", "-c", "echo; read _", "sh", ORPHAN], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        house.recover()
        assert left.exists()
        process.communicate()
    house.recover()
    assert not left.exists()


@pytest.mark.slow
def test_nothing_is_removed_below_a_mount_that_cannot_be_unmounted(tmp_path: Path) -> None:
    """Mounts that come from a more privileged mount namespace are locked (mount_namespaces(7))."""
    (tmp_path / "sandbox/shm").mkdir(parents=True)
    (tmp_path / "sandbox/file").touch()
    program = Path(__file__).with_name("programs") / "clear.py"
    script = (
        'mount -t tmpfs precious "$1/shm" && touch "$1/shm/precious" && '
        'unshare --user --map-root-user --mount "$2" "$3" "$1" && cd "$1" && find . | sort'
    )
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path / "sandbox"), sys.executable, str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    said, *found = done.stdout.splitlines()
    assert "shm is a mount point" in said
    assert found == [".", "./file", "./shm", "./shm/precious"]


@pytest.mark.slow
def test_no_namespace_stays_open_when_one_cannot_be_pinned(house: House) -> None:
    with house.executor.helper:
        pod = sandbox(namespaces=NamespaceOptions(), cgroup_parent="/podkeep-unit")
        before = open_descriptors()
        with pytest.raises((PodkeepError, OSError)):
            house.executor._make_namespaces(pod)  # the directory of the pins is missing
        assert open_descriptors() == before


def test_what_a_container_filled_is_only_moved_aside(house: House) -> None:
    """Before the daemon serves requests: removing millions of files takes minutes."""
    records = house.records
    records.add_sandbox(sandbox(cgroup_parent="/podkeep-unit"))
    made = container()
    records.add_container(made)
    records.set_container(made.id, msgspec.structs.replace(made.status, state=ContainerState.REMOVING))
    places = (
        house.layout.writable_layer(made.id),
        house.layout.containers_data / ORPHAN / "upper",
        house.layout.changed_trees / "of another boot/key/tree",
        house.layout.changed_trees / "this/making-0/tree",
    )
    for place in places:
        place.mkdir(parents=True)
        (place / "file").touch()
    house.recover()
    assert not records.containers()
    assert [place for place in places if place.exists()] == []
    kept = house.layout.leftovers
    assert len(list(kept.rglob("file"))) == len(places)
    assert kept.stat().st_mode & 0o777 == 0o700
    Leftovers(kept).remove_all()
    assert not kept.exists()


def test_removing_what_was_left_ends_with_the_daemon(tmp_path: Path) -> None:
    leftovers = Leftovers(tmp_path / "leftovers")
    (tmp_path / "tree").mkdir()
    leftovers.put_aside(tmp_path / "tree")
    leftovers.put_aside(tmp_path / "tree")
    leftovers.end()
    leftovers.remove_all()
    (left,) = (tmp_path / "leftovers").iterdir()
    (left / "mounted").mkdir()
    mounts.tmpfs(left / "mounted", "size=64k")
    try:
        Leftovers(tmp_path / "leftovers").remove_all()
        assert left.exists()
    finally:
        mounts.unmount(left / "mounted")
    Leftovers(tmp_path / "leftovers").remove_all()
    assert not left.exists()
