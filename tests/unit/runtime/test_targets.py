"""Where paths lead in an image, whose links may say anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.bundle import targets


@pytest.fixture
def image(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A root file system with a descriptor of it; beside it is a file that no path may reach."""
    root = tmp_path / "rootfs"
    (root / "run/app").mkdir(parents=True)
    (root / "var").mkdir()
    (tmp_path / "outside").mkdir()
    links = {
        "var/run": "/run",
        "up": "../../../../run",
        "dangling": "/nowhere/at/all",
        "var/relative": "../run/app",
        "chain": "/var/run/link",
        "run/link": "app",
        "loop": "loop",
        "one": "/two",
        "two": "one",
        "proc-self": "../../proc/self",
        "to-proc": "/proc",
        "to-sys": "sys/kernel",
        "to-root": "/",
        "hidden": "/etc",
        "dev-link": "/dev",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    (root / "dev").mkdir()
    (root / "dev/log").symlink_to("/proc/self")
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield root, fd
    os.close(fd)


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/data", "/data"),
        ("/run/app/x", "/run/app/x"),
        ("/var/run/x", "/run/x"),
        ("/up/x", "/run/x"),
        ("/dangling/x", "/nowhere/at/all/x"),
        ("/var/relative", "/run/app"),
        ("/chain/x", "/run/app/x"),
        ("/dev/log/x", "/dev/log/x"),
        ("/dev/log", "/dev/log"),
        ("/dev-link/shm", "/dev/shm"),
        ("/proc/cpuinfo", "/proc/cpuinfo"),
        ("/sys/fs/bpf", "/sys/fs/bpf"),
        ("/new/../run", "/run"),
    ],
)
def test_links_are_followed_inside(image: tuple[Path, int], path: str, real: str) -> None:
    assert targets.resolve_all(image[1], [path])[path.replace("/new/..", "")] == real


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/proc-self/attr", "/proc-self/attr leads to /proc/self/attr"),
        ("/to-proc", "leads to /proc in this image"),
        ("/to-sys/x", "leads to /sys/kernel/x"),
        ("/to-root", "leads to / in this image"),
        ("/dev-link", "leads to /dev in this image"),
        ("/loop", "/loop: the links of the image lead in a circle"),
        ("/one/x", "in a circle"),
    ],
)
def test_where_nothing_can_be_mounted(image: tuple[Path, int], path: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        targets.resolve_all(image[1], [path])


def test_links_below_a_mount_are_hidden_by_it(image: tuple[Path, int]) -> None:
    """The volume at /run may have a directory where the image has a link."""
    assert targets.resolve_all(image[1], ["/run/link/deep", "/var/run/", "/up//"]) == {
        "/up": "/run",
        "/var/run": "/run",
        "/run/link/deep": "/run/link/deep",
    }
    assert targets.resolve_all(image[1], ["/run/link/deep", "/other"]) == {
        "/other": "/other",
        "/run/link/deep": "/run/app/deep",
    }


def test_a_link_that_leads_out_of_a_mount_is_followed_again(image: tuple[Path, int]) -> None:
    (image[0] / "back").symlink_to("run/x/../../var/run")
    assert targets.resolve_all(image[1], ["/run", "/back/app"]) == {"/run": "/run", "/back/app": "/run/app"}


@pytest.mark.slow
@pytest.mark.parametrize("plain", [0, 1000])
def test_links_that_go_to_and_fro_are_followed_up_to_a_number_of_steps(image: tuple[Path, int], plain: int) -> None:
    for number in range(37):
        (image[0] / f"l{number}").symlink_to("run/../" * 500 + f"l{number + 1}")
    for number in range(64):
        (image[0] / f"s{number}").symlink_to("l0")
    assert targets.resolve_all(image[1], ["/s0"]) == {"/s0": "/l37"}
    read = 0

    def watch(_frame: object, event: str, called: object) -> None:
        nonlocal read
        read += event == "c_call" and called is os.readlink

    sys.setprofile(watch)
    try:
        with pytest.raises(InvalidArgument, match="lead over more than 131072 parts of names"):
            targets.resolve_all(image[1], [*(f"/p{number}" for number in range(plain)), *(f"/s{n}" for n in range(64))])
    finally:
        sys.setprofile(None)
    assert read <= 131_072


def test_a_link_over_thousands_of_names_is_followed_a_few_times(image: tuple[Path, int]) -> None:
    """For each name the kernel walks there from the top again."""
    (image[0] / "long").symlink_to("d/" * 1900)
    assert targets.resolve_all(image[1], ["/long/a"]) == {"/long/a": "/" + "d/" * 1900 + "a"}
    with pytest.raises(InvalidArgument, match="or 4194304 characters of the paths to these"):
        targets.resolve_all(image[1], [f"/long/{number}" for number in range(3)])


@pytest.mark.slow
def test_as_many_paths_as_containers_have_are_resolved(image: tuple[Path, int]) -> None:
    paths = [f"/var/run/a/b/c/d/e/{number}" for number in range(5000)]
    assert targets.resolve_all(image[1], paths) == {path: path.removeprefix("/var") for path in paths}


@pytest.mark.parametrize("path", ["dev", "proc", "sys"])
@pytest.mark.parametrize("target", ["/data", "var", "/dev", None], ids=["absolute", "relative", "itself", "a file"])
def test_a_directory_of_the_kernel_that_is_something_else(tmp_path: Path, path: str, target: str | None) -> None:
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        targets.check_virtual(root)
        if target is None:
            (tmp_path / path).touch()
        else:
            (tmp_path / path).symlink_to(target)
        with pytest.raises(InvalidArgument, match=f"/{path} of the image is no directory"):
            targets.check_virtual(root)
        (tmp_path / path).unlink()
        (tmp_path / path).mkdir()
        targets.check_virtual(root)
    finally:
        os.close(root)


_MOUNTED = ("/dev/shm", "/run/volume", "/volume", "/volume/inner")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/./",
        "/run/..",
        "/to-root",
        "/to-root/run",
        "/new/one",
        "/var/run/new",
        "/volume/",
        "/var/run/volume",
    ],
)
def test_working_directories_that_the_image_alone_leads_to(image: tuple[Path, int], path: str) -> None:
    """The root by another name was refused as what nothing can be mounted at."""
    _, root = image
    targets.check_working_directory(root, path, _MOUNTED)


@pytest.mark.parametrize("path", ["/volume/x", "/volume/inner", "/var/run/volume/x", "/proc/1", "/proc-self", "/loop"])
def test_working_directories_that_others_than_the_image_lead_to(image: tuple[Path, int], path: str) -> None:
    _, root = image
    with pytest.raises(InvalidArgument, match="the working directory"):
        targets.check_working_directory(root, path, _MOUNTED)
