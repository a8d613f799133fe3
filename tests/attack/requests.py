"""Requests made by chance: valid ones of every RPC, mutated. Pure: the same source of chance makes the same case.

The shape comes from the protobuf descriptors, the values from the names of the fields. They are chosen so that no
request can hurt the machine even if the runtime believed all of it: host paths are below the campaign's own directory
or harmless, commands come from a short list, cgroup parents are below the daemon's, values of sysctls that belong to
the whole machine are those that the machine has, and no privileged container is in the host's PID namespace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from attack.calls import RPCS, UNKNOWN_ID, Call, Case, WireChange, is_map
from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2 as node

SECRET = "s3cr3t-of-the-campaign"
"""In every credential that is sent; the log must never have it."""
MACHINE_SYSCTLS = ("kernel.panic", "vm.swappiness", "kernel.msgmax", "fs.file-max")
"""Their placeholders are ``@sysctl`` with what comes after the last dot, and stand for what the machine has."""
STAY = ("sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait")
_LENGTHS = (64, 107, 108, 255, 256, 1024, 4095, 4096, 4097, 65536, 1_100_000, 10_000_000)

# fmt: off
ODD_TEXT = (
    "", " ", ".", "..", "/", "//", "a\nb", "a\0b", "\0", "../..", "%s%n", "-rf", "é\u202e", "{}", "\x1b[2J",
    "'; true #", "\ud7ff\U0010ffff", "²", "٣", "a=b", "a:b", "a,b", "0", "-1", "1e9", "nan", "18446744073709551616",
    "9" * 5000, "\r\n", "\t", "\x7f", "\u2028", "A" * 64, "@dir", "@sandbox", "localhost/", "sha256:",
    "@repeat:300:../", "@repeat:2000:a/", "@repeat:128:a.", "[]", "null", "None", "\ufeff", "a b", "con,sp=1", "x@y",
    "/dev/null",
)
WORDS = (
    "a", "ALL", "NET_ADMIN", "CAP_CHOWN", "FLY", "2MB", "1GB", "memory.max", "../cgroup.procs", "cgroup.procs", "0",
    "0-9999", "0-1", "1-0", "rwm", "tmp", "RUNTIME_DEFAULT", "pids.max", "cpu.weight", "hugetlb.2MB.max", "max",
    "100", "root", "nobody", "1000", "0:0", "s0:c1,c2", "system_u", "container_t",
)

HOST_PATHS = (
    "@dir/data", "@dir/file", "@dir/link", "@dir/loop", "@dir/dangling", "@dir/missing", "@dir/file/x",
    "@dir/socket", "@dir/fifo", "@dir/data/../data", "@dir/data/", "/no/such", "relative", "", "@dir/data\0",
    "/dev/null", "/dev/zero", "@dir/data/@repeat", "@repeat:3000:@dir/", "@repeat:256:/x", "//", "@dir/chain0",
    "@dir/newline\nname", "/proc/self/fd/0", "/dev/fd/999", "/proc/1/ns/net", "/sys/kernel/no",
)
CONTAINER_PATHS = (
    "/volume", "/proc", "/", "relative", "/a/../..", "/dev/x", "/etc/passwd", "/etc/passwd/x", "", "/v\0", "/sys",
    "/way/x", "/bin/sh/x", "/tmp", "/dev", "/dev/null", "/dev/pts", "/dev/shm", "/proc/self", "/proc/1/fd",
    "/sys/fs/cgroup", "/.", "/volume\n", "/volume//", "@repeat:20:/deep", "@repeat:300:/deep", "@repeat:800:/deep",
    "/etc", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/run", "/bin", "/é", "/a b", "/a:b", "/a,b",
    "/image", "/image/none", "/image/sh", "/image/sh/x", "/volume/none", "/volume/a/../b", "/dev/mqueue/x",
    "/dev/pts/9", "/proc/x", "/sys/x", "/dev/fd/3", "/dev/console", "/dev/termination-log", "/etc/hosts/",
)
COMMANDS = (
    list(STAY), ["true"], ["sh", "-c", "exit 3"], ["/no/such"], [""], ["sh\0", "x"], ["true", "a\nb"], [], ["/"],
    ["/etc"], ["/etc/passwd"], ["."], ["@repeat:300:x"], ["/@repeat", "x"], ["@repeat:5000:x"], ["@repeat:200:/x"],
    ["true", "@repeat:140000:x"], ["true", "@repeat:3000000:x"], ["true", *["x"] * 3000], ["true", ""], ["é"],
)
IDS = (
    "@sandbox", "@other", "@stopped", "@container", "@created", "@exited", "@prefix", "@truncated", "@longer",
    UNKNOWN_ID,
    UNKNOWN_ID.upper(),
)
IMAGES = (
    "@image", "@imageid", "@imageprefix", "@imagex", "127.0.0.1:1/none:1", "UPPER", "a b", "", "sha256:" + "0" * 64,
    "@host/none:1", "@host/busybox@sha256:" + "0" * 64, "@host/busybox", "@host/busybox:" + "t" * 129,
    "@host/../v2:1", "@host/a//b:1", "a:b:c", "a@b", "@host:x/y:1", "[::1]:1/a:1", "127.0.0.1:99999/a:1",
    "127.0.0.1:0/a:1", "::/a", "a" * 64, "host.invalid/a:1", "é/b:1", "@host/busybox:1\n", "%41/b", "xn--/a:1",
    "a." * 130 + "b/c:1",
)
LOG_PATHS = (
    "0.log", "a/b.log", "../outside/escaped.log", "", "@repeat:300:x", "a\nb", "a\0", "a/../b", "/abs", ".", "./",
    "a/", "@repeat:200:d/", "@repeat:3000:d/", "@repeat:4000:x", "@repeat:250:é", "é.log", "link/x.log",
    "loop/x.log", "file/x.log", "file", "data", "fifo", "socket",
)

TEXTS: dict[str, tuple[Any, ...]] = {
    "cgroup_parent": (
        "", "@parent", "@parent/below", "relative", "@parent/../..", "@parent//x", "@parent/@repeat", "@parent\n",
        "@parent/é", "@repeat:100:@parent", "@parent/" + "x" * 255, "@parent/" + "x" * 256, "a.slice",
        "@parent/a.slice", "@parent/\0", "@parent/cgroup.procs", "@parent/tasks", "@parent/cpu.shares", "/",
    ),
    "container_path": CONTAINER_PATHS,
    "working_dir": CONTAINER_PATHS,
    "masked_paths": CONTAINER_PATHS,
    "readonly_paths": CONTAINER_PATHS,
    "host_path": HOST_PATHS,
    "path": HOST_PATHS,
    "localhost_ref": (*HOST_PATHS, "@dir/seccomp.json", "@dir/notjson", "localhost/@dir/seccomp.json", "name", "a b"),
    "apparmor_profile": ("runtime/default", "localhost/x", "unconfined", "localhost/", "localhost/@repeat", "x"),
    "seccomp_profile_path": (
        "", "runtime/default", "unconfined", "localhost/relative", "localhost/", "strange", "docker/default",
    ),
    "location": (
        "@dir/outside/archive", "relative", "", "/dev/null/x", "@dir/data", "@dir/loop", "@dir/loop/x", "@dir/fifo",
        "@dir/\0", "@repeat:300:@dir/", "/proc/x", "@dir/missing/x", "/",
    ),
    "log_directory": (
        "@dir/logs", "@dir/logs/../outside", "relative", "", "@dir/loop", "@dir/loop/x", "@dir/file", "@dir/file/x",
        "@dir/fifo", "@dir/dangling", "@repeat:300:@dir/", "@dir/logs/" + "x" * 300, "@dir/logs\0", "/proc/x",
        "/dev/null", "@dir/logs/a\nb",
    ),
    "log_path": LOG_PATHS,
    "image": IMAGES,
    "image_ref": IMAGES,
    "images": IMAGES,
    "user_specified_image": IMAGES,
    "image_sub_path": (
        "", "bin", "bin/sh", "no/such", "../x", "/abs", "@repeat:300:a", "@repeat:3000:a/", "a\0", "a\nb", ".",
        "a//b",
    ),
    "runtime_handler": ("", "crun", "none", "../x", "@repeat:300:x", "cr un", "\0"),
    "pod_sandbox_id": IDS,
    "container_id": IDS,
    "target_id": IDS,
    "id": IDS,
    "pod_cidr": (
        "", "10.99.0.0/24", "nonsense", "::/0", "10.99.0.0/99", "10.99.0.1/24", "10.99.0.0/24,fd00::/64", ",",
        "fe80::%x/64", "0.0.0.0/0", "10.99.0.0/31", "10.99.0.0/32", "255.255.255.255/8", "10.99.0.0/255.255.255.0",
        "224.0.0.0/4", "é/8",
    ),
    "host_ip": (
        "", "127.0.0.1", "::1", "0.0.0.0", "x", "1.2.3", "127.0.0.1%lo", "fe80::1%lo", "::ffff:127.0.0.1", "127.1",
    ),
    "hostname": ("host", "a.b", "A" * 64, "A" * 65, "-x", "a_b", "a b", "é", ".", "a\nb", "@repeat:300:h", "%"),
    "servers": ("10.0.0.1", "x", "a b", "", "@repeat:100000:1", "é", "::1"),
    "page_size": ("2MB", "1GB", "2Mi", "", "64KB", "0MB", "-2MB", "../x", "2MB\0", "é", "²MB"),
    "permissions": ("rwm", "r", "", "rr", "x", "rwmr", "m"),
    "cpuset_cpus": (
        "0", "0-1", "1-0", "0-9999", "a", "-1", "0,,1", "99999999999", "²", " 0 ", "0\n", "@repeat:50000:0,",
    ),
    "cpuset_mems": ("0", "1", "0-9999", "a", "²", "99999999999"),
    "run_as_username": (
        "root", "nobody", "app", "0", "1000", "no-such", "-1", "4294967296", "9" * 5000, "²", "a:b", "\0", "é",
    ),
    "auth": ("", SECRET, "dXNlcjpwYXNz", "====", "é", "@repeat:100000:QUJD", "YWJj"),
    "server_address": ("", "@host", "http://@host", "x y", "é", "@repeat:100000:x"),
    "username": ("", SECRET, "a:b", "a\nb", "é", "\0"),
    "password": ("", SECRET, "a:b", "a\r\nX: y", "é", "\0", f"{SECRET}é"),
    "identity_token": ("", SECRET, f"{SECRET}\r\nX: y"),
    "registry_token": ("", SECRET, f"{SECRET}\r\nX: y", f"{SECRET}é"),
    "name": (*ODD_TEXT, "vendor.com/class=device", "a/b=c", "vendor.com/net=@repeat"),
}
"""What goes into a text of that name, beside the odd ones."""

SYSCTLS = (
    "net.ipv4.ip_forward", "net.ipv4.tcp_fin_timeout", "fs.mqueue.msg_max", "net/../kernel/panic", "",
    "net.ipv4.no.such", "net", "net.", ".net", "net..x", "net.ipv4/ip_forward", "kernel.shmmax", "kernel.msgmax",
    "kernel.sem", "net.ipv4.ping_group_range", "net.ipv4.ip_local_port_range", "@repeat:100:net.", "net.\0", "net.é",
    "net.core.somaxconn",
)
SYSCTL_VALUES = (
    "1", "30", "", "x", "1\n2", "-1", "9" * 30, "0 0", "@repeat:5000:1", "\0", "²", "32768 60999", "1 99999999999",
)
UNIFIED = (
    "memory.max", "memory.high", "pids.max", "cpu.weight", "cgroup.procs", "cgroup.kill", "cgroup.freeze", "../x",
    "", "a/b", "memory.no", "cpu.max", "hugetlb.2MB.max", "@repeat:300:x", "\0", "io.max", "memory.oom.group",
)
CLASS_TYPES = ("rdt", "blockio", "oom", "x", "", "a b", "@repeat:400:x", "\0", "example.com/x")
CLASSES = ("gold", "", "a b", "@repeat:400:x", "default", "\0", "..", "/")
ANNOTATIONS = (
    "rdt.resources.beta.kubernetes.io/pod", "rdt.resources.beta.kubernetes.io/container.main",
    "blockio.resources.beta.kubernetes.io/pod", "cdi.k8s.io/x", "io.kubernetes.cri-o.x", "run.oci.handler",
    "run.oci.delegate-cgroup", "run.oci.mount_context_type", "org.systemd.property.X", "module.wasm.image/variant",
    "run.oci.keep_original_groups", "run.oci.hooks.stdout", "run.oci.seccomp_fail_unknown_syscall",
    "run.oci.systemd.subgroup", "",
)
MAPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sysctls": (SYSCTLS, SYSCTL_VALUES),
    "unified": (UNIFIED, (*WORDS, *SYSCTL_VALUES)),
    "class": (CLASS_TYPES, CLASSES),
    "classes": (CLASS_TYPES, CLASSES),
    "annotations": (ANNOTATIONS, ("gold", "vendor.com/class=device", "", "\0", "@repeat:5000:x", "krun", "é")),
}
_LISTS: dict[str, tuple[list[str], ...]] = {"command": COMMANDS, "cmd": COMMANDS, "args": COMMANDS}

INTEGERS = {
    FieldDescriptor.TYPE_INT32: (0, 1, 80, 1001, 65535, 65536, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.TYPE_UINT32: (0, 1, 2, 65535, 65536, 1_000_000, 2**31, 2**32 - 2, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (
        0, 1, 2, 3, 999, 1000, 100_000, 1 << 20, 1 << 26, 262144, 262145, 2**31, 2**32 - 1, 2**32, 2**53,
        -1, -2, 2**63 - 1, -(2**63),
    ),
    FieldDescriptor.TYPE_UINT64: (0, 1, 1 << 21, 2**31, 2**63 - 1, 2**63, 2**64 - 1),
}
TIMEOUTS = (0, 1, -1, 2_147_483, 2_147_484, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
# fmt: on


def _pod() -> api.PodSandboxConfig:
    config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="@new", uid="@new", namespace="attack"))
    config.linux.security_context.namespace_options.pid = api.CONTAINER
    return config


def _whole_pod() -> api.PodSandboxConfig:
    config = _pod()
    config.hostname = "host"
    config.log_directory = "@dir/logs"
    config.dns_config.servers.append("10.0.0.1")
    config.dns_config.searches.append("cluster.local")
    config.dns_config.options.append("ndots:5")
    config.port_mappings.add(container_port=80, host_port=0)
    config.labels["app"] = "attack"
    config.annotations["note"] = "attack"
    config.linux.cgroup_parent = "@parent"
    config.linux.sysctls["net.ipv4.ip_forward"] = "1"
    config.linux.resources.cpu_shares = 100
    config.linux.overhead.memory_limit_in_bytes = 1 << 20
    return config


def _userns_pod() -> api.PodSandboxConfig:
    config = _whole_pod()
    options = config.linux.security_context.namespace_options.userns_options
    options.mode = api.POD
    for mappings in (options.uids, options.gids):
        mappings.add(host_id=65536, container_id=0, length=65536)
    return config


def _container() -> api.ContainerConfig:
    config = api.ContainerConfig(metadata=api.ContainerMetadata(name="@new"))
    config.image.image = "@image"
    config.command.extend(STAY)
    config.linux.security_context.namespace_options.pid = api.CONTAINER
    return config


def _whole_container() -> api.ContainerConfig:
    config = _container()
    config.image.user_specified_image = "@image"
    config.args.append("x")
    config.working_dir = "/tmp"
    config.envs.add(key="KEY", value=b"value")
    config.mounts.add(host_path="@dir/data", container_path="/volume")
    config.mounts.add(container_path="/image", readonly=True, image=api.ImageSpec(image="@image"), image_sub_path="bin")
    config.devices.add(host_path="/dev/null", container_path="/dev/x", permissions="rwm")
    config.labels["app"] = "attack"
    config.annotations["note"] = "attack"
    config.log_path = "@new.log"
    resources, context = config.linux.resources, config.linux.security_context
    resources.cpu_period, resources.cpu_quota, resources.cpu_shares = 100_000, 50_000, 100
    resources.memory_limit_in_bytes, resources.oom_score_adj = 1 << 26, 500
    resources.cpuset_cpus, resources.cpuset_mems = "0", "0"
    context.capabilities.add_capabilities.append("NET_ADMIN")
    context.capabilities.drop_capabilities.append("MKNOD")
    context.run_as_user.value = 1000
    context.run_as_group.value = 1000
    context.supplemental_groups.append(50)
    context.masked_paths.append("/proc/kcore")
    context.readonly_paths.append("/proc/sys")
    context.no_new_privs = True
    context.seccomp.profile_type = api.SecurityProfile.RuntimeDefault
    return config


def _create(config: api.ContainerConfig) -> api.CreateContainerRequest:
    return api.CreateContainerRequest(pod_sandbox_id="@sandbox", config=config, sandbox_config=_pod())


_IMAGE = api.ImageSpec(image="@image")
_LIMITS = api.LinuxContainerResources(cpu_shares=100, memory_limit_in_bytes=1 << 27)
SOUND: dict[str, tuple[Callable[[], Message], ...]] = {
    "RunPodSandbox": (
        lambda: api.RunPodSandboxRequest(config=_pod()),
        lambda: api.RunPodSandboxRequest(config=_whole_pod()),
        lambda: api.RunPodSandboxRequest(config=_userns_pod()),
    ),
    "CreateContainer": (lambda: _create(_container()), lambda: _create(_whole_container())),
    "StopPodSandbox": (lambda: api.StopPodSandboxRequest(pod_sandbox_id="@other"),),
    "RemovePodSandbox": (lambda: api.RemovePodSandboxRequest(pod_sandbox_id="@stopped"),),
    "PodSandboxStatus": (lambda: api.PodSandboxStatusRequest(pod_sandbox_id="@sandbox", verbose=True),),
    "UpdatePodSandboxResources": (
        lambda: api.UpdatePodSandboxResourcesRequest(pod_sandbox_id="@sandbox", resources=_LIMITS),
    ),
    "UpdatePodSandboxConfig": (lambda: api.UpdatePodSandboxConfigRequest(pod_sandbox_id="@sandbox"),),
    "StartContainer": (lambda: api.StartContainerRequest(container_id="@created"),),
    "StopContainer": (lambda: api.StopContainerRequest(container_id="@container"),),
    "RemoveContainer": (lambda: api.RemoveContainerRequest(container_id="@exited"),),
    "ContainerStatus": (lambda: api.ContainerStatusRequest(container_id="@container", verbose=True),),
    "ContainerStats": (lambda: api.ContainerStatsRequest(container_id="@container"),),
    "PodSandboxStats": (lambda: api.PodSandboxStatsRequest(pod_sandbox_id="@sandbox"),),
    "ReopenContainerLog": (lambda: api.ReopenContainerLogRequest(container_id="@container"),),
    "CheckpointContainer": (
        lambda: api.CheckpointContainerRequest(container_id="@container", location="@dir/outside/archive", timeout=1),
    ),
    "ExecSync": (lambda: api.ExecSyncRequest(container_id="@container", cmd=["true"], timeout=2),),
    "Exec": (lambda: api.ExecRequest(container_id="@container", cmd=["true"], stdout=True),),
    "Attach": (lambda: api.AttachRequest(container_id="@container", stdout=True),),
    "PortForward": (lambda: api.PortForwardRequest(pod_sandbox_id="@sandbox", port=[80]),),
    "UpdateContainerResources": (
        lambda: api.UpdateContainerResourcesRequest(container_id="@container", linux=_LIMITS),
    ),
    "PullImage": (
        lambda: api.PullImageRequest(image=_IMAGE),
        lambda: api.PullImageRequest(image=_IMAGE, auth=api.AuthConfig(username="user", password=SECRET)),
    ),
    "ImageStatus": (lambda: api.ImageStatusRequest(image=_IMAGE, verbose=True),),
    "RemoveImage": (lambda: api.RemoveImageRequest(image=api.ImageSpec(image="@host/none:1")),),
    "UpdateRuntimeConfig": (
        lambda: api.UpdateRuntimeConfigRequest(
            runtime_config=api.RuntimeConfig(network_config=api.NetworkConfig(pod_cidr=""))
        ),
    ),
    "LoadImage": (lambda: node.LoadImageRequest(path="@dir/image.tar"),),
}
WEIGHTS = {
    "RunPodSandbox": 14,
    "CreateContainer": 30,
    "UpdateContainerResources": 5,
    "ExecSync": 4,
    "PullImage": 4,
    "UpdatePodSandboxResources": 3,
    "StartContainer": 3,
    "StopContainer": 2,
    "PruneImages": 0.3,
    "RemoveImage": 0.3,
    "CheckpointContainer": 0.7,
}
"""How often an RPC is chosen, for those that are not chosen once as often as any other."""
_PATHS = sorted(RPCS)


def make(rng: random.Random) -> Case:
    """Return a case: one call, or several in an order that may be wrong."""
    count = rng.choices((1, 2, 3, 4), (70, 18, 8, 4))[0]
    calls = [_call(rng) for _ in range(count)]
    if rng.random() < 0.1:
        calls.append(calls[0])
    if any(call.rpc == "CreateContainer" for call in calls) and rng.random() < 0.8:
        # What could be created is to be tried, too.
        calls.append(Call(rpc="StartContainer", request=api.StartContainerRequest(container_id="@newest")))
    return calls


def _call(rng: random.Random) -> Call:
    rpc = rng.choices(_PATHS, [WEIGHTS.get(name, 1) for name in _PATHS])[0]
    sound = SOUND.get(rpc)
    if sound is None or rng.random() < 0.03:
        request: Message = message_factory.GetMessageClass(RPCS[rpc].input_type)()
    else:
        request = rng.choice(sound)()
    for _ in range(rng.choices((0, 1, 2, 3, 6), (5, 60, 20, 10, 5))[0]):
        mutate(rng, request)
    wire = ()
    if rng.random() < 0.06:
        wire = tuple(_wire_change(rng) for _ in range(rng.randint(1, 3)))
    return Call(rpc=rpc, request=tamed(request), wire=wire)


def _wire_change(rng: random.Random) -> WireChange:
    kind = rng.choice(("set", "insert", "cut", "drop", "twice"))
    data = rng.choice((rng.randbytes(rng.randint(1, 8)), b"\xff" * 10, b"\0", b"\xff\xfe", b"\x0a\xff\xff\xff\xff\x0f"))
    return WireChange(kind, rng.randrange(1 << 16), data)


def mutate(rng: random.Random, message: Message) -> None:
    """Change one place of a message: a field that is there, or one that is not."""
    places = list(_places(message))
    present = [place for place in places if _present(*place)]
    target, item = rng.choice(present if present and rng.random() < 0.5 else places) if places else (message, None)
    if item is None:
        return
    if rng.random() < 0.1:
        target.ClearField(item.name)
    else:
        _fill(rng, target, item)


def _present(message: Message, item: FieldDescriptor) -> bool:
    if item.has_presence:
        return message.HasField(item.name)
    return bool(getattr(message, item.name))


def _places(message: Message, depth: int = 0) -> list[tuple[Message, FieldDescriptor]]:
    found = []
    for item in message.DESCRIPTOR.fields:
        found.append((message, item))
        if item.message_type is None or is_map(item) or depth > 6:
            continue
        if item.is_repeated:
            for below in getattr(message, item.name):
                found += _places(below, depth + 1)
        elif message.HasField(item.name) or item.name != "windows":
            below = getattr(message, item.name)
            found += _places(below, depth + 1)
    return found


def _fill(rng: random.Random, message: Message, item: FieldDescriptor) -> None:
    if is_map(item):
        _fill_map(rng, getattr(message, item.name), item)
    elif item.is_repeated:
        _fill_list(rng, message, item)
    elif item.message_type is not None:
        getattr(message, item.name).SetInParent()
        _some(rng, getattr(message, item.name))
    else:
        setattr(message, item.name, _scalar(rng, item, message.DESCRIPTOR))


def _some(rng: random.Random, message: Message) -> None:
    for item in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            _fill(rng, message, item)


def _fill_list(rng: random.Random, message: Message, item: FieldDescriptor) -> None:
    values = getattr(message, item.name)
    if item.name in _LISTS and rng.random() < 0.9:
        del values[:]
        values.extend(rng.choice(_LISTS[item.name]))
        return
    if rng.random() < 0.5:
        del values[:]
    many = rng.random() < 0.04
    for _ in range(rng.choice((300, 2000)) if many else rng.randint(1, 2)):
        if item.message_type is not None:
            _some(rng, values.add())
        else:
            values.append(_scalar(rng, item, message.DESCRIPTOR, short=many))


def _fill_map(rng: random.Random, values: Any, item: FieldDescriptor) -> None:
    kind = item.message_type.fields_by_name["value"]
    if kind.message_type is not None:
        values[rng.choice(ODD_TEXT)].SetInParent()
        return
    if kind.type != FieldDescriptor.TYPE_STRING:
        return
    if item.name == "sysctls" and rng.random() < 0.2:
        name = rng.choice(MACHINE_SYSCTLS)
        values[name] = f"@sysctl{name.rpartition('.')[2].replace('-', '')}"
        return
    keys, texts = MAPS.get(item.name, ((*ODD_TEXT, *WORDS), (*ODD_TEXT, *WORDS)))
    if rng.random() < 0.04:
        values.update({f"{rng.choice(keys)}{number}": "x" for number in range(rng.choice((300, 5000)))})
        return
    for _ in range(rng.randint(1, 2)):
        # Of a sysctl that belongs to the whole machine any value would be tried on it.
        odd = item.name != "sysctls" and rng.random() < 0.3
        values[_text(rng) if odd else rng.choice(keys)] = _text(rng) if rng.random() < 0.2 else rng.choice(texts)


def _text(rng: random.Random, *, short: bool = False) -> str:
    chance = rng.random()
    if chance < 0.12 and not short:
        return f"@repeat:{rng.choice(_LENGTHS)}:{rng.choice(('x', 'é', '/', '0', chr(10)))}"
    if chance < 0.2:
        return "".join(
            chr(rng.choice((rng.randrange(128), rng.randrange(0x20, 0xD800)))) for _ in range(rng.randint(1, 8))
        )
    return rng.choice((*ODD_TEXT, *WORDS))


def _scalar(rng: random.Random, item: FieldDescriptor, owner: Descriptor, *, short: bool = False) -> Any:
    match item.type:
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return rng.choice((*(value.number for value in item.enum_type.values), 99, -1, 2**31 - 1, -(2**31)))
        case FieldDescriptor.TYPE_STRING:
            own = TEXTS.get(item.name)
            bound = item.name in {"host_path", "path", "location", "log_directory", "cgroup_parent", "localhost_ref"}
            if own is not None and (bound or rng.random() < 0.75):
                return rng.choice(own)
            return _text(rng, short=short)
        case FieldDescriptor.TYPE_BYTES:
            return rng.choice((b"", b"\0", b"\xff\xfe", b"value", "é".encode(), rng.randbytes(8), b"x" * 200_000))
        case FieldDescriptor.TYPE_DOUBLE:
            return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e308))
        case _ if item.name in {"timeout", "grace_period"}:
            return rng.choice(TIMEOUTS)
        case _:
            return rng.choice(INTEGERS.get(item.type, (0, 1, -1)))


def tamed(request: Message) -> Message:
    """Take from a request what no container of a campaign may have: privileges in the host's PID namespace."""
    contexts: list[Any] = []
    if isinstance(request, api.RunPodSandboxRequest):
        contexts.append(request.config.linux.security_context)
    if isinstance(request, api.CreateContainerRequest):
        contexts += [request.config.linux.security_context, request.sandbox_config.linux.security_context]
    for context in contexts:
        if context.namespace_options.pid == api.NODE:
            context.privileged = False
    return request
