"""CDI devices and device nodes over CRI: real spec files, real hooks, real nodes, in pods with either kind of users."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo, mounts
from support import remounting
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.processes import write_script
from support.registry import Registry

WHERE = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
HOOK = """#!/bin/sh
cat > {state}
echo "$0 $@ $GREETING" > {output}
"""


@pytest.fixture(scope="module")
def cdi_daemon(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon with two directories of spec files; the second goes before the first."""
    base = open_directory / f"cdi-{os.urandom(3).hex()}"
    base.mkdir()
    settings = f'[registries."{registry.host}"]\ninsecure = true\n'
    daemon = Daemon(base, extra=settings)
    directories = json.dumps([str(base / "etc"), str(base / "var")])
    daemon.config.write_text(
        daemon.config.read_text().replace("[runtime]\n", f"[runtime]\ncdi_spec_dirs = {directories}\n")
    )
    for name in ("etc", "var"):
        (base / name).mkdir()
    with daemon:
        yield daemon


@pytest.fixture
def cdi(cdi_daemon: Daemon, image: str) -> Iterator[Pods]:
    """A client of that daemon, which holds afterwards what it held before; there are no spec files."""
    before = cdi_daemon.resources()
    with Pods(cdi_daemon.socket, image) as client:
        client.pull()
        yield client
    for name in ("etc", "var"):
        for path in (cdi_daemon.base / name).iterdir():
            path.unlink()
    assert cdi_daemon.resources() == before


def write(daemon: Daemon, name: str, *, where: str = "etc", kind: str = "vendor.com/thing", **devices: Any) -> Path:
    """Write a spec file of devices with their edits; ``everywhere`` are those of all."""
    everywhere = devices.pop("everywhere", {})
    listed = [{"name": device, "containerEdits": edits} for device, edits in devices.items()]
    path = daemon.base / where / name
    spec = {"cdiVersion": "0.7.0", "kind": kind, "devices": listed, "containerEdits": everywhere}
    path.write_text(json.dumps(spec))
    return path


def devices(*names: str) -> list[api.CDIDevice]:
    return [api.CDIDevice(name=name) for name in names]


@WHERE
def test_everything_a_device_brings(cdi_daemon: Daemon, cdi: Pods, user: tuple[int, int, int] | None) -> None:
    base = cdi_daemon.base
    library = base / "library"
    (library / "below").mkdir(parents=True, exist_ok=True)
    (library / "driver.so").write_text("driver\n")
    hook = write_script(base / "hook.sh", HOOK.format(state=base / "state", output=base / "output"))
    everywhere = {
        "env": ["VENDOR=yes", "PATH=/usr/bin:/bin:/vendor"],
        "hooks": [
            {
                "hookName": "createRuntime",
                "path": str(hook),
                "args": ["hook", "an argument"],
                "env": ["GREETING=hello"],
                "timeout": 5,
            }
        ],
        "additionalGids": [1234, 0],
    }
    one = {
        "deviceNodes": [{"path": "/dev/vendor0", "hostPath": "/dev/full", "permissions": "rw"}],
        "mounts": [
            {"hostPath": str(library), "containerPath": "/usr/lib/vendor", "options": ["ro", "nosuid", "nodev"]},
            {"hostPath": "tmpfs", "containerPath": "/vendor", "type": "tmpfs", "options": ["size=1m", "mode=755"]},
        ],
    }
    write(cdi_daemon, "vendor.json", everywhere=everywhere, one=one, two={"env": ["TWO=2"]})
    mounts.tmpfs(library / "below", "mode=755")
    try:
        sandbox = cdi.run(pod(options=namespaces(user=user)))
        container = cdi.launch(sandbox, CDI_devices=devices("vendor.com/thing=one", "vendor.com/thing=two"))
        read = cdi.read(container, "echo $VENDOR $TWO $PATH; cat /usr/lib/vendor/driver.so; id -G")
        assert read.splitlines() == ["yes 2 /usr/bin:/bin:/vendor", "driver", "0 1234"]
        assert (
            cdi.read(container, "stat -c '%u %t:%T' /usr/lib/vendor/driver.so /dev/vendor0").splitlines()[0] == "0 0:0"
        )
        assert cdi.read(container, "stat -c %t:%T /dev/vendor0") == "1:7"
        assert cdi.exec(container, "sh", "-c", "exec 3<>/dev/vendor0").exit_code == 0
        for path in ("/usr/lib/vendor/new", "/usr/lib/vendor/below/new"):
            answer = cdi.exec(container, "touch", path)
            assert (answer.exit_code == 0) is (path.endswith("below/new") and user is None)
        if user is not None:
            (attacked,) = remounting.attack(cdi.host_pid(container), ["/usr/lib/vendor"]).values()
            assert attacked["flags"] == ["nodev", "nosuid", "ro"]
            assert set(attacked["attempts"].values()) == {"EPERM"}
        assert cdi.read(container, "grep ' /vendor ' /proc/mounts").split()[2] == "tmpfs"
        assert (base / "output").read_text() == f"{hook} an argument hello\n"
        assert json.loads((base / "state").read_text())["id"] == container
    finally:
        mounts.unmount(library / "below", lazy=True)


