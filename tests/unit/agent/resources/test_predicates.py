"""Whether a pod may run on a node: tables of pods, with upstream's reasons and messages."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.agent.resources.node_selection import Taint
from podkeep.agent.resources.predicates import NodeFacts, Preempt, Rejection, admit, conflict, host_ports
from podkeep.api.pod import Pod
from support.pods import container, pod

FACTS = NodeFacts(
    name="node1",
    labels={"kubernetes.io/os": "linux", "zone": "a", "cpus": "4"},
    allocatable={"cpu": 2000, "memory": 1 << 30, "ephemeral-storage": 10 << 30, "pods": 3, "example.com/gpu": 1},
)
CRITICAL: dict[str, Any] = {"priority": 2_000_000_000}


def asking(requests: str = "", name: str = "web", **spec: Any) -> Pod:
    return pod(container(requests=requests), name=name, **spec)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}


def port(number: int, **fields: Any) -> dict[str, Any]:
    return container(ports=[{"containerPort": number, "hostPort": number, **fields}])


@pytest.mark.parametrize(
    ("wanted", "others", "reason", "message"),
    [
        (asking("cpu=1"), [asking("cpu=1")], "", ""),
        (
            asking("cpu=1500m"),
            [asking("cpu=1")],
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000",
        ),
        (
            asking("memory=1Gi"),
            [asking("memory=1Mi")],
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 1073741824, used: 1048576, capacity: 1073741824",
        ),
        (asking("ephemeral-storage=11Gi"), [], "OutOfephemeral-storage", "requested: 11811160064"),
        (asking(), [asking()] * 3, "OutOfpods", "pods, requested: 1, used: 3, capacity: 3"),
        (asking("example.com/gpu=2"), [], "OutOfexample.com/gpu", "requested: 2, used: 0, capacity: 1"),
        # A resource that the node does not know may be one of the cluster.
        (asking("example.com/licence=2"), [], "", ""),
        (asking("hugepages-2Mi=2Mi"), [], "OutOfhugepages-2Mi", "capacity: 0"),
        (asking("cpu=1", overhead={"cpu": "1500m"}), [], "OutOfcpu", "requested: 2500"),
        (asking("cpu=1", resources={"requests": {"cpu": "3"}}), [], "OutOfcpu", "requested: 3000"),
        # Only what is asked for is looked at.
        (asking("memory=1Mi"), [asking("cpu=3")], "", ""),
        # The first reason is told.
        (asking("cpu=3", nodeName="other"), [asking()] * 3, "OutOfpods", "capacity: 3"),
    ],
)
def test_resources(wanted: Pod, others: list[Pod], reason: str, message: str) -> None:
    found = admit(wanted, others, FACTS)

    if not reason:
        assert found is None
    else:
        assert isinstance(found, Rejection)
        assert found.reason == reason
        assert message in found.message


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (asking(nodeSelector={"zone": "a"}), True),
        (asking(nodeSelector={"zone": "b"}), False),
        (asking(affinity=affinity(term("zone", "In", "b", "a"))), True),
        (asking(affinity=affinity(term("zone", "In", "b"))), False),
        (asking(affinity=affinity(term("zone", "NotIn", "b"))), True),
        (asking(affinity=affinity(term("rack", "NotIn", "b"))), True),
        (asking(affinity=affinity(term("zone", "Exists"))), True),
        (asking(affinity=affinity(term("zone", "DoesNotExist"))), False),
        (asking(affinity=affinity(term("cpus", "Gt", "3"))), True),
        (asking(affinity=affinity(term("cpus", "Gt", "4"))), False),
        (asking(affinity=affinity(term("cpus", "Lt", "5"))), True),
        (asking(affinity=affinity(term("zone", "Lt", "5"))), False),
        # One of several terms is enough; an empty one selects nothing.
        (asking(affinity=affinity(term("zone", "In", "b"), term("zone", "In", "a"))), True),
        (asking(affinity=affinity({})), False),
        (asking(affinity=affinity()), False),
        (
            asking(
                affinity=affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]})
            ),
            True,
        ),
        (
            asking(
                affinity=affinity({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node1"]}]})
            ),
            False,
        ),
    ],
)
def test_node_affinity(wanted: Pod, fits: bool) -> None:
    found = admit(wanted, [], FACTS)

    assert found == (
        None
        if fits
        else Rejection(
            reason="NodeAffinity",
            message="Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        )
    )


@pytest.mark.parametrize(
    ("first", "second", "free"),
    [
        (port(80), port(81), True),
        (port(80), port(80), False),
        (port(80), port(80, protocol="UDP"), True),
        (port(80, hostIP="10.0.0.1"), port(80, hostIP="10.0.0.2"), True),
        (port(80, hostIP="10.0.0.1"), port(80), False),
        (port(80), port(80, hostIP="10.0.0.1"), False),
    ],
)
def test_host_ports(first: dict[str, Any], second: dict[str, Any], free: bool) -> None:
    found = admit(pod(second), [pod(first)], FACTS)

    assert found == (
        None
        if free
        else Rejection(
            reason="NodePorts",
            message="Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        )
    )


def test_ports_of_sidecars_are_taken_and_those_of_init_containers_are_not() -> None:
    sidecar = pod(init=[port(80) | {"restartPolicy": "Always"}])
    setup = pod(init=[port(80)])

    assert conflict(host_ports(pod(port(80))), host_ports(sidecar)) is not None
    assert host_ports(setup) == frozenset()


@pytest.mark.parametrize(
    ("wanted", "facts", "reason", "message"),
    [
        (asking(os={"name": "windows"}), {}, "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match"),
        (
            pod(metadata={"labels": {"kubernetes.io/os": "windows"}}),
            {},
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        (asking(nodeName="node2"), {}, "NodeName", "Predicate NodeName failed: node(s) didn't match the requested"),
        (
            asking(securityContext={"supplementalGroupsPolicy": "Strict"}),
            {"supplemental_groups_policy": False},
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            asking(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            {"allowed_unsafe_sysctls": ("kernel.shm*",)},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.msgmax" not allowlisted',
        ),
        (
            asking(securityContext={"sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "1"}]}, hostNetwork=True),
            {},
            "SysctlForbidden",
            'forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled',
        ),
        (
            asking(securityContext={"appArmorProfile": {"type": "RuntimeDefault"}}),
            {"app_armor": False},
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (
            asking(),
            {"taints": (Taint("broken", "", "NoExecute"),)},
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
        (asking(), {"shutting_down": True}, "NodeShutdown", "Pod was rejected as the node is shutting down."),
        (asking(), {"conditions": ("MemoryPressure",)}, "Evicted", "The node had condition: [MemoryPressure]. "),
        (
            asking("cpu=1"),
            {"conditions": ("MemoryPressure", "DiskPressure")},
            "Evicted",
            "The node had condition: [MemoryPressure DiskPressure]. ",
        ),
    ],
)
def test_what_else_a_node_refuses(wanted: Pod, facts: dict[str, Any], reason: str, message: str) -> None:
    found = admit(wanted, [], _facts(**facts))

    assert isinstance(found, Rejection)
    assert found.reason == reason
    assert found.message.startswith(message)


def _facts(**changes: Any) -> NodeFacts:
    fields = {name: getattr(FACTS, name) for name in FACTS.__struct_fields__}
    return NodeFacts(**(fields | changes))


STATIC = {"annotations": {"kubernetes.io/config.source": "file"}}
TOLERATES = [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("wanted", "facts"),
    [
        (asking("cpu=1"), {"conditions": ("MemoryPressure",)}),
        (asking(tolerations=TOLERATES), {"conditions": ("MemoryPressure",)}),
        (asking(**CRITICAL), {"conditions": ("DiskPressure",)}),
        (pod(metadata=STATIC), {"conditions": ("PIDPressure",), "taints": (Taint("broken", "", "NoExecute"),)}),
        (asking(), {"taints": (Taint("cordoned", "", "NoSchedule"),)}),
        (
            asking(tolerations=[{"key": "level", "operator": "Gt", "value": "3"}]),
            {"taints": (Taint("level", "4", "NoExecute"),)},
        ),
        (asking(securityContext={"appArmorProfile": {"type": "Unconfined"}}), {"app_armor": False}),
        (
            asking(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            {"allowed_unsafe_sysctls": ("kernel.msg*",)},
        ),
    ],
)
def test_what_a_node_under_pressure_or_with_taints_takes_on(wanted: Pod, facts: dict[str, Any]) -> None:
    assert admit(wanted, [], _facts(**facts)) is None


def preempted(found: object) -> list[str]:
    assert isinstance(found, Preempt)
    return [item.metadata.name for item in found.pods]


def test_a_critical_pod_takes_the_place_of_the_least_important_and_of_as_few_as_do() -> None:
    others = [
        pod(container(requests="cpu=500m"), name="burstable"),
        pod(container(limits="cpu=1 memory=1Mi"), name="guaranteed"),
    ]
    wanted = asking("cpu=1", **CRITICAL)

    assert preempted(admit(wanted, others, FACTS)) == ["burstable"]
    # The number of pods is a resource, too: the pod that asks for nothing goes.
    assert preempted(admit(asking(**CRITICAL), [*others, pod(name="small")], FACTS)) == ["small"]


def test_of_pods_of_one_class_the_nearest_in_size_goes() -> None:
    sizes = {"a": "500m", "b": "600m", "c": "800m"}
    others = [asking(f"cpu={cpu}", name=name) for name, cpu in sizes.items()]

    # 100m are free, 550m more are needed: b alone is enough, and smaller than c.
    found = admit(asking("cpu=650m", **CRITICAL), others, _facts(allocatable={"cpu": 2000}))

    assert preempted(found) == ["b"]


def test_a_critical_pod_never_takes_the_place_of_its_equals() -> None:
    others = [asking("cpu=2", name="equal", **CRITICAL)]

    assert admit(asking("cpu=1", **CRITICAL), others, FACTS) == Rejection(
        reason="UnexpectedAdmissionError",
        message="Unexpected error while attempting to recover from admission failure: preemption: error finding a set "
        "of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]",
    )


def test_a_critical_pod_that_cannot_run_anyway_ends_nobody() -> None:
    found = admit(asking("cpu=1", nodeName="node2", **CRITICAL), [asking("cpu=2")], FACTS)

    assert isinstance(found, Rejection)
    assert found.reason == "NodeName"


def test_what_is_not_counted_is_not_limited() -> None:
    assert admit(asking("cpu=1000 memory=1Ti"), [], _facts(allocatable={})) is None
