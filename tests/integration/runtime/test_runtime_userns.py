"""User namespaces over CRI (KEP-127): mappings, ownership of namespaces and files, idmapped mounts, refusals."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.namespace import namespaces as kernel_namespaces
from support.cri import BLOCK, OTHER_BLOCK, UNCONFINED, Pods, Triple, bind, error_of, mappings, namespaces, pod, userns
from support.daemon import Daemon

IDENTITY = "0 0 4294967295"
_Id = api.Int64Value


def id_map(pods: Pods, container: str, kind: str = "uid") -> list[str]:
    """Return the lines of a container's uid_map or gid_map."""
    lines = pods.read(container, f"cat /proc/self/{kind}_map").splitlines()
    return [" ".join(line.split()) for line in lines]


def user_namespace(pid: int | str) -> str:
    """Return the user namespace of a process of the machine."""
    return os.readlink(f"/proc/{pid}/ns/user")


@pytest.mark.requirement("U1", "U22", "U23", "U95", "U111")
@pytest.mark.parametrize(
    "options",
    [None, namespaces(), namespaces(user=userns(mode=api.NODE))],
    ids=["no linux section", "no userns_options", "NODE"],
)
def test_pod_that_does_not_ask_is_in_the_hosts_user_namespace(pods: Pods, options: api.NamespaceOption | None) -> None:
    config = pod(options=options)
    if options is None:
        config.ClearField("linux")
        config.linux.security_context.namespace_options.pid = api.CONTAINER
        config.linux.ClearField("security_context")
    sandbox = pods.run(config)
    container = pods.launch(sandbox)
    assert id_map(pods, container) == id_map(pods, container, "gid") == [IDENTITY]
    assert user_namespace(pods.host_pid(container)) == user_namespace("self")
    echoed = pods.pod_status(sandbox).status.linux.namespaces.options.userns_options
    assert (echoed.mode, list(echoed.uids), list(echoed.gids)) == (api.NODE, [], [])


@pytest.mark.requirement("U1", "U2", "U21", "U23", "U112")
def test_every_container_of_a_pod_is_in_its_user_namespace(pods: Pods) -> None:
    one, other = (
        pods.run(pod("one", options=namespaces(user=BLOCK))),
        pods.run(pod("other", options=namespaces(user=OTHER_BLOCK))),
    )
    containers = [pods.launch(one, name="main"), pods.launch(one, name="sidecar"), pods.launch(other)]
    assert [id_map(pods, item) for item in containers] == [["0 65536 65536"], ["0 65536 65536"], ["0 131072 65536"]]
    assert [id_map(pods, item, "gid") for item in containers] == [id_map(pods, item) for item in containers]
    main, sidecar, elsewhere = (user_namespace(pods.host_pid(item)) for item in containers)
    assert main == sidecar
    assert len({main, elsewhere, user_namespace("self")}) == 3


@pytest.mark.requirement("U2")
def test_init_of_a_shared_pid_namespace_is_in_the_pods_user_namespace(pods: Pods) -> None:
    sandbox = pods.run(pod(options=namespaces(user=BLOCK, pid=api.POD)))
    container = pods.launch(sandbox)
    assert pods.read(container, "stat -c '%u %g' /proc/1") == "65535 65535"
    infra = json.loads(pods.pod_status(sandbox, verbose=True).info["info"])["status"]["infra"]["pid"]
    assert user_namespace(infra) == user_namespace(pods.host_pid(container))


@pytest.mark.requirement("U8")
def test_ids_in_a_request_are_those_inside(pods: Pods) -> None:
    security = {"run_as_user": _Id(value=1000), "run_as_group": _Id(value=50), "supplemental_groups": [2000]}
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), security=security)
    assert (
        pods.read(container, "id -u; id -g; id -G") == "1000\n50\n50 1000 2000"
        or pods.read(container, "id -u; id -g") == "1000\n50"
    )
    status = Path(f"/proc/{pods.host_pid(container)}/status").read_text()
    assert "Uid:\t66536\t66536\t66536\t66536" in status
    assert "Gid:\t65586\t65586\t65586\t65586" in status
    groups = next(line for line in status.splitlines() if line.startswith("Groups:")).split()[1:]
    assert {str(65536 + group) for group in (50, 2000)} <= set(groups)


