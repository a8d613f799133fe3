"""Bad requests over CRI: the right class of error, one line that names the field, and nothing made or left.

The `daemon` fixture counts what the daemon holds before and after every one of them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import podkeep.cri.transport  # noqa: F401 - before grpc

# isort: split
import grpc
import grpc.aio

from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    ResourceExhausted,
)
from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2 as node
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon

UNKNOWN_ID = "0123456789abcdef" * 4
ALWAYS_ANSWERED = ("Version", "Status", "RuntimeConfig", "ListPodSandbox", "ListContainers")
NEEDS_CONTENT = (
    "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer",
    "StopContainer", "RemoveContainer", "ContainerStatus", "ExecSync", "ReopenContainerLog",
)  # fmt: skip


@pytest.mark.parametrize("rpc", ALWAYS_ANSWERED)
def test_empty_request_that_is_complete(pods: Pods, rpc: str) -> None:
    assert pods.call(rpc, getattr(api, f"{rpc}Request")()) is not None


@pytest.mark.parametrize("rpc", NEEDS_CONTENT)
def test_empty_request_that_lacks_something(pods: Pods, rpc: str) -> None:
    message = error_of(lambda: pods.call(rpc, getattr(api, f"{rpc}Request")()), InvalidArgument)
    assert re.search(r"required|name and uid", message), message


@pytest.mark.parametrize("rpc", ["ImageStatus", "PullImage", "RemoveImage"])
def test_empty_request_for_an_image(pods: Pods, rpc: str) -> None:
    request = getattr(api, f"{rpc}Request")()
    assert "image.image is required" in error_of(lambda: pods.call(rpc, request, service="images"), InvalidArgument)


@pytest.mark.parametrize("rpc", ["ImageStatus", "PullImage", "RemoveImage"])
def test_a_name_of_megabytes(pods: Pods, rpc: str) -> None:
    request = getattr(api, f"{rpc}Request")(image=api.ImageSpec(image="a" + "/a" * (1 << 20)))
    message = error_of(lambda: pods.call(rpc, request, service="images"), InvalidArgument)
    assert "image.image" in message
    assert "more than 4096 bytes" in message


def test_what_no_program_is_started_with(pods: Pods) -> None:
    sandbox = pods.run()
    request = pods.create_request(sandbox, "true")
    request.config.envs.extend(api.KeyValue(key=f"V{number}", value=b"x" * 100_000) for number in range(150))
    message = error_of(lambda: pods.call("CreateContainer", request), InvalidArgument)
    assert "config.envs: no program starts with more than" in message
    container = pods.launch(sandbox)
    for command, named in ((["a\0b"], "NUL"), (["x"] * 100_000, "100000 entries"), (["x" * 200_000], "131071 bytes")):
        message = error_of(lambda given=command: pods.exec(container, *given), InvalidArgument)
        assert named in message


def test_empty_request_of_podkeeps_own_service(pods: Pods) -> None:
    request = node.LoadImageRequest()
    assert "not absolute" in error_of(lambda: pods.call("LoadImage", request, service="node"), InvalidArgument)
    request = node.LoadImageRequest(path="/no/such/archive")
    with pytest.raises(PodkeepError, match="/no/such/archive"):
        pods.call("LoadImage", request, service="node")


@pytest.mark.parametrize(
    ("rpc", "field"),
    [
        ("PodSandboxStatus", "pod_sandbox_id"), ("CreateContainer", "pod_sandbox_id"),
        ("StartContainer", "container_id"), ("ContainerStatus", "container_id"), ("ExecSync", "container_id"),
        ("ReopenContainerLog", "container_id"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", [UNKNOWN_ID, "ab", "zz" * 40, "a\nb", "../../etc", "%s", "\x00abc", "x" * 100_000])
def test_unknown_id(pods: Pods, rpc: str, field: str, text: str) -> None:
    request = getattr(api, f"{rpc}Request")(**{field: text})
    if rpc == "CreateContainer":
        request.config.metadata.name = "main"
        request.config.image.image = pods.image
    assert "not found" in error_of(lambda: pods.call(rpc, request), NotFound)


def test_what_a_request_has_in_megabytes_is_told_and_logged_in_few_words(pods: Pods, daemon: Daemon) -> None:
    long = "\x01" * (1 << 20)
    at_an_address = _config(lambda c: c.port_mappings.add(host_port=1, container_port=1, host_ip=long))
    sandbox = pods.run()
    begin = daemon.log.stat().st_size
    for rpc, request in (
        ("ContainerStatus", api.ContainerStatusRequest(container_id=long)),
        ("PodSandboxStatus", api.PodSandboxStatusRequest(pod_sandbox_id=long)),
        ("Exec", api.ExecRequest(container_id=long, cmd=["true"], stdout=True)),
        ("PortForward", api.PortForwardRequest(pod_sandbox_id=long, port=[80])),
        ("RunPodSandbox", api.RunPodSandboxRequest(config=pod("other"), runtime_handler=long)),
        ("RunPodSandbox", api.RunPodSandboxRequest(config=at_an_address)),
    ):
        with pytest.raises(PodkeepError) as caught:
            pods.call(rpc, request)
        assert len(str(caught.value)) < 1000
        assert type(caught.value) in {NotFound, InvalidArgument}
    assert pods.pod_status(sandbox).status.id == sandbox
    assert daemon.log.stat().st_size - begin < 20_000


@pytest.mark.parametrize(
    ("rpc", "field"),
    [
        ("StopPodSandbox", "pod_sandbox_id"), ("RemovePodSandbox", "pod_sandbox_id"),
        ("StopContainer", "container_id"), ("RemoveContainer", "container_id"),
    ],
)  # fmt: skip
def test_ending_what_is_not_there_is_no_error(pods: Pods, rpc: str, field: str) -> None:
    assert pods.call(rpc, getattr(api, f"{rpc}Request")(**{field: UNKNOWN_ID})).ByteSize() == 0


def test_start_of_an_id(pods: Pods) -> None:
    sandbox = pods.run()
    assert "not found" in error_of(lambda: pods.pod_status(sandbox[:11]), NotFound)
    assert pods.pod_status(sandbox[:12]).status.id == sandbox


def _config(change: Callable[[api.PodSandboxConfig], object]) -> api.PodSandboxConfig:
    config = pod()
    change(config)
    return config


BAD_PODS = {
    "no name": (lambda c: c.metadata.ClearField("name"), InvalidArgument, "config.metadata"),
    "no uid": (lambda c: c.metadata.ClearField("uid"), InvalidArgument, "config.metadata"),
    "newline": (lambda c: setattr(c.metadata, "name", "a\nb"), InvalidArgument, "config.metadata.name"),
    "slash": (lambda c: setattr(c.metadata, "namespace", "a/b"), InvalidArgument, "config.metadata.namespace"),
    "control character": (lambda c: setattr(c.metadata, "uid", "a\x00b"), InvalidArgument, "config.metadata.uid"),
    "windows": (lambda c: c.windows.SetInParent(), InvalidArgument, "config.windows"),
    "log directory": (lambda c: setattr(c, "log_directory", "logs"), InvalidArgument, "config.log_directory"),
    "long log directory": (
        lambda c: setattr(c, "log_directory", "/x" * 3000), InvalidArgument, "config.log_directory",
    ),
    "log directory up": (lambda c: setattr(c, "log_directory", "/a/../b"), InvalidArgument, "config.log_directory"),
    "cgroup parent": (lambda c: setattr(c.linux, "cgroup_parent", "a"), InvalidArgument, "cgroup_parent"),
    "cgroup parent up": (lambda c: setattr(c.linux, "cgroup_parent", "/a/../.."), InvalidArgument, "cgroup_parent"),
    "cgroup parent slashes": (lambda c: setattr(c.linux, "cgroup_parent", "/a//b"), InvalidArgument, "cgroup"),
    "long hostname": (lambda c: setattr(c, "hostname", "h" * 65), InvalidArgument, "hostname"),
    "hostname with newline": (lambda c: setattr(c, "hostname", "a\nb"), InvalidArgument, "hostname"),
    "dns newline": (lambda c: c.dns_config.servers.append("10.0.0.1\nsearch evil"), InvalidArgument, "dns_config"),
    "host port": (
        lambda c: c.port_mappings.add(container_port=0, host_port=8080), InvalidArgument, "config.port_mappings",
    ),
    "selinux": (
        lambda c: setattr(c.linux.security_context.selinux_options, "level", "s0,c1"),
        InvalidArgument,
        "selinux_options",
    ),
    "network CONTAINER": (
        lambda c: setattr(c.linux.security_context.namespace_options, "network", api.CONTAINER),
        InvalidArgument, "namespace_options.network",
    ),
    "ipc TARGET": (
        lambda c: setattr(c.linux.security_context.namespace_options, "ipc", api.TARGET),
        InvalidArgument, "namespace_options.ipc",
    ),
    "pid TARGET": (
        lambda c: setattr(c.linux.security_context.namespace_options, "pid", api.TARGET),
        InvalidArgument, "namespace_options.pid",
    ),
    "network 99": (
        lambda c: setattr(c.linux.security_context.namespace_options, "network", 99),
        InvalidArgument, "namespace_options.network",
    ),
    "a class of no type": (
        lambda c: getattr(c.class_resources, "class").update({"nosuch": "gold"}),
        InvalidArgument,
        "class resource nosuch: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PODS)
def test_bad_sandbox(pods: Pods, case: str) -> None:
    change, kind, told = BAD_PODS[case]
    assert told in error_of(lambda: pods.run(_config(change)), kind)
    assert pods.sandboxes() == []


def _device(config: api.ContainerConfig, host_path: str, container_path: str, permissions: str = "") -> None:
    config.devices.add(host_path=host_path, container_path=container_path, permissions=permissions)


BAD_CONTAINERS: dict[str, tuple[Callable[[api.ContainerConfig], object], type[PodkeepError], str]] = {
    "no name": (lambda c: c.metadata.ClearField("name"), InvalidArgument, "config.metadata.name"),
    "newline": (lambda c: setattr(c.metadata, "name", "a\nb"), InvalidArgument, "config.metadata.name"),
    "no image": (lambda c: c.image.ClearField("image"), InvalidArgument, "config.image.image"),
    "long image": (lambda c: setattr(c.image, "image", "x" * 5000), InvalidArgument, "config.image.image"),
    "long image name": (
        lambda c: setattr(c.image, "user_specified_image", "x" * 9_000_000),
        InvalidArgument, "config.image.user_specified_image",
    ),
    "long log path": (lambda c: setattr(c, "log_path", "x/" * 3000), InvalidArgument, "config.log_path"),
    "missing image": (lambda c: setattr(c.image, "image", "nowhere:1"), NotFound, "nowhere:1"),
    "no reference": (lambda c: setattr(c.image, "image", "A B\n"), NotFound, "A B"),
    "windows": (lambda c: c.windows.SetInParent(), InvalidArgument, "config.windows"),
    "cdi": (lambda c: c.CDI_devices.add(name="a.b/c=d"), NotFound, "unresolvable CDI devices a.b/c=d"),
    "cdi name": (lambda c: c.CDI_devices.add(name="/dev/x"), InvalidArgument, "not the name of a CDI device"),
    "cdi annotation": (
        lambda c: c.annotations.update({"cdi.k8s.io/x": "a.b/c=d,"}), InvalidArgument, "not the name of a CDI device"
    ),
    "log path": (lambda c: setattr(c, "log_path", "/etc/passwd"), InvalidArgument, "config.log_path"),
    "log path up": (lambda c: setattr(c, "log_path", "a/../../b"), InvalidArgument, "config.log_path"),
    "working directory": (lambda c: setattr(c, "working_dir", "tmp"), InvalidArgument, "config.working_dir"),
    "environment": (lambda c: c.envs.add(key="A=B", value=b"1"), InvalidArgument, "config.envs"),
    "environment bytes": (lambda c: c.envs.add(key="A", value=b"\xff"), InvalidArgument, "config.envs"),
    "empty variable": (lambda c: c.envs.add(key="", value=b"1"), InvalidArgument, "config.envs"),
    "missing host path": (lambda c: c.mounts.append(bind("/no/such", "/v")), InvalidArgument, "config.mounts[0]"),
    "relative host path": (lambda c: c.mounts.append(bind("tmp", "/v")), InvalidArgument, "config.mounts[0]"),
    "host path with NUL": (lambda c: c.mounts.append(bind("/tmp\0", "/v")), InvalidArgument, "config.mounts[0]"),
    "relative mount": (lambda c: c.mounts.append(bind("/tmp", "v")), InvalidArgument, "config.mounts[0]"),
    "mount on root": (lambda c: c.mounts.append(bind("/tmp", "/")), InvalidArgument, "config.mounts[0]"),
    "mount with NUL": (lambda c: c.mounts.append(bind("/tmp", "/a\0b")), InvalidArgument, "config.mounts[0]"),
    "propagation 9": (
        lambda c: c.mounts.append(bind("/tmp", "/v", propagation=9)), InvalidArgument, "config.mounts[0]",
    ),
    "writable image volume": (
        lambda c: c.mounts.append(api.Mount(container_path="/v", image=api.ImageSpec(image="x"))),
        InvalidArgument, "config.mounts[0].readonly",
    ),
    "device": (lambda c: _device(c, "/etc/passwd", "/dev/x"), InvalidArgument, "/etc/passwd"),
    "missing device": (lambda c: _device(c, "/dev/no", "/dev/x"), InvalidArgument, "/dev/no"),
    "device outside": (
        lambda c: _device(c, "/dev/null", "/dev/../../x"), InvalidArgument, "config.devices[0].container_path",
    ),
    "device in the place of all": (lambda c: _device(c, "/dev/null", "//"), InvalidArgument, "config.devices[0]"),
    "relative device": (lambda c: _device(c, "/dev/null", "x"), InvalidArgument, "config.devices[0]"),
    "device permissions": (lambda c: _device(c, "/dev/null", "/dev/x", "rwq"), InvalidArgument, "config.devices[0]"),
    "capability": (
        lambda c: c.linux.security_context.capabilities.add_capabilities.append("FLY"), InvalidArgument, "'FLY'",
    ),
    "negative user": (
        lambda c: setattr(c.linux.security_context.run_as_user, "value", -1), InvalidArgument, "run_as_user",
    ),
    "group without user": (
        lambda c: setattr(c.linux.security_context.run_as_group, "value", 5), InvalidArgument, "run_as_group",
    ),
    "unknown user": (
        lambda c: setattr(c.linux.security_context, "run_as_username", "ghost"), InvalidArgument, "'ghost'",
    ),
    "seccomp path": (
        lambda c: setattr(c.linux.security_context, "seccomp_profile_path", "strange"), InvalidArgument, "'strange'",
    ),
    "seccomp missing": (
        lambda c: setattr(c.linux.security_context, "seccomp_profile_path", "localhost//no/such"),
        NotFound, "/no/such",
    ),
    "selinux": (
        lambda c: setattr(c.linux.security_context.selinux_options, "level", "s0,c1"),
        InvalidArgument,
        "selinux_options",
    ),
    "pid POD": (
        lambda c: setattr(c.linux.security_context.namespace_options, "pid", api.POD),
        InvalidArgument, "namespace_options.pid",
    ),
    "pid NODE": (
        lambda c: setattr(c.linux.security_context.namespace_options, "pid", api.NODE),
        InvalidArgument, "namespace_options.pid",
    ),
    "network NODE": (
        lambda c: setattr(c.linux.security_context.namespace_options, "network", api.NODE),
        InvalidArgument, "namespace_options.network",
    ),
    "TARGET without target": (
        lambda c: setattr(c.linux.security_context.namespace_options, "pid", api.TARGET),
        InvalidArgument, "target_id",
    ),
    "stop signal 99": (lambda c: setattr(c, "stop_signal", 99), InvalidArgument, "config.stop_signal"),
    "groups policy 9": (
        lambda c: setattr(c.linux.security_context, "supplemental_groups_policy", 9),
        InvalidArgument, "supplemental_groups_policy",
    ),
    "a class of no type": (
        lambda c: c.class_resources.classes.update({"nosuch": "gold"}),
        InvalidArgument,
        "class resource nosuch: ",
    ),
    "a class without a name": (
        lambda c: c.class_resources.classes.update({"qos": ""}),
        InvalidArgument,
        "class resource qos: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CONTAINERS)
def test_bad_container(pods: Pods, case: str) -> None:
    change, kind, told = BAD_CONTAINERS[case]
    sandbox = pods.run(pod(options=namespaces(pid=api.CONTAINER)))
    request = pods.create_request(sandbox)
    change(request.config)
    assert told in error_of(lambda: pods.call("CreateContainer", request), kind)
    assert pods.containers() == []


BAD_LIMITS = {
    "memory": {"memory_limit_in_bytes": 1},
    "cpus": {"cpuset_cpus": "4000"},
    "cpus text": {"cpuset_cpus": "a\nb"},
    "period": {"cpu_quota": 1000, "cpu_period": 1},
    "page size": {"hugepage_limits": [api.HugepageLimit(page_size="3MB", limit=1)]},
}


@pytest.mark.parametrize("case", BAD_LIMITS)
def test_limits_that_the_kernel_refuses(pods: Pods, case: str) -> None:
    sandbox = pods.run()
    with pytest.raises(PodkeepError) as caught:
        pods.create(sandbox, resources=api.LinuxContainerResources(**BAD_LIMITS[case]))
    assert "\n" not in str(caught.value)
    assert pods.containers() == []
    assert pods.launch(sandbox, name="next")


def test_image_without_a_command(pods: Pods, tmp_path: Path) -> None:
    request = pods.create_request(pods.run())
    del request.config.command[:]
    request.config.args.append("/no/such")
    with pytest.raises(PodkeepError, match="/no/such"):
        pods.call("CreateContainer", request)
    assert pods.containers() == []


def test_container_in_a_sandbox_that_was_stopped(pods: Pods) -> None:
    sandbox = pods.run()
    created = pods.create(sandbox)
    pods.stop_pod(sandbox)
    assert "notready" in error_of(lambda: pods.create(sandbox, name="late"), FailedPrecondition)
    assert "not created" in error_of(lambda: pods.start(created), FailedPrecondition)


def test_label_of_a_megabyte(pods: Pods) -> None:
    label = "x" * 1_000_000
    sandbox = pods.run(pod(labels={"big": label}))
    (item,) = pods.sandboxes()
    assert item.labels["big"] == label
    assert pods.pod_status(sandbox).status.labels["big"] == label


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_nine_megabytes_that_every_list_would_carry(pods: Pods, field: str) -> None:
    big = {"big": "x" * 9_000_000}
    message = error_of(lambda: pods.run(_config(lambda c: getattr(c, field).update(big))), InvalidArgument)
    assert f"config.{field}" in message
    sandbox = pods.run()
    message = error_of(lambda: pods.create(sandbox, **{field: big}), InvalidArgument)
    assert f"config.{field}" in message
    assert (len(pods.sandboxes()), pods.containers()) == (1, [])


def test_lists_longer_than_a_message(pods: Pods) -> None:
    """Seventeen sandboxes with a megabyte each are listed without it, as a message holds 16 MiB, and can be removed."""
    labels = {"big": "x" * 1_000_000, "io.kubernetes.pod.name": "web"}
    made = [pods.run(pod(f"pod{number}", labels=labels)) for number in range(17)]
    listed = pods.sandboxes()
    assert [item.id for item in listed] == made
    assert [dict(item.labels) for item in listed] == [{"io.kubernetes.pod.name": "web"}] * 17
    # What is chosen by them, and what one message holds, is told whole.
    assert len(pods.sandboxes(label_selector={"big": "y"})) == 0
    (one,) = pods.sandboxes(id=made[3])
    assert dict(one.labels) == labels


def test_request_longer_than_a_message(pods: Pods) -> None:
    message = error_of(lambda: pods.run(pod(labels={"big": "x" * 17_000_000})), ResourceExhausted)
    assert "larger than max" in message
    assert pods.sandboxes() == []


def test_bytes_that_are_no_message(pods: Pods, daemon: Daemon) -> None:
    async def send(data: bytes, method: str) -> tuple[grpc.StatusCode, str]:
        async with grpc.aio.insecure_channel(f"unix:{daemon.socket}") as channel:
            try:
                await channel.unary_unary(f"/runtime.v1.{method}")(data)
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details() or ""
        raise AssertionError("it was answered")

    code, details = asyncio.run(send(b"\xff\xff\xff", "RuntimeService/RunPodSandbox"))
    assert (code, "is not a RunPodSandboxRequest" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, _ = asyncio.run(send(b"", "RuntimeService/NoSuchCall"))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert pods.sandboxes() == []


def test_pod_whose_ids_are_not_mapped_leaves_nothing(pods: Pods) -> None:
    """Ten refused pods in a row need no address, no namespace and no directory."""
    for number in range(10):
        config = pod(f"pod{number}", options=namespaces(user=BLOCK), sysctls={"kernel.panic": "1"})
        with pytest.raises(PodkeepError, match=r"kernel\.panic"):
            pods.run(config)
    assert pods.sandboxes() == []


def test_missing_image_is_not_found_but_not_an_error_to_ask_for(pods: Pods) -> None:
    request = api.ImageStatusRequest(image=api.ImageSpec(image="nowhere:1"))
    assert not pods.call("ImageStatus", request, service="images").HasField("image")
    remove = api.RemoveImageRequest(image=api.ImageSpec(image="nowhere:1"))
    assert pods.call("RemoveImage", remove, service="images").ByteSize() == 0
    listed = api.ListImagesRequest(filter=api.ImageFilter(image=api.ImageSpec(image="nowhere:1")))
    assert list(pods.call("ListImages", listed, service="images").images) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("net.core.somaxconn", "abc"),
        ("net.nope", "1"),
        ("net.ipv4", "1"),
        ("net.core.somaxconn.x", "1"),
        (f"net.{'x' * 300}.y", "1"),
        ("net.netfilter.nf_conntrack_max", "5"),
        ("net.ipv4.conf.eth9.forwarding", "1"),
        ("net.ipv4.conf.eth0.forwarding", "abc"),
        ("kernel.shmmax", "abc"),
    ],
)
@pytest.mark.parametrize("options", [None, namespaces(user=BLOCK)], ids=["host", "userns"])
def test_sysctl_that_the_kernel_refuses(pods: Pods, name: str, value: str, options: api.NamespaceOption | None) -> None:
    message = error_of(lambda: pods.run(pod(options=options, sysctls={name: value})), InvalidArgument)
    assert f"config.linux.sysctls: {name!r}: write(" in message
    assert pods.sandboxes() == []


@pytest.mark.parametrize(
    "parent",
    ["/" + "x" * 256, "/a/" + "é" * 128, "/é" * 1000, "/cgroup.procs", "/cgroup.procs/a"],
    ids=["long", "long in bytes", "long path", "file", "below a file"],
)
def test_cgroup_parent_that_cannot_be(pods: Pods, parent: str) -> None:
    change = _config(lambda c: setattr(c.linux, "cgroup_parent", parent))
    assert "config.linux.cgroup_parent" in error_of(lambda: pods.run(change), InvalidArgument)
    assert pods.sandboxes() == []


@pytest.mark.parametrize(
    "profile",
    [
        {"defaultAction": "SCMP_ACT_DANCE"},
        {"defaultAction": 5},
        {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["chmod"], "action": "SCMP_ACT_DANCE"}]},
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_ABACUS"]},
        {"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_NOPE"]},
        {
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [
                {
                    "names": ["chmod"],
                    "action": "SCMP_ACT_ERRNO",
                    "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_NOPE"}],
                }
            ],
        },
        {
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [
                {
                    "names": ["chmod"],
                    "action": "SCMP_ACT_ERRNO",
                    "args": [{"index": 9, "value": 1, "op": "SCMP_CMP_EQ"}],
                }
            ],
        },
    ],
    ids=["default", "number", "action", "architecture", "flag", "operator", "index"],
)
def test_seccomp_profile_that_means_nothing(pods: Pods, tmp_path: Path, profile: dict[str, object]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    sandbox = pods.run()
    seccomp = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=str(path))
    assert "seccomp" in error_of(lambda: pods.create(sandbox, security={"seccomp": seccomp}), InvalidArgument)
    assert pods.containers() == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("/etc", "/bin/busybox"),
        ("/etc/passwd", "/bin"),
        ("/etc/passwd", "/bin/busybox/x"),
        ("/etc/passwd", "/" + "x" * 300),
        ("/etc", "/sys/x"),
    ],
)
def test_mount_where_none_can_be(pods: Pods, source: str, target: str) -> None:
    request = pods.create_request(pods.run(), mounts=[bind(source, target)])
    assert target.strip("/") in error_of(lambda: pods.call("CreateContainer", request), InvalidArgument)
    assert pods.containers() == []


@pytest.mark.parametrize("directory", ["/bin/busybox", "/bin/busybox/x", "/" + "x" * 300])
def test_working_directory_that_is_none(pods: Pods, directory: str) -> None:
    sandbox = pods.run()
    assert directory in error_of(lambda: pods.launch(sandbox, working_dir=directory), InvalidArgument)
