"""Copies of volumes for pods in user namespaces, while somebody writes to the volumes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_values import IDMAP, container, sandbox

from podkeep.kernel import mountinfo, mounts
from podkeep.kernel.mounts import MountFlag
from podkeep.kernel.namespaces import NamespaceHelper, NamespaceKind, pin
from podkeep.kernel.removal import unmount_below
from podkeep.runtime.bundle.staging import Staging
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Mount, NamespaceOptions
from podkeep.runtime.oci.mounts import bind

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
    layout.bundle(container().id).mkdir(parents=True)
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
        source = Path(Staging(layout, helper).lock(container(), pod, config)["mounts"][1]["source"])
    assert source.parent == layout.staged_mounts(container().id)
    flags = {path.name: bool(os.statvfs(path).f_flag & os.ST_RDONLY) for path in (source, source / "above" / "mount")}
    assert flags == {source.name: True, "mount": False}


def test_what_is_mounted_inside_of_a_volume_comes_with_it_whatever_is_exchanged_meanwhile(
    tmp_path: Path, volume: Path
) -> None:
    """No path leads through the volume, in which whoever writes to it can put a link above the mount."""
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    layout.bundle(container().id).mkdir(parents=True)
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
        copies = staging.planned(made, POD)
        staging.stage(made, POD, copies)
        (volume / "above").rename(volume / "elsewhere")
        (volume / "above").symlink_to(tmp_path / "machine")
        config = {"mounts": [bind("/data", copies[0].source, "rprivate", "rw")]}
        source = Path(staging.lock(container(), POD, config)["mounts"][0]["source"])
    assert source.parent == layout.staged_mounts(container().id)
    mounted = [entry.mount_point for entry in mountinfo.under(source)]
    assert set(mounted) == {str(source), str(source / "elsewhere" / "mount")}
    assert (source / "elsewhere" / "mount" / "file").read_text() == "of the volume"