@pytest.mark.requirement("U8")
def test_user_that_is_not_mapped_is_refused(pods: Pods) -> None:
    sandbox = pods.run(pod(options=namespaces(user=(0, 65536, 1000))))
    for security in ({"run_as_user": _Id(value=1000)}, {"supplemental_groups": [5000]}):
        message = error_of(lambda: pods.create(sandbox, security=security), InvalidArgument)  # noqa: B023
        assert "is not mapped by 0:65536:1000" in message
    assert pods.containers() == []


@pytest.mark.requirement("U20", "U27")
def test_gids_may_have_an_entry_more(pods: Pods) -> None:
    gids = [(0, 65536, 3000), (3000, 3000, 1), (3001, 68537, 62535)]
    sandbox = pods.run(pod(options=namespaces(user=userns(BLOCK, gids=gids))))
    container = pods.launch(sandbox, security={"supplemental_groups": [3000]})
    assert id_map(pods, container) == ["0 65536 65536"]
    assert id_map(pods, container, "gid") == ["0 65536 3000", "3000 3000 1", "3001 68537 62535"]
    status = Path(f"/proc/{pods.host_pid(container)}/status").read_text()
    assert "3000" in next(line for line in status.splitlines() if line.startswith("Groups:")).split()


@pytest.mark.requirement("U57")
@pytest.mark.parametrize(
    ("base", "gids", "hole"),
    [
        # The group is host ID 2000; container ID 1000 would be the same one.
        (1000, [(0, 1000, 1000), (1001, 2001, 999), (2000, 2000, 1), (2001, 3001, 63535)], 1000),
        # Nobody else has the host's ID, and only the container's has to be taken out of the range.
        (65536, [(0, 65536, 2000), (2000, 2000, 1), (2001, 67537, 63535)], None),
    ],
    ids=["inside the range", "outside"],
)
def test_a_group_of_the_machine_splits_the_range(
    pods: Pods, volume: Path, base: int, gids: list[Triple], hole: int | None
) -> None:
    """The files of the group are not mapped: they belong to 2000 outside and inside (early KEP-127, fsGroup)."""
    os.chown(volume, 0, 2000)
    volume.chmod(0o2770)
    sandbox = pods.run(pod(options=namespaces(user=userns((0, base, 65536), gids=gids))))
    security = {"run_as_user": _Id(value=7), "run_as_group": _Id(value=7), "supplemental_groups": [2000]}
    container = pods.launch(sandbox, security=security, mounts=[bind(volume, "/volume")])
    assert pods.read(container, "echo x >/volume/file; stat -c %g /volume /volume/file") == "2000\n2000"
    written = (volume / "file").stat()
    assert (written.st_uid, written.st_gid) == (base + 7, 2000)
    assert id_map(pods, container, "gid") == [" ".join(map(str, entry)) for entry in gids]
    if hole is not None:
        other = {"run_as_user": _Id(value=7), "run_as_group": _Id(value=hole)}
        message = error_of(lambda: pods.create(sandbox, name="hole", security=other), InvalidArgument)
        assert f"{hole} of the container is not mapped" in message


@pytest.mark.requirement("U57")
@pytest.mark.parametrize(
    "gids",
    [[(0, 1000, 65536), (70000, 2000, 1)], [(0, 65536, 65536), (2000, 2000, 1)]],
    ids=["the host's ID twice", "the container's ID twice"],
)
def test_a_group_of_the_machine_beside_the_whole_range_is_refused(pods: Pods, gids: list[Triple]) -> None:
    options = namespaces(user=userns((0, gids[0][1], 65536), gids=gids))
    assert "overlap" in error_of(lambda: pods.run(pod(options=options)), InvalidArgument)


