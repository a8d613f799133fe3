"""The archive of a checkpoint, and OCI runtimes that fail, hang or cannot.

CRIU depends on the kernel it was made for, so the OCI runtime here is a program that leaves what CRIU would.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import socket
import stat
import tarfile
import threading
from pathlib import Path

import pytest
from msgspec import structs
from runtime_values import IDMAP, container, in_own_userns, sandbox

from podkeep.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PodkeepError,
    ResourceExhausted,
    Unimplemented,
)
from podkeep.base.ids import HandlerName
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from podkeep.runtime.lifecycle.checkpoint import CheckpointMaker, CheckpointPlan, Checkpoints, write_layer
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import ContainerState, Sandbox, SandboxState, SandboxStatus
from podkeep.runtime.model.state import State
from podkeep.runtime.oci.driver import Driver, Handler
from support.beside import exchanging
from support.processes import write_script

DUMPS = """
while [ "$1" != --image-path ]; do shift; done
echo pages > "$2/pages-1.img"; echo said > "$4/dump.log"
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(root=tmp_path / "root", run=tmp_path / "run")
    made = container()
    layout.bundle(made.id).mkdir(parents=True)
    (layout.bundle(made.id) / "config.json").write_text('{"ociVersion": "1.0.2"}')
    layout.writable_layer(made.id).mkdir(parents=True)
    (layout.writable_layer(made.id) / "new").write_text("written")
    os.mknod(layout.writable_layer(made.id) / "gone", 0o600 | 0o020000, os.makedev(0, 0))
    return layout


def driver(tmp_path: Path, script: str) -> Driver:
    program = tmp_path / "runtime"
    write_script(program, f"#!/bin/sh\n{script}\n")
    return Driver(
        handler=Handler(name=HandlerName("h"), path=str(program), root=tmp_path / "state"), conmon="/usr/bin/conmon"
    )


def maker(layout: Layout, criu: str = "/bin/true") -> CheckpointMaker:
    (layout.root / "cgroups").mkdir(exist_ok=True)
    cgroups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(layout.root / "cgroups",)))
    return CheckpointMaker(layout=layout, cgroups=cgroups, criu=criu)


def plan(tmp_path: Path, *, timeout: float = 10, pod: Sandbox | None = None, logs: str = "") -> CheckpointPlan:
    pod = pod or sandbox(cgroup_parent="/pods", log_directory=logs)
    return CheckpointPlan(
        container=container(log_path="0.log"), sandbox=pod, location=tmp_path / "c.tar", timeout=timeout
    )


def left_behind(layout: Layout, tmp_path: Path) -> list[str]:
    data = layout.container_data(container().id)
    return sorted(path.name for path in (*data.iterdir(), *tmp_path.glob(".*")) if path.name != "upper")


def test_the_archive_has_the_peers_layout(layout: Layout, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "0.log").write_text("a line\n")
    maker(layout).make(plan(tmp_path, logs=str(logs)), driver(tmp_path, DUMPS))
    archive = tmp_path / "c.tar"
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as tar:
        names = {item.name for item in tar.getmembers()}
        assert names == {
            *("checkpoint", "checkpoint/pages-1.img", "config.dump", "spec.dump", "status.dump", "dump.log"),
            *("container.log", "rootfs-diff.tar", "deleted.files"),
        }

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        config = json.loads(read("config.dump"))
        assert (config["id"], config["name"], config["rootfsImageName"]) == ("c" * 64, "main", "busybox")
        assert json.loads(read("spec.dump"))["ociVersion"] == "1.0.2"
        assert json.loads(read("deleted.files")) == ["gone"]
        assert read("container.log") == b"a line\n"
        with tarfile.open(fileobj=io.BytesIO(read("rootfs-diff.tar"))) as layer:
            assert layer.getnames() == ["new"]
    assert left_behind(layout, tmp_path) == []


def test_a_layer_has_the_containers_own_ids(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "dir").mkdir(parents=True)
    (upper / "dir/file").write_text("x")
    for path in (upper / "dir", upper / "dir/file"):
        os.chown(path, IDMAP.host_uid(7), IDMAP.host_gid(8))
    assert write_layer(upper, tmp_path / "out.tar", in_own_userns().namespaces.userns) == []
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert [(item.name, item.uid, item.gid) for item in tar] == [("dir", 7, 8), ("dir/file", 7, 8)]


