"""What a pod finds around it: names, DNS, variables of services, resources and files; and what of it CRI is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent.convert import names
from podkeep.agent.convert.container import ContainerPlan, PlannedDevice, PlannedMount, container_config
from podkeep.agent.convert.sandbox import SandboxPlan, sandbox_config
from podkeep.agent.convert.security import ImageUser, SeccompPolicy
from podkeep.agent.environment import env_files, service_links
from podkeep.agent.environment.variables import PodFacts, environment
from podkeep.agent.network.addresses import by_family
from podkeep.agent.network.dns import NO_LOOKUPS, ClusterDns, ResolvConf, pod_dns
from podkeep.agent.objects.sources import Sources
from podkeep.agent.resources.qos import linux_resources
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.agent.user_namespaces.model import of_block
from podkeep.api import manifest
from podkeep.api.containers import ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2


def make(container: dict[str, Any] | None = None, **spec: Any) -> Pod:
    containers = [{"name": "c", "image": "i:1"} | (container or {})]
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": containers} | spec,
    }
    (pod,) = manifest.parse(yaml.safe_dump(document), source="f").pods
    return pod


def with_metadata(pod: Pod, **changes: Any) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **changes))


# ------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("spec", "cluster", "host", "domain", "kernel"),
    [
        ({}, "cluster.local", "web", "", "web"),
        ({"hostname": "h"}, "cluster.local", "h", "", "h"),
        ({"subdomain": "sub"}, "cluster.local", "web", "sub.ns.svc.cluster.local", "web"),
        ({"subdomain": "sub"}, "", "web", "sub", "web"),
        ({"hostname": "h", "subdomain": "sub", "setHostnameAsFQDN": True}, "x", "h", "sub.ns.svc.x", "h.sub.ns.svc.x"),
        ({"setHostnameAsFQDN": True}, "cluster.local", "web", "", "web"),
        ({"hostnameOverride": "a.b", "subdomain": "sub"}, "cluster.local", "a.b", "", "a.b"),
    ],
)
def test_hostname_and_domain(spec: dict[str, Any], cluster: str, host: str, domain: str, kernel: str) -> None:
    pod = make(**spec)
    assert (names.hostname(pod), names.domain(pod, cluster), names.kernel_name(pod, cluster)) == (host, domain, kernel)


def test_a_long_name_is_cut_and_one_in_full_is_refused() -> None:
    pod = with_metadata(make(subdomain="sub", setHostnameAsFQDN=True), name=f"{'a' * 62}-b")
    assert names.hostname(pod) == "a" * 62
    with pytest.raises(InvalidArgument, match=r"is too long \(64 characters is the max, 87 characters requested\)"):
        names.kernel_name(pod, "cluster.local")


# --------------------------------------------------------------------------------------------------------------- DNS

NODE = ResolvConf(servers=("10.0.0.1",), searches=("lan",), options=("rotate",))
CLUSTER = ClusterDns(servers=("10.96.0.10",), domain="cluster.local")
INSIDE = ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan")
OF_CLUSTER = ResolvConf(servers=("10.96.0.10",), searches=INSIDE, options=("ndots:5",))


@pytest.mark.parametrize(
    ("spec", "cluster", "expected"),
    [
        ({}, CLUSTER, OF_CLUSTER),
        ({}, ClusterDns(), NODE),
        ({}, ClusterDns(domain="cluster.local"), NODE),
        ({"hostNetwork": True}, CLUSTER, NODE),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, CLUSTER, OF_CLUSTER),
        ({"dnsPolicy": "Default"}, CLUSTER, NODE),
        (
            {},
            ClusterDns(servers=("10.96.0.10",)),
            ResolvConf(servers=("10.96.0.10",), searches=("lan",), options=("ndots:5",)),
        ),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.9.9.9"], "searches": ["x"]}},
            CLUSTER,
            ResolvConf(servers=("10.9.9.9",), searches=("x",)),
        ),
        (
            {"dnsConfig": {"options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}], "searches": ["lan", "x"]}},
            CLUSTER,
            ResolvConf(servers=("10.96.0.10",), searches=(*INSIDE, "x"), options=("ndots:2", "edns0")),
        ),
    ],
)
def test_dns_of_a_pod(spec: dict[str, Any], cluster: ClusterDns, expected: ResolvConf) -> None:
    found = pod_dns(make(**spec), NODE, cluster)
    assert (found.conf, found.problems) == (expected, ())


def test_dns_of_a_pod_on_a_node_without_name_servers() -> None:
    """A cluster's names are looked up in the cluster's domains only."""
    assert pod_dns(make(dnsPolicy="Default"), NO_LOOKUPS, CLUSTER).conf == NO_LOOKUPS
    conf = pod_dns(make(), NO_LOOKUPS, CLUSTER).conf
    assert (conf.servers, conf.searches) == (CLUSTER.servers, INSIDE[:3])


def test_what_resolvers_do_not_take_is_left_out_and_said() -> None:
    many = ResolvConf(servers=("1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"), searches=tuple(f"s{n}" for n in range(40)))
    found = pod_dns(make(dnsPolicy="Default"), many, CLUSTER)
    assert (len(found.conf.servers), len(found.conf.searches)) == (3, 32)
    assert [problem.split(",")[0] for problem in found.problems] == [
        "Nameserver limits were exceeded",
        "Search Line limits were exceeded",
    ]
    long = ResolvConf(searches=("a" * 254, *(f"{n}{'b' * 250}" for n in range(10))))
    conf = pod_dns(make(dnsPolicy="Default"), long, CLUSTER).conf
    assert len(" ".join(conf.searches)) <= 2048
    assert conf.searches[0].startswith("0b")


# --------------------------------------------------------------------------------------------------------- variables


def service(name: str, namespace: str = "ns", address: str = "10.96.0.7", *ports: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": {"clusterIP": address, "ports": list(ports or ({"port": 80},))}}


API = service("kubernetes", "default", "10.96.0.1", {"port": 443, "name": "https", "protocol": "TCP"})


def test_variables_of_services() -> None:
    found = service_links.variables(
        [API, service("my-db", "ns", "fd00::7", {"port": 53, "protocol": "UDP"})], "ns", links=True
    )
    assert found == {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "KUBERNETES_PORT": "tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
        "KUBERNETES_PORT_443_TCP_PORT": "443",
        "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
        "MY_DB_SERVICE_HOST": "fd00::7",
        "MY_DB_SERVICE_PORT": "53",
        "MY_DB_PORT": "udp://[fd00::7]:53",
        "MY_DB_PORT_53_UDP": "udp://[fd00::7]:53",
        "MY_DB_PORT_53_UDP_PROTO": "udp",
        "MY_DB_PORT_53_UDP_PORT": "53",
        "MY_DB_PORT_53_UDP_ADDR": "fd00::7",
    }


@pytest.mark.parametrize(
    ("given", "links", "expected"),
    [
        ([API, service("a")], False, {"KUBERNETES"}),
        ([API, service("a"), service("b", "other")], True, {"KUBERNETES", "A"}),
        ([service("a", address="None"), service("b", address="")], True, set()),
        # The namespace's own service of that name wins.
        ([API, service("kubernetes", "ns", "10.96.0.9")], True, {"KUBERNETES"}),
    ],
)
def test_which_services_have_variables(given: list[dict[str, Any]], links: bool, expected: set[str]) -> None:
    found = service_links.variables(given, "ns", links=links)
    assert {name.removesuffix("_SERVICE_HOST") for name in found if name.endswith("_SERVICE_HOST")} == expected


def variables(pod: Pod, sources: Sources | None = None, **facts: Any) -> dict[str, str]:
    return environment(pod, pod.spec.containers[0], sources or Sources(), PodFacts(**facts))


def test_services_are_known_to_values_and_give_way_to_them() -> None:
    env = [{"name": "A_PORT", "value": "mine"}, {"name": "URL", "value": "$(A_SERVICE_HOST)/$(A_PORT)"}]
    sources = Sources(services={("ns", "a"): service("a")})
    found = variables(make({"env": env}), sources)
    assert (found["A_PORT"], found["URL"], found["A_SERVICE_PORT"]) == ("mine", "10.96.0.7/mine", "80")
    assert "A_SERVICE_HOST" not in variables(make({"env": env}, enableServiceLinks=False), sources)
    unread = Sources(failures={"service/": "services have not yet been read at least once, cannot construct envvars"})
    with pytest.raises(FailedPrecondition, match="services have not yet been read"):
        variables(make(), unread)


def of_resource(resource: str, divisor: str = "", **more: Any) -> dict[str, Any]:
    reference = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    return {"env": [{"name": "R", "valueFrom": {"resourceFieldRef": reference}}]} | more


LIMITED = {"resources": {"limits": {"cpu": "1500m", "memory": "100Mi"}, "requests": {"cpu": "250m"}}}
HAS = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi"}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (of_resource("limits.cpu", **LIMITED), "2"),
        (of_resource("limits.cpu", "1m", **LIMITED), "1500"),
        (of_resource("requests.cpu", "1m", **LIMITED), "250"),
        (of_resource("limits.memory", "1Mi", **LIMITED), "100"),
        (of_resource("limits.memory", "1M", **LIMITED), "105"),
        (of_resource("limits.cpu"), "4"),
        (of_resource("limits.memory", "1Gi"), "8"),
        (of_resource("requests.memory"), "0"),
    ],
)
def test_variables_of_resources(container: dict[str, Any], expected: str) -> None:
    assert variables(make(container), allocatable=HAS)["R"] == expected


def test_a_limit_of_the_pod_is_that_of_a_container_without_its_own() -> None:
    """What the node has is no more than the pod may have of it (kubelet, defaultPodLimitsForDownwardAPI)."""
    whole = ResourceRequirements(limits={"cpu": "1500m"})
    other = {"resources": {"limits": {"cpu": "500m"}}}
    for container, expected in (
        (of_resource("limits.cpu", "1m"), "1500"),
        (of_resource("limits.cpu", "1m", **other), "500"),
        (of_resource("limits.memory", "1Gi"), "8"),
    ):
        pod = make(container)
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resources=whole))
        assert variables(pod, allocatable=HAS)["R"] == expected


def test_addresses_come_in_the_order_of_the_nodes_families() -> None:
    env = [{"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}]
    found = variables(make({"env": env}), pod_ips=("10.0.0.2", "fd00::2"), host_ips=("2001:db8::1",))
    assert found["IPS"] == "fd00::2,10.0.0.2"
    assert by_family(("fd00::2", "10.0.0.2"), ()) == ("10.0.0.2", "fd00::2")


TEXT = "# comment\n\nA='one'\n  B='two' # and more\nC='three\nlines'\nD= 'ignored'\nE=''\n"


@pytest.mark.parametrize(
    ("key", "expected"), [("A", "one"), ("B", "two"), ("C", "three\nlines"), ("D", ""), ("E", ""), ("F", "")]
)
def test_a_file_of_variables(key: str, expected: str) -> None:
    assert env_files.parse(TEXT, {key}).value(key) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A", "at line 1: missing '='"),
        ("\n='x'", "at line 2: empty variable name"),
        ("A ='x'", "at line 1: whitespace before '=' is not allowed"),
        ("A=x", "at line 1: value must be enclosed in single quotes"),
        ("A='x'y", "at line 1: unexpected content after closing quote"),
        ("\nA='x\ny", "starting at line 2: unclosed single quote"),
    ],
)
def test_a_file_that_holds_no_variables(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=f"invalid environment variable format {why}"):
        env_files.parse(text, {"Z"}).value("Z")


def of_file(**more: Any) -> Pod:
    reference = {"volumeName": "v", "path": "d/env", "key": "K"} | more
    env = [{"name": "A", "valueFrom": {"fileKeyRef": reference}}]
    return make({"env": env}, volumes=[{"name": "v", "emptyDir": {}}])


@pytest.mark.parametrize("target", ["env.1", "/d/env.1", "../../../d/env.1"])
def test_links_to_a_file_of_variables_stay_in_their_volume(tmp_path: Path, target: str) -> None:
    """As in a kubelet (securejoin), for which the volume is the root directory: writers exchange links atomically."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "env.1").write_text("K='value'\n")
    (tmp_path / "d" / "env").symlink_to(target)
    assert env_files.read(tmp_path, "d/env") == "K='value'\n"


