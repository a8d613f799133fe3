"""Security contexts: users, groups, capabilities, seccomp, file systems that are masked or read-only, sysctls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import namespaces, pod
from support.endpoint import Node
from support.images import busybox_layout
from support.registry import Registry

CHOWN, NET_RAW, NET_ADMIN, SYS_ADMIN, MKNOD = 0, 13, 12, 21, 27  # include/uapi/linux/capability.h
DEFAULT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31}
"""What containerd gives, without MKNOD: CHOWN to SETFCAP without the dangerous ones."""


def number(value: int) -> api.Int64Value:
    """Return a number that is given."""
    return api.Int64Value(value=value)


def capabilities(node: Node, container: str, kind: str = "CapEff") -> set[int]:
    """Return the capabilities of a container's first process."""
    mask = int(node.read(container, f"sed -n 's/^{kind}:\\t//p' /proc/1/status"), 16)
    return {bit for bit in range(64) if mask >> bit & 1}


def identity(node: Node, container: str) -> tuple[str, str, set[str]]:
    """Return the user, the group and the groups of a container's first process."""
    script = "sed -n 's/^Uid:\\t\\([0-9]*\\).*/\\1/p;s/^Gid:\\t\\([0-9]*\\).*/\\1/p;s/^Groups:\\t//p' /proc/1/status"
    user, group, groups = node.read(container, script).split("\n")
    return user, group, set(groups.split())


# users and groups


def test_user_is_root_unless_the_image_says_otherwise(node: Node) -> None:
    assert identity(node, node.launch(node.run()))[:2] == ("0", "0")


@pytest.mark.parametrize("user", ["1000", "app", "1000:50", "app:staff"])
def test_user_of_the_image(node: Node, registry: Registry, host_directory: Path, user: str) -> None:
    layout = busybox_layout(host_directory / "image", config={"User": user})
    reference = registry.push(layout, "runas:1")
    node.fetch(reference)
    container = node.launch(node.run(), image=reference)
    assert identity(node, container)[:2] == ("1000", "50" if ":" in user else "1000")


def test_run_as_user(node: Node) -> None:
    container = node.launch(node.run(), security={"run_as_user": number(1001)})
    assert identity(node, container)[0] == "1001"
    assert node.read(container, "id -u") == "1001"


def test_run_as_username(node: Node) -> None:
    container = node.launch(node.run(), security={"run_as_username": "nobody"})
    assert identity(node, container)[:2] == ("65534", "65534")
    assert node.read(container, "id -un") == "nobody"


def test_run_as_user_and_group(node: Node) -> None:
    container = node.launch(node.run(), security={"run_as_user": number(1001), "run_as_group": number(1002)})
    assert identity(node, container)[:2] == ("1001", "1002")


def test_group_without_a_user_is_refused(node: Node) -> None:
    sandbox = node.run()
    node.refused(lambda: node.create(sandbox, security={"run_as_group": number(1002)}), InvalidArgument)
    assert node.containers() == []


def test_username_that_the_image_has_not(node: Node) -> None:
    sandbox = node.run()
    message = node.refused(
        lambda: node.create(sandbox, security={"run_as_username": "ghost"}), InvalidArgument, NotFound
    )
    assert node.endpoint.is_reference or "ghost" in message


def test_supplemental_groups(node: Node) -> None:
    container = node.launch(node.run(), security={"supplemental_groups": [1234, 5678]})
    assert identity(node, container)[2] >= {"1234", "5678"}
    assert set(node.read(container, "id -G").split()) >= {"1234", "5678"}


def test_groups_of_the_image_are_added(node: Node) -> None:
    """The image's /etc/group lists the user ``app`` in ``staff`` (50)."""
    security = {"run_as_user": number(1000), "supplemental_groups": [1234]}
    container = node.launch(node.run(), security=security)
    assert identity(node, container) == ("1000", "1000", {"50", "1000", "1234"})


