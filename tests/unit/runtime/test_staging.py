"""Copies of volumes for pods in user namespaces, while somebody writes to the volumes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_values import IDMAP, container, sandbox

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.files.removal import unmount_below
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountFlag
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, pin
from podkeep.runtime.bundle.staging import Staging, check_propagation, make_passable
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Container, Mount, NamespaceOptions, Propagation, Sandbox
from podkeep.runtime.oci.mounts import StagedMount, bind
from support.beside import exchanging
from support.descriptors import open_descriptors

POD = sandbox(namespaces=NamespaceOptions(userns=IDMAP))


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A directory with a mount in a directory of it."""
    path = tmp_path / "volume"
    (path / "above" / "mount").mkdir(parents=True)
    mounts.tmpfs(path / "above" / "mount", attrs=MountFlag.NONE)
    (path / "above" / "mount" / "file").write_text("of the volume")
    yield path
    unmount_below(tmp_path)


def test_flags_of_a_volume_are_its_own_whatever_its_name(tmp_path: Path, volume: Path) -> None:
    """Not those of what is mounted below, unless it is a mount of CDI: copies of those had been told by their names."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.rootfs(container().id).joinpath("data/code").mkdir(parents=True)
    named = volume.rename(tmp_path / "source-code")
    config = {
        "mounts": [
            bind("/data", str(tmp_path), "rprivate", "rw"),
            bind("/data/code", str(named), "rprivate", "ro"),
        ]
    }
    pod = sandbox(namespaces=NamespaceOptions())
    with NamespaceHelper() as helper:
        (outer,) = Staging(layout, helper).lock(container(), pod, config)["mounts"]
    source = Path(outer["source"]) / "code"
    assert source.parent.parent == layout.staged_mounts(container().id)
    flags = {path.name: bool(os.statvfs(path).f_flag & os.ST_RDONLY) for path in (source, source / "above" / "mount")}
    assert flags == {source.name: True, "mount": False}


def test_what_is_mounted_inside_of_a_volume_comes_with_it_whatever_is_exchanged_meanwhile(
    tmp_path: Path, volume: Path
) -> None:
    """No path leads through the volume, in which whoever writes to it can put a link above the mount."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.rootfs(container().id).mkdir(parents=True)
    pinned = layout.namespace_pin(POD.id, NamespaceKind.USER)
    pinned.parent.mkdir(parents=True)
    (tmp_path / "machine" / "mount").mkdir(parents=True)
    mounts.tmpfs(tmp_path / "machine" / "mount")
    with NamespaceHelper() as helper:
        userns = helper.user_namespace(IDMAP)
        pin(userns, pinned)
        os.close(userns)
        staging = Staging(layout, helper)
        made = container(mounts=(Mount(container_path="/data", host_path=str(volume)),))
        copies = staged(staging, made)
        (volume / "above").rename(volume / "elsewhere")
        (volume / "above").symlink_to(tmp_path / "machine")
        config = {"mounts": [bind("/data", copies[0].source, "rprivate", "rw")]}
        source = Path(staging.lock(container(), POD, config)["mounts"][0]["source"])
    assert source.parent == layout.staged_mounts(container().id)
    mounted = [entry.mount_point for entry in mountinfo.under(source)]
    assert set(mounted) == {str(source), str(source / "elsewhere" / "mount")}
    assert (source / "elsewhere" / "mount" / "file").read_text() == "of the volume"


