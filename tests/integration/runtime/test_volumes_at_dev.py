"""Volumes and links at /dev, where an OCI runtime sets up devices and streams as root: no file of theirs is changed.

crun 1.29 and older give what is at /dev/null to the container's user (CVE-2026-88265), runc empties what is at
/dev/console.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo
from support.cri import BLOCK, Pods, Triple, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import Member, busybox_layout, directory, symlink
from support.registry import Registry

NOBODY = {
    "run_as_user": api.Int64Value(value=1000),
    "run_as_group": api.Int64Value(value=1000),
    "no_new_privs": True,
    "capabilities": api.Capability(drop_capabilities=["ALL"]),
}
WITH = pytest.mark.parametrize("tty", [False, True], ids=["no terminal", "terminal"])
BY = pytest.mark.parametrize("handler", ["crun", "runc"])
FILES = {"/dev/null", "/dev/console", "/dev/ptmx", "/dev/pts/ptmx", "/dev/pts/0", "/x/../dev/./null"}


@pytest.fixture(scope="module")
def both(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon with both OCI runtimes."""
    base = open_directory / f"both-runtimes-{os.urandom(3).hex()}"
    base.mkdir()
    handlers = "".join(f'[runtime.handlers.{name}]\npath = "{path}"\n' for name, path in PATHS.items())
    with Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n{handlers}') as daemon:
        yield daemon


PATHS = {"crun": "/usr/bin/crun", "runc": "/usr/sbin/runc"}


@pytest.fixture
def client(both: Daemon, image: str) -> Iterator[Pods]:
    """A client of it; afterwards it holds what it held before, and the machine's /dev is what it was."""
    before, devices = both.resources(), machines_devices()
    with Pods(both.socket, image) as client:
        client.pull()
        yield client
    assert both.resources() == before
    assert machines_devices() == devices


def machines_devices() -> dict[str, tuple[int, ...]]:
    """Return who owns the machine's devices, and with which modes; without those that other tests make meanwhile."""
    found = {}
    for entry in os.scandir("/dev"):
        if entry.name.startswith(("podkeep-", "loop")):
            continue
        status = entry.stat(follow_symlinks=False)
        found[entry.name] = (status.st_mode, status.st_uid, status.st_gid, status.st_rdev)
    return found


@pytest.fixture
def data(open_directory: Path) -> Iterator[Path]:
    """A volume that pods share, with a file that is root's alone, and a directory of links to that file."""
    path = open_directory / os.urandom(4).hex()
    (path / "links").mkdir(parents=True)
    for name in ("", "links"):
        (path / name).chmod(0o777)
    (path / "secret").write_text("root's")
    (path / "secret").chmod(0o600)
    for name in ("null", "console", "ptmx", "tty", "zero", "full", "random", "urandom", *"0123456789"):
        (path / "links" / name).symlink_to("/data/secret")
    before = described(path)
    yield path
    assert described(path) == before


def described(top: Path) -> list[tuple[str, int, int, int, int]]:
    """Return what is in a directory, with owners, modes and sizes."""
    found = []
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        found.append((str(path), status.st_uid, status.st_gid, status.st_mode, status.st_size))
    return found


@BY
@WITH
@pytest.mark.parametrize("where", ["/dev", "/dev/", "//dev", "/x/../dev", "/dev/pts", *sorted(FILES)])
def test_a_volume_that_the_oci_runtime_would_change_is_refused(
    client: Pods, data: Path, where: str, tty: bool, handler: str
) -> None:
    sandbox = client.run(handler=handler)
    source = data / "secret" if where in FILES else data / "links"
    mounts = [bind(data, "/data"), bind(source, where)]
    message = error_of(lambda: client.create(sandbox, mounts=mounts, tty=tty, security=NOBODY), InvalidArgument)
    assert "config.mounts: /dev" in message
    assert "the OCI runtime sets up devices and streams there, and would change the volume's files as root" in message
    assert "choose a path beside it" in message
    assert client.containers() == []


@BY
@WITH
@pytest.mark.parametrize("where", ["/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/fd", "/dev/stdin", "/dev/net"])
def test_a_volume_elsewhere_in_dev_is_mounted_and_left_alone(
    client: Pods, data: Path, where: str, tty: bool, handler: str
) -> None:
    sandbox = client.run(handler=handler)
    mounts = [bind(data, "/data"), bind(data / "links", where), bind(data / "secret", "/dev/termination-log")]
    container = client.launch(sandbox, mounts=mounts, tty=tty, security=NOBODY)
    found = [entry.mount_point for entry in mountinfo.read(client.host_pid(container))]
    assert where in found
    assert "/dev/termination-log" in found
    assert client.read(container, "stat -c %t:%T /dev/null") == "1:3"