def test_variables_of_files_are_read_below_their_volume_alone(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (volume / "d").mkdir(parents=True)
    outside.write_text("K='secret'\n")
    file = volume / "d" / "env"
    read = env_files.read

    def ask(pod: Pod) -> dict[str, str]:
        return variables(pod, read_file=lambda name, path: read({"v": volume}[name], path))

    with pytest.raises(NotFound, match="environment file 'd/env' is not in its volume"):
        ask(of_file())
    assert ask(of_file(optional=True)) == {}
    file.write_text("K='value'\n")
    assert ask(of_file()) == {"A": "value"}
    with pytest.raises(NotFound, match='environment variable key "L" not found in file "d/env"'):
        ask(of_file(key="L"))
    file.unlink()
    file.symlink_to("../../outside")
    with pytest.raises((NotFound, FailedPrecondition)):
        ask(of_file())
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(NotFound):
        ask(of_file())
    file.unlink()
    file.write_bytes(b"K='\xff'\n")
    with pytest.raises(InvalidArgument, match="environment file 'd/env' is not UTF-8 text, at byte 3"):
        ask(of_file())
    file.write_bytes(b"#" * (env_files.MAX_BYTES + 1))
    with pytest.raises(FailedPrecondition, match="is larger than"):
        ask(of_file())


def of_files(*references: tuple[str, str, str]) -> Pod:
    env = [
        {"name": name, "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": path, "key": key}}}
        for name, path, key in references
    ]
    return make({"env": env}, volumes=[{"name": "v", "emptyDir": {}}])


