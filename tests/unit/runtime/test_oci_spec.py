"""The OCI configuration that a request and an image make, as a table."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_values import (
    CAPABILITIES,
    FUSE_DEVICE,
    IDMAP,
    NULL_DEVICE,
    OCI_IDMAP,
    container_config,
    host_facts,
    in_own_userns,
    sandbox_config,
    spec_input,
)

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.images.formats.image import ImageRunConfig
from podkeep.kernel.namespace.idmap import IdMap, IdMapping
from podkeep.runtime.model.records import (
    Mount,
    NamespaceMode,
    NamespaceOptions,
    Propagation,
    Resources,
    Security,
)
from podkeep.runtime.oci import spec
from podkeep.runtime.oci.mounts import StagedMount, check_device_nodes, normal, protected, protection
from podkeep.runtime.oci.resources import ResourceFacts
from podkeep.runtime.oci.spec import PodFiles
from podkeep.runtime.oci.users import User


def build(**fields: Any) -> dict[str, Any]:
    return spec.build(spec_input(**fields))


def mount_at(config: dict[str, Any], target: str) -> dict[str, Any]:
    (found,) = [mount for mount in config["mounts"] if mount["destination"] == target]
    assert isinstance(found, dict)
    return found


# process


@pytest.mark.parametrize(
    ("command", "args", "entrypoint", "cmd", "expected"),
    [
        ((), (), ("/e",), ("c",), ("/e", "c")),
        ((), (), ("/e",), (), ("/e",)),
        ((), (), (), ("/c", "d"), ("/c", "d")),
        ((), ("a",), ("/e",), ("c",), ("/e", "a")),
        ((), ("/a",), (), ("c",), ("/a",)),
        (("/x",), (), ("/e",), ("c",), ("/x",)),
        (("/x",), ("a", ""), ("/e",), ("c",), ("/x", "a", "")),
    ],
)
def test_program_and_arguments(
    command: tuple[str, ...],
    args: tuple[str, ...],
    entrypoint: tuple[str, ...],
    cmd: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    container = container_config(command=command, args=args)
    config = build(container=container, image=ImageRunConfig(entrypoint=entrypoint, cmd=cmd))
    assert config["process"]["args"] == list(expected)


def test_no_program_at_all_names_container_and_image() -> None:
    with pytest.raises(InvalidArgument, match=r"'main'.*busybox"):
        build(container=container_config(command=()))


ENVIRONMENTS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...], bool, str, list[str]]] = {
    "nothing asked": ((), (), False, "", [spec.DEFAULT_PATH, "HOME=/root"]),
    "the image's path": (("PATH=/bin",), (), False, "", ["PATH=/bin", "HOME=/root"]),
    "the request wins": (("A=1", "B=2"), (("A", "3"),), False, "", ["A=3", "B=2", spec.DEFAULT_PATH, "HOME=/root"]),
    "a value with =": (("PATH=/b", "A=b=c"), (), False, "", ["PATH=/b", "A=b=c", "HOME=/root"]),
    "host name": (("PATH=/b",), (), False, "web", ["HOSTNAME=web", "PATH=/b", "HOME=/root"]),
    "host name of the request": (
        ("PATH=/b",),
        (("HOSTNAME", "x"),),
        False,
        "web",
        ["HOSTNAME=x", "PATH=/b", "HOME=/root"],
    ),
    "host name of the image": (("PATH=/b", "HOSTNAME=::"), (), False, "web", ["HOSTNAME=::", "PATH=/b", "HOME=/root"]),
    "terminal": (("PATH=/b",), (), True, "", ["PATH=/b", "TERM=xterm", "HOME=/root"]),
    "terminal of the image": (("PATH=/b", "TERM=vt100"), (), True, "", ["PATH=/b", "TERM=vt100", "HOME=/root"]),
    "home of the request": (("PATH=/b",), (("HOME", "/h"),), False, "", ["PATH=/b", "HOME=/h"]),
    "lines and unicode": ((), (("A", "ä\nb"), ("PATH", "/b")), False, "", ["PATH=/b", "A=ä\nb", "HOME=/root"]),
    "the same twice": ((), (("A", "1"), ("PATH", "/b"), ("A", "2")), False, "", ["PATH=/b", "A=2", "HOME=/root"]),
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_environment(case: str) -> None:
    image_env, envs, tty, hostname, expected = ENVIRONMENTS[case]
    config = build(
        image=ImageRunConfig(env=image_env),
        container=container_config(envs=envs, tty=tty),
        hostname=hostname,
    )
    assert config["process"]["env"] == expected
    assert config["process"]["terminal"] is tty


@pytest.mark.parametrize(
    ("asked", "of_image", "expected"), [("", "", "/"), ("", "/srv", "/srv"), ("/app", "/srv", "/app")]
)
def test_working_directory(asked: str, of_image: str, expected: str) -> None:
    config = build(container=container_config(working_dir=asked), image=ImageRunConfig(working_dir=of_image))
    assert config["process"]["cwd"] == expected


@pytest.mark.requirement("U8")
def test_the_user_is_written_with_the_ids_inside() -> None:
    user = User(uid=1000, gid=1001, groups=(1001, 200), home="/home/app")
    config = build(user=user, sandbox=in_own_userns())
    assert config["process"]["user"] == {"uid": 1000, "gid": 1001, "additionalGids": [1001, 200]}
    assert "HOME=/home/app" in config["process"]["env"]


@pytest.mark.requirement("U8")
def test_a_user_that_is_not_mapped_is_named() -> None:
    idmap = IdMap(
        uids=(IdMapping(container_id=0, host_id=65536, length=100),),
        gids=(IdMapping(container_id=0, host_id=65536, length=100), IdMapping(container_id=500, host_id=500, length=1)),
    )
    spec.check_mapped(User(uid=99, gid=99, groups=(99, 500), home="/"), idmap)
    spec.check_mapped(User(uid=100, gid=100, groups=(100,), home="/"), None)
    with pytest.raises(InvalidArgument, match="UID 100 of the container is not mapped"):
        spec.check_mapped(User(uid=100, gid=0, groups=(), home="/"), idmap)
    with pytest.raises(InvalidArgument, match="GID 100 of the container is not mapped"):
        spec.check_mapped(User(uid=0, gid=100, groups=(), home="/"), idmap)
    with pytest.raises(InvalidArgument, match="GID 501 of the container is not mapped"):
        spec.check_mapped(User(uid=0, gid=0, groups=(0, 501), home="/"), idmap)


def test_capabilities_of_an_ordinary_container() -> None:
    capabilities = build()["process"]["capabilities"]
    expected = ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_SETUID"]
    assert capabilities == {"bounding": expected, "effective": expected, "permitted": expected}


@pytest.mark.parametrize("asked", [("NET_ADMIN",), ("ALL",)])
def test_ambient_capabilities_are_inheritable_too(asked: tuple[str, ...]) -> None:
    security = Security(add_capabilities=("NET_ADMIN",), drop_capabilities=("ALL",), ambient_capabilities=asked)
    capabilities = build(container=container_config(security=security))["process"]["capabilities"]
    assert capabilities == {
        kind: ["CAP_NET_ADMIN"] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")
    }


def test_an_ambient_capability_that_the_container_does_not_have_is_refused() -> None:
    security = Security(ambient_capabilities=("NET_ADMIN",))
    with pytest.raises(InvalidArgument, match="CAP_NET_ADMIN"):
        build(container=container_config(security=security))


@pytest.mark.parametrize(
    ("asked", "floor", "expected"), [(0, -1000, 0), (-998, -1000, -998), (-998, 0, 0), (1000, 0, 1000), (-5, -3, -3)]
)
def test_the_oom_score_is_clamped_to_what_the_daemon_may_write(asked: int, floor: int, expected: int) -> None:
    container = container_config(resources=Resources(oom_score_adj=asked))
    assert build(container=container, host=host_facts(oom_score_floor=floor))["process"]["oomScoreAdj"] == expected


def test_flags_of_the_security_context() -> None:
    config = build(container=container_config(security=Security(no_new_privs=True, readonly_rootfs=True)))
    assert config["process"]["noNewPrivileges"] is True
    assert config["root"] == {"path": "/run/podkeep/containers/c/rootfs", "readonly": True}
    assert build()["process"]["noNewPrivileges"] is False
    assert build()["root"]["readonly"] is False


# namespaces


def test_namespaces_are_joined_or_new() -> None:
    given = {"mount": "", "user": "/ns/user", "network": "/ns/net", "pid": "/proc/7/ns/pid", "cgroup": ""}
    assert build(namespaces=given)["linux"]["namespaces"] == [
        {"type": "mount"},
        {"type": "user", "path": "/ns/user"},
        {"type": "network", "path": "/ns/net"},
        {"type": "pid", "path": "/proc/7/ns/pid"},
        {"type": "cgroup"},
    ]


@pytest.mark.requirement("U28", "U46", "U118")
def test_the_sandboxs_mappings_are_the_containers() -> None:
    linux = build(sandbox=in_own_userns())["linux"]
    assert linux["uidMappings"] == OCI_IDMAP
    assert linux["gidMappings"] == OCI_IDMAP


@pytest.mark.requirement("U27", "U46")
def test_mappings_of_groups_may_differ() -> None:
    one, other = (
        IdMapping(container_id=0, host_id=100000, length=500),
        IdMapping(container_id=500, host_id=500, length=1),
    )
    sandbox = sandbox_config(namespaces=NamespaceOptions(userns=IdMap(uids=(one,), gids=(one, other))))
    linux = build(sandbox=sandbox)["linux"]
    assert linux["uidMappings"] == [{"containerID": 0, "hostID": 100000, "size": 500}]
    assert linux["gidMappings"] == [*linux["uidMappings"], {"containerID": 500, "hostID": 500, "size": 1}]


@pytest.mark.requirement("U95")
def test_without_a_user_namespace_nothing_is_mapped() -> None:
    assert not {"uidMappings", "gidMappings"} & set(build()["linux"])


# mounts


def targets(config: dict[str, Any]) -> list[str]:
    return [mount["destination"] for mount in config["mounts"]]


VIRTUAL = ["/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup"]


def test_mounts_of_a_plain_container() -> None:
    config = build()
    assert targets(config) == ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf", *VIRTUAL, "/dev/shm"]
    assert mount_at(config, "/etc/hosts") == {
        "destination": "/etc/hosts",
        "type": "bind",
        "source": "/pod/hosts",
        "options": ["rbind", "rprivate", "rw"],
    }
    assert "ro" in mount_at(config, "/sys")["options"]
    assert "ro" in mount_at(config, "/sys/fs/cgroup")["options"]
    assert {"nosuid", "nodev", "noexec"} <= set(mount_at(config, "/dev/shm")["options"])


def test_the_requests_mounts_are_parents_first_and_otherwise_in_order() -> None:
    asked = ("/data/deep/er", "/data", "/b", "/data//deep/", "/a")
    mounts = tuple(Mount(container_path=path, host_path=f"/host{path}") for path in asked)
    config = build(container=container_config(mounts=mounts), files=PodFiles())
    found = [target for target in targets(config) if target.startswith(("/data", "/a", "/b"))]
    assert found == ["/data", "/b", "/a", "/data/deep", "/data/deep/er"]


@pytest.mark.parametrize("over", ["/etc", "/etc/"])
def test_a_volume_does_not_hide_what_the_runtime_mounts_below_it(over: str) -> None:
    config = build(container=container_config(mounts=(Mount(container_path=over, host_path="/host"),)))
    for target in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"):
        in_order = targets(config)
        assert len(in_order) - in_order[::-1].index("/etc") - 1 < in_order.index(target)


def test_a_volume_at_dev_keeps_the_runtime_from_mounting_on_the_machines_own() -> None:
    config = build(container=container_config(mounts=(Mount(container_path="/dev/", host_path="/dev"),)))
    assert [target for target in targets(config) if target.startswith("/dev")] == ["/dev"]


@pytest.mark.parametrize("target", ["/etc/hosts", "/etc/resolv.conf", "/dev/shm", "/etc/hosts/", "/sys", "/dev/mqueue"])
def test_a_mount_of_the_request_replaces_the_runtimes(target: str) -> None:
    config = build(container=container_config(mounts=(Mount(container_path=target, host_path="/host"),)))
    assert [item["source"] for item in config["mounts"] if item["destination"].rstrip("/") == target.rstrip("/")] == [
        "/host"
    ]


@pytest.mark.parametrize(
    ("propagations", "options", "rootfs"),
    [
        ((Propagation.PRIVATE,), ("rprivate",), "rprivate"),
        ((Propagation.HOST_TO_CONTAINER,), ("rslave",), "rslave"),
        ((Propagation.BIDIRECTIONAL,), ("rshared",), "rshared"),
        ((Propagation.PRIVATE, Propagation.HOST_TO_CONTAINER), ("rprivate", "rslave"), "rslave"),
        ((Propagation.BIDIRECTIONAL, Propagation.HOST_TO_CONTAINER), ("rshared", "rslave"), "rshared"),
        ((), (), "rprivate"),
    ],
)
def test_propagation(propagations: tuple[Propagation, ...], options: tuple[str, ...], rootfs: str) -> None:
    mounts = tuple(
        Mount(container_path=f"/m{number}", host_path="/h", propagation=propagation)
        for number, propagation in enumerate(propagations)
    )
    config = build(container=container_config(mounts=mounts))
    assert config["linux"]["rootfsPropagation"] == rootfs
    for number, option in enumerate(options):
        assert mount_at(config, f"/m{number}")["options"] == ["rbind", option, "rw"]


def test_a_read_only_mount() -> None:
    mount = Mount(container_path="/m", host_path="/h", readonly=True)
    assert mount_at(build(container=container_config(mounts=(mount,))), "/m")["options"] == ["rbind", "rprivate", "ro"]


def test_the_pods_files_are_read_only_with_the_root() -> None:
    config = build(container=container_config(security=Security(readonly_rootfs=True)))
    assert mount_at(config, "/etc/hosts")["options"][-1] == "ro"


def test_a_mount_with_mappings_comes_from_its_idmapped_copy() -> None:
    mapped = Mount(container_path="/v", host_path="/volumes/v", readonly=True, idmap=IDMAP)
    plain = Mount(container_path="/p", host_path="/volumes/p")
    staged = {0: StagedMount(source="/run/copies/0")}
    config = build(container=container_config(mounts=(mapped, plain)), sandbox=in_own_userns(), staged=staged)
    assert mount_at(config, "/v")["source"] == "/run/copies/0"
    assert mount_at(config, "/v")["options"] == ["rbind", "rprivate", "ro"]
    assert mount_at(config, "/p")["source"] == "/volumes/p"
    # The copies are mapped already: mapped twice, the owners would be nobody's.
    assert not [mount for mount in config["mounts"] if "uidMappings" in mount or "gidMappings" in mount]


def test_volumes_of_the_image_are_writable_and_below_the_requests_mounts() -> None:
    mounts = (Mount(container_path="/data/below", host_path="/h"), Mount(container_path="/", host_path="/h"))
    security = Security(readonly_rootfs=True)
    config = build(container=container_config(mounts=mounts[:1], security=security), volumes={"/data": "/volumes/0"})
    assert mount_at(config, "/data") == {
        "destination": "/data",
        "type": "bind",
        "source": "/volumes/0",
        "options": ["rbind", "rprivate", "rw"],
    }
    assert targets(config).index("/data") < targets(config).index("/data/below")


def test_mounts_are_where_the_images_links_lead() -> None:
    mounts = (Mount(container_path="/var/run/app/", host_path="/h"), Mount(container_path="/run", host_path="/r"))
    real = {"/var/run/app": "/run/app", "/run": "/run", "/etc/resolv.conf": "/run/stub.conf", "/v": "/run/v"}
    config = build(container=container_config(mounts=mounts), volumes={"/v": "/volumes/0"}, targets=real)
    assert targets(config) == [
        "/run", "/etc/hosts", "/etc/hostname", "/run/stub.conf", "/run/v", "/run/app", *VIRTUAL, "/dev/shm",
    ]  # fmt: skip


def at(*paths: str, source: str = "/volumes/v") -> tuple[Mount, ...]:
    return tuple(Mount(container_path=path, host_path=source) for path in paths)


def test_what_is_the_kernels_comes_after_the_volumes_whose_links_could_lead_there() -> None:
    found = targets(build(container=container_config(mounts=at("/data/deep/er", "/sys/fs/bpf", "/dev/vol", "/data"))))
    assert found == [
        "/data", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/data/deep/er",
        *VIRTUAL, "/dev/shm", "/dev/vol", "/sys/fs/bpf",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/proc", "/proc/self/attr", "/proc/thread-self", "/proc/sys/kernel", "/data/../proc/1"]
)
def test_nothing_can_be_mounted_in_proc(path: str) -> None:
    with pytest.raises(InvalidArgument, match="nothing can be mounted there"):
        build(container=container_config(mounts=at(path)))
    assert build(container=container_config(mounts=at(path), security=Security(privileged=True)))


def test_what_can_be_mounted_in_proc() -> None:
    assert "/proc/cpuinfo" in targets(build(container=container_config(mounts=at("/proc/cpuinfo"))))
    of_machine = build(container=container_config(mounts=at("/proc", source="/proc")))
    assert mount_at(of_machine, "/proc")["source"] == "/proc"


@pytest.mark.parametrize(
    ("mounts", "told"),
    [
        (at("/dev/vol", "/dev/vol/x"), "/dev/vol/x is below what is mounted at /dev/vol"),
        (at("/sys", "/sys/fs/bpf"), "/sys/fs/bpf is below what is mounted at /sys"),
        (at("/dev/shm/x"), "/dev/shm/x is below what is mounted at /dev/shm"),
    ],
)
def test_a_mount_in_a_volume_among_devices(mounts: tuple[Mount, ...], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        build(container=container_config(mounts=mounts))


@pytest.mark.parametrize(
    "path",
    ["/dev", "/dev/", "//dev", "/x/../dev/.", "/dev/null", "/dev/console", "/dev/ptmx", "/dev/pts", "/dev/pts/ptmx"],
)
def test_a_volume_where_the_oci_runtime_sets_up_devices(path: str) -> None:
    for source in ("/volume", "/dev/null", "/dev/shm/dev", "/dev/.."):
        with pytest.raises(InvalidArgument, match="the OCI runtime sets up devices and streams there"):
            build(container=container_config(mounts=at(path, source=source)))
    with pytest.raises(InvalidArgument, match="the OCI runtime sets up devices and streams there"):
        build(container=container_config(mounts=at("/link")), targets={"/link": normal(path)})
    if normal(path) not in {"/dev", "/dev/pts"}:
        with pytest.raises(InvalidArgument, match=r"volume of the image: /dev"):
            build(volumes={path: "/run/v"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), set()),
        (("rbind", "rprivate", "rw"), set()),
        (("rbind", "ro", "nosuid", "nodev", "noexec"), {"ro", "nosuid", "nodev", "noexec"}),
        (("ro", "rw"), set()),
        (("rw", "rro"), {"ro"}),
        (("nosuid", "suid", "nodev", "dev", "noexec", "exec", "nosuid"), {"nosuid"}),
    ],
)
def test_what_mount_options_protect(options: tuple[str, ...], expected: set[str]) -> None:
    assert protection(options) == expected


@pytest.mark.parametrize(
    ("options", "names", "expected"),
    [
        (("rbind", "rw"), set(), ["rbind", "rw"]),
        (("rbind", "rw", "rslave"), {"ro"}, ["rbind", "rslave", "ro"]),
        (("rbind", "ro"), {"ro", "nosuid", "noexec"}, ["rbind", "ro", "noexec", "nosuid"]),
        (("rbind", "rro"), {"ro"}, ["rbind", "rro"]),
        (("rbind", "suid", "dev", "exec", "rw"), {"nodev"}, ["rbind", "suid", "exec", "rw", "nodev"]),
    ],
)
def test_options_say_what_a_mount_is(options: tuple[str, ...], names: set[str], expected: list[str]) -> None:
    assert protected(options, frozenset(names)) == expected


@pytest.mark.parametrize("path", ["/dev", "/dev/pts"])
def test_the_machines_own_devices_can_be_mounted_where_they_are(path: str) -> None:
    assert mount_at(build(container=container_config(mounts=at(path, source=path))), path)["source"] == path


def test_no_device_node_is_made_in_a_volume() -> None:
    """Neither one of a privileged container nor one that CDI adds to the finished configuration."""
    node = {"path": "/dev/net/tun", "type": "c", "major": 10, "minor": 200}
    host = host_facts(devices=(node,))
    privileged = Security(privileged=True)
    in_volume = build(host=host, container=container_config(security=privileged, mounts=at("/dev/net")))
    with pytest.raises(InvalidArgument, match="device /dev/net/tun would be made in the volume at /dev/net"):
        check_device_nodes(in_volume)
    of_others = build(
        host=host, container=container_config(security=privileged, mounts=at("/dev/net", source="/dev/shm/x"))
    )
    with pytest.raises(InvalidArgument, match="device /dev/net/tun would be made in the volume at /dev/net"):
        check_device_nodes(of_others)
    of_machine = at("/dev/net", source="/dev/net")
    check_device_nodes(build(host=host, container=container_config(security=privileged, mounts=of_machine)))
    check_device_nodes(build(host=host, container=container_config(security=privileged, mounts=at("/dev/nets"))))


def test_a_mount_below_the_machines_own_directories() -> None:
    mounts = (*at("/dev", source="/dev"), *at("/dev/x", "/sys/fs/bpf"), *at("/sys", source="/sys"))
    assert targets(build(container=container_config(mounts=mounts)))[-4:] == ["/dev", "/sys", "/dev/x", "/sys/fs/bpf"]


@pytest.mark.parametrize(
    "path",
    ["/dev/vol/node", "/data/node", "/data//deep/node", "/proc/x", "/sys//x", "/dev/pts/7", "/dev/mqueue/x"],
)
def test_a_device_in_a_volume(path: str) -> None:
    device = {**FUSE_DEVICE, "path": path, "source": "/dev/fuse", "access": "rw"}
    with pytest.raises(InvalidArgument, match=r"config\.devices: .* is below what is mounted at"):
        build(container=container_config(mounts=at("/data", "/dev/vol")), devices=(device,))


def test_devices_are_mounted_in_a_user_namespace() -> None:
    device = {**FUSE_DEVICE, "path": "/dev/inside", "source": "/dev/fuse", "access": "rw"}
    config = build(devices=(device,), sandbox=in_own_userns())
    assert "devices" not in config["linux"]
    assert mount_at(config, "/dev/inside")["source"] == "/dev/fuse"
    assert config["linux"]["resources"]["devices"][1]["access"] == "rw"
    assert mount_at(config, "/dev/inside")["options"] == ["rbind", "rprivate", "nosuid", "noexec"]


def test_shared_memory() -> None:
    assert mount_at(build(), "/dev/shm")["source"] == "/pod/shm"
    own = mount_at(build(files=PodFiles()), "/dev/shm")
    assert own["type"] == "tmpfs"
    assert "mode=1777" in own["options"]
    on_host = container_config(namespaces=NamespaceOptions(ipc=NamespaceMode.NODE))
    assert mount_at(build(container=on_host), "/dev/shm")["source"] == "/dev/shm"


def test_message_queues_of_the_machine() -> None:
    namespaces = {"mount": "", "pid": ""}
    on_host = build(namespaces=namespaces, host=host_facts(has_mqueue=True))
    assert mount_at(on_host, "/dev/mqueue")["source"] == "/dev/mqueue"
    assert "/dev/mqueue" not in targets(build(namespaces=namespaces, host=host_facts(has_mqueue=False)))
    assert mount_at(build(), "/dev/mqueue")["type"] == "mqueue"


# paths


@pytest.mark.parametrize(
    ("security", "masked", "readonly"),
    [
        (Security(), list(spec.DEFAULT_MASKED), list(spec.DEFAULT_READONLY)),
        (Security(masked_paths=(), readonly_paths=()), [], []),
        (Security(masked_paths=("/proc/a",), readonly_paths=("/proc/b",)), ["/proc/a"], ["/proc/b"]),
        (Security(masked_paths=("/proc/a",), privileged=True), [], []),
    ],
)
def test_masked_and_read_only_paths(security: Security, masked: list[str], readonly: list[str]) -> None:
    linux = build(container=container_config(security=security))["linux"]
    assert linux["maskedPaths"] == masked
    assert linux["readonlyPaths"] == readonly


# devices and privilege


def test_a_privileged_container() -> None:
    config = build(
        container=container_config(security=Security(privileged=True)),
        host=host_facts(devices=(NULL_DEVICE, FUSE_DEVICE)),
        seccomp_profile={"defaultAction": "SCMP_ACT_ERRNO"},
    )
    assert config["process"]["capabilities"]["bounding"] == sorted(CAPABILITIES)
    assert [device["path"] for device in config["linux"]["devices"]] == ["/dev/null", "/dev/fuse"]
    assert config["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]
    assert "seccomp" not in config["linux"]
    assert "rw" in mount_at(config, "/sys")["options"]
    assert "rw" in mount_at(config, "/sys/fs/cgroup")["options"]


def test_a_privileged_container_in_a_user_namespace_gets_no_device_of_the_machine() -> None:
    config = build(
        sandbox=in_own_userns(),
        container=container_config(security=Security(privileged=True)),
        host=host_facts(devices=(NULL_DEVICE, FUSE_DEVICE)),
    )
    assert "devices" not in config["linux"]


def test_a_privileged_container_without_the_machines_devices_has_no_right_to_them() -> None:
    config = build(
        container=container_config(security=Security(privileged=True)),
        devices=({**FUSE_DEVICE, "access": "rw", "source": "/dev/fuse"},),
        machine_devices=False,
    )
    assert config["linux"]["devices"] == [FUSE_DEVICE]
    assert config["linux"]["resources"]["devices"] == [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rw"},
    ]


def test_a_device_of_the_request() -> None:
    config = build(devices=({**FUSE_DEVICE, "path": "/dev/f", "access": "rw"},))
    assert config["linux"]["devices"] == [{**FUSE_DEVICE, "path": "/dev/f"}]
    assert config["linux"]["resources"]["devices"][0] == {"allow": False, "access": "rwm"}
    allowed = {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rw"}
    assert allowed in config["linux"]["resources"]["devices"]


def test_a_device_of_the_request_is_not_made_twice_in_a_privileged_container() -> None:
    config = build(
        container=container_config(security=Security(privileged=True)),
        host=host_facts(devices=(NULL_DEVICE, FUSE_DEVICE)),
        devices=({**FUSE_DEVICE, "access": "rw"},),
    )
    assert [device["path"] for device in config["linux"]["devices"]] == ["/dev/fuse", "/dev/null"]


def test_no_device_is_allowed_by_default() -> None:
    linux = build()["linux"]
    assert "devices" not in linux
    assert linux["resources"] == {"devices": [{"allow": False, "access": "rwm"}]}


# resources


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Resources(), {}),
        (Resources(cpu_shares=512), {"cpu": {"shares": 512}}),
        (Resources(cpu_quota=-1, cpu_period=100000), {"cpu": {"quota": -1, "period": 100000}}),
        (Resources(cpuset_cpus="0-1", cpuset_mems="0"), {"cpu": {"cpus": "0-1", "mems": "0"}}),
        (Resources(memory_limit=1 << 20), {"memory": {"limit": 1 << 20, "swap": 1 << 20}}),
        (
            Resources(memory_limit=1 << 20, memory_swap_limit=1 << 21),
            {"memory": {"limit": 1 << 20, "swap": 1 << 21}},
        ),
        (
            Resources(hugepage_limits={"2MB": 4, "1GB": 0}),
            {"hugepageLimits": [{"pageSize": "1GB", "limit": 0}, {"pageSize": "2MB", "limit": 4}]},
        ),
        (Resources(unified={"memory.high": "5"}), {"unified": {"memory.high": "5"}}),
    ],
)
def test_resources(asked: Resources, expected: dict[str, Any]) -> None:
    facts = ResourceFacts(version=2, page_sizes=frozenset({"2MB", "1GB"}))
    given = build(container=container_config(resources=asked), host=host_facts(resources=facts))
    resources = given["linux"]["resources"]
    assert {key: value for key, value in resources.items() if key != "devices"} == expected


# seccomp


def test_seccomp_depends_on_the_containers_capabilities() -> None:
    rule = {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_NET_ADMIN"]}}
    profile = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule]}
    assert build(seccomp_profile=profile)["linux"]["seccomp"] == {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}
    container = container_config(security=Security(add_capabilities=("NET_ADMIN",)))
    allowed = build(seccomp_profile=profile, container=container)["linux"]["seccomp"]
    assert allowed["syscalls"] == [{"names": ["bpf"], "action": "SCMP_ACT_ALLOW"}]
    assert "seccomp" not in build()["linux"]


# exec


def test_the_process_of_an_exec_is_the_containers_with_another_command() -> None:
    container = container_config(tty=True, envs=(("A", "b"),), working_dir="/w")
    config = build(container=container)
    process = spec.process_for_exec(config, ("ls", "-l"))
    assert process["args"] == ["ls", "-l"]
    assert process["terminal"] is False
    for key in ("user", "env", "cwd", "capabilities", "noNewPrivileges"):
        assert process[key] == config["process"][key]
    assert config["process"]["args"] == ["/bin/app"]
    with pytest.raises(InvalidArgument, match="no command"):
        spec.process_for_exec(config, ())
    with pytest.raises(FailedPrecondition):
        spec.process_for_exec({}, ("ls",))


def test_the_version_is_one_that_every_runtime_reads() -> None:
    config = build()
    assert config["ociVersion"] == "1.0.2"
    assert config["linux"]["cgroupsPath"] == "/podkeep/pod-s/c"