@BY
@WITH
@pytest.mark.parametrize("own_users", [False, True], ids=["host users", "own users"])
@pytest.mark.parametrize("name", ["zero", "tty", "full", "random", "urandom", "fd", "stdout", "core"])
def test_a_file_in_the_place_of_a_device_is_left_alone(
    client: Pods, data: Path, name: str, tty: bool, handler: str, own_users: bool
) -> None:
    """OCI runtimes make these, with a mode that everybody may open."""
    if own_users and handler == "runc":
        pytest.skip("runc 1.1 runs no pods in user namespaces")
    user = BLOCK if own_users else None
    sandbox = client.run(pod(options=namespaces(user=user)), handler=handler)
    ids = () if user is None else (user,)
    mounts = [bind(data, "/data", *ids), bind(data / "secret", f"/dev/{name}", *ids)]
    container = client.launch(sandbox, mounts=mounts, tty=tty, security=NOBODY)
    assert client.read(container, "stat -c %t:%T /dev/null") == "1:3"


@BY
@WITH
@pytest.mark.parametrize("where", ["/dev", "/dev/pts"])
@pytest.mark.parametrize("user", [0, 1000])
def test_the_machines_dev_can_be_mounted_and_stays_the_machines(
    client: Pods, data: Path, where: str, tty: bool, handler: str, user: int
) -> None:
    """As device plugins have it. Its devices are root's afterwards, whoever the container's user is."""
    config = pod()
    config.linux.security_context.privileged = True
    sandbox = client.run(config, handler=handler)
    security = {"privileged": True, "run_as_user": api.Int64Value(value=user)}
    before = machines_devices()
    container = client.launch(sandbox, mounts=[bind(where, where)], tty=tty, security=security)
    assert client.read(container, "stat -c %t:%T /dev/null; echo > /dev/null") == "1:3"
    assert machines_devices() == before


@BY
@WITH
@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
@pytest.mark.parametrize("target", ["/data/links", "data", "../../data/links", "/"])
def test_dev_that_is_a_link_in_the_image_is_refused(
    client: Pods,
    data: Path,
    registry: Registry,
    tmp_path: Path,
    target: str,
    tty: bool,
    user: Triple | None,
    handler: str,
) -> None:
    """runc would make links in the directory of the machine that has this path."""
    if user is not None and handler == "runc":
        pytest.skip("runc 1.1 runs no pods in user namespaces")
    layers: list[list[Member]] = [[directory("data"), directory("data/links"), symlink("dev", target)]]
    name = f"dev-{target.strip('./').replace('/', '-') or 'root'}:1"
    reference = registry.push(busybox_layout(tmp_path, layers=layers), name)
    client.pull(reference)
    sandbox = client.run(pod(options=namespaces(user=user)), handler=handler)
    mounts = [bind(data, "/data", *(() if user is None else (user,)))]
    create = lambda: client.create(sandbox, mounts=mounts, image=reference, tty=tty)  # noqa: E731
    assert "/dev of the image is no directory" in error_of(create, InvalidArgument)


@BY
@WITH
def test_a_link_of_the_image_to_null_brings_no_volume_there(
    client: Pods, data: Path, registry: Registry, tmp_path: Path, tty: bool, handler: str
) -> None:
    links = [symlink("nowhere", "/dev/null"), symlink("terminals", "dev/pts")]
    reference = registry.push(busybox_layout(tmp_path, layers=[links]), "to-null:1")
    client.pull(reference)
    sandbox = client.run(handler=handler)
    for source, where in (("secret", "/nowhere"), ("links", "/terminals")):
        mounts = [bind(data, "/data"), bind(data / source, where)]
        create = lambda mounts=mounts: client.create(  # noqa: E731
            sandbox, mounts=mounts, image=reference, tty=tty, security=NOBODY
        )
        assert "the OCI runtime sets up devices and streams there" in error_of(create, InvalidArgument)


@BY
@WITH
def test_what_a_container_makes_of_its_own_null_does_not_reach_a_command_in_it(
    client: Pods, data: Path, tty: bool, handler: str
) -> None:
    """A command is run in a container that exists, and whose root may have put a link in the device's place."""
    sandbox = client.run(handler=handler)
    container = client.launch(sandbox, mounts=[bind(data, "/data")], tty=tty)
    client.read(container, "rm /dev/null; ln -s /data/secret /dev/null; ln -sf /data/secret /dev/console || true")
    assert client.exec(container, "true").exit_code == 0


@BY
def test_no_device_is_made_in_a_volume(client: Pods, data: Path, handler: str) -> None:
    """A privileged container has all devices of the machine, one of them at /dev/net/tun."""
    config = pod()
    config.linux.security_context.privileged = True
    sandbox = client.run(config, handler=handler)
    create = lambda: client.create(  # noqa: E731
        sandbox, mounts=[bind(data, "/dev/net")], security={"privileged": True}
    )
    assert "device /dev/net/tun would be made in the volume at /dev/net" in error_of(create, InvalidArgument)
    container = client.launch(sandbox, mounts=[bind("/dev/net", "/dev/net")], security={"privileged": True})
    assert client.read(container, "ls /dev/net") == "tun"