@pytest.mark.requirement("U20", "U28")
def test_status_echoes_the_mappings(pods: Pods) -> None:
    asked = userns((0, 65536, 1000), (1000, 200000, 500), gids=[BLOCK])
    sandbox = pods.run(pod(options=namespaces(user=asked)))
    assert pods.pod_status(sandbox).status.linux.namespaces.options.userns_options == asked


@pytest.mark.requirement("U28")
@pytest.mark.parametrize(
    ("of_pod", "of_container", "told"),
    [
        (BLOCK, OTHER_BLOCK, ("0:131072:65536", "0:65536:65536")),
        (BLOCK, userns(mode=api.NODE), ("the host's user namespace", "0:65536:65536")),
        (None, BLOCK, ("0:65536:65536", "the host's user namespace")),
    ],
)
def test_container_must_agree_with_its_sandbox(
    pods: Pods, of_pod: Triple | None, of_container: Triple | api.UserNamespace, told: tuple[str, str]
) -> None:
    sandbox = pods.run(pod(options=namespaces(user=of_pod)))
    message = error_of(lambda: pods.create(sandbox, options=namespaces(user=of_container)), InvalidArgument)
    assert message.index(told[0]) < message.index("its sandbox has") < message.rindex(told[1])
    assert pods.containers() == []


@pytest.mark.requirement("U23", "U29")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (userns((1, 65536, 65535)), "0 of the container is not mapped"),
        (userns((0, 65536, 10), (5, 131072, 10)), "overlap on the container side"),
        (userns((0, 65536, 10), (10, 65540, 10)), "overlap on the host side"),
        (userns((0, 65536, 0)), "has no length"),
        (userns(BLOCK, mode=api.NODE), "NODE with mappings"),
        (userns(), "POD needs uids and gids"),
        (userns(BLOCK, gids=[]), "POD needs uids and gids"),
        (userns(BLOCK, mode=api.CONTAINER), "CONTAINER is not possible"),
        (userns(BLOCK, mode=api.TARGET), "TARGET is not possible"),
        (userns((0, 4294967295, 1)), "leaves the range"),
        (userns((0, 65536, 4294967295)), "leaves the range"),
        (userns(*((n, 65536 + n, 1) for n in range(341))), "more than the kernel takes"),
    ],
)
def test_wrong_mappings_are_refused(pods: Pods, options: api.UserNamespace, told: str) -> None:
    assert told in error_of(lambda: pods.run(pod(options=namespaces(user=options))), InvalidArgument)
    assert pods.sandboxes() == []


@pytest.mark.requirement("U30")
@pytest.mark.parametrize("mode", ["network", "ipc", "pid"])
def test_no_namespace_of_the_host_beside_a_user_namespace(pods: Pods, mode: str) -> None:
    options = namespaces(user=BLOCK, **{mode: api.NODE})
    assert f"namespace_options.{mode}: NODE" in error_of(lambda: pods.run(pod(options=options)), InvalidArgument)
    assert pods.sandboxes() == []


@pytest.mark.requirement("U30")
@pytest.mark.parametrize("pid", [api.POD, api.CONTAINER])
def test_namespaces_are_owned_by_the_pods_user_namespace(pods: Pods, pid: api.NamespaceMode) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK, pid=pid))))
    process = pods.host_pid(container)
    wanted = kernel_namespaces.identity(f"/proc/{process}/ns/user")
    owners = {}
    for kind in ("net", "ipc", "uts", "pid", "mnt", "cgroup"):
        fd = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
        owner = kernel_namespaces.owner(fd)
        owners[kind] = kernel_namespaces.identity(owner)
        os.close(owner)
        os.close(fd)
    assert owners == dict.fromkeys(owners, wanted)


