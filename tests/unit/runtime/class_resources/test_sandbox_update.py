"""UpdatePodSandboxConfig: only class resources can differ from what the sandbox was made with."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import HandlerName, SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.model.records import Resources, Sandbox, SandboxState, SandboxStatus
from podkeep.runtime.rpc.convert.sandbox import sandbox_config
from podkeep.runtime.rpc.convert.sandbox_update import changed_classes


def full() -> api.PodSandboxConfig:
    config = api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(name="web", uid="uid-1", namespace="ns", attempt=3),
        hostname="web-0",
        log_directory="/var/log/pods/web",
        dns_config=api.DNSConfig(servers=["10.0.0.1"]),
        port_mappings=[api.PortMapping(host_port=80, container_port=8080)],
        labels={"app": "web"},
        annotations={"a/b": "c"},
        linux=api.LinuxPodSandboxConfig(
            cgroup_parent="/kubepods/pod1",
            sysctls={"net.ipv4.ip_forward": "1"},
            resources=api.LinuxContainerResources(cpu_shares=100),
            overhead=api.LinuxContainerResources(memory_limit_in_bytes=1 << 20),
        ),
    )
    config.linux.security_context.namespace_options.pid = api.CONTAINER
    getattr(config.class_resources, "class")["blockio"] = "slow"
    return config


def sandbox(config: api.PodSandboxConfig) -> Sandbox:
    return Sandbox(
        id=SandboxID("a" * 64),
        config=sandbox_config(config, HandlerName("crun"), default_cgroup_parent="/podkeep"),
        status=SandboxStatus(state=SandboxState.READY, created_at=1),
    )


def classes(config: api.PodSandboxConfig, **asked: str) -> api.PodSandboxConfig:
    """Return ``config`` with these classes alone."""
    config.ClearField("class_resources")
    getattr(config.class_resources, "class").update(asked)
    return config


@pytest.mark.requirement("Q17", "Q18")
@pytest.mark.parametrize(
    "given",
    [
        api.PodSandboxConfig(),
        api.PodSandboxConfig(metadata=full().metadata),
        api.PodSandboxConfig(labels={"app": "web"}, port_mappings=full().port_mappings),
        api.PodSandboxConfig(linux=api.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod1")),
        full(),
    ],
    ids=["nothing", "metadata", "labels and ports", "cgroup parent", "everything"],
)
def test_what_is_left_out_or_equal_is_as_it_is(given: api.PodSandboxConfig) -> None:
    assert changed_classes(classes(given, blockio="fast"), sandbox(full())) == {"blockio": "fast"}


Change = Callable[[api.PodSandboxConfig], object]
DIFFERENT: dict[str, Change] = {
    "config.metadata": lambda c: setattr(c.metadata, "attempt", 4),
    "config.hostname": lambda c: setattr(c, "hostname", "other"),
    "config.log_directory": lambda c: setattr(c, "log_directory", "/tmp"),
    "config.dns_config": lambda c: c.dns_config.searches.append("a.b"),
    "config.port_mappings": lambda c: c.port_mappings.add(host_port=81, container_port=81),
    "config.labels": lambda c: c.labels.update({"app": "db"}),
    "config.annotations": lambda c: c.annotations.update({"new": ""}),
    "config.linux.cgroup_parent": lambda c: setattr(c.linux, "cgroup_parent", "/kubepods/pod2"),
    "config.linux.security_context": lambda c: setattr(c.linux.security_context, "privileged", True),
    "config.linux.sysctls": lambda c: c.linux.sysctls.update({"kernel.shm_rmid_forced": "1"}),
    "config.linux.resources": lambda c: setattr(c.linux.resources, "cpu_shares", 101),
    "config.linux.overhead": lambda c: setattr(c.linux.overhead, "cpu_shares", 2),
}


@pytest.mark.requirement("Q18")
@pytest.mark.parametrize("field", DIFFERENT)
def test_another_difference_is_refused_by_name(field: str) -> None:
    given = classes(full(), blockio="fast")
    DIFFERENT[field](given)
    with pytest.raises(InvalidArgument) as caught:
        changed_classes(given, sandbox(full()))
    assert str(caught.value).startswith(f"{field}: not as pod sandbox aaaa")


@pytest.mark.requirement("Q18")
def test_a_field_that_the_sandbox_was_made_without_is_a_difference() -> None:
    bare = full()
    bare.linux.ClearField("overhead")
    given = classes(full(), blockio="fast")
    with pytest.raises(InvalidArgument, match=r"^config\.linux\.overhead: "):
        changed_classes(given, sandbox(bare))


def test_every_difference_is_named() -> None:
    given = classes(full(), blockio="fast")
    for change in DIFFERENT.values():
        change(given)
    with pytest.raises(InvalidArgument) as caught:
        changed_classes(given, sandbox(full()))
    assert all(name in str(caught.value) for name in DIFFERENT)


def test_resources_that_were_updated_since_are_as_they_are() -> None:
    made = sandbox(full())
    status = msgspec.structs.replace(made.status, resources=Resources(cpu_shares=101), overhead=Resources())
    given = classes(full(), blockio="fast")
    given.linux.resources.cpu_shares = 101
    assert changed_classes(given, msgspec.structs.replace(made, status=status)) == {"blockio": "fast"}


def test_port_mappings_of_a_pod_on_the_hosts_network() -> None:
    on_host = full()
    on_host.linux.security_context.namespace_options.network = api.NODE
    given = api.PodSandboxConfig(port_mappings=full().port_mappings)
    assert changed_classes(classes(given, blockio="fast"), sandbox(on_host)) == {"blockio": "fast"}


@pytest.mark.parametrize(
    ("name", "class_name", "begin"),
    [
        ("rdt", "", "class resource rdt: config.class_resources: the class has no name"),
        ("", "gold", "class resource '': config.class_resources: this is no name of a type"),
        ("a b", "gold", "class resource 'a b': "),
        ("x" * 400, "gold", "class resource 'xxx"),
        ("rdt", "a\nb", "class resource rdt: config.class_resources: 'a\\nb' is no name of a class"),
        ("rdt", "é" * 128, "class resource rdt: "),
    ],
)
def test_what_cannot_be_a_name_is_refused_in_few_words(name: str, class_name: str, begin: str) -> None:
    given = classes(api.PodSandboxConfig(), **{name: class_name})
    with pytest.raises(InvalidArgument) as caught:
        changed_classes(given, sandbox(full()))
    assert str(caught.value).startswith(begin)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
