"""What confines a container, on a live daemon: users, capabilities, profiles, labels, sysctls, limits of processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.process import lsm, procfs
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout, file
from support.mortal import Mortal
from support.registry import Registry

BOTH = [None, BLOCK]
PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:2000:web:/srv/web:/bin/sh\n"
GROUP = "root:x:0:\nweb:x:2000:\nstaff:x:3000:web,root\nusers:x:100:\n"


@pytest.fixture(scope="module")
def accounts(registry: Registry, tmp_path_factory: pytest.TempPathFactory, shared_daemon: Daemon) -> str:
    """An image with users, groups, and a user of its own."""
    files = [file("etc/passwd", PASSWD), file("etc/group", GROUP)]
    layout = busybox_layout(tmp_path_factory.mktemp("accounts") / "image", layers=[files], config={"User": "web:users"})
    reference = registry.push(layout, "accounts:1")
    with Pods(shared_daemon.socket, reference) as client:
        client.pull()
    return reference


def limits_of(pods: Pods, container: str) -> dict[str, str]:
    """Return the limits of a container's first process by name."""
    lines = Path(f"/proc/{pods.host_pid(container)}/limits").read_text().splitlines()[1:]
    return {line[:25].strip(): " ".join(line[25:].split()[:2]) for line in lines}


def oci_config(daemon: Daemon, container: str) -> dict[str, Any]:
    """Return the configuration that the OCI runtime got."""
    config: dict[str, Any] = json.loads((daemon.layout.bundle(container) / "config.json").read_text())
    return config


def value(number: int) -> api.Int64Value:
    """Return an optional number that is there."""
    return api.Int64Value(value=number)


# users


@pytest.mark.parametrize("user", BOTH)
@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({}, (1000, 100, [100, 3000])),
        ({"run_as_user": value(0)}, (0, 0, [0, 3000])),
        ({"run_as_user": value(1000)}, (1000, 2000, [2000, 3000])),
        ({"run_as_user": value(77)}, (77, 0, [0])),
        ({"run_as_user": value(77), "run_as_group": value(78)}, (77, 78, [78])),
        ({"run_as_username": "web"}, (1000, 2000, [2000, 3000])),
        ({"run_as_username": "77"}, (77, 0, [0])),
        ({"run_as_username": "web", "run_as_group": value(5)}, (1000, 5, [5, 3000])),
        ({"supplemental_groups": [4000, 4001]}, (1000, 100, [100, 3000, 4000, 4001])),
        (
            {"supplemental_groups": [4000], "supplemental_groups_policy": api.Strict},
            (1000, 100, [100, 4000]),
        ),
    ],
)
def test_users_and_groups(
    pods: Pods,
    accounts: str,
    user: tuple[int, int, int] | None,
    security: dict[str, Any],
    expected: tuple[int, int, list[int]],
) -> None:
    sandbox = pods.run(pod(options=namespaces(user=user)))
    container = pods.launch(sandbox, image=accounts, security=security)
    uid, gid, groups = expected
    assert pods.read(container, "id -u; id -g") == f"{uid}\n{gid}"
    line = pods.read(container, "grep ^Groups: /proc/self/status").partition(":")[2]
    assert sorted({int(text) for text in line.split()} | {gid}) == groups
    told = pods.status(container).user.linux
    assert (told.uid, told.gid, sorted(told.supplemental_groups)) == (uid, gid, groups)


@pytest.mark.parametrize(
    ("image_user", "expected"), [("1234:20", "1234\n20"), ("1234", "1234\n0"), ("nobody", ""), ("0:wheel", "")]
)
def test_image_without_users(pods: Pods, registry: Registry, tmp_path: Path, image_user: str, expected: str) -> None:
    empty = [file("etc/.wh.passwd"), file("etc/.wh.group")]
    layout = busybox_layout(tmp_path / "image", layers=[empty], config={"User": image_user})
    reference = registry.push(layout, f"nobody-{image_user.replace(':', '-')}:1")
    pods.pull(reference)
    sandbox = pods.run()
    if expected:
        container = pods.launch(sandbox, image=reference)
        assert pods.read(container, "id -u; id -g") == expected
    else:
        message = error_of(lambda: pods.create(sandbox, image=reference), InvalidArgument)
        assert repr(image_user.partition(":")[2] or image_user) in message
        assert pods.containers() == []
    pods.remove(sandbox)
    pods.remove_image(reference)


