"""Environment, /etc/hosts and resolv.conf of a pod."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent.environment.variables import PodFacts, environment, expand, expand_all, expand_known
from podkeep.agent.network import dns, hosts
from podkeep.agent.objects.sources import Sources
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument, NotFound

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v", "z": "$(A)"}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"bin": "/w==", "t": "dA=="}}
FACTS = PodFacts(pod_ips=("10.0.0.2", "fd00::2"), host_ips=("192.0.2.7",), node_name="node")


def make(container: dict[str, Any] | None = None, **spec: Any) -> tuple[Pod, Sources]:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": "u1", "labels": {"app": "x"}, "annotations": {"n/a": "y"}},
        "spec": {"containers": [{"name": "c", "image": "i"} | (container or {})]} | spec,
    }
    found = manifest.parse(yaml.safe_dump_all([document, CONFIG, SECRET]), source="f")
    return found.pods[0], Sources(config_maps=found.config_maps, secrets=found.secrets)


def variables(*env: dict[str, Any], env_from: list[dict[str, Any]] | None = None) -> dict[str, str]:
    pod, sources = make({"env": list(env), "envFrom": env_from or []})
    return environment(pod, pod.spec.containers[0], sources, FACTS)


def field(path: str) -> str:
    return variables({"name": "F", "valueFrom": {"fieldRef": {"fieldPath": path}}})["F"]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)$(A)y", "x11y"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $ $(", "$A $ $("),
        ("$(A", "$(A"),
        # A name is what is before the next `)`: what a shell is to do with it is left to the shell.
        ("$(cat $(A))", "$(cat $(A))"),
        ("$(cat $(A)) $(A)", "$(cat $(A)) 1"),
        ("$(A)$$(A $$$ $$", "1$(A $$ $"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


def test_no_name_is_looked_for_again_and_again() -> None:
    """Each of these was followed to the end of the text, with nothing else in the agent running meanwhile."""
    text = "$(" * 300_000
    assert expand(text, {"A": "1"}) == text
    assert expand_known(text, {"A": "1"}) == text
    with pytest.raises(InvalidArgument, match="missing value"):
        expand_known(text + ")", {"A": "1"})


def test_expansion_of_what_must_be_known() -> None:
    assert expand_known("$(A)/$$(B)", {"A": "1"}) == "1/$(B)"
    with pytest.raises(InvalidArgument, match=r'^missing value for "B"$'):
        expand_known("$(A)/$(B)", {"A": "1"})


def test_values_refer_to_what_was_defined_before() -> None:
    found = variables({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}, {"name": "C", "value": "$(D)"})
    assert found == {"A": "1", "B": "12", "C": "$(D)"}


@pytest.mark.slow
def test_values_that_refer_to_values_do_not_grow_without_end() -> None:
    """A manifest of 2 KiB took a gibibyte."""
    env = [{"name": "A0", "value": "x" * 100}]
    env += [{"name": f"A{n}", "value": f"$(A{n - 1})" * 10} for n in range(1, 13)]
    with pytest.raises(InvalidArgument, match="more than 1048576 characters"):
        variables(*env)
    wide = [{"name": f"B{n}", "value": "x" * 100_000} for n in range(11)]
    with pytest.raises(InvalidArgument, match="environment variables have more than 1048576 characters"):
        variables(*wide)
    for texts in (["$(A)" * 11], ["$(A)"] * 11):
        with pytest.raises(InvalidArgument, match="more than 1048576 characters"):
            expand_all(texts, {"A": "x" * 100_000})


@pytest.mark.slow
def test_env_from_is_counted_while_it_is_added() -> None:
    """A ConfigMap of 1 MB that 100 entries named, each with a prefix of its own, took 527 MiB."""
    data = {f"k{n}": "x" * 1000 for n in range(900)}
    found = manifest.parse(yaml.safe_dump(CONFIG | {"data": data}), source="f")
    long = "N" * 1000

    def defined(times: int, prefix: str = "", **container: Any) -> dict[str, str]:
        entries = [{"prefix": f"P{n}{prefix}_", "configMapRef": {"name": "m"}} for n in range(times)]
        pod, _ = make({"envFrom": entries} | container)
        return environment(pod, pod.spec.containers[0], Sources(config_maps=found.config_maps), FACTS)

    assert len(defined(1)) == 900
    for times, prefix, container in (
        (2, "", {}),
        (1, long, {}),
        (0, "", {"env": [{"name": f"{long}{n}", "value": ""} for n in range(1100)]}),
    ):
        with pytest.raises(InvalidArgument, match="its environment variables have more than 1048576 characters"):
            defined(times, prefix, **container)


class Once(dict[str, bytes]):
    """The content of a ConfigMap from which single keys may be asked, and no list of all of them."""

    def keys(self) -> Any:
        raise AssertionError("each reference to a key makes a copy of all keys")

    __iter__ = items = keys


def test_a_reference_to_a_key_takes_no_more_than_the_key() -> None:
    """20,000 references to one large ConfigMap made 20,000 copies of it."""
    key = {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    pod, sources = make({"env": [key | {"name": f"K{n}"} for n in range(3)]})
    [(name, config_map)] = sources.config_maps.items()
    content = msgspec.structs.replace(config_map, data={}, binary_data=Once(k=b"v"))
    found = environment(pod, pod.spec.containers[0], Sources(config_maps={name: content}), FACTS)
    assert found == {"K0": "v", "K1": "v", "K2": "v"}


def test_arguments_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before were measured again with each: 20,000 arguments took 16 seconds."""
    measured = 0

    def counted(text: Sized) -> int:
        nonlocal measured
        measured += 1
        return len(text)

    monkeypatch.setattr("podkeep.agent.environment.variables.len", counted, raising=False)
    texts = [f"$(A){n}" for n in range(500)]
    assert expand_all(texts, {"A": "x"}) == [f"x{n}" for n in range(500)]
    assert measured <= 4 * len(texts)