@pytest.mark.parametrize("what", ["link", "directory link", "pipe"])
@pytest.mark.slow
def test_nothing_but_the_layer_is_written_while_the_container_exchanges_files(tmp_path: Path, what: str) -> None:
    upper, outside = tmp_path / "upper", tmp_path / "outside"
    (upper / "directory").mkdir(parents=True)
    (upper / "directory/file").write_text("inside")
    (upper / "file").write_text("inside")
    outside.mkdir()
    (outside / "file").write_text("SECRET")
    (outside / "more").write_text("SECRET")
    if what == "pipe":
        os.mkfifo(upper / "other")
    else:
        (upper / "other").symlink_to(outside if what == "directory link" else outside / "file")
    victim = upper / ("directory" if what == "directory link" else "file")
    with exchanging(victim, upper / "other"):
        for _ in range(500):
            write_layer(upper, tmp_path / "out.tar", None)
            assert b"SECRET" not in (tmp_path / "out.tar").read_bytes()
            with tarfile.open(tmp_path / "out.tar") as tar:
                assert {os.path.basename(item.name) for item in tar} <= {"directory", "file", "other"}


def test_a_file_that_shrinks_and_grows_leaves_a_whole_archive(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "file").write_bytes(b"x" * 3_000_000)
    (upper / "later").write_text("later")
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            os.truncate(upper / "file", 10)
            os.truncate(upper / "file", 3_000_000)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            write_layer(upper, tmp_path / "out.tar", None)
            with tarfile.open(tmp_path / "out.tar") as tar:
                assert sorted(item.name for item in tar) == ["file", "later"]
    finally:
        done.set()
        thread.join()


def test_every_kind_of_file_is_in_the_layer(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "dir").mkdir(parents=True)
    (upper / "dir/file").write_text("x")
    os.link(upper / "dir/file", upper / "dir/same")
    (upper / "link").symlink_to("/etc/passwd")
    os.mkfifo(upper / "pipe")
    os.mknod(upper / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(upper / "dir/gone", stat.S_IFCHR, os.makedev(0, 0))
    (upper / "odd\n\udcff").write_text("odd")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(upper / "socket"))
        assert write_layer(upper, tmp_path / "out.tar", None) == ["dir/gone"]
    with tarfile.open(tmp_path / "out.tar") as tar:
        found = {item.name: item for item in tar}
    first, second = sorted(("dir/file", "dir/same"), key=lambda name: found[name].islnk())
    assert set(found) == {"dir", "dir/file", "dir/same", "link", "pipe", "device", "odd\n\udcff"}
    assert (found[first].isreg(), found[second].linkname) == (True, first)
    assert (found["link"].linkname, found["pipe"].isfifo()) == ("/etc/passwd", True)
    assert (found["device"].devmajor, found["device"].devminor) == (1, 3)