@pytest.mark.slow
def test_nothing_is_made_elsewhere_while_a_volume_is_exchanged(tmp_path: Path) -> None:
    """Another container of the pod has a link where a directory was, between any two looks at it."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.rootfs(container().id).mkdir(parents=True)
    outer, closed, inner = (tmp_path / name for name in ("outer", "closed", "inner"))
    for path in (outer / "x", closed, inner):
        path.mkdir(parents=True)
    (inner / "mark").touch()
    (outer / "link").symlink_to("/closed")
    config = {
        "mounts": [
            bind("/closed", str(closed), "rprivate", "rw"),
            bind("/data", str(outer), "rprivate", "rw"),
            bind("/data/x/made", str(inner), "rprivate", "rw"),
        ]
    }
    pod, outcomes = sandbox(namespaces=NamespaceOptions()), set()
    with NamespaceHelper() as helper, exchanging(outer / "x", outer / "link"):
        staging = Staging(layout, helper)
        for _ in range(200):
            try:
                assert len(staging.lock(container(), pod, config)["mounts"]) == 2
                outcomes.add("made")
            except FailedPrecondition as error:
                outcomes.add(error.message.rpartition(": ")[2])
            finally:
                staging.unstage(container())
            assert os.listdir(closed) == []
    assert outcomes >= {"made", "a link of the volume leads to what does not exist"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_was_removed_from_a_volume_is_no_defect(tmp_path: Path, kind: str) -> None:
    """A container of the pod may remove what another one's subPath is mounted from."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.rootfs(container().id).mkdir(parents=True)
    pinned = layout.namespace_pin(POD.id, NamespaceKind.USER)
    pinned.parent.mkdir(parents=True)
    removed, sub_path = tmp_path / "removed", tmp_path / "sub-path"
    for path in (removed, sub_path):
        path.mkdir() if kind == "directory" else path.touch()
    mounts.bind(removed, sub_path)
    removed.rmdir() if kind == "directory" else removed.unlink()
    with NamespaceHelper() as helper:
        userns = helper.user_namespace(IDMAP)
        pin(userns, pinned)
        os.close(userns)
        made = container(mounts=(Mount(container_path="/data", host_path=str(sub_path)),))
        with pytest.raises(FailedPrecondition, match="was removed meanwhile"):
            staged(Staging(layout, helper), made)