def test_a_file_is_read_once_for_all_variables_of_a_container() -> None:
    """A container writes a file of a megabyte, in which each of the many that another one asks for is looked for."""
    read: list[str] = []

    def read_file(_: str, path: str) -> str:
        read.append(path)
        return TEXT

    pod = of_files(("X", "one", "C"), ("Y", "two", "A"), ("Z", "one", "A"))
    assert variables(pod, read_file=read_file) == {"X": "three\nlines", "Y": "one", "Z": "one"}
    assert read == ["one", "two"]


def test_what_comes_before_a_line_that_is_no_variable_counts() -> None:
    def read_file(_name: str, _path: str) -> str:
        return "A='one'\nB\nC='three'\n"

    assert variables(of_files(("X", "f", "A")), read_file=read_file) == {"X": "one"}
    for references in ((("X", "f", "C"),), (("X", "f", "A"), ("Y", "f", "C"))):
        with pytest.raises(InvalidArgument, match="at line 2: missing '='"):
            variables(of_files(*references), read_file=read_file)


@pytest.mark.slow
def test_the_files_of_a_container_are_read_up_to_a_limit() -> None:
    pod = of_files(*((f"X{number}", f"f{number}", "A") for number in range(9)))
    with pytest.raises(InvalidArgument, match="the environment files of the container have more than 8388608 char"):
        variables(pod, read_file=lambda *_: "A='1'\n".ljust(env_files.MAX_BYTES, "\n"))