def test_a_layer_that_the_disk_cannot_hold_is_refused(layout: Layout, tmp_path: Path) -> None:
    huge = layout.writable_layer(container().id) / "huge"
    huge.touch()
    os.truncate(huge, 1 << 43)
    with pytest.raises(ResourceExhausted, match="'huge'"):
        maker(layout).make(plan(tmp_path), driver(tmp_path, DUMPS))
    assert left_behind(layout, tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_that_is_no_file_is_left_out(layout: Layout, tmp_path: Path, kind: str) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    if kind == "pipe":
        os.mkfifo(logs / "0.log")
    else:
        (logs / "0.log").symlink_to("/etc/passwd")
    maker(layout).make(plan(tmp_path, logs=str(logs)), driver(tmp_path, DUMPS))
    with tarfile.open(tmp_path / "c.tar") as tar:
        assert "container.log" not in tar.getnames()


def test_without_criu(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(Unimplemented, match="/no/such/criu is not there"):
        maker(layout, "/no/such/criu").make(plan(tmp_path), driver(tmp_path, DUMPS))


def test_a_real_oci_runtime_without_criu(layout: Layout, tmp_path: Path) -> None:
    crun = Driver(
        handler=Handler(name=HandlerName("crun"), path="/usr/bin/crun", root=tmp_path / "state"),
        conmon="/usr/bin/conmon",
    )
    with pytest.raises(Unimplemented, match="built without CRIU"):
        maker(layout).make(plan(tmp_path), crun)
    assert left_behind(layout, tmp_path) == []
    assert not (tmp_path / "c.tar").exists()


def test_a_dump_that_fails_says_why_and_leaves_nothing(layout: Layout, tmp_path: Path) -> None:
    script = 'for last; do :; done; echo refused >&2; echo "(0.1) Error (x.c:1): no vdso" > '
    script += f"{layout.container_data(container().id)}/checkpoint/dump.log; exit 1"
    with pytest.raises(Internal, match=r"refused; CRIU: \(0\.1\) Error \(x\.c:1\): no vdso"):
        maker(layout).make(plan(tmp_path), driver(tmp_path, script))
    assert left_behind(layout, tmp_path) == []
    assert not (tmp_path / "c.tar").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ("forgotten", NotFound, "not found"),
        ("removing", FailedPrecondition, "is removing, not running"),
        ("running", Internal, "does not exist"),
    ],
)
def test_a_container_that_is_removed_meanwhile(
    layout: Layout, tmp_path: Path, record: str, error: type[PodkeepError], message: str
) -> None:
    """The OCI runtime makes the directory of its images, with those above it, and then finds no container."""
    inside, pod = container(log_path="0.log"), sandbox(cgroup_parent="/pods")
    state = State(tmp_path / "state.db")
    state.add_sandbox(pod)
    state.add_container(inside)
    state.set_container(inside.id, structs.replace(inside.status, state=ContainerState.RUNNING))
    begun, removed = tmp_path / "begun", tmp_path / "removed"
    os.mkfifo(begun)
    os.mkfifo(removed)
    script = 'while [ "$1" != --image-path ]; do shift; done; '
    script += f'echo > {begun}; read line < {removed}; mkdir -p "$2"; echo "container does not exist" >&2; exit 1'
    made = maker(layout)
    checkpoints = Checkpoints(state, lambda _: driver(tmp_path, script), layout, made.cgroups, made.criu)

    async def checkpoint() -> None:
        making = asyncio.ensure_future(checkpoints.make(inside.id, str(tmp_path / "c.tar"), 30))
        await asyncio.to_thread(begun.read_text)
        shutil.rmtree(layout.container_data(inside.id))
        if record != "running":
            state.set_container(inside.id, structs.replace(inside.status, state=ContainerState.REMOVING))
        if record == "forgotten":
            state.forget_container(inside.id)
        await asyncio.to_thread(removed.write_text, "\n")
        await making

    with pytest.raises(error, match=message):
        asyncio.run(checkpoint())
    assert not layout.container_data(inside.id).exists()
    state.close()


def test_the_directory_of_a_container_is_not_made_again(layout: Layout, tmp_path: Path) -> None:
    shutil.rmtree(layout.container_data(container().id))
    with pytest.raises(FailedPrecondition, match="No such file or directory"):
        maker(layout).make(plan(tmp_path), driver(tmp_path, DUMPS))
    assert not layout.container_data(container().id).exists()


@pytest.mark.slow
def test_a_dump_that_hangs_is_killed_and_the_container_thawed(layout: Layout, tmp_path: Path) -> None:
    pod = Sandbox(
        id=sandbox().id,
        config=sandbox(cgroup_parent="/pods").config,
        status=SandboxStatus(state=SandboxState.READY, created_at=1),
    )
    maker_ = maker(layout)
    cgroup = layout.root / "cgroups/pods" / f"pod-{pod.id}" / container().id
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.freeze").write_text("1")
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.3 s"):
        maker_.make(plan(tmp_path, timeout=0.3, pod=pod), driver(tmp_path, "sleep 3600 & sleep 3600"))
    assert (cgroup / "cgroup.freeze").read_text() == "0"
    assert left_behind(layout, tmp_path) == []


def test_a_place_that_cannot_be_written(layout: Layout, tmp_path: Path) -> None:
    nowhere = plan(tmp_path / "no" / "such")
    with pytest.raises(FailedPrecondition, match="No such file"):
        maker(layout).make(nowhere, driver(tmp_path, DUMPS))
    assert left_behind(layout, tmp_path) == []
