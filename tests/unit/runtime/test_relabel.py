"""SELinux labels of mounted files. The kernel keeps the attribute whether SELinux is on or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_values import container

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.bundle.relabel import ATTRIBUTE, relabel
from podkeep.runtime.lifecycle.container_executor import relabel_mounts
from podkeep.runtime.model.records import Mount, VolumeImage
from support.descriptors import open_descriptors

LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


def label_of(path: Path) -> str:
    return os.getxattr(path, ATTRIBUTE, follow_symlinks=False).rstrip(b"\0").decode()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "volume/deep/er").mkdir(parents=True)
    (tmp_path / "volume/deep/er/file").touch()
    (tmp_path / "outside").touch()
    (tmp_path / "volume/link").symlink_to(tmp_path / "outside")
    (tmp_path / "volume/directory-link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "volume/pipe")
    return tmp_path / "volume"


@pytest.mark.slow
def test_everything_below_gets_the_label_and_nothing_else(volume: Path) -> None:
    descriptors = len(open_descriptors())
    relabel(str(volume), LABEL)
    for path in [volume, *volume.rglob("*")]:
        assert label_of(path) == LABEL, path
    for path in (volume.parent, volume.parent / "outside"):
        assert ATTRIBUTE not in os.listxattr(path)
    relabel(str(volume), LABEL.replace("c2", "c3"))
    assert label_of(volume / "deep/er/file").endswith("c1,c3")
    assert len(open_descriptors()) == descriptors


def test_a_file(volume: Path) -> None:
    relabel(str(volume / "deep/er/file"), LABEL)
    assert label_of(volume / "deep/er/file") == LABEL
    assert ATTRIBUTE not in os.listxattr(volume / "deep/er")


def test_what_has_the_label_is_not_written(volume: Path) -> None:
    relabel(str(volume), LABEL)
    before = {path: path.lstat().st_ctime_ns for path in volume.rglob("*")}
    relabel(str(volume), LABEL)
    assert {path: path.lstat().st_ctime_ns for path in volume.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ramfs", "mqueue"])
def test_a_file_system_without_labels_is_passed_over(tmp_path: Path, kind: str) -> None:
    script = f"mount -t {kind} none {tmp_path} && exec {sys.executable} -c 'import sys;"
    script += f' from podkeep.runtime.bundle.relabel import relabel; relabel("{tmp_path}", "{LABEL}"); print("done")\''
    found = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("done\n", "")


@pytest.mark.slow
def test_a_deep_tree(volume: Path) -> None:
    fd = os.open(volume, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    relabel(str(volume), LABEL)
    assert os.getxattr(fd, ATTRIBUTE).startswith(LABEL.encode())
    os.close(fd)
    subprocess.run(["rm", "-rf", volume], check=True)


@pytest.mark.parametrize(
    "path",
    ["/", "/usr", "/etc", "/home", "/home/somebody", "/var", "/var/lib", "/root", "/proc/sys", "/sys/fs", "/tmp"],
)
def test_the_machines_directories_are_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match=f"SELinux relabeling of {path} is not allowed"):
        relabel(path, LABEL)


@pytest.mark.requirement("V78")
def test_the_store_of_images_is_never_labelled(tmp_path: Path) -> None:
    """Neither for an image volume, nor for a path that leads to it."""
    store = tmp_path / "podkeep/images"
    own = tmp_path / "own"
    own.mkdir()
    (store / "layers/sha256-1").mkdir(parents=True)
    (store / "layers/sha256-1/file").touch()
    os.setxattr(store / "layers/sha256-1/file", ATTRIBUTE, b"system_u:object_r:container_ro_file_t:s0")

    def labels() -> dict[Path, list[tuple[str, bytes]]]:
        found = [store.parent, store, *store.rglob("*")]
        return {path: [(name, os.getxattr(path, name)) for name in os.listxattr(path)] for path in found}

    before = labels()
    image = Mount(
        container_path="/image",
        host_path="",
        selinux_relabel=True,
        image=VolumeImage(reference="data:1"),
        readonly=True,
    )
    asked = Mount(container_path="/own", host_path=str(own), selinux_relabel=True)
    relabel_mounts(container(mounts=(image, asked)), {}, LABEL, store)
    assert label_of(own) == LABEL
    for path in (store, store / "layers", store / "layers/sha256-1/file", store.parent, tmp_path):
        wrong = Mount(container_path="/v", host_path=str(path), selinux_relabel=True)
        with pytest.raises(InvalidArgument, match="images that all pods share are there"):
            relabel_mounts(container(mounts=(wrong,)), {}, LABEL, store)
    assert labels() == before
