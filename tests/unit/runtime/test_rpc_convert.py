"""From requests to records: what is taken over, what is refused and how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runtime_values import IDMAP, in_own_userns, sandbox_config

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.cri import id_mappings
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.namespace.idmap import IdMap, IdMapping
from podkeep.runtime.lifecycle.sandboxes import check_namespaces
from podkeep.runtime.model import records
from podkeep.runtime.model.records import (
    GroupsPolicy,
    NamespaceMode,
    NamespaceOptions,
    ProfileKind,
    Propagation,
    SandboxConfig,
    Seccomp,
)
from podkeep.runtime.rpc.convert.checks import (
    MAX_METADATA_BYTES,
    MAX_PATH_PARTS,
    MAX_SECONDS,
    MAX_STRING_BYTES,
    MAX_STRINGS,
    MAX_TEXT_BYTES,
    seconds,
)
from podkeep.runtime.rpc.convert.container import container_config
from podkeep.runtime.rpc.convert.labels import labels_match
from podkeep.runtime.rpc.convert.mounts import mount_message
from podkeep.runtime.rpc.convert.namespaces import namespace_message, namespace_options
from podkeep.runtime.rpc.convert.resources import resources_message
from podkeep.runtime.rpc.convert.sandbox import sandbox_config as to_sandbox_config

UNKNOWN = 7
"""A number that none of the enums has."""
Change = Callable[[Any], object]


def sandbox_request() -> api.PodSandboxConfig:
    return api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="web", uid="uid-1", namespace="default"))


def container_request() -> api.ContainerConfig:
    return api.ContainerConfig(metadata=api.ContainerMetadata(name="main"), image=api.ImageSpec(image="busybox"))


def to_sandbox(change: Change | None = None) -> SandboxConfig:
    request = sandbox_request()
    if change is not None:
        change(request)
    # A server sees what came over the wire: unknown enum numbers survive it.
    parsed = api.PodSandboxConfig.FromString(request.SerializeToString())
    config = to_sandbox_config(parsed, "", default_cgroup_parent="/podkeep")
    check_namespaces(config)
    return config


def to_container(change: Change | None = None, *, sandbox: SandboxConfig | None = None) -> records.ContainerConfig:
    request = container_request()
    if change is not None:
        change(request)
    parsed = api.ContainerConfig.FromString(request.SerializeToString())
    return container_config(parsed, sandbox or sandbox_config())


def context(config: Any) -> Any:
    return config.linux.security_context


def userns(config: Any) -> Any:
    return context(config).namespace_options.userns_options


def mapping(container_id: int = 0, host_id: int = 65536, length: int = 65536) -> api.IDMapping:
    return api.IDMapping(host_id=host_id, container_id=container_id, length=length)


def ask_userns(config: Any, *uids: api.IDMapping, gids: tuple[api.IDMapping, ...] | None = None) -> None:
    userns(config).mode = api.POD
    userns(config).uids.extend(uids)
    userns(config).gids.extend(uids if gids is None else gids)


# sandboxes


def test_a_sandbox_in_full() -> None:
    request = api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(name="web", uid="uid-1", namespace="ns", attempt=3),
        hostname="web-0",
        log_directory="/var/log/pods/web",
        dns_config=api.DNSConfig(servers=["10.0.0.1"], searches=["a.b"], options=["ndots:5"]),
        labels={"app": "web"},
        annotations={"a/b": "c\nd"},
        linux=api.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod1", sysctls={"net.ipv4.ip_forward": "1"}),
    )
    request.linux.security_context.privileged = True
    request.linux.security_context.namespace_options.pid = api.CONTAINER
    assert to_sandbox_config(request, "crun", default_cgroup_parent="/podkeep") == SandboxConfig(
        name="web",
        uid="uid-1",
        namespace="ns",
        attempt=3,
        hostname="web-0",
        log_directory="/var/log/pods/web",
        dns=records.Dns(servers=("10.0.0.1",), searches=("a.b",), options=("ndots:5",)),
        labels={"app": "web"},
        annotations={"a/b": "c\nd"},
        cgroup_parent="/kubepods/pod1",
        sysctls={"net.ipv4.ip_forward": "1"},
        namespaces=NamespaceOptions(pid=NamespaceMode.CONTAINER),
        privileged=True,
        handler=records.HandlerName("crun"),
    )


def test_the_least_a_sandbox_needs() -> None:
    config = to_sandbox()
    assert config.cgroup_parent == "/podkeep"
    assert config.dns is None
    assert config.namespaces == NamespaceOptions()


def set_field(path: str, value: object) -> Change:
    def change(config: Any) -> None:
        *parents, last = path.split(".")
        for name in parents:
            config = getattr(config, name)
        if isinstance(value, list):
            getattr(config, last).extend(value)
        else:
            setattr(config, last, value)

    return change


SANDBOX_REFUSALS: list[tuple[Change, type[PodkeepError], str]] = [
    (lambda c: c.metadata.ClearField("name"), InvalidArgument, "config.metadata"),
    (lambda c: c.metadata.ClearField("uid"), InvalidArgument, "config.metadata"),
    (lambda c: c.ClearField("metadata"), InvalidArgument, "config.metadata"),
    *(
        (set_field(f"metadata.{field}", bad), InvalidArgument, f"config.metadata.{field}: ")
        for field in ("name", "namespace", "uid")
        for bad in ("a\nb", "a/b", "a\0b", "a\x7f", "../x", " ", "\u2003", ".", "..", "a" * 2000)
    ),
    *((set_field("hostname", bad), InvalidArgument, "hostname") for bad in ("a\n1.2.3.4\tb", "a\0", "a b", "a\tb")),
    (set_field("hostname", "h" * 65), InvalidArgument, "hostname"),
    (set_field("hostname", "ä" * 33), InvalidArgument, "hostname"),
    *(
        (set_field(f"dns_config.{field}", [bad]), InvalidArgument, f"config.dns_config.{field}")
        for field in ("servers", "searches", "options")
        for bad in ("a\nnameserver 6.6.6.6", "", "a b", "a\0")
    ),
    *(
        (set_field(field, bad), InvalidArgument, field)
        for field in ("log_directory", "linux.cgroup_parent")
        for bad in ("relative", "/a/../b", "/..", "/a\0b", "../a")
    ),
    (lambda c: c.windows.SetInParent(), InvalidArgument, "windows"),
    (lambda c: c.port_mappings.add(host_port=80, container_port=65536), InvalidArgument, "65536"),
    (lambda c: c.port_mappings.add(host_port=80, container_port=80, protocol=9), InvalidArgument, "protocol 9"),
    (lambda c: set_field("linux.security_context.selinux_options.level", "s0,c1")(c), InvalidArgument, "selinux"),
    (
        lambda c: set_field("linux.security_context.apparmor.profile_type", UNKNOWN)(c),
        InvalidArgument,
        "apparmor",
    ),
    *(
        (set_field(f"linux.security_context.namespace_options.{field}", mode), InvalidArgument, field)
        for field, modes in {
            "network": (api.CONTAINER, api.TARGET, UNKNOWN),
            "ipc": (api.CONTAINER, api.TARGET, UNKNOWN),
            "pid": (api.TARGET, UNKNOWN),
        }.items()
        for mode in modes
    ),
]


@pytest.mark.parametrize("number", range(len(SANDBOX_REFUSALS)))
def test_a_sandbox_that_is_refused(number: int) -> None:
    change, error, named = SANDBOX_REFUSALS[number]
    with pytest.raises(error) as caught:
        to_sandbox(change)
    assert type(caught.value) is error
    assert named in str(caught.value)


def test_container_ports_without_host_ports_and_host_ports_of_the_host_network() -> None:
    to_sandbox(lambda c: c.port_mappings.add(container_port=8080))

    def on_host(config: Any) -> None:
        config.port_mappings.add(host_port=80, container_port=80)
        context(config).namespace_options.network = api.NODE

    assert to_sandbox(on_host).namespaces.network is NamespaceMode.NODE


def test_sysctls_without_a_namespace_they_could_belong_to() -> None:
    def change(config: Any) -> None:
        config.linux.sysctls["net.ipv4.ip_forward"] = "1"
        context(config).namespace_options.network = api.NODE
        context(config).namespace_options.ipc = api.NODE

    with pytest.raises(InvalidArgument, match=r"net\.ipv4\.ip_forward"):
        to_sandbox(change)


# user namespaces


@pytest.mark.requirement("U22", "U95")
def test_without_options_there_is_no_user_namespace() -> None:
    def older_kubelet(config: Any) -> None:
        context(config).namespace_options.pid = api.CONTAINER

    assert to_sandbox().namespaces.userns is None
    assert to_sandbox(older_kubelet).namespaces.userns is None


@pytest.mark.requirement("U23", "U46")
def test_mode_pod_is_taken_as_it_is_given() -> None:
    config = to_sandbox(lambda c: ask_userns(c, mapping()))
    assert config.namespaces.userns == IDMAP


@pytest.mark.requirement("U20", "U46")
def test_both_sides_of_a_mapping_are_not_swapped() -> None:
    config = to_sandbox(lambda c: ask_userns(c, mapping(container_id=0, host_id=1000, length=10)))
    assert config.namespaces.userns is not None
    assert config.namespaces.userns.host_uid(3) == 1003
    (message,) = id_mappings.messages(config.namespaces.userns.uids)
    assert (message.container_id, message.host_id, message.length) == (0, 1000, 10)


@pytest.mark.requirement("U27")
def test_mappings_of_users_and_groups_may_differ() -> None:
    def change(config: Any) -> None:
        ask_userns(config, mapping(), gids=(mapping(length=500), mapping(container_id=500, host_id=500, length=1)))

    assert to_sandbox(change).namespaces.userns == IdMap(
        uids=(IdMapping(container_id=0, host_id=65536, length=65536),),
        gids=(
            IdMapping(container_id=0, host_id=65536, length=500),
            IdMapping(container_id=500, host_id=500, length=1),
        ),
    )


@pytest.mark.requirement("U23")
def test_mode_node_is_the_hosts() -> None:
    assert (
        to_sandbox(set_field("linux.security_context.namespace_options.userns_options.mode", api.NODE)) == to_sandbox()
    )


@pytest.mark.requirement("U23")
@pytest.mark.parametrize("mode", [api.CONTAINER, api.TARGET, UNKNOWN])
@pytest.mark.parametrize("mapped", [True, False])
def test_other_modes_are_refused(mode: int, mapped: bool) -> None:
    def change(config: Any) -> None:
        if mapped:
            ask_userns(config, mapping())
        userns(config).mode = mode

    with pytest.raises(InvalidArgument, match=r"userns_options\.mode"):
        to_sandbox(change)


MAX = 2**32 - 1
MAPPINGS: dict[str, tuple[list[api.IDMapping], str]] = {
    "container 0 is not mapped": ([mapping(container_id=1)], "not mapped"),
    "inside overlap": ([mapping(length=10), mapping(container_id=9, host_id=200000, length=10)], "overlap"),
    "host overlap": ([mapping(length=10), mapping(container_id=10, host_id=65545, length=10)], "overlap"),
    "the same twice": ([mapping(), mapping()], "overlap"),
    "no length": ([mapping(length=0)], "no length"),
    "past the last ID": ([mapping(host_id=MAX - 5, length=100)], "range"),
    "the ID that is none": ([mapping(host_id=MAX, length=1)], "range"),
    "past the last ID inside": ([mapping(), mapping(container_id=MAX - 1, host_id=300000, length=5)], "range"),
    "too many": ([mapping(container_id=i, host_id=100000 + i * 2, length=1) for i in range(341)], "kernel"),
}


@pytest.mark.requirement("U29")
@pytest.mark.parametrize("case", MAPPINGS)
@pytest.mark.parametrize("groups", [False, True])
def test_mappings_that_are_refused(case: str, groups: bool) -> None:
    bad, named = MAPPINGS[case]
    uids, gids = ([mapping()], tuple(bad)) if groups else (bad, (mapping(),))
    with pytest.raises(InvalidArgument, match=named) as caught:
        to_sandbox(lambda c: ask_userns(c, *uids, gids=gids))
    assert ("GID" if groups else "UID") in str(caught.value)


@pytest.mark.requirement("U29")
def test_modes_and_mappings_that_do_not_fit_together() -> None:
    def node_with_mappings(config: Any) -> None:
        ask_userns(config, mapping())
        userns(config).mode = api.NODE

    with pytest.raises(InvalidArgument, match="NODE with mappings"):
        to_sandbox(node_with_mappings)
    for uids, gids in (((), ()), ((mapping(),), ()), ((), (mapping(),))):
        with pytest.raises(InvalidArgument, match="POD needs uids and gids"):
            to_sandbox(lambda c, uids=uids, gids=gids: ask_userns(c, *uids, gids=gids))  # type: ignore[misc]


@pytest.mark.parametrize("field", ["network", "pid", "ipc"])
def test_a_user_namespace_with_a_namespace_of_the_host(field: str) -> None:
    def change(config: Any) -> None:
        ask_userns(config, mapping())
        setattr(context(config).namespace_options, field, api.NODE)

    with pytest.raises(InvalidArgument, match=field):
        to_sandbox(change)


@pytest.mark.requirement("U28")
def test_a_sandboxs_options_are_echoed() -> None:
    for change in (lambda c: ask_userns(c, mapping()), lambda c: None):
        given = to_sandbox(change).namespaces
        assert namespace_options(namespace_message(given)) == given


@pytest.mark.requirement("U28")
def test_a_containers_user_namespace_is_its_sandboxs() -> None:
    inside = in_own_userns()
    assert to_container(sandbox=inside).namespaces.userns == IDMAP
    # An older kubelet sends namespace options without this one.
    older = to_container(set_field("linux.security_context.namespace_options.pid", api.CONTAINER), sandbox=inside)
    assert older.namespaces.userns == IDMAP
    assert to_container(lambda c: ask_userns(c, mapping()), sandbox=inside).namespaces.userns == IDMAP


@pytest.mark.requirement("U28")
def test_a_container_that_asks_for_another_user_namespace() -> None:
    for sandbox, change, has, asks in (
        (in_own_userns(), lambda c: ask_userns(c, mapping(host_id=131072)), "0:65536:65536", "0:131072:65536"),
        (sandbox_config(), lambda c: ask_userns(c, mapping()), "the host's user namespace", "0:65536:65536"),
        (
            in_own_userns(),
            set_field("linux.security_context.namespace_options.userns_options.mode", api.NODE),
            "0:65536:65536",
            "the host's user namespace",
        ),
    ):
        with pytest.raises(InvalidArgument) as caught:
            to_container(change, sandbox=sandbox)
        assert has in str(caught.value)
        assert asks in str(caught.value)


# containers


def test_a_container_in_full(tmp_path: Path) -> None:
    request = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="main", attempt=2),
        image=api.ImageSpec(image="sha256:1", user_specified_image="busybox"),
        command=["/bin/sh"],
        args=["-c", ""],
        working_dir="/srv",
        envs=[api.KeyValue(key="A", value=b"b=c\n"), api.KeyValue(key="E", value=b"")],
        mounts=[
            api.Mount(
                container_path="/data",
                host_path=str(tmp_path),
                readonly=True,
                propagation=api.PROPAGATION_BIDIRECTIONAL,
                uidMappings=[mapping()],
                gidMappings=[mapping()],
            )
        ],
        devices=[api.Device(container_path="/dev/f", host_path="/dev/fuse", permissions="r")],
        labels={"a": "b"},
        annotations={"c": "d"},
        log_path="main/0.log",
        stdin=True,
        stdin_once=True,
        tty=True,
        stop_signal=api.SIGUSR1,
    )
    security = request.linux.security_context
    security.privileged = security.readonly_rootfs = security.no_new_privs = True
    security.capabilities.add_capabilities.append("NET_ADMIN")
    security.capabilities.drop_capabilities.append("ALL")
    security.capabilities.add_ambient_capabilities.append("NET_ADMIN")
    security.run_as_user.value = 0
    security.run_as_group.value = 2**31 - 1
    security.supplemental_groups.append(5)
    security.supplemental_groups_policy = api.Strict
    security.masked_paths.append("/proc/x")
    request.linux.resources.memory_limit_in_bytes = 5
    request.linux.resources.hugepage_limits.add(page_size="2MB", limit=7)
    sandbox = msgspec.structs.replace(in_own_userns(), privileged=True)
    assert container_config(request, sandbox) == records.ContainerConfig(
        name="main",
        attempt=2,
        image="sha256:1",
        user_specified_image="busybox",
        command=("/bin/sh",),
        args=("-c", ""),
        working_dir="/srv",
        envs=(("A", "b=c\n"), ("E", "")),
        mounts=(
            records.Mount(
                container_path="/data",
                host_path=str(tmp_path),
                readonly=True,
                propagation=Propagation.BIDIRECTIONAL,
                idmap=IDMAP,
            ),
        ),
        devices=(records.Device(container_path="/dev/f", host_path="/dev/fuse", permissions="r"),),
        labels={"a": "b"},
        annotations={"c": "d"},
        log_path="main/0.log",
        stdin=True,
        stdin_once=True,
        tty=True,
        stop_signal="SIGUSR1",
        namespaces=NamespaceOptions(userns=IDMAP),
        resources=records.Resources(memory_limit=5, hugepage_limits={"2MB": 7}),
        security=records.Security(
            privileged=True,
            add_capabilities=("NET_ADMIN",),
            drop_capabilities=("ALL",),
            ambient_capabilities=("NET_ADMIN",),
            run_as_user=0,
            run_as_group=2**31 - 1,
            supplemental_groups=(5,),
            groups_policy=GroupsPolicy.STRICT,
            readonly_rootfs=True,
            no_new_privs=True,
            masked_paths=("/proc/x",),
            readonly_paths=(),
            seccomp=Seccomp(kind=ProfileKind.UNCONFINED),
        ),
    )


def test_the_least_a_container_needs() -> None:
    config = to_container()
    assert config.namespaces == sandbox_config().namespaces
    assert config.security == records.Security()
    assert config.security.masked_paths is None
    assert config.stop_signal == ""


def add_mount(**fields: Any) -> Change:
    return lambda c: c.mounts.add(**{"container_path": "/m", "host_path": "/", **fields})


CONTAINER_REFUSALS: list[tuple[Change, type[PodkeepError], str]] = [
    (lambda c: c.ClearField("metadata"), InvalidArgument, "config.metadata.name"),
    *((set_field("metadata.name", bad), InvalidArgument, "metadata.name") for bad in ("a\nb", "a/b", "\0", "a\x7f")),
    *((set_field("metadata.name", bad), InvalidArgument, "config.metadata.name: ") for bad in (" ", ".", "..")),
    (lambda c: c.ClearField("image"), InvalidArgument, "config.image.image"),
    (lambda c: c.windows.SetInParent(), InvalidArgument, "windows"),
    (lambda c: c.CDI_devices.add(name="a.b/c"), InvalidArgument, "CDI"),
    *(
        (set_field("log_path", bad), InvalidArgument, "log_path")
        for bad in ("/abs", "../a", "a/../../b", "a\0b", "..", "a:b")
    ),
    *((set_field("working_dir", bad), InvalidArgument, "working_dir") for bad in ("rel", "/a/../..", "/\0")),
    (set_field("command", ["a\0b"]), InvalidArgument, "config.command"),
    (set_field("args", ["ok", "a\0b"]), InvalidArgument, "config.args"),
    *((lambda c, key=key: c.envs.add(key=key, value=b"v"), InvalidArgument, "envs") for key in ("", "a=b", "a\0")),
    (lambda c: c.envs.add(key="A", value=b"a\0b"), InvalidArgument, "envs"),
    (lambda c: c.envs.add(key="A", value=b"\xff"), InvalidArgument, "envs"),
    (add_mount(container_path="relative"), InvalidArgument, "config.mounts[0].container_path"),
    (add_mount(container_path="/" + "x" * 9_000_000), InvalidArgument, "config.mounts[0].container_path"),
    *(
        (
            add_mount(host_path="", readonly=True, image=api.ImageSpec(**{"image": "data", field: "x" * 9_000_000})),
            InvalidArgument,
            f"config.mounts[0].image.{field}",
        )
        for field in ("image", "user_specified_image")
    ),
    (add_mount(container_path=""), InvalidArgument, "config.mounts[0].container_path"),
    (add_mount(container_path="/a\0b"), InvalidArgument, "config.mounts[0].container_path"),
    (add_mount(host_path="relative"), InvalidArgument, "config.mounts[0].host_path"),
    (add_mount(host_path=""), InvalidArgument, "config.mounts[0].host_path"),
    (add_mount(host_path="/does/not/exist"), InvalidArgument, "config.mounts[0].host_path"),
    (add_mount(host_path="/a\0b"), InvalidArgument, "config.mounts[0].host_path"),
    (add_mount(host_path="/" + "x" * 10_000_000), InvalidArgument, "config.mounts[0].host_path"),
    (add_mount(propagation=UNKNOWN), InvalidArgument, "config.mounts[0].propagation"),
    (add_mount(recursive_read_only=True), InvalidArgument, "the mount is not readonly"),
    *(
        (add_mount(recursive_read_only=True, readonly=True, propagation=mode), InvalidArgument, "PROPAGATION_PRIVATE")
        for mode in (api.PROPAGATION_HOST_TO_CONTAINER, api.PROPAGATION_BIDIRECTIONAL)
    ),
    (add_mount(image=api.ImageSpec(image="data")), InvalidArgument, "config.mounts[0]: image and host_path"),
    (add_mount(uidMappings=[mapping()]), InvalidArgument, "GID"),
    (add_mount(gidMappings=[mapping()]), InvalidArgument, "UID"),
    (add_mount(uidMappings=[mapping(), mapping()], gidMappings=[mapping()]), InvalidArgument, "overlap"),
    *(
        (
            lambda c, fields=fields: c.devices.add(
                **{"container_path": "/dev/f", "host_path": "/dev/fuse", "permissions": "rw", **fields}
            ),
            InvalidArgument,
            "config.devices[0]",
        )
        for fields in (
            {"permissions": "rx"},
            {"permissions": "rwmr"},
            {"container_path": "dev/f"},
            {"host_path": "fuse"},
            {"host_path": "/dev/f\0"},
            {"container_path": "/dev/\0"},
        )
    ),
    (set_field("stop_signal", 999), InvalidArgument, "config.stop_signal"),
    (lambda c: set_field("linux.security_context.selinux_options.type", "a:b")(c), InvalidArgument, "selinux"),
    (lambda c: set_field("linux.security_context.apparmor_profile", "localhost/")(c), InvalidArgument, "apparmor"),
    *(
        (set_field(f"linux.security_context.{field}.value", value), InvalidArgument, field)
        for field in ("run_as_user", "run_as_group")
        for value in (-1, 2**31, 2**40)
    ),
    (set_field("linux.security_context.supplemental_groups", [5, -1]), InvalidArgument, "supplemental_groups"),
    (
        set_field("linux.security_context.supplemental_groups_policy", UNKNOWN),
        InvalidArgument,
        "supplemental_groups_policy",
    ),
    (set_field("linux.security_context.seccomp.profile_type", UNKNOWN), InvalidArgument, "seccomp"),
    (set_field("linux.security_context.apparmor.profile_type", UNKNOWN), InvalidArgument, "apparmor"),
    (set_field("linux.security_context.seccomp_profile_path", "bogus"), InvalidArgument, "seccomp_profile_path"),
    (set_field("linux.security_context.seccomp_profile_path", "localhost/rel"), InvalidArgument, "localhost_ref"),
    (set_field("linux.security_context.namespace_options.network", api.NODE), InvalidArgument, "network"),
    (set_field("linux.security_context.namespace_options.network", api.CONTAINER), InvalidArgument, "network"),
    (set_field("linux.security_context.namespace_options.network", UNKNOWN), InvalidArgument, "network"),
    (set_field("linux.security_context.namespace_options.pid", api.NODE), InvalidArgument, "pid"),
    (set_field("linux.security_context.namespace_options.pid", api.TARGET), InvalidArgument, "target_id"),
    (set_field("linux.security_context.namespace_options.pid", UNKNOWN), InvalidArgument, "pid"),
    (set_field("linux.security_context.namespace_options.ipc", api.NODE), InvalidArgument, "ipc"),
    (set_field("linux.security_context.namespace_options.ipc", api.TARGET), InvalidArgument, "ipc"),
    (set_field("linux.security_context.namespace_options.ipc", UNKNOWN), InvalidArgument, "ipc"),
]


@pytest.mark.parametrize("number", range(len(CONTAINER_REFUSALS)))
def test_a_container_that_is_refused(number: int) -> None:
    change, error, named = CONTAINER_REFUSALS[number]
    with pytest.raises(error) as caught:
        to_container(change)
    assert type(caught.value) is error
    assert named in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.slow
def test_a_name_of_ten_megabytes_is_refused_in_few_words(number: int) -> None:
    long = set_field("metadata.name", "a" * 10_000_000)
    with pytest.raises(InvalidArgument, match=r"metadata\.name") as caught:
        (to_sandbox, to_container)[number](long)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("convert", [to_sandbox, to_container])
def test_there_are_no_more_groups_than_a_process_has(convert: Callable[[Change], Any]) -> None:
    def groups(count: int) -> Change:
        return lambda config: context(config).supplemental_groups.extend(range(count))

    convert(groups(65_536))
    with pytest.raises(InvalidArgument, match="supplemental_groups: 65537 entries"):
        convert(groups(65_537))


@pytest.mark.parametrize(
    ("convert", "field", "item"),
    [
        *((to_sandbox, f"dns_config.{field}", "a") for field in ("servers", "searches", "options")),
        *((to_container, f"linux.security_context.{field}", "/a") for field in ("masked_paths", "readonly_paths")),
        *(
            (to_container, f"linux.security_context.capabilities.{field}", "CHOWN")
            for field in ("add_capabilities", "drop_capabilities", "add_ambient_capabilities")
        ),
    ],
)
def test_lists_that_are_kept_have_a_bound(convert: Callable[[Change], Any], field: str, item: str) -> None:
    convert(set_field(field, [item] * 1024))
    with pytest.raises(InvalidArgument, match=f"{field.rpartition('.')[2]}: 1025 entries"):
        convert(set_field(field, [item] * 1025))


@pytest.mark.parametrize("field", ["servers", "searches", "options"])
def test_what_resolv_conf_holds_has_a_bound(field: str) -> None:
    to_sandbox(set_field(f"dns_config.{field}", ["a" * 1024]))
    with pytest.raises(InvalidArgument, match=f"{field}: .* more than 1024 characters"):
        to_sandbox(set_field(f"dns_config.{field}", ["a" * 1025]))


@pytest.mark.slow
def test_a_program_has_what_execve_takes() -> None:
    def with_strings(command: list[str], args: list[str], envs: list[tuple[str, str]]) -> Change:
        def change(config: Any) -> None:
            config.command.extend(command)
            config.args.extend(args)
            for name, value in envs:
                config.envs.add(key=name, value=value.encode())

        return change

    longest = "é" + "a" * (MAX_STRING_BYTES - 2)
    config = to_container(with_strings([longest], [longest] * 40, [("a", longest[:-2])] * 6))
    assert (len(config.args), len(config.envs)) == (40, 6)
    many = [("a", "b")] * MAX_STRINGS
    assert len(to_container(with_strings([], [""] * MAX_STRINGS, many)).envs) == MAX_STRINGS
    for command, args, envs, message in (
        ([longest + "a"], [], [], "config.command: .* more than 131071 bytes"),
        ([], ["a" * 10_000_000], [], "config.args: .* more than 131071 bytes"),
        ([], [], [("a", longest[:-1])], "config.envs: .* more than 131071 bytes"),
        ([longest], [longest] * 41, [("a", longest[:-2])] * 6, "config.command, config.args, config.envs: .*6291456"),
        ([], ["a"] * (MAX_STRINGS + 1), [], "config.args: 16385 entries"),
        ([], [], [("a", "b"), *many], "config.envs: 16385 entries"),
    ):
        with pytest.raises(InvalidArgument, match=message) as caught:
            to_container(with_strings(command, args, envs))
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("convert", [to_sandbox, to_container])
def test_labels_and_annotations_together(convert: Callable[[Change], Any]) -> None:
    """Every list carries them, and all lists share one message of 16 MiB."""

    def fill(labels: int, notes: int) -> Change:
        def change(config: Any) -> None:
            config.labels["é"] = "x" * (labels - 2)
            config.annotations["a"] = "x" * (notes - 1)

        return change

    config = convert(fill(MAX_METADATA_BYTES - 10, 10))
    assert len(config.labels["é"]) == MAX_METADATA_BYTES - 12
    for labels, notes, named in (
        (9_000_000, 10, "config.labels"),
        (10, MAX_METADATA_BYTES, "config.annotations"),
    ):
        with pytest.raises(InvalidArgument, match=named) as caught:
            convert(fill(labels, notes))
        assert str(labels + notes) in str(caught.value)
        assert len(str(caught.value)) < 2000
    with pytest.raises(InvalidArgument, match=str(MAX_METADATA_BYTES + 1)):
        convert(fill(MAX_METADATA_BYTES - 9, 10))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("convert", "field", "begin"),
    [
        (to_sandbox, "log_directory", "/"),
        (to_container, "log_path", ""),
        (to_container, "working_dir", "/"),
        (to_container, "image.image", ""),
        (to_container, "image.user_specified_image", ""),
    ],
)
def test_what_lists_and_statuses_echo_is_bounded(convert: Callable[[Change], Any], field: str, begin: str) -> None:
    convert(set_field(field, begin + "x" * (MAX_TEXT_BYTES - len(begin))))
    for text in ("x" * MAX_TEXT_BYTES + begin, "é" * MAX_TEXT_BYTES, "x" * 9_000_000):
        with pytest.raises(InvalidArgument, match=rf"config\.{field}.*more than {MAX_TEXT_BYTES} bytes") as caught:
            convert(set_field(field, begin + text + "x"))
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (api.PROPAGATION_PRIVATE, Propagation.PRIVATE),
        (api.PROPAGATION_HOST_TO_CONTAINER, Propagation.HOST_TO_CONTAINER),
        (api.PROPAGATION_BIDIRECTIONAL, Propagation.BIDIRECTIONAL),
    ],
)
def test_propagation(sent: api.MountPropagation.ValueType, meant: Propagation) -> None:
    assert to_container(add_mount(propagation=sent)).mounts[0].propagation is meant


def test_a_host_path_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (mount,) = to_container(add_mount(host_path=f"{tmp_path}/link/../link/")).mounts
    assert mount.host_path == f"{tmp_path}/real"


@pytest.mark.slow
@pytest.mark.parametrize("links", ["in a row", "beside each other"])
def test_a_host_path_has_no_more_links_than_the_kernel_follows(tmp_path: Path, links: str) -> None:
    """Python's realpath calls itself for each link in a row, and follows any number of those beside each other."""
    (tmp_path / "0").mkdir()
    for number in range(1200):
        target = str(number) if links == "in a row" else "0"
        (tmp_path / f"{number + 1}").symlink_to(tmp_path / target)
    (tmp_path / "link").symlink_to("/".join(f"{number + 1}/.." for number in range(50)))
    path = tmp_path / ("1200" if links == "in a row" else "link")
    with pytest.raises(InvalidArgument, match=r"mounts\[0\]\.host_path: .*: Too many levels of symbolic links"):
        to_container(add_mount(host_path=str(path)))