# capabilities


def effective(pods: Pods, container: str, which: str = "CapEff") -> frozenset[str]:
    """Return a capability set of a command in the container."""
    mask = int(pods.read(container, f"grep {which} /proc/1/status").split()[1], 16)
    return frozenset(name for number, name in enumerate(procfs.CAPABILITIES) if mask >> number & 1)


@pytest.mark.parametrize("user", BOTH)
def test_privileged_gets_what_the_daemon_has(pods: Pods, user: tuple[int, int, int] | None) -> None:
    config = pod(options=namespaces(user=user))
    config.linux.security_context.privileged = True
    container = pods.launch(pods.run(config), security={"privileged": True})
    assert effective(pods, container) == procfs.capability_bounding_set()
    assert pods.read(container, "grep Seccomp: /proc/self/status").split()[1] == "0"


@pytest.mark.parametrize(
    ("add", "drop", "has", "lacks"),
    [
        (["NET_ADMIN"], [], {"CAP_NET_ADMIN", "CAP_CHOWN"}, {"CAP_SYS_ADMIN"}),
        (["cap_net_admin"], ["chown"], {"CAP_NET_ADMIN"}, {"CAP_CHOWN"}),
        (["ALL"], ["CAP_SYS_ADMIN"], {"CAP_NET_ADMIN", "CAP_SYS_MODULE"}, {"CAP_SYS_ADMIN"}),
        (["KILL"], ["ALL"], {"CAP_KILL"}, {"CAP_CHOWN"}),
    ],
)
@pytest.mark.parametrize("user", BOTH)
def test_capabilities(
    pods: Pods, user: tuple[int, int, int] | None, add: list[str], drop: list[str], has: set[str], lacks: set[str]
) -> None:
    asked = api.Capability(add_capabilities=add, drop_capabilities=drop)
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), security={"capabilities": asked})
    found = effective(pods, container)
    assert has <= found
    assert not lacks & found
    assert found == effective(pods, container, "CapBnd")


def test_ambient_capabilities_survive_the_loss_of_root(pods: Pods) -> None:
    asked = api.Capability(add_capabilities=["NET_ADMIN"], add_ambient_capabilities=["NET_ADMIN"])
    container = pods.launch(pods.run(), security={"capabilities": asked, "run_as_user": value(1000)})
    assert effective(pods, container) == {"CAP_NET_ADMIN"}
    plain = pods.launch(pods.run(pod("plain")), security={"run_as_user": value(1000)})
    assert effective(pods, plain) == frozenset()


# AppArmor and SELinux


@pytest.mark.skipif(lsm.apparmor_enabled(), reason="this kernel enforces AppArmor profiles")
@pytest.mark.parametrize(
    "security",
    [
        {"apparmor": api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="localhost/web")},
        {"apparmor": api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="web")},
        {"apparmor_profile": "localhost/web"},
    ],
)
def test_a_profile_that_cannot_be_enforced_is_refused(pods: Pods, security: dict[str, Any]) -> None:
    sandbox = pods.run()
    message = error_of(lambda: pods.create(sandbox, security=security), FailedPrecondition)
    assert "AppArmor profile 'web' cannot be enforced" in message
    assert pods.containers() == []


@pytest.mark.skipif(lsm.apparmor_enabled(), reason="this kernel enforces AppArmor profiles")
@pytest.mark.parametrize(
    "security",
    [
        {},
        {"apparmor": api.SecurityProfile(profile_type=api.SecurityProfile.RuntimeDefault)},
        {"apparmor": api.SecurityProfile(profile_type=api.SecurityProfile.Unconfined)},
        {"apparmor_profile": "runtime/default"},
        {"apparmor_profile": "unconfined"},
    ],
)
def test_without_apparmor_no_profile_is_written(pods: Pods, daemon: Daemon, security: dict[str, Any]) -> None:
    container = pods.launch(pods.run(), security=security)
    assert "apparmorProfile" not in oci_config(daemon, container)["process"]