@pytest.mark.reference(unsupported="no groups policy")
@pytest.mark.parametrize(
    ("policy", "groups"), [(api.Merge, {50, 1000, 1234}), (api.Strict, {1000, 1234})], ids=["merge", "strict"]
)
def test_groups_policy(node: Node, policy: int, groups: set[int]) -> None:
    security = {"run_as_user": number(1000), "supplemental_groups": [1234], "supplemental_groups_policy": policy}
    container = node.launch(node.run(), security=security)
    assert {int(group) for group in identity(node, container)[2]} == groups
    assert {int(group) for group in node.read(container, "id -G").split()} == groups
    user = node.status(container).user.linux
    assert (user.uid, user.gid, set(user.supplemental_groups)) == (1000, 1000, groups)


def test_sandbox_context_does_not_rule_the_containers(node: Node) -> None:
    config = pod()
    config.linux.security_context.run_as_user.value = 1000
    config.linux.security_context.supplemental_groups.append(4321)
    container = node.launch(node.run(config))
    assert identity(node, container)[0] == "0"


# capabilities and privileges


def defaults(node: Node) -> set[int]:
    """Return what a container has that asks for nothing: containerd gives it MKNOD, too."""
    return DEFAULT_CAPABILITIES | ({MKNOD} if node.endpoint.is_reference else set())


def test_default_capabilities(node: Node) -> None:
    container = node.launch(node.run())
    assert capabilities(node, container) == defaults(node)
    assert capabilities(node, container, "CapBnd") == defaults(node)
    assert capabilities(node, container, "CapAmb") == set()


@pytest.mark.parametrize("name", ["NET_ADMIN", "CAP_NET_ADMIN"])
def test_added_capability(node: Node, name: str) -> None:
    context = {"capabilities": api.Capability(add_capabilities=[name])}
    if name.startswith("CAP_") and node.endpoint.is_reference:
        context = {"capabilities": api.Capability(add_capabilities=[name.removeprefix("CAP_")])}
    sandbox = node.run()
    container = node.launch(sandbox, security=context)
    assert capabilities(node, container) == defaults(node) | {NET_ADMIN}
    assert node.exec(container, "brctl", "addbr", "foobar").exit_code == 0
    without = node.launch(sandbox, name="without")
    assert node.exec(without, "brctl", "addbr", "foobaz").exit_code != 0


def test_dropped_capability(node: Node) -> None:
    context = {"capabilities": api.Capability(drop_capabilities=["CHOWN", "NET_RAW"])}
    container = node.launch(node.run(), security=context)
    assert capabilities(node, container) == defaults(node) - {CHOWN, NET_RAW}
    answer = node.exec(container, "chown", "1:1", "/tmp")
    assert (answer.exit_code, b"not permitted" in answer.stderr) == (1, True)


def test_all_capabilities_dropped(node: Node) -> None:
    context = {"capabilities": api.Capability(drop_capabilities=["ALL"])}
    container = node.launch(node.run(), security=context)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert capabilities(node, container, kind) == set()


def test_all_dropped_but_one(node: Node) -> None:
    context = {"capabilities": api.Capability(drop_capabilities=["ALL"], add_capabilities=["CHOWN"])}
    container = node.launch(node.run(), security=context)
    assert capabilities(node, container) == {CHOWN}


def test_all_added_but_one(node: Node) -> None:
    context = {"capabilities": api.Capability(add_capabilities=["ALL"], drop_capabilities=["CHOWN"])}
    container = node.launch(node.run(), security=context)
    found = capabilities(node, container)
    assert found >= (defaults(node) | {NET_ADMIN, SYS_ADMIN}) - {CHOWN}
    assert CHOWN not in found


def test_capabilities_of_a_user_that_is_not_root(node: Node) -> None:
    container = node.launch(node.run(), security={"run_as_user": number(1000)})
    assert capabilities(node, container) == set()
    assert capabilities(node, container, "CapBnd") == defaults(node)


@pytest.mark.reference(unsupported="no ambient capabilities")
def test_ambient_capability(node: Node) -> None:
    context = {
        "run_as_user": number(1000),
        "capabilities": api.Capability(add_capabilities=["NET_ADMIN"], add_ambient_capabilities=["NET_ADMIN"]),
    }
    container = node.launch(node.run(), security=context)
    assert NET_ADMIN in capabilities(node, container, "CapAmb")
    assert NET_ADMIN in capabilities(node, container)