def test_a_mount_is_echoed_as_it_was_asked_for(tmp_path: Path) -> None:
    asked = api.Mount(
        container_path="/m",
        host_path=str(tmp_path),
        readonly=True,
        propagation=api.PROPAGATION_HOST_TO_CONTAINER,
        uidMappings=[mapping()],
        gidMappings=[mapping()],
    )
    (mount,) = to_container(lambda c: c.mounts.append(asked)).mounts
    assert mount_message(mount) == asked


def test_resources_are_echoed() -> None:
    asked = api.LinuxContainerResources(
        cpu_period=1000,
        cpu_quota=-1,
        cpu_shares=3,
        oom_score_adj=-5,
        memory_limit_in_bytes=4,
        memory_swap_limit_in_bytes=6,
        cpuset_cpus="0",
        cpuset_mems="1",
        hugepage_limits=[api.HugepageLimit(page_size="2MB", limit=7)],
        unified={"memory.high": "1"},
    )
    assert resources_message(to_container(lambda c: c.linux.resources.CopyFrom(asked)).resources) == asked


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: None, Seccomp(kind=ProfileKind.UNCONFINED)),
        (set_field("linux.security_context.seccomp_profile_path", "unconfined"), Seccomp(kind=ProfileKind.UNCONFINED)),
        (
            set_field("linux.security_context.seccomp_profile_path", "runtime/default"),
            Seccomp(kind=ProfileKind.RUNTIME_DEFAULT),
        ),
        (
            set_field("linux.security_context.seccomp_profile_path", "localhost//a/b.json"),
            Seccomp(kind=ProfileKind.LOCALHOST, path="/a/b.json"),
        ),
        (
            set_field("linux.security_context.seccomp.profile_type", api.SecurityProfile.RuntimeDefault),
            Seccomp(kind=ProfileKind.RUNTIME_DEFAULT),
        ),
        (
            lambda c: context(c).seccomp.CopyFrom(api.SecurityProfile(profile_type=2, localhost_ref="/p.json")),
            Seccomp(kind=ProfileKind.LOCALHOST, path="/p.json"),
        ),
    ],
)
def test_seccomp(change: Change, expected: Seccomp) -> None:
    assert to_container(change).security.seccomp == expected