@pytest.mark.requirement("V79")
@pytest.mark.skipif(lsm.selinux_enabled(), reason="this kernel enforces SELinux labels")
def test_without_selinux_options_are_left_alone(pods: Pods, daemon: Daemon) -> None:
    options = api.SELinuxOption(user="system_u", role="system_r", type="container_t", level="s0:c1,c2")
    config = pod()
    config.linux.security_context.selinux_options.CopyFrom(options)
    container = pods.launch(pods.run(config), security={"selinux_options": options})
    written = oci_config(daemon, container)
    assert "selinuxLabel" not in written["process"]
    assert "mountLabel" not in written["linux"]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("level", "s0,c4,c5"), ("level", "c1,c2"), ("level", "s0:c1,c9999"), ("level", "s0:" + "c1," * 5_000_000),
        ("type", "a:b"), ("user", "x\ny"), ("role", "-"), ("type", "t" * 10_000_000),
    ],
)  # fmt: skip
def test_labels_that_are_none(pods: Pods, part: str, text: str) -> None:
    options = api.SELinuxOption(**{part: text})
    config = pod()
    config.linux.security_context.selinux_options.CopyFrom(options)
    assert f"selinux_options.{part}" in error_of(lambda: pods.run(config), InvalidArgument)
    sandbox = pods.run()
    told = error_of(lambda: pods.create(sandbox, security={"selinux_options": options}), InvalidArgument)
    assert f"selinux_options.{part}" in told
    assert len(told) < 1000
    assert pods.containers() == []


def test_status_says_what_enforces(pods: Pods) -> None:
    info = json.loads(pods.call("Status", api.StatusRequest(verbose=True)).info["security"])
    assert info["selinux"] == ("off" if not lsm.selinux_enabled() else info["selinux"])
    assert set(info) == {"lsm", "apparmor", "selinux"}


# seccomp


@pytest.mark.parametrize("form", ["field", "field with prefix", "text"])
def test_seccomp_profile_of_the_machine(pods: Pods, tmp_path: Path, form: str) -> None:
    path = tmp_path / "profile.json"
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    prefix = "localhost/" if form == "field with prefix" else ""
    field = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=f"{prefix}{path}")
    security = {"seccomp_profile_path": f"localhost/{path}"} if form == "text" else {"seccomp": field}
    container = pods.launch(pods.run(), security=security)
    assert b"Operation not permitted" in pods.exec(container, "mkdir", "/d").stderr