@pytest.mark.requirement("U30", "U86")
def test_capabilities_work_inside_the_pod_only(pods: Pods) -> None:
    security = {"capabilities": api.Capability(add_capabilities=["NET_ADMIN", "SYS_ADMIN"]), "apparmor": UNCONFINED}
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), security=security)
    before = (mountinfo.read(), os.listdir("/sys/class/net"))
    assert pods.read(container, "mkdir /mnt; mount -t tmpfs none /mnt && touch /mnt/file && ls /mnt") == "file"
    assert "veth7" in pods.read(container, "ip link add veth7 type veth peer name veth8 && ip link show veth7")
    assert (mountinfo.read(), os.listdir("/sys/class/net")) == before
    assert pods.exec(container, "sh", "-c", "echo 1 > /proc/sysrq-trigger").exit_code != 0
    assert pods.exec(container, "sh", "-c", "mknod /mnt/null c 1 3").exit_code != 0


@pytest.mark.requirement("U86")
def test_without_capabilities_nothing_is_mounted(pods: Pods) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))))
    assert pods.exec(container, "mount", "-t", "tmpfs", "none", "/tmp").exit_code != 0


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A directory with a file that only the machine's root may read."""
    tmp_path.chmod(0o755)
    directory = tmp_path / "volume"
    directory.mkdir()
    (directory / "foo").write_text("secret")
    (directory / "foo").chmod(0o400)
    return directory


@pytest.mark.requirement("U24", "U64", "U65", "U66")
def test_worked_example_of_an_idmapped_mount(pods: Pods, volume: Path) -> None:
    volumes = [bind(volume, "/vol/configmap", BLOCK), bind(volume, "/vol/plain")]
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), mounts=volumes)
    assert pods.read(container, "stat -c '%u %g' /vol/configmap/foo; cat /vol/configmap/foo") == "0 0\nsecret"
    assert pods.read(container, "stat -c '%u %g' /vol/plain/foo") == "65534 65534"
    assert pods.exec(container, "cat", "/vol/plain/foo").exit_code != 0
    assert (volume / "foo").stat().st_uid == 0
    echoed = {item.container_path: item for item in pods.status(container).mounts}
    assert list(echoed["/vol/configmap"].uidMappings) == list(echoed["/vol/configmap"].gidMappings) == mappings(BLOCK)
    assert list(echoed["/vol/plain"].uidMappings) == []


@pytest.mark.requirement("U24", "U67")
def test_files_written_through_an_idmapped_mount_are_the_hosts(pods: Pods, volume: Path) -> None:
    volume.chmod(0o777)
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    for user in (0, 1000):
        container = pods.launch(
            sandbox,
            name=f"user{user}",
            security={"run_as_user": _Id(value=user), "run_as_group": _Id(value=user)},
            mounts=[bind(volume, "/volume", BLOCK)],
        )
        pods.read(container, f"echo hello > /volume/by{user}; mkdir /volume/dir{user}")
        assert pods.read(container, f"stat -c '%u %g' /volume/by{user}") == f"{user} {user}"
        for name in (f"by{user}", f"dir{user}"):
            status = (volume / name).stat()
            assert (status.st_uid, status.st_gid) == (user, user)


@pytest.mark.requirement("U24", "U65")
def test_idmapped_mount_may_be_a_file_and_read_only(pods: Pods, volume: Path) -> None:
    mount = bind(volume / "foo", "/etc/foo", BLOCK, readonly=True)
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), mounts=[mount])
    assert pods.read(container, "stat -c %u /etc/foo; cat /etc/foo") == "0\nsecret"
    assert pods.exec(container, "sh", "-c", "echo x > /etc/foo").exit_code != 0


