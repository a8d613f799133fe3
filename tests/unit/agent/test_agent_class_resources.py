"""Which classes a pod asks for, and whether a node offers them: pure decisions over what a runtime reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent.convert.sandbox import SandboxPlan, sandbox_config
from podkeep.agent.network.dns import ResolvConf
from podkeep.agent.resources import class_messages as convert
from podkeep.agent.resources import class_resources
from podkeep.agent.resources.class_resources import Offer, Offers
from podkeep.api import class_resources as api
from podkeep.api import manifest
from podkeep.api.containers import EphemeralContainer, ResourceRequirements
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition
from podkeep.cri.v1 import api_pb2

ON, OFF = FeatureGates(), FeatureGates(given={"ClassResources": False})
DOCUMENT = Path(__file__).parents[3] / "docs" / "class-resources.md"
RDT = "rdt.resources.alpha.kubernetes.io"
BLOCKIO = "blockio.resources.alpha.kubernetes.io"
QOS = Offer(classes=("BestEffort", "Burstable", "Guaranteed"))
OFFERS = Offers(
    reported=True,
    pod={"blockio": Offer(classes=("fast", "slow")), "qos": QOS},
    container={
        "rdt": Offer(classes=("gold", "silver"), default="silver"),
        "qos": QOS,
        "oom": Offer(classes=("first",)),
    },
)


def make(
    annotations: dict[str, str] | None = None,
    classes: dict[str, str] | None = None,
    resources: dict[str, str] | None = None,
    pod_classes: dict[str, str] | None = None,
    ephemeral: dict[str, str] | None = None,
) -> Pod:
    """Return a pod with an init container, a sidecar, a container in ``classes`` and an ephemeral container."""
    main = {"name": "main", "image": "i", "resources": {"classes": classes or {}, "limits": resources or {}}}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": "u", "annotations": annotations or {}},
        "spec": {
            "initContainers": [
                {"name": "setup", "image": "i"},
                {"name": "proxy", "image": "i", "restartPolicy": "Always"},
            ],
            "containers": [main],
            "resources": {"classes": pod_classes or {}},
        },
    }
    (pod,) = manifest.parse(yaml.safe_dump(document), source="f").pods
    # Manifests may not have them yet; a pod of an API server may.
    debug = EphemeralContainer(name="debug", image="i", resources=ResourceRequirements(classes=ephemeral or {}))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, ephemeral_containers=(debug,)))


def sent(pod: Pod, gates: FeatureGates = ON) -> dict[str, dict[str, str]]:
    """Return the classes of every container."""
    return {
        container.name: class_resources.of_container(pod, container, gates) for _, container in api.containers(pod.spec)
    }


def refused(pod: Pod, offers: Offers = OFFERS) -> str:
    refusal = class_resources.refusal(pod, ON, offers)
    assert refusal is not None
    return refusal.message


@pytest.mark.requirement("Q19", "Q21", "Q23", "Q90")
@pytest.mark.parametrize(("domain", "type_name"), [(RDT, "rdt"), (BLOCKIO, "blockio")])
def test_the_default_annotation_is_for_all_containers(domain: str, type_name: str) -> None:
    every = sent(make({f"{domain}/default": "gold"}))
    assert every == {name: {type_name: "gold"} for name in ("setup", "proxy", "main", "debug")}


@pytest.mark.requirement("Q20", "Q22", "Q23", "Q90")
@pytest.mark.parametrize(("domain", "type_name"), [(RDT, "rdt"), (BLOCKIO, "blockio")])
@pytest.mark.parametrize("name", ["setup", "proxy", "main"])
def test_the_annotation_of_one_container_wins(domain: str, type_name: str, name: str) -> None:
    every = sent(make({f"{domain}/container.{name}": "gold", f"{domain}/default": "silver"}))
    assert every.pop(name) == {type_name: "gold"}
    assert set(map(str, every.values())) == {str({type_name: "silver"})}
    alone = sent(make({f"{domain}/container.{name}": "gold"}))
    assert alone.pop(name) == {type_name: "gold"}
    assert set(map(str, alone.values())) == {"{}"}


@pytest.mark.requirement("Q23")
def test_an_annotation_that_names_no_container_has_no_effect_on_a_pod_that_has_it() -> None:
    pod = make()
    metadata = msgspec.structs.replace(pod.metadata, annotations={f"{RDT}/container.mian": "gold"})
    assert set(map(str, sent(msgspec.structs.replace(pod, metadata=metadata)).values())) == {"{}"}


@pytest.mark.requirement("Q51", "Q58")
def test_fields_and_annotations_come_together() -> None:
    every = sent(make({f"{BLOCKIO}/default": "slow"}, {"rdt": "gold", "vendor.io/x": "a"}, ephemeral={"oom": "first"}))
    assert every["main"] == {"blockio": "slow", "rdt": "gold", "vendor.io/x": "a"}
    assert every["debug"] == {"blockio": "slow", "oom": "first"}
    assert every["setup"] == {"blockio": "slow"}


@pytest.mark.requirement("Q24", "Q53", "Q90")
def test_a_pods_own_classes_come_from_its_field_alone() -> None:
    annotated = make({f"{RDT}/default": "gold", f"{BLOCKIO}/default": "slow"})
    assert class_resources.of_pod(annotated, ON, Offers(reported=True)) == {}
    pod = make(pod_classes={"blockio": "slow"})
    assert class_resources.of_pod(pod, ON, Offers(reported=True)) == {"blockio": "slow"}
    assert set(map(str, sent(pod).values())) == {"{}"}


@pytest.mark.requirement("Q53")
def test_the_sandbox_carries_the_pods_classes_and_no_field_without() -> None:
    def config(classes: dict[str, str]) -> api_pb2.PodSandboxConfig:
        plan = SandboxPlan(user_namespace=None, dns=ResolvConf(), cgroup_root="/p", pod_logs="/l", classes=classes)
        return sandbox_config(make(), plan)

    message = config({"blockio": "slow"})
    assert dict(getattr(message.class_resources, "class")) == {"blockio": "slow"}
    assert not config({}).HasField("class_resources")


@pytest.mark.requirement("Q76")
@pytest.mark.parametrize(
    ("resources", "kind"), [({}, "BestEffort"), ({"memory": "1Mi"}, "Burstable"), ({"cpu": "1"}, "Burstable")]
)
def test_the_pods_qos_class_is_told_to_a_runtime_that_knows_it(resources: dict[str, str], kind: str) -> None:
    pod = make(resources=resources, pod_classes={"blockio": "slow"})
    assert class_resources.of_pod(pod, ON, OFFERS) == {"blockio": "slow", "qos": kind}
    assert class_resources.of_pod(pod, ON, Offers(reported=True, container={"qos": QOS})) == {"blockio": "slow"}
    foreign = Offers(reported=True, pod={"qos": Offer(classes=("high", "low"))})
    assert class_resources.of_pod(pod, ON, foreign) == {"blockio": "slow"}


@pytest.mark.requirement("Q25", "Q26", "Q82", "Q90")
def test_with_the_gate_off_annotations_are_passed_over_and_nothing_is_sent() -> None:
    pod = make({f"{RDT}/default": "nosuch", f"{BLOCKIO}/container.main": "slow"})
    assert set(map(str, sent(pod, OFF).values())) == {"{}"}
    assert class_resources.of_pod(pod, OFF, OFFERS) == {}
    assert not class_resources.asks(pod, OFF)
    assert class_resources.refusal(pod, OFF, OFFERS) is None
    # The same pod, with the gate on again.
    assert sent(pod)["main"] == {"rdt": "nosuch", "blockio": "slow"}
    assert class_resources.asks(pod, ON)


@pytest.mark.requirement("Q61")
def test_with_the_gate_off_what_names_classes_in_fields_does_not_run_without_them() -> None:
    with pytest.raises(FailedPrecondition, match=r"^class resource rdt: class gold is asked for, and the feature gate"):
        sent(make(classes={"rdt": "gold"}), OFF)
    pod = make(pod_classes={"blockio": "slow"})
    for refuse in (
        lambda: class_resources.of_pod(pod, OFF, OFFERS),
        lambda: class_resources.refusal(pod, OFF, OFFERS),
    ):
        with pytest.raises(FailedPrecondition, match=r"^class resource blockio: class slow is asked for") as caught:
            refuse()
        assert caught.value.hint == "switch it on in [agent] feature_gates, or name no class"


@pytest.mark.requirement("Q30", "Q31")
@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (
            {"classes": {"rdt": "nosuch"}},
            'rdt: this node has no class "nosuch" for containers, it has gold, silver (container main)',
        ),
        (
            {"annotations": {f"{RDT}/default": "nosuch"}},
            'rdt: this node has no class "nosuch" for containers, it has gold, silver '
            "(containers setup, proxy, main, debug)",
        ),
        (
            {"annotations": {f"{RDT}/container.setup": "nosuch"}},
            'rdt: this node has no class "nosuch" for containers, it has gold, silver (container setup)',
        ),
        ({"classes": {"foo": "bar"}}, "foo: this node does not offer it to containers (container main)"),
        (
            {"ephemeral": {"rdt": "x"}},
            'rdt: this node has no class "x" for containers, it has gold, silver (container debug)',
        ),
        (
            {"pod_classes": {"rdt": "gold"}},
            "rdt: this node does not offer it to pods, only to containers (for the pod as a whole)",
        ),
        (
            {"classes": {"blockio": "slow"}},
            "blockio: this node does not offer it to containers, only to pods as a whole (container main)",
        ),
        (
            {"pod_classes": {"blockio": "nosuch"}},
            'blockio: this node has no class "nosuch" for pods, it has fast, slow (for the pod as a whole)',
        ),
        (
            {"pod_classes": {"blockio": "default"}},
            "blockio: this node has no default class for pods (for the pod as a whole)",
        ),
        (
            {"classes": {"rdt": "a", "oom": "b"}, "pod_classes": {"c": "d"}},
            "c: this node does not offer it to pods (for the pod as a whole); "
            'class resource oom: this node has no class "b" for containers, it has first (container main); '
            'class resource rdt: this node has no class "a" for containers, it has gold, silver (container main)',
        ),
    ],
)
def test_what_a_node_does_not_offer_is_named(pod: dict[str, Any], message: str) -> None:
    assert refused(make(**pod)) == f"class resource {message}"


@pytest.mark.requirement("Q31", "Q79")
@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"classes": {"rdt": "gold", "oom": "first", "qos": "Burstable"}},
        {"classes": {"rdt": "default"}},
        {"annotations": {f"{RDT}/default": "silver"}, "pod_classes": {"blockio": "fast"}},
    ],
)
def test_what_a_node_offers_is_admitted(pod: dict[str, Any]) -> None:
    assert class_resources.refusal(make(**pod), ON, OFFERS) is None


@pytest.mark.requirement("Q32", "Q86")
def test_a_runtime_that_reports_nothing_is_not_trusted() -> None:
    pod = make({f"{RDT}/default": "gold"}, {"oom": "first"}, pod_classes={"blockio": "slow"})
    said = "the runtime reports no class resources at all"
    assert refused(pod, Offers()) == "; ".join(f"class resource {name}: {said}" for name in ("blockio", "oom", "rdt"))
    assert class_resources.refusal(make(), ON, Offers()) is None
    class_resources.require_reported({}, Offers())
    class_resources.require_reported({"rdt": "gold"}, Offers(reported=True))
    with pytest.raises(FailedPrecondition, match=f"^class resource rdt: {said}; hint") as caught:
        class_resources.require_reported({"rdt": "gold"}, Offers())
    assert caught.value.hint.startswith("it would run the pod without its classes")


@pytest.mark.requirement("Q30")
def test_a_message_names_some_of_many() -> None:
    many = Offers(reported=True, container={"rdt": Offer(classes=tuple(f"c{number:04}" for number in range(1000)))})
    message = refused(make(classes={"rdt": "x"}), many)
    assert message.endswith("it has " + ", ".join(f"c{n:04}" for n in range(10)) + " and 990 more (container main)")


@pytest.mark.requirement("Q29", "Q32", "Q79")
def test_what_a_runtime_reports_is_read_whole() -> None:
    assert convert.offers(api_pb2.StatusResponse()) == Offers()
    assert convert.offers(api_pb2.StatusResponse(status=api_pb2.RuntimeStatus())) == Offers()
    nothing = api_pb2.RuntimeStatus(resources=api_pb2.ResourcesInfo())
    assert convert.offers(api_pb2.StatusResponse(status=nothing)) == Offers(reported=True)
    classes = [api_pb2.ClassResourceClassInfo(Name=name) for name in ("gold", "silver")]
    rdt = api_pb2.ClassResourceInfo(Name="rdt", classes=classes, immutable=True, default_class="gold")
    blockio = api_pb2.ClassResourceInfo(Name="blockio", classes=classes[:1])
    resources = api_pb2.ResourcesInfo(pod_class_resources=[blockio], container_class_resources=[rdt, blockio])
    assert convert.offers(api_pb2.StatusResponse(status=api_pb2.RuntimeStatus(resources=resources))) == Offers(
        reported=True,
        pod={"blockio": Offer(classes=("gold",))},
        container={
            "rdt": Offer(classes=("gold", "silver"), default="gold", immutable=True),
            "blockio": Offer(classes=("gold",)),
        },
    )


@pytest.mark.requirement("Q89")
@pytest.mark.parametrize("namespace", ["default", "kube-system", "somebody"])
def test_any_pod_may_ask_for_any_class_and_the_documentation_says_so(namespace: str) -> None:
    pod = make(classes={"rdt": "gold"}, pod_classes={"blockio": "fast"})
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace))
    assert class_resources.refusal(pod, ON, OFFERS) is None
    section = DOCUMENT.read_text().partition("## Who may ask for a class")[2].partition("\n## ")[0]
    assert "Without a quota, whoever may create a pod on this node may ask for any class" in section


@pytest.mark.requirement("Q58")
def test_annotations_are_documented_as_the_way_of_before() -> None:
    section = DOCUMENT.read_text().partition("### Annotations\n")[2].partition("\n### ")[0]
    assert "is for manifests that have it already; write fields in new ones." in section
    assert "Where a container has a field and an annotation for one type, both must say the same." in section


@pytest.mark.requirement("Q32")
def test_what_becomes_of_classes_where_the_runtime_reports_none_is_documented() -> None:
    line = "So is a pod with classes on a runtime that reports none (containerd, CRI-O, an older podkeep)"
    assert line in DOCUMENT.read_text()


@pytest.mark.requirement("Q66", "Q74")
def test_classes_are_no_objects_and_the_documentation_says_why() -> None:
    """What a class is named by is two texts in a Pod: an object has one name, so the two would not fit."""
    pod = make(classes={"vendor.example/turbo": "fast", "rdt": "fast"})
    assert pod.spec.containers[0].resources.classes == {"vendor.example/turbo": "fast", "rdt": "fast"}
    document = (DOCUMENT.parent / "class-internals.md").read_text()
    section = document.partition("## Not chosen: classes as objects of the API")[2].partition("\n## ")[0]
    for word in ("RuntimeClass", "RBAC", "two names", "on which nodes", "quotas"):
        assert word in section