@pytest.mark.parametrize("text", ["", "{", "[]", '{"syscalls": []}', '{"defaultAction": 5, "syscalls": [1]}'])
def test_seccomp_profile_that_is_none(pods: Pods, tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    sandbox = pods.run()
    with pytest.raises(Exception, match=r"seccomp|profile"):
        pods.create(sandbox, security={"seccomp_profile_path": f"localhost/{path}"})
    assert pods.containers() == []
    missing = f"localhost/{tmp_path}/none"
    assert "none" in error_of(lambda: pods.create(sandbox, security={"seccomp_profile_path": missing}), NotFound)


# sysctls


@pytest.mark.parametrize("user", BOTH)
def test_any_user_may_listen_below_1024_and_ping(pods: Pods, user: tuple[int, int, int] | None) -> None:
    sandbox = pods.run(pod(options=namespaces(user=user)))
    container = pods.launch(
        sandbox, security={"run_as_user": value(1000), "capabilities": api.Capability(drop_capabilities=["ALL"])}
    )
    assert pods.read(container, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start") == "0"
    low, high = pods.read(container, "cat /proc/sys/net/ipv4/ping_group_range").split()
    assert (low, high) == ("0", "2147483647" if user is None else "65535")
    # busybox's ping knows raw sockets only: the ICMP socket of a user is opened by one from outside.
    group = 1000 if user is None else user[1] + 1000
    opened = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)"
    enter = [
        "nsenter",
        f"--net=/proc/{pods.host_pid(container)}/ns/net",
        "setpriv",
        f"--regid={group}",
        "--clear-groups",
    ]
    done = subprocess.run(
        [*enter, "--reuid=1000", sys.executable, "-S", "-c", opened], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Permission denied" not in pods.exec(container, "timeout", "1", "nc", "-l", "-p", "81").stderr.decode()


def test_a_request_wins_over_the_defaults(pods: Pods) -> None:
    asked = {"net/ipv4/ip_unprivileged_port_start": "500", "net.ipv4.ping_group_range": "1 0"}
    container = pods.launch(pods.run(pod(sysctls=asked)))
    assert pods.read(container, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start") == "500"
    assert pods.read(container, "cat /proc/sys/net/ipv4/ping_group_range").split() == ["1", "0"]


NAMES = {
    "kernel.panic": "1", "vm.swappiness": "1", "fs.file-max": "1", "kernel.hostname": "x", "kernel.domainname": "x",
    "kernel/../vm/swappiness": "1", "net/../vm/swappiness": "1", "net..ipv4": "1", "user.max_user_namespaces": "1",
    "kernel.shm_rmid_forced": "1\n2", "kernel.sem": "", "net.ipv4.ip_forward": "1\0", "dev.tty.ldisc_autoload": "0",
    "net." + "x" * 10_000_000: "1", "net.ipv4.tcp_syncookies": "1" * 10_000_000, "": "1", "net": "1",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:32]))
def test_sysctls_that_are_refused(pods: Pods, name: str) -> None:
    told = error_of(lambda: pods.run(pod(sysctls={name: NAMES[name]})), InvalidArgument)
    assert "config.linux.sysctls" in told
    assert name[:32] in told or repr(name[:32])[1:-1] in told
    assert len(told) < 1000
    assert pods.sandboxes() == []


def test_a_sysctl_in_both_notations_is_refused(pods: Pods) -> None:
    both = {"net.ipv4.ip_forward": "1", "net/ipv4/ip_forward": "0"}
    assert "are the same" in error_of(lambda: pods.run(pod(sysctls=both)), InvalidArgument)


@pytest.mark.parametrize(
    ("modes", "name"),
    [
        ({"network": api.NODE}, "net.ipv4.ip_forward"),
        ({"ipc": api.NODE}, "kernel.shmmax"),
        ({"ipc": api.NODE}, "fs.mqueue.msg_max"),
    ],
)
def test_sysctls_of_a_shared_namespace_are_refused(pods: Pods, modes: dict[str, Any], name: str) -> None:
    options = namespaces(**modes)
    assert name in error_of(lambda: pods.run(pod(options=options, sysctls={name: "1"})), InvalidArgument)


@pytest.mark.parametrize("user", BOTH)
def test_sysctls_of_the_pods_interface(pods: Pods, user: tuple[int, int, int] | None) -> None:
    """The interface is there only when the network is."""
    asked = {
        "net.ipv4.conf.eth0.forwarding": "1",
        "net/ipv4/conf/eth0/rp_filter": "2",
        "net.ipv4.neigh.eth0.gc_stale_time": "61",
        "net.ipv4.conf.lo.arp_ignore": "3",
    }
    machine = Path("/proc/sys/net/ipv4/conf/lo/arp_ignore").read_text()
    container = pods.launch(pods.run(pod(options=namespaces(user=user), sysctls=asked)))
    files = " ".join(f"/proc/sys/{name.replace('.', '/')}" for name in asked)
    assert pods.read(container, f"cat {files}").split() == list(asked.values())
    assert Path("/proc/sys/net/ipv4/conf/lo/arp_ignore").read_text() == machine


def test_a_sysctl_that_the_kernel_has_not(pods: Pods) -> None:
    with pytest.raises(Exception, match=r"net/ipv4/no_such_thing"):
        pods.run(pod(sysctls={"net.ipv4.no_such_thing": "1"}))
    assert pods.sandboxes() == []


# limits of processes


@pytest.mark.parametrize("user", BOTH)
def test_limits_of_processes_are_the_configurations(pods: Pods, user: tuple[int, int, int] | None) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=user))))
    found = limits_of(pods, container)["Max open files"].split()
    own = int(limits_of_self()["Max open files"].split()[1])
    assert found == ["1024", str(min(524288, own))]
    assert pods.read(container, "ulimit -n") == "1024"