# --------------------------------------------------------------------------------------------------------------- CRI


def sandbox(pod: Pod, **plan: Any) -> api_pb2.PodSandboxConfig:
    base = {"user_namespace": None, "dns": NODE, "cgroup_root": "/podkeep", "pod_logs": "/logs"}
    return sandbox_config(pod, SandboxPlan(**(base | plan)))


def config(pod: Pod, **plan: Any) -> api_pb2.ContainerConfig:
    container = pod.spec.containers[0]
    base: dict[str, Any] = {
        "attempt": 0,
        "image_ref": "sha256:1",
        "image_user": ImageUser(uid=0),
        "environment": {},
        "mounts": (),
        "resources": linux_resources(pod, container, 8 << 30),
        "user_namespace": None,
        "seccomp": SeccompPolicy(root="/root/seccomp"),
    }
    return container_config(pod, container, ContainerPlan(**(base | plan)))


def security(pod: Pod, **plan: Any) -> api_pb2.LinuxContainerSecurityContext:
    return config(pod, **plan).linux.security_context


KINDS = api_pb2.SecurityProfile


@pytest.mark.parametrize(
    ("of_pod", "own", "is_default", "kind", "file"),
    [
        (None, None, False, KINDS.Unconfined, ""),
        (None, None, True, KINDS.RuntimeDefault, ""),
        ({"type": "RuntimeDefault"}, None, False, KINDS.RuntimeDefault, ""),
        ({"type": "RuntimeDefault"}, {"type": "Unconfined"}, True, KINDS.Unconfined, ""),
        (None, {"type": "Localhost", "localhostProfile": "d/p.json"}, False, KINDS.Localhost, "/root/seccomp/d/p.json"),
    ],
)
def test_seccomp(of_pod: Any, own: Any, is_default: bool, kind: int, file: str) -> None:
    spec = {} if of_pod is None else {"securityContext": {"seccompProfile": of_pod}}
    pod = make({} if own is None else {"securityContext": {"seccompProfile": own}}, **spec)
    found = security(pod, seccomp=SeccompPolicy(root="/root/seccomp", is_default=is_default)).seccomp
    assert (found.profile_type, found.localhost_ref) == (kind, file)
    # The sandbox has the least.
    assert sandbox(pod).linux.security_context.seccomp.profile_type == KINDS.RuntimeDefault