def test_config_maps_and_secrets() -> None:
    found = variables(
        {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "t"}}},
        {"name": "N", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
        {"name": "p_k", "value": "own"},
        env_from=[{"prefix": "p_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "x", "optional": True}}],
    )
    assert found == {"p_k": "own", "p_z": "$(A)", "K": "v", "T": "t"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "q"}}, "couldn't find key q in Secret default/s"),
    ],
)
def test_what_is_missing_is_named(source: dict[str, Any], message: str) -> None:
    with pytest.raises(NotFound) as caught:
        variables({"name": "X", "valueFrom": source})
    assert caught.value.message == message


def test_binary_data_is_no_variable() -> None:
    with pytest.raises(InvalidArgument, match="key bin is not UTF-8"):
        variables({"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "bin"}}})


def test_fields_of_the_pod() -> None:
    assert field("metadata.name") == "web"
    assert field("metadata.labels['app']") == "x"
    assert field("metadata.annotations['n/a']") == "y"
    assert field("status.podIP") == "10.0.0.2"
    assert field("status.podIPs") == "10.0.0.2,fd00::2"
    assert field("spec.nodeName") == "node"
    assert field("status.hostIP") == "192.0.2.7"


def test_hosts() -> None:
    pod, _ = make(hostname="h", subdomain="sub", hostAliases=[{"ip": "10.1.1.1", "hostnames": ["a", "b"]}])
    text = hosts.render(pod.spec, "h", ("10.0.0.2",), "ignored", "sub")
    assert "127.0.0.1\tlocalhost\n" in text
    assert "10.0.0.2\th.sub\th\n" in text
    # Conformance tests tell by the first line whether a kubelet manages the file.
    assert text.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    assert text.endswith("\n\n# Entries added by HostAliases.\n10.1.1.1\ta\tb\n")
    assert "ignored" not in text


def test_hosts_of_a_pod_on_the_hosts_network_are_the_hosts() -> None:
    pod, _ = make(hostNetwork=True)
    text = hosts.render(pod.spec, "h", (), "10.9.9.9 own")
    assert text == "# Kubernetes-managed hosts file (host network).\n10.9.9.9 own\n"


NODE = dns.parse("# comment\nnameserver 10.0.0.1\nsearch a b ; c\noptions ndots:2 rotate\nnameserver 10.0.0.2\nbogus\n")


def test_resolv_conf_of_the_node() -> None:
    assert dns.ResolvConf(servers=("10.0.0.1", "10.0.0.2"), searches=("a", "b"), options=("ndots:2", "rotate")) == NODE


@pytest.mark.parametrize("policy", ["ClusterFirst", "Default"])
def test_dns_config_is_added_to_the_nodes(policy: str) -> None:
    config = {"nameservers": ["10.0.0.2", "10.0.0.3", "10.0.0.4"], "searches": ["b", "c"]}
    options = [{"name": "ndots", "value": "5"}, {"name": "edns0"}]
    pod, _ = make(dnsPolicy=policy, dnsConfig=config | {"options": options})
    assert dns.pod_dns(pod, NODE, dns.ClusterDns()).conf == dns.ResolvConf(
        servers=("10.0.0.1", "10.0.0.2", "10.0.0.3"),
        searches=("a", "b", "c"),
        options=("ndots:5", "rotate", "edns0"),
    )


def test_dns_policy_none_starts_empty() -> None:
    pod, _ = make(dnsPolicy="None", dnsConfig={"nameservers": ["10.9.9.9"]})
    assert dns.pod_dns(pod, NODE, dns.ClusterDns()).conf == dns.ResolvConf(servers=("10.9.9.9",))


def test_env_from_passes_over_binary_data() -> None:
    binary = CONFIG | {"metadata": {"name": "b"}, "data": {"k": "v"}, "binaryData": {"bin": "/w==", "t": "dA=="}}
    pod, _ = make({"envFrom": [{"configMapRef": {"name": "b"}}]})
    found = manifest.parse(yaml.safe_dump(binary), source="f")
    assert environment(pod, pod.spec.containers[0], Sources(config_maps=found.config_maps), FACTS) == {"k": "v"}