@pytest.mark.reference(differs="an unknown capability is passed over")
def test_unknown_capability_is_refused(node: Node) -> None:
    sandbox = node.run()
    context = {"capabilities": api.Capability(add_capabilities=["FLY"])}
    node.refused(lambda: node.launch(sandbox, security=context), InvalidArgument)


def test_privileged(node: Node) -> None:
    config = pod()
    config.linux.security_context.privileged = True
    container = node.launch(node.run(config), security={"privileged": True})
    host = int(Path("/proc/self/status").read_text().partition("CapBnd:\t")[2].split()[0], 16)
    assert capabilities(node, container) == {bit for bit in range(64) if host >> bit & 1}
    assert node.exec(container, "brctl", "addbr", "foobar").exit_code == 0
    assert node.read(container, "sed -n 's/^Seccomp:\\t//p' /proc/self/status") == "0"
    assert node.exec(container, "test", "-w", "/proc/sys/kernel").exit_code == 0
    # A device of the host that no other container has.
    assert node.exec(container, "test", "-c", "/dev/kmsg").exit_code == 0


def test_not_privileged(node: Node) -> None:
    container = node.launch(node.run())
    assert node.exec(container, "brctl", "addbr", "foobar").exit_code != 0
    assert node.exec(container, "sh", "-c", "echo 1 >/proc/sys/kernel/sysrq").exit_code != 0
    assert node.exec(container, "test", "-e", "/dev/kmsg").exit_code != 0


def test_privileged_container_needs_a_privileged_sandbox(node: Node) -> None:
    sandbox = node.run()
    node.refused(lambda: node.create(sandbox, security={"privileged": True}), InvalidArgument)
    assert node.containers() == []


@pytest.mark.parametrize("forbidden", [True, False])
def test_no_new_privileges(node: Node, forbidden: bool) -> None:
    security = {"run_as_user": number(1000), "no_new_privs": forbidden}
    container = node.launch(node.run(), security=security)
    assert node.read(container, "sed -n 's/^NoNewPrivs:\\t//p' /proc/1/status") == str(int(forbidden))
    answer = node.exec(container, "/bin/busybox-setuid", "su", "-c", "id -u", "root")
    assert (answer.stdout == b"0\n") is not forbidden


# seccomp

BLOCK_HOSTNAME = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["sethostname"], "action": "SCMP_ACT_ERRNO"}],
}


def mode(node: Node, container: str) -> str:
    """Return the seccomp mode of a command in a container: 0 none, 2 a filter (proc(5))."""
    return node.read(container, "sed -n 's/^Seccomp:\\t//p' /proc/self/status")


def test_seccomp_default(node: Node) -> None:
    security = {"seccomp": api.SecurityProfile(profile_type=api.SecurityProfile.RuntimeDefault)}
    container = node.launch(node.run(), security=security)
    assert mode(node, container) == "2"
    assert node.read(container, "sed -n 's/^Seccomp:\\t//p' /proc/1/status") == "2"


def test_seccomp_unconfined(node: Node) -> None:
    security = {"seccomp": api.SecurityProfile(profile_type=api.SecurityProfile.Unconfined)}
    assert mode(node, node.launch(node.run(), security=security)) == "0"


def test_seccomp_not_given_is_unconfined(node: Node) -> None:
    assert mode(node, node.launch(node.run())) == "0"


def test_seccomp_profile_of_the_host(node: Node, host_directory: Path) -> None:
    profile = host_directory / "profile.json"
    profile.write_text(json.dumps(BLOCK_HOSTNAME))
    sandbox = node.run()
    administrator = api.Capability(add_capabilities=["SYS_ADMIN"])
    blocked = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=str(profile))
    allowed = api.SecurityProfile(profile_type=api.SecurityProfile.Unconfined)
    for name, seccomp, works in (("blocked", blocked, False), ("allowed", allowed, True)):
        container = node.launch(sandbox, name=name, security={"seccomp": seccomp, "capabilities": administrator})
        assert (node.exec(container, "hostname", "other").exit_code == 0) is works, name