@pytest.mark.parametrize("name", ["/etc/p", "../p", "a/../../p", ".."])
def test_a_seccomp_profile_is_below_the_nodes_directory(name: str) -> None:
    profile = {"type": "Localhost", "localhostProfile": "p"}
    pod = make({"securityContext": {"seccompProfile": profile}})
    (container,) = pod.spec.containers
    assert container.security_context is not None
    seccomp = msgspec.structs.replace(container.security_context.seccomp_profile, localhost_profile=name)
    changed = msgspec.structs.replace(container.security_context, seccomp_profile=seccomp)
    spec = msgspec.structs.replace(pod.spec, containers=(msgspec.structs.replace(container, security_context=changed),))
    with pytest.raises(InvalidArgument, match="is not a path below /root/seccomp"):
        config(msgspec.structs.replace(pod, spec=spec))


@pytest.mark.parametrize(
    ("profile", "kind", "ref", "old"),
    [
        ({"type": "Localhost", "localhostProfile": "mine"}, KINDS.Localhost, "mine", "localhost/mine"),
        ({"type": "RuntimeDefault"}, KINDS.RuntimeDefault, "", "runtime/default"),
        ({"type": "Unconfined"}, KINDS.Unconfined, "", "unconfined"),
    ],
)
def test_apparmor(profile: dict[str, str], kind: int, ref: str, old: str) -> None:
    found = security(make({"securityContext": {"appArmorProfile": profile}}))
    assert (found.apparmor.profile_type, found.apparmor.localhost_ref, found.apparmor_profile) == (kind, ref, old)
    assert not security(make()).HasField("apparmor")
    of_pod = make(securityContext={"appArmorProfile": profile})
    assert security(of_pod).apparmor == found.apparmor


def test_other_security_settings() -> None:
    level = {"user": "u", "role": "r", "type": "t", "level": "s0:c1,c2"}
    context = {"supplementalGroups": [5], "supplementalGroupsPolicy": "Strict", "seLinuxOptions": level}
    pod = make({"securityContext": {"procMount": "Unmasked"}}, securityContext=context, hostUsers=False)
    found = security(pod, user_namespace=of_block(Block(first=65536)), groups=[7])
    assert (list(found.masked_paths), list(found.readonly_paths)) == ([], [])
    assert found.supplemental_groups_policy == api_pb2.SupplementalGroupsPolicy.Strict
    assert list(found.supplemental_groups) == [5, 7]
    assert found.selinux_options == api_pb2.SELinuxOption(**level)
    outer = sandbox(pod).linux.security_context
    assert (outer.selinux_options, outer.supplemental_groups_policy) == (found.selinux_options, 1)
    own = make({"securityContext": {"seLinuxOptions": {"level": "s0:c9"}}}, securityContext=context)
    assert security(own).selinux_options == api_pb2.SELinuxOption(level="s0:c9")