@pytest.mark.parametrize(
    ("sandbox", "field", "mode"),
    [
        (NamespaceOptions(pid=NamespaceMode.NODE), "pid", api.NODE),
        (NamespaceOptions(pid=NamespaceMode.CONTAINER), "pid", api.CONTAINER),
        (NamespaceOptions(), "pid", api.CONTAINER),
        (NamespaceOptions(ipc=NamespaceMode.NODE), "ipc", api.NODE),
        (NamespaceOptions(network=NamespaceMode.NODE), "network", api.NODE),
        (NamespaceOptions(), "ipc", api.CONTAINER),
    ],
)
def test_namespaces_that_fit_the_sandbox(sandbox: NamespaceOptions, field: str, mode: int) -> None:
    def change(config: Any) -> None:
        options = context(config).namespace_options
        options.network, options.pid, options.ipc = sandbox.network, sandbox.pid, sandbox.ipc
        setattr(options, field, mode)

    asked = to_container(change, sandbox=sandbox_config(namespaces=sandbox)).namespaces
    assert getattr(asked, field) is NamespaceMode(mode)


def test_the_process_namespace_of_another_container() -> None:
    def change(config: Any) -> None:
        context(config).namespace_options.pid = api.TARGET
        context(config).namespace_options.target_id = "abc"

    assert to_container(change).namespaces.target_id == "abc"