def test_devices_of_annotations(cdi_daemon: Daemon, cdi: Pods) -> None:
    """That is how the kubelet passed them before the field was there."""
    write(cdi_daemon, "vendor.json", a={"env": ["ORDER=a"]}, b={"env": ["ORDER=b"]}, c={"env": ["C=c"]})
    annotations = {"cdi.k8s.io/plugin": "vendor.com/thing=b,vendor.com/thing=c", "other": "vendor.com/thing=x"}
    container = cdi.launch(cdi.run(), CDI_devices=devices("vendor.com/thing=a"), annotations=annotations)
    assert cdi.read(container, "echo $ORDER $C") == "b c"
    assert dict(cdi.status(container).annotations) == annotations


def test_changed_files_are_read_again(cdi_daemon: Daemon, cdi: Pods) -> None:
    sandbox = cdi.run()
    wanted = devices("vendor.com/thing=a")

    def value(attempt: int) -> str:
        return cdi.read(cdi.launch(sandbox, CDI_devices=wanted, attempt=attempt), "echo $A")

    assert "vendor.com/thing=a" in error_of(lambda: cdi.create(sandbox, CDI_devices=wanted), NotFound)
    path = write(cdi_daemon, "vendor.json", a={"env": ["A=1"]})
    assert value(1) == "1"
    write(cdi_daemon, "vendor.json", a={"env": ["A=2"]})
    assert value(2) == "2"
    later = write(cdi_daemon, "z.yaml", where="var", a={"env": ["A=3"]})
    assert value(3) == "3"
    later.unlink()
    assert value(4) == "2"
    path.unlink()
    assert "vendor.com/thing=a" in error_of(lambda: cdi.create(sandbox, CDI_devices=wanted, attempt=5), NotFound)


def test_files_that_are_wrong(cdi_daemon: Daemon, cdi: Pods) -> None:
    """Only their own devices are missing, and the error says why."""
    wrong = cdi_daemon.base / "etc/wrong.yaml"
    wrong.write_text("cdiVersion: 0.6.0\nkind: other.com/thing\ndevices:\n- name: a\n  containerEdits: {enw: [A=1]}\n")
    write(cdi_daemon, "right.json", a={"env": ["A=1"]})
    sandbox = cdi.run()
    assert cdi.read(cdi.launch(sandbox, CDI_devices=devices("vendor.com/thing=a")), "echo $A") == "1"
    create = lambda: cdi.create(sandbox, name="x", CDI_devices=devices("vendor.com/thing=a", "other.com/thing=a"))  # noqa: E731
    message = error_of(create, NotFound)
    assert "unresolvable CDI devices other.com/thing=a;" in message
    assert f"CDI spec {wrong}: Object contains unknown field `enw`" in message
    write(cdi_daemon, "twice.json", a={"env": ["A=2"]})
    message = error_of(
        lambda: cdi.create(sandbox, name="y", CDI_devices=devices("vendor.com/thing=a")), FailedPrecondition
    )
    assert "right.json and" in message
    assert "twice.json" in message


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ({"deviceNodes": [{"path": "/dev/no-such"}]}, "CDI device node /dev/no-such: No such file"),
        ({"deviceNodes": [{"path": "/etc/passwd"}]}, "CDI device node /etc/passwd is none"),
        ({"deviceNodes": [{"path": "/dev/null", "type": "b"}]}, "CDI device node /dev/null is another kind"),
        ({"mounts": [{"hostPath": "/no/such", "containerPath": "/x"}]}, "/no/such, which a CDI device needs mounted"),
    ],
)
def test_what_the_machine_does_not_have(cdi_daemon: Daemon, cdi: Pods, edits: dict[str, Any], told: str) -> None:
    write(cdi_daemon, "vendor.json", a=edits)
    sandbox = cdi.run()
    create = lambda: cdi.create(sandbox, CDI_devices=devices("vendor.com/thing=a"))  # noqa: E731
    assert told in error_of(create, FailedPrecondition)
    assert cdi.containers() == []


def test_hook_that_fails_fails_the_container(cdi_daemon: Daemon, cdi: Pods) -> None:
    write(cdi_daemon, "vendor.json", a={"hooks": [{"hookName": "createRuntime", "path": "/bin/false"}]})
    sandbox = cdi.run()
    with pytest.raises(Exception, match="hook"):
        cdi.create(sandbox, CDI_devices=devices("vendor.com/thing=a"))
    assert cdi.containers() == []