def test_ports_of_the_node() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}, {"containerPort": 53, "protocol": "UDP"}]
    side = {"name": "s", "image": "i", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 2}]}
    before = {"name": "i", "image": "i", "ports": [{"containerPort": 3, "hostPort": 4}]}
    mappings = sandbox(make({"ports": ports}, initContainers=[before, side])).port_mappings
    assert [(item.protocol, item.container_port, item.host_port, item.host_ip) for item in mappings] == [
        (api_pb2.TCP, 1, 2, ""),
        (api_pb2.TCP, 80, 8080, "10.0.0.1"),
        (api_pb2.UDP, 53, 0, ""),
    ]
    assert not sandbox(make({"ports": [{"containerPort": 80}]}, hostNetwork=True)).port_mappings


def test_what_containers_have_together_and_what_the_sandbox_costs() -> None:
    resources = {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "500m"}}
    linux = sandbox(make({"resources": resources}, overhead={"cpu": "250m", "memory": "8Mi"})).linux
    assert (linux.resources.cpu_quota, linux.resources.cpu_shares) == (100_000, 512)
    assert (linux.resources.memory_limit_in_bytes, linux.overhead.memory_limit_in_bytes) == (64 << 20, 8 << 20)
    assert (linux.overhead.cpu_quota, linux.overhead.cpu_shares) == (25_000, 256)


def test_standard_input_signals_and_what_an_agent_finds_again() -> None:
    lifecycle = {"stopSignal": "SIGRTMIN+3", "preStop": {"sleep": {"seconds": 2}}}
    container = {
        "stdin": True,
        "stdinOnce": True,
        "tty": True,
        "lifecycle": lifecycle,
        "ports": [{"containerPort": 80}],
    }
    pod = with_metadata(make(container, os={"name": "linux"}), deletion_grace_period_seconds=9)
    message = config(pod)
    assert (message.stdin, message.stdin_once, message.tty) == (True, True, True)
    assert message.stop_signal == api_pb2.SIGRTMINPLUS3
    assert message.annotations["io.kubernetes.container.preStopHandler"] == '{"sleep":{"seconds":2}}'
    assert message.annotations["io.kubernetes.container.ports"] == '[{"containerPort":80,"protocol":"TCP"}]'
    assert message.annotations["io.kubernetes.pod.deletionGracePeriod"] == "9"
    assert config(make()).stop_signal == api_pb2.RUNTIME_DEFAULT


def test_mounts_devices_and_the_target_of_an_ephemeral_container() -> None:
    mount = PlannedMount(
        host_path=Path("/v"), container_path="/v", read_only=True, recursive_read_only=True, selinux_relabel=True
    )
    device = PlannedDevice(host_path=Path("/dev/x"), container_path="/dev/y", read_only=True)
    message = config(make(), mounts=(mount,), devices=(device,), target_id="t1")
    (found,) = message.mounts
    assert (found.recursive_read_only, found.selinux_relabel, found.readonly) == (True, True, True)
    assert list(message.devices) == [api_pb2.Device(host_path="/dev/x", container_path="/dev/y", permissions="r")]
    options = message.linux.security_context.namespace_options
    assert (options.pid, options.target_id) == (api_pb2.TARGET, "t1")


def test_the_sandbox_has_its_name_in_full_and_says_where_the_pod_comes_from() -> None:
    pod = make(subdomain="sub", setHostnameAsFQDN=True)
    message = sandbox(pod, cluster_domain="cluster.local")
    assert message.hostname == "web.sub.ns.svc.cluster.local"
    assert message.annotations[names.CONFIG_SOURCE] == "file"
    from_api = with_metadata(pod, annotations={names.CONFIG_SOURCE: "api"})
    assert sandbox(from_api).annotations[names.CONFIG_SOURCE] == "api"