def limits_of_self() -> dict[str, str]:
    """Return this process's limits, which the daemon inherited."""
    lines = Path("/proc/self/limits").read_text().splitlines()[1:]
    return {line[:25].strip(): " ".join(line[25:].split()[:2]) for line in lines}


def test_limits_defaults_and_sysctls_of_the_configuration(mortal: Mortal) -> None:
    text = mortal.daemon.config.read_text()
    settings = """
unprivileged_ports = false
unprivileged_icmp = false
pids_limit = 33
[runtime.default_sysctls]
"net.ipv4.ip_local_port_range" = "40000 41000"
"kernel.shmmni" = "77"
[runtime.default_rlimits]
nofile = "500:600"
core = "0"
[network]
"""
    mortal.daemon.config.write_text(text.replace("\n[network]\n", settings))
    pods = mortal.start()
    container = pods.launch(pods.run())
    found = limits_of(pods, container)
    assert found["Max open files"] == "500 600"
    assert found["Max core file size"] == "0 0"
    assert pods.read(container, "cat /proc/sys/net/ipv4/ip_local_port_range").split() == ["40000", "41000"]
    assert pods.read(container, "cat /proc/sys/kernel/shmmni") == "77"
    assert pods.read(container, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start") == "1024"
    assert oci_config(mortal.daemon, container)["linux"]["resources"]["pids"] == {"limit": 33}
    shared = pods.launch(pods.run(pod("host", options=namespaces(network=api.NODE))))
    assert pods.read(shared, "cat /proc/sys/kernel/shmmni") == "77"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('default_sysctls = {"vm.swappiness" = "1"}', "runtime.default_sysctls"),
        ('default_rlimits = {"files" = "1"}', "runtime.default_rlimits"),
        ('default_rlimits = {"nofile" = "9:1"}', "runtime.default_rlimits.nofile"),
        ("pids_limit = -1", "runtime.pids_limit"),
        ('cgroup_driver = "systemd"', "systemd is not the init of this machine"),
        ('cgroup_driver = "other"', "cgroup_driver"),
        ('selinux = "on"', "selinux"),
    ],
)
def test_a_configuration_that_cannot_be_ends_the_daemon(own_daemon: Daemon, setting: str, told: str) -> None:
    text = own_daemon.config.read_text()
    own_daemon.config.write_text(text.replace("\n[network]\n", f"\n{setting}\n[network]\n"))
    done = own_daemon.run("runtime", timeout=30)
    assert done.returncode != 0
    assert told in done.stderr


# sandboxes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda context: setattr(context.run_as_group, "value", 5), "run_as_group"),
        (lambda context: setattr(context.run_as_user, "value", -1), "run_as_user"),
        (lambda context: context.supplemental_groups.append(-1), "supplemental_groups"),
        (lambda context: setattr(context, "supplemental_groups_policy", 9), "supplemental_groups_policy"),
        (lambda context: setattr(context.seccomp, "profile_type", 9), "seccomp"),
        (lambda context: setattr(context.apparmor, "profile_type", 9), "apparmor"),
    ],
)
def test_contexts_of_sandboxes_that_are_refused(pods: Pods, change: Callable[[Any], object], told: str) -> None:
    config = pod()
    change(config.linux.security_context)
    assert f"security_context.{told}" in error_of(lambda: pods.run(config), InvalidArgument)
    assert pods.sandboxes() == []


def test_what_holds_a_pod_is_killed_last(pods: Pods) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    container = pods.launch(sandbox)
    status = json.loads(pods.pod_status(sandbox, verbose=True).info["info"])
    score = int(Path(f"/proc/{status['status']['infra']['pid']}/oom_score_adj").read_text())
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert score == (-998 if "CAP_SYS_RESOURCE" in procfs.capability_bounding_set() else max(-998, own))
    assert pods.read(container, "cat /proc/1/comm") == "catatonit"


def test_a_container_says_nothing_of_the_network(pods: Pods) -> None:
    """A caller that names only the PID namespace says POD for the network; it is the sandbox's."""
    sandbox = pods.run(pod(options=namespaces(network=api.NODE)))
    container = pods.launch(sandbox, options=api.NamespaceOption(pid=api.CONTAINER))
    assert Path(f"/proc/{pods.host_pid(container)}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