def test_device_nodes_that_the_vendor_describes_whole(cdi_daemon: Daemon, cdi: Pods) -> None:
    """They need not be on the machine; but then they cannot be in a user namespace."""
    node = {"path": "/dev/made", "type": "c", "major": 1, "minor": 5, "fileMode": 0o640, "uid": 7, "gid": 8}
    write(cdi_daemon, "vendor.json", a={"deviceNodes": [node]})
    container = cdi.launch(cdi.run(), CDI_devices=devices("vendor.com/thing=a"))
    assert cdi.read(container, "stat -c '%t:%T %a %u %g' /dev/made; head -c 3 /dev/made | wc -c") == "1:5 640 7 8\n3"
    mapped = cdi.run(pod("mapped", options=namespaces(user=BLOCK)))
    create = lambda: cdi.create(mapped, CDI_devices=devices("vendor.com/thing=a"))  # noqa: E731
    assert "CDI device node /dev/made is not on the machine" in error_of(create, InvalidArgument)


# devices of the request


@WHERE
def test_devices_of_the_request(pods: Pods, user: tuple[int, int, int] | None) -> None:
    asked = [
        api.Device(host_path="/dev/full", container_path="/dev/other-name", permissions="rw"),
        api.Device(host_path="/dev/zero", container_path="/dev/deep/er/zero", permissions="r"),
    ]
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), devices=asked)
    assert pods.read(container, "stat -c '%t:%T' /dev/other-name /dev/deep/er/zero") == "1:7\n1:5"
    assert pods.exec(container, "sh", "-c", "exec 3<>/dev/other-name").exit_code == 0
    assert pods.read(container, "head -c 3 /dev/deep/er/zero | wc -c") == "3"


@WHERE
def test_directory_of_devices(pods: Pods, tmp_path: Path, user: tuple[int, int, int] | None) -> None:
    directory = Path("/dev") / f"podkeep-{os.getpid()}"
    directory.mkdir()
    try:
        (directory / "deep").mkdir()
        os.mknod(directory / "one", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        os.mknod(directory / "deep/two", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (directory / "deep/two").chmod(0o666)
        (directory / "one").chmod(0o666)
        (directory / "text").touch()
        (directory / "link").symlink_to("one")
        asked = [api.Device(host_path=str(directory), container_path="/dev/all", permissions="rw")]
        container = pods.launch(pods.run(pod(options=namespaces(user=user))), devices=asked)
        assert pods.read(container, "cd /dev/all; find . -type c | sort") == "./deep/two\n./one"
        assert pods.read(container, "head -c 2 /dev/all/one | wc -c; echo > /dev/all/deep/two") == "2"
    finally:
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        directory.rmdir()


def test_directory_without_devices_is_an_error(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run()
    asked = [api.Device(host_path=str(tmp_path), container_path="/dev/x", permissions="rw")]
    assert f"directory {tmp_path} has no devices" in error_of(
        lambda: pods.create(sandbox, devices=asked), InvalidArgument
    )


def test_permissions_of_a_device_are_enforced(pods: Pods) -> None:
    asked = [api.Device(host_path="/dev/fuse", container_path="/dev/fuse", permissions="r")]
    container = pods.launch(pods.run(), devices=asked)
    assert b"Operation not permitted" in pods.exec(container, "sh", "-c", "exec 3>/dev/fuse").stderr
    none = pods.launch(pods.run(pod("none")), security={"capabilities": api.Capability(add_capabilities=["MKNOD"])})
    made = pods.exec(none, "sh", "-c", "mknod /fuse c 10 229 && exec 3</fuse")
    assert b"ermitted" in made.stderr


def test_privileged_container_has_every_device(pods: Pods) -> None:
    config = pod()
    config.linux.security_context.privileged = True
    container = pods.launch(pods.run(config), security={"privileged": True})
    assert pods.read(container, "stat -c %t:%T /dev/fuse") == "a:e5"
    assert pods.exec(container, "sh", "-c", "exec 3<>/dev/fuse").exit_code == 0


@pytest.mark.parametrize("options", [[], ["bind"], ["rbind", "ro"]], ids=lambda options: "-".join(options) or "none")
def test_a_volume_below_what_a_device_mounts_stays_with_its_pod(
    cdi_daemon: Daemon, cdi: Pods, open_directory: Path, options: list[str]
) -> None:
    """A device that says nothing of propagation mounts a directory of the machine, which all pods with it share."""
    library, data = (open_directory / os.urandom(4).hex() for _ in range(2))
    for path in (library, data):
        path.mkdir()
    mounts.tmpfs(library, "mode=755")
    try:
        mounts.set_propagation(library, mounts.Propagation.SHARED)
        (library / "place").mkdir()
        (data / "secret").touch()
        given = {"hostPath": str(library), "containerPath": "/usr/lib/vendor", "options": options}
        write(cdi_daemon, "vendor.json", one={"mounts": [given]})
        asked = devices("vendor.com/thing=one")
        first = cdi.launch(cdi.run(), CDI_devices=asked, mounts=[bind(data, "/usr/lib/vendor/place")])
        assert cdi.read(first, "ls /usr/lib/vendor/place") == "secret"
        second = cdi.launch(cdi.run(pod("second")), CDI_devices=asked)
        assert cdi.read(second, "ls /usr/lib/vendor/place") == ""
        for process in (os.getpid(), cdi_daemon.pid):
            assert [entry.mount_point for entry in mountinfo.under(library, process)] == [str(library)]
    finally:
        mounts.unmount(library, lazy=True)