@pytest.mark.slow
def test_a_mount_that_cannot_be_added_leaves_no_descriptor(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.rootfs(container().id).mkdir(parents=True)
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    for path in (outer, inner):
        path.mkdir()
    (outer / "file").touch()
    config = {
        "mounts": [
            bind("/data", str(outer), "rprivate", "rw"),
            bind("/data/file", str(inner), "rprivate", "rw"),
        ]
    }
    with NamespaceHelper() as helper:
        staging = Staging(layout, helper)
        before = open_descriptors()
        with pytest.raises(FailedPrecondition, match="one of the two is a directory, the other is not"):
            staging.lock(container(), sandbox(namespaces=NamespaceOptions()), config)
        assert open_descriptors() == before
        staging.unstage(container())


# what is copied, and what is left of it


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    """Copies for the pod with a user namespace, which is pinned."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.rootfs(container().id).mkdir(parents=True)
    pinned = layout.namespace_pin(POD.id, NamespaceKind.USER)
    pinned.parent.mkdir(parents=True)
    with NamespaceHelper() as helper:
        userns = helper.user_namespace(IDMAP)
        pin(userns, pinned)
        os.close(userns)
        yield Staging(layout, helper)
    unmount_below(tmp_path)


def staged(staging: Staging, asked: Container, pod: Sandbox = POD) -> dict[int, StagedMount]:
    """Make the copies that are planned for the container's mounts, and return them."""
    planned = staging.planned(asked, pod)
    staging.stage(asked, pod, planned)
    return planned


def at_data(volume: Path, **fields: Any) -> Container:
    """Return a container with the volume at /data."""
    return container(mounts=(Mount(container_path="/data", host_path=str(volume), **fields),))


def test_a_mapped_volume_shows_its_owners_mapped_and_keeps_them(volume: Path, staging: Staging) -> None:
    (volume / "file").write_text("content")
    copy = staged(staging, at_data(volume, idmap=IDMAP))[0].source
    assert (Path(copy) / "file").stat().st_uid == IDMAP.host_uid(0)
    assert (volume / "file").stat().st_uid == 0


def test_a_pod_with_the_machines_users_needs_no_copies(volume: Path, staging: Staging) -> None:
    pod = sandbox(namespaces=NamespaceOptions())
    assert staged(staging, at_data(volume), pod) == {}
    assert staging.planned_sources(container(), pod, [str(volume)]) == {}
    assert not staging.layout.staged_mounts(container().id).exists()


def test_read_only_with_all_that_is_below_needs_a_copy_whoever_the_users_are(volume: Path, staging: Staging) -> None:
    asked = at_data(volume, readonly=True, recursive_read_only=True)
    copy = staged(staging, asked, sandbox(namespaces=NamespaceOptions()))[0].source
    for path in (Path(copy), Path(copy) / "above" / "mount"):
        with pytest.raises(OSError, match="Read-only file system"):
            (path / "new").touch()
    (volume / "above" / "mount" / "new").touch()


@pytest.mark.parametrize("propagation", [Propagation.PRIVATE, Propagation.HOST_TO_CONTAINER])
def test_copies_go_and_what_is_mounted_below_the_volume_stays(
    tmp_path: Path, staging: Staging, propagation: Propagation
) -> None:
    """Also of a copy that is a peer of the volume, where unmounting it would unmount below the volume itself."""
    volume = tmp_path / "shared"
    volume.mkdir()
    mounts.tmpfs(volume)
    mounts.set_propagation(volume, mounts.Propagation.SHARED)
    (volume / "below").mkdir()
    mounts.tmpfs(volume / "below")
    (volume / "below" / "file").write_text("of the volume")
    staged(staging, at_data(volume, propagation=propagation))
    staging.unstage(container())
    staging.unstage(container())
    directory = staging.layout.staged_mounts(container().id)
    assert not directory.exists()
    assert mountinfo.under(directory) == []
    assert (volume / "below" / "file").read_text() == "of the volume"


def test_a_bidirectional_volume_with_mounts_below_is_refused_in_a_user_namespace(
    tmp_path: Path, staging: Staging
) -> None:
    volume = tmp_path / "shared"
    volume.mkdir()
    mounts.tmpfs(volume)
    mounts.set_propagation(volume, mounts.Propagation.SHARED)
    (volume / "below").mkdir()
    mounts.tmpfs(volume / "below")
    with pytest.raises(FailedPrecondition, match="has mounts below it"):
        staged(staging, at_data(volume, propagation=Propagation.BIDIRECTIONAL))


def test_a_configuration_with_nothing_to_protect_stays_as_it_is(volume: Path, staging: Staging) -> None:
    config = {"mounts": [bind("/data", str(volume.parent), "rprivate", "rw")]}
    assert staging.lock(container(), POD, config) == config
    assert not staging.layout.staged_mounts(container().id).exists()


def test_flags_of_a_bidirectional_mount_cannot_be_locked(volume: Path, staging: Staging) -> None:
    config = {"mounts": [bind("/data", str(volume), "rshared", "ro")]}
    with pytest.raises(FailedPrecondition, match="/data is read-only"):
        staging.lock(container(), POD, config)


def test_a_private_mount_passes_nothing_on(volume: Path) -> None:
    inside = volume / "above" / "mount"
    mounts.set_propagation(inside, mounts.Propagation.PRIVATE)
    for propagation in (Propagation.BIDIRECTIONAL, Propagation.HOST_TO_CONTAINER):
        with pytest.raises(FailedPrecondition) as refused:
            check_propagation(Mount(container_path="/data", host_path=str(inside), propagation=propagation))
        assert str(inside) in refused.value.message
        assert f"mount --make-rshared {inside}" in refused.value.hint
    mounts.set_propagation(inside, mounts.Propagation.SHARED)
    check_propagation(Mount(container_path="/data", host_path=str(inside), propagation=Propagation.BIDIRECTIONAL))


def test_only_root_and_the_pods_own_root_pass(tmp_path: Path) -> None:
    make_passable(tmp_path / "mapped", IDMAP)
    make_passable(tmp_path / "machine", None)
    modes = {path.name: (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) for path in tmp_path.iterdir()}
    assert modes == {"mapped": (0o710, IDMAP.host_gid(0)), "machine": (0o700, 0)}