@pytest.mark.requirement("U69")
def test_one_volume_idmapped_several_times(pods: Pods, volume: Path) -> None:
    volume.chmod(0o755)
    (volume / "part").mkdir()
    volumes = [
        bind(volume, "/rw", BLOCK),
        bind(volume, "/again", BLOCK),
        bind(volume, "/ro", BLOCK, readonly=True),
        bind(volume, "/all/ro", BLOCK, readonly=True, recursive_read_only=True),
        bind(volume / "part", "/part", BLOCK),
        bind(volume / "foo", "/file", BLOCK, readonly=True),
    ]
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), mounts=volumes)
    pods.read(container, "echo one >/rw/one; echo two >/again/two; echo three >/part/three")
    for place in ("/rw", "/again", "/ro", "/all/ro"):
        found = pods.read(container, f"cd {place}; cat one two part/three foo; echo; stat -c %u one two part/three foo")
        assert found.split() == ["one", "two", "three", "secret", "0", "0", "0", "0"], place
    for path in ("/ro/new", "/ro/part/new", "/all/ro/new", "/all/ro/part/new", "/file"):
        assert b"Read-only file system" in pods.exec(container, "sh", "-c", f"echo x >>{path}").stderr, path
    assert {path.name: path.stat().st_uid for path in volume.iterdir()} == dict.fromkeys(
        ("foo", "part", "one", "two"), 0
    )


@pytest.mark.requirement("U24", "U65", "U69")
@pytest.mark.parametrize("propagation", [api.PROPAGATION_PRIVATE, api.PROPAGATION_HOST_TO_CONTAINER])
def test_idmapped_mount_with_propagation(pods: Pods, volume: Path, propagation: api.MountPropagation) -> None:
    mount = bind(volume, "/volume", BLOCK, propagation=propagation)
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), mounts=[mount])
    assert pods.read(container, "stat -c %u /volume/foo") == "0"


@pytest.mark.requirement("U24")
def test_mappings_of_a_mount_are_checked(pods: Pods, volume: Path) -> None:
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    for wrong in (
        ((1, 65536, 10),),
        ((0, 65536, 0),),
        ((0, 65536, 10), (5, 131072, 10)),
        ((0, 65536, 10), (10, 65540, 10)),
        ((0, 65536, 4294967295),),
        tuple((number, 65536 + number, 1) for number in range(341)),
    ):
        mount = bind(volume, "/volume", BLOCK)
        for field in (mount.uidMappings, mount.gidMappings):
            del field[:]
            field.extend(mappings(*wrong))
        assert "mapp" in error_of(lambda: pods.create(sandbox, mounts=[mount]), InvalidArgument)  # noqa: B023
    assert pods.containers() == []