def test_a_selector_needs_every_pair() -> None:
    labels = {"a": "1", "b": "2"}
    assert labels_match(labels, {})
    assert labels_match(labels, {"a": "1", "b": "2"})
    assert not labels_match(labels, {"a": "2"})
    assert not labels_match(labels, {"a": "1", "c": ""})


def test_a_privileged_container_needs_a_privileged_sandbox() -> None:
    request = api.ContainerConfig(metadata=api.ContainerMetadata(name="main"), image=api.ImageSpec(image="busybox"))
    request.linux.security_context.privileged = True
    with pytest.raises(InvalidArgument, match="sandbox is not privileged"):
        container_config(request, in_own_userns())


DEEP = "/a" * (MAX_PATH_PARTS + 1)


ROOTS = ("/", "//", "/.", "/..", "/proc/../etc")


@pytest.mark.parametrize("path", [DEEP, "/a\0", "/" + "a" * 2 * MAX_TEXT_BYTES], ids=["deep", "NUL", "long"])
@pytest.mark.parametrize(
    "change",
    [
        lambda config, path: setattr(config, "log_path", path[1:]),
        lambda config, path: setattr(config, "working_dir", path),
        lambda config, path: config.mounts.add(host_path="/", container_path=path),
        lambda config, path: config.mounts.add(host_path=path, container_path="/volume"),
        lambda config, path: config.devices.add(host_path="/dev/null", container_path=path),
        lambda config, path: config.devices.add(host_path=path, container_path="/dev/x"),
        lambda config, path: config.linux.security_context.masked_paths.append(path),
        lambda config, path: config.linux.security_context.readonly_paths.append(path),
        lambda config, path: config.linux.security_context.seccomp.MergeFrom(
            api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref=path)
        ),
    ],
)
def test_every_path_of_a_container_has_a_bound(change: Callable[[Any, str], object], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_container(lambda config: change(config, path))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("field", "path", "message"),
    [
        *((field, path, "no path below the root") for field in ("masked_paths", "readonly_paths") for path in ROOTS),
        *(("masked_paths", path, "the OCI runtime sets up") for path in ("/dev", "/dev//", "/dev/pts/", "/dev/null")),
    ],
)
def test_paths_that_cannot_be_hidden_are_refused(field: str, path: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field}: .*{message}"):
        to_container(lambda config: getattr(config.linux.security_context, field).append(path))


def test_paths_to_be_hidden_are_in_their_normal_form() -> None:
    def change(config: api.ContainerConfig) -> None:
        config.linux.security_context.masked_paths.append("/etc//passwd/")
        config.linux.security_context.readonly_paths.append("/dev/.")

    security = to_container(change).security
    assert (security.masked_paths, security.readonly_paths) == (("/etc/passwd",), ("/dev",))


@pytest.mark.parametrize("path", [DEEP, "/a\0"], ids=["deep", "NUL"])
def test_a_sandboxs_log_directory_has_a_bound(path: str) -> None:
    with pytest.raises(InvalidArgument, match="log_directory"):
        to_sandbox(set_field("log_directory", path))


@pytest.mark.parametrize(
    ("asked", "waited"), [(-(2**63), 0), (0, 0), (7, 7), (2_147_484, MAX_SECONDS), (2**63 - 1, MAX_SECONDS)]
)
def test_no_wait_is_longer_than_clocks_can_count(asked: int, waited: int) -> None:
    assert seconds(asked) == waited
    assert waited * 1000 < 2**31