def test_seccomp_does_not_bind_the_privileged(node: Node, host_directory: Path) -> None:
    profile = host_directory / "profile.json"
    profile.write_text(json.dumps(BLOCK_HOSTNAME))
    config = pod()
    config.linux.security_context.privileged = True
    seccomp = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=str(profile))
    container = node.launch(node.run(config), security={"seccomp": seccomp, "privileged": True})
    assert node.exec(container, "hostname", "other").exit_code == 0


@pytest.mark.parametrize("content", [None, "no JSON"])
def test_seccomp_profile_that_cannot_be_used(node: Node, host_directory: Path, content: str | None) -> None:
    profile = host_directory / "profile.json"
    if content is not None:
        profile.write_text(content)
    sandbox = node.run()
    seccomp = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=str(profile))
    message = node.refused(lambda: node.create(sandbox, security={"seccomp": seccomp}), NotFound, InvalidArgument)
    assert content is not None or str(profile) in message
    assert node.containers() == []


# the file system


def test_read_only_root(node: Node) -> None:
    sandbox = node.run()
    container = node.launch(sandbox, security={"readonly_rootfs": True})
    answer = node.exec(container, "touch", "/file")
    assert (answer.exit_code, b"Read-only file system" in answer.stderr) == (1, True)
    assert node.exec(container, "touch", "/dev/shm/file").exit_code == 0
    writable = node.launch(sandbox, name="writable")
    assert node.exec(writable, "touch", "/file").exit_code == 0


def test_masked_paths(node: Node) -> None:
    paths = ["/proc/cpuinfo", "/etc", "/no/such"]
    container = node.launch(node.run(), security={"masked_paths": paths})
    assert node.read(container, "cat /proc/cpuinfo; ls -A /etc") == ""


def test_readonly_paths(node: Node) -> None:
    container = node.launch(node.run(), security={"readonly_paths": ["/tmp", "/no/such"]})
    answer = node.exec(container, "touch", "/tmp/file")
    assert (answer.exit_code, b"Read-only file system" in answer.stderr) == (1, True)
    assert node.exec(container, "touch", "/file").exit_code == 0


def test_paths_that_a_container_has_not_masked_by_request_are_open(node: Node) -> None:
    """The kubelet sends the lists; empty ones mean an unmasked /proc (procMount: Unmasked)."""
    container = node.launch(node.run(), security={"masked_paths": [], "readonly_paths": []})
    assert node.read(container, "head -c 9 /proc/cpuinfo") == "processor"


# sysctls


def test_sysctl_of_the_pods_network(node: Node) -> None:
    sandbox = node.run(pod(sysctls={"net.ipv4.ip_local_port_range": "20000 20100", "net/ipv4/tcp_fin_timeout": "11"}))
    container = node.launch(sandbox)
    text = node.read(container, "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/tcp_fin_timeout")
    assert text.split() == ["20000", "20100", "11"]
    assert "20100" not in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()


def test_sysctl_of_the_pods_ipc(node: Node) -> None:
    container = node.launch(node.run(pod(sysctls={"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "33"})))
    text = node.read(container, "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/fs/mqueue/msg_max")
    assert text.split() == ["1", "33"]


@pytest.mark.parametrize("name", ["kernel.panic", "vm.swappiness", "kernel.no_such_thing", "net/../kernel/panic"])
def test_sysctl_of_the_whole_machine_is_refused(node: Node, name: str) -> None:
    node.refused(lambda: node.run(pod(sysctls={name: "0"})), InvalidArgument)
    assert [item for item in node.sandboxes() if item.state == api.SANDBOX_READY] == []


@pytest.mark.parametrize(
    ("sysctl", "mode"), [("net.ipv4.ip_forward", "network"), ("kernel.shmmax", "ipc")], ids=["net", "ipc"]
)
def test_sysctl_of_a_namespace_that_is_the_hosts_is_refused(node: Node, sysctl: str, mode: str) -> None:
    config = pod(sysctls={sysctl: "1"}, options=namespaces(**{mode: api.NODE}))
    node.refused(lambda: node.run(config), InvalidArgument)
    assert [item for item in node.sandboxes() if item.state == api.SANDBOX_READY] == []