@pytest.mark.requirement("U24")
@pytest.mark.parametrize(("of_pod", "seen"), [(None, 131072), (BLOCK, 65534), (OTHER_BLOCK, 0)])
def test_mount_is_mapped_as_its_own_mappings_say(pods: Pods, volume: Path, of_pod: Triple | None, seen: int) -> None:
    """The mappings are the mount's: they are neither left out nor replaced where the pod's differ."""
    sandbox = pods.run(pod(options=namespaces(user=of_pod)))
    container = pods.launch(sandbox, mounts=[bind(volume, "/volume", OTHER_BLOCK)])
    assert pods.read(container, "stat -c %u /volume/foo") == str(seen)


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A file system that cannot be idmapped."""
    directory = tmp_path / "ramfs"
    directory.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "none", directory], check=True)
    yield directory
    mounts.unmount(directory)


@pytest.mark.requirement("U74")
def test_file_system_without_idmap_fails_the_container(pods: Pods, ramfs: Path) -> None:
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    message = error_of(lambda: pods.create(sandbox, mounts=[bind(ramfs, "/volume", BLOCK)]), Internal)
    assert (
        f"failed to set MOUNT_ATTR_IDMAP on {ramfs}: invalid argument "
        "(maybe the source filesystem doesn't support idmap mounts on this kernel?)"
    ) in message
    assert pods.containers() == []
    assert pods.status(pods.launch(sandbox, name="next")).state == api.CONTAINER_RUNNING


@pytest.mark.requirement("U73")
@pytest.mark.parametrize("user", [0, 1000])
def test_generated_files_are_usable_inside(pods: Pods, tmp_path: Path, user: int) -> None:
    tmp_path.chmod(0o755)
    termination_log = tmp_path / "termination-log"
    termination_log.touch(mode=0o666)
    termination_log.chmod(0o666)
    sandbox = pods.run(pod(hostname="web", options=namespaces(user=BLOCK), log_directory=str(tmp_path)))
    container = pods.launch(
        sandbox,
        "sh", "-c", "echo to the log; sleep 1000",
        security={"run_as_user": _Id(value=user)},
        mounts=[bind(termination_log, "/dev/termination-log", BLOCK)],
        log_path="0.log",
    )  # fmt: skip
    files = "/etc/hosts /etc/resolv.conf /etc/hostname /dev/termination-log"
    assert pods.read(container, f"stat -c '%u %g' {files}").splitlines() == ["0 0"] * 4
    assert pods.read(container, "cat /etc/hosts /etc/resolv.conf /etc/hostname").endswith("web")
    pods.read(container, "echo 'the end' > /dev/termination-log")
    assert termination_log.read_text() == "the end\n"
    assert pods.read(container, "stat -c '%u %g %a' /dev/shm; echo x > /dev/shm/file; stat -c %u /dev/shm/file") == (
        f"0 0 1777\n{user}"
    )
    written = pods.exec(container, "sh", "-c", "echo added >> /etc/hosts")
    assert (written.exit_code == 0) == (user == 0)
    pods.read(container, "echo more > /proc/1/fd/1")
    pods.stop(container)
    assert [line.rpartition(" F ")[2] for line in (tmp_path / "0.log").read_text().splitlines()] == [
        "to the log",
        "more",
    ]


@pytest.mark.requirement("U77")
def test_root_file_system_is_an_overlay_of_idmapped_layers(pods: Pods, daemon: Daemon) -> None:
    """No file of the image is copied or changes its owner, however many pods run from it."""

    def data() -> list[tuple[str, int, int, int]]:
        found = []
        for path in sorted(daemon.layout.images.rglob("*")):
            status = path.lstat()
            found.append((str(path), status.st_uid, status.st_gid, status.st_size * stat.S_ISREG(status.st_mode)))
        return found

    pods.launch(pods.run(pod("first")))  # with its first container it is noted what an image needs to be mounted
    before = data()
    blocks = [(0, 65536 * (number + 1), 65536) for number in range(3)]
    for number, block in enumerate(blocks):
        sandbox = pods.run(pod(f"pod{number}", options=namespaces(user=block)))
        container = pods.launch(sandbox)
        assert pods.read(container, "stat -c '%u %g' / /bin/busybox /etc/passwd").splitlines() == ["0 0"] * 3
        assert pods.read(container, "stat -c '%u %g' /home/app") == "1000 1000"
        root = next(entry for entry in mountinfo.read(pods.host_pid(container)) if entry.mount_point == "/")
        assert root.fs_type == "overlay"
        upper = daemon.layout.root / "containers" / container / "upper"
        assert sum(path.lstat().st_blocks for path in upper.rglob("*") if path.is_file()) == 0
    ours = [entry for entry in data() if "/database" not in entry[0] and ".db" not in entry[0]]
    assert ours == [entry for entry in before if "/database" not in entry[0] and ".db" not in entry[0]]


@pytest.mark.requirement("U77")
def test_root_file_system_is_written_as_the_pods_root(pods: Pods, daemon: Daemon) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))))
    pods.read(container, "touch /new; chown 1000:1000 /etc/passwd; echo x >> /etc/group")
    upper = daemon.layout.root / "containers" / container / "upper"
    assert {name: (upper / name).stat().st_uid for name in ("new", "etc/passwd", "etc/group")} == {
        "new": 65536, "etc/passwd": 66536, "etc/group": 65536,
    }  # fmt: skip


@pytest.mark.requirement("U113")
def test_mapping_of_any_length(pods: Pods) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=(0, 1000, 100_000)))))
    assert id_map(pods, container) == id_map(pods, container, "gid") == ["0 1000 100000"]


@pytest.mark.requirement("U25")
def test_handlers_that_were_probed_are_listed(pods: Pods) -> None:
    handlers = pods.call("Status", api.StatusRequest()).runtime_handlers
    assert sorted(item.name for item in handlers) == ["", "crun"]
    assert all(item.features.user_namespaces for item in handlers)


@pytest.mark.container_mounts("hidden", reason="that they are hidden is what it shows")
@pytest.mark.parametrize("user", [None, BLOCK])
def test_mounts_of_pods_are_hidden_from_the_machine(
    pods: Pods, daemon: Daemon, volume: Path, user: Triple | None
) -> None:
    assert daemon.process is not None
    before = mountinfo.read()
    sandbox = pods.run(pod(options=namespaces(user=user)))
    container = pods.launch(sandbox, mounts=[bind(volume, "/volume", *([user] if user else []))])
    inside = [entry.mount_point for entry in mountinfo.read(daemon.process.pid)]
    assert [path for path in inside if container in path]
    assert [path for path in inside if sandbox in path]
    assert mountinfo.read() == before


def test_mounts_of_the_machine_reach_pods_that_ask(pods: Pods, volume: Path) -> None:
    mount = bind(volume, "/volume", propagation=api.PROPAGATION_HOST_TO_CONTAINER)
    private = bind(volume, "/private")
    container = pods.launch(pods.run(), mounts=[mount, private])
    (volume / "later").mkdir()
    mounts.tmpfs(volume / "later", "mode=755")
    try:
        (volume / "later" / "file").touch()
        assert pods.read(container, "ls /volume/later; ls /private/later") == "file"
    finally:
        mounts.unmount(volume / "later")


@pytest.fixture
def mount_below(open_directory: Path) -> Path:
    """What is mounted below a volume: of a file system that can be idmapped, as a tmpfs cannot be before Linux 6.3."""
    directory = open_directory / os.urandom(4).hex()
    directory.mkdir()
    return directory


@pytest.mark.parametrize("propagation", [api.PROPAGATION_PRIVATE, api.PROPAGATION_HOST_TO_CONTAINER])
def test_mounts_below_a_volume_stay_where_they_are(
    daemon: Daemon, pods: Pods, open_directory: Path, mount_below: Path, propagation: api.MountPropagation
) -> None:
    """The runtime works on a copy of the volume; taking the copy down must not reach the volume's own mounts."""
    volume = open_directory / f"volume-{propagation}"
    (volume / "below").mkdir(parents=True)
    mounts.bind(mount_below, volume / "below")
    try:
        (volume / "below" / "file").write_text("kept")
        assert daemon.process is not None
        before = [entry.mount_point for entry in mountinfo.under(volume, daemon.process.pid)]
        assert before == [str(volume / "below")]
        sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
        container = pods.launch(sandbox, mounts=[bind(volume, "/v", BLOCK, propagation=propagation)])
        assert [entry.mount_point for entry in mountinfo.under(volume, daemon.process.pid)] == before
        assert mountinfo.is_mount_point(volume / "below")
        assert pods.read(container, "cat /v/below/file; stat -c %u /v/below/file") == "kept0"
    finally:
        mounts.unmount(volume / "below")


def test_bidirectional_volume_with_mounts_below_it_is_refused(
    daemon: Daemon, pods: Pods, open_directory: Path, mount_below: Path
) -> None:
    volume = open_directory / "both-ways"
    (volume / "below").mkdir(parents=True)
    mounts.bind(mount_below, volume / "below")
    try:
        assert daemon.process is not None
        before = mountinfo.under(volume, daemon.process.pid)
        sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
        both_ways = bind(volume, "/v", BLOCK, propagation=api.PROPAGATION_BIDIRECTIONAL)
        message = error_of(lambda: pods.create(sandbox, mounts=[both_ways]), FailedPrecondition)
        assert f"{volume} has mounts below it" in message
        assert mountinfo.under(volume, daemon.process.pid) == before
    finally:
        mounts.unmount(volume / "below")
