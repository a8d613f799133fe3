"""Class annotations, default tolerations, new nodes' taint, and the chain of plugins."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.chain import ALWAYS, OFF, ORDER, Chain, chain
from podkeep.apiserver.admission.classes import ClassResources
from podkeep.apiserver.admission.default_toleration_seconds import DefaultTolerationSeconds
from podkeep.apiserver.admission.image_volumes import ImageVolumes
from podkeep.apiserver.admission.storage_classes import (
    DefaultStorageClass,
    PersistentVolumeClaimResize,
    StorageObjectInUseProtection,
)
from podkeep.apiserver.admission.taint_nodes_by_condition import TaintNodesByCondition
from podkeep.apiserver.meta.status import StatusError
from podkeep.base.errors import InvalidArgument
from support.admission import Objects, admit, attributes

GATE_OFF = FeatureGates(given={"ClassResources": False})
RDT, BLOCKIO = "rdt.resources.alpha.kubernetes.io", "blockio.resources.alpha.kubernetes.io"


def pod(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "web", "namespace": "default"}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": [{"name": "a", "image": "x"}], **spec}}


# Classes


@pytest.mark.requirement("Q34", "Q35")
@pytest.mark.parametrize("gates", [None, GATE_OFF], ids=["on", "off"])
@pytest.mark.parametrize("subresource", ["", "status", "ephemeralcontainers", "resize"])
@pytest.mark.parametrize(
    "key", [f"{domain}/{rest}" for domain in (RDT, BLOCKIO) for rest in ("default", "container.a")]
)
def test_annotations_of_classes_stay(key: str, subresource: str, gates: FeatureGates | None) -> None:
    plugin = ClassResources(gates)
    for new, old in (
        ({key: "gold"}, {}),
        (
            {key: "gold"},
            {key: "silver"},
        ),
        ({}, {key: "gold"}),
    ):
        with pytest.raises(StatusError) as caught:
            admit(plugin, attributes("pods", pod(new), pod(old), subresource=subresource))
        assert (caught.value.code, caught.value.reason) == (422, "Invalid")
        assert caught.value.message == (
            f'Pod "web" is invalid: metadata.annotations[{key}]: Forbidden: annotations of class resources may not be'
            " added, changed or removed: they tell what the pod was given"
        )
    same = pod({key: "gold", "mine": "1"})
    admit(plugin, attributes("pods", same, pod({key: "gold", "other": "2"}), subresource=subresource))
    admit(plugin, attributes("pods", same))
    admit(plugin, attributes("pods", None, same, operation=Operation.DELETE))


def test_a_binding_brings_no_annotations_of_classes() -> None:
    binding = {"metadata": {"name": "web", "annotations": {f"{RDT}/default": "gold"}}, "target": {"name": "n"}}
    with pytest.raises(StatusError):
        admit(ClassResources(), attributes("pods", binding, subresource="binding"))
    admit(ClassResources(), attributes("configmaps", pod({f"{RDT}/default": "gold"}), pod()))


def with_classes(name: str = "gold", field: str = "containers") -> dict[str, Any]:
    resources = {"classes": {"rdt": name}}
    return pod(resources=resources) if field == "pod" else pod(**{field: [{"name": "a", "resources": resources}]})


@pytest.mark.requirement("Q61")
@pytest.mark.parametrize("field", ["pod", "containers", "initContainers", "ephemeralContainers"])
def test_with_the_gate_off_new_classes_are_refused_and_old_ones_kept(field: str) -> None:
    plugin, value = ClassResources(GATE_OFF), with_classes(field=field)
    path = "spec" if field == "pod" else f"spec.{field}[0]"
    for old in (None, pod(), with_classes("silver", field)):
        with pytest.raises(StatusError) as caught:
            plugin.mutate(attributes("pods", copy.deepcopy(value), old))
        assert caught.value.message == (
            f'Pod "web" is invalid: {path}.resources.classes: Forbidden: the feature gate ClassResources is off'
        )
    told = admit(plugin, attributes("pods", copy.deepcopy(value), value))
    assert told.value == value
    admit(ClassResources(), attributes("pods", value))


# Image volumes


def with_sub_path(field: str, containers: str = "containers", kind: str = "image") -> dict[str, Any]:
    volumes = [{"name": "data", kind: {"reference": "r"}}, {"name": "other", "emptyDir": {}}]
    mounts = [{"name": "other", "mountPath": "/o", field: "dir"}, {"name": "data", "mountPath": "/d", field: "dir"}]
    return pod(volumes=volumes, **{containers: [{"name": "a", "volumeMounts": mounts}]})


@pytest.mark.requirement("V9")
@pytest.mark.parametrize("field", ["subPath", "subPathExpr"])
@pytest.mark.parametrize("containers", ["containers", "initContainers", "ephemeralContainers"])
def test_at_the_alpha_stage_image_volumes_have_no_sub_paths(field: str, containers: str) -> None:
    plugin, value = ImageVolumes(FeatureGates(given={"ImageVolumeSubPaths": False})), with_sub_path(field, containers)
    with pytest.raises(StatusError) as caught:
        admit(plugin, attributes("pods", value))
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert caught.value.message == (
        f'Pod "web" is invalid: spec.{containers}[0].volumeMounts[1].{field}: Invalid value: "dir":'
        " not allowed in image volume sources"
    )
    admit(plugin, attributes("pods", value, value))
    admit(plugin, attributes("pods", None, value, operation=Operation.DELETE))
    admit(plugin, attributes("pods", with_sub_path(field, containers, "configMap")))
    admit(ImageVolumes(), attributes("pods", value))


@pytest.mark.requirement("V9")
def test_at_the_alpha_stage_templates_have_no_sub_paths_either() -> None:
    plugin = ImageVolumes(FeatureGates(given={"ImageVolumeSubPaths": False}))
    value = {"metadata": {"name": "web"}, "spec": {"template": with_sub_path("subPath")}}
    with pytest.raises(
        StatusError, match=r"spec\.template\.spec\.containers\[0\]\.volumeMounts\[1\]\.subPath: Invalid"
    ):
        admit(plugin, attributes("deployments", value))


# Tolerations and taints


def toleration(name: str, seconds: int = 300) -> dict[str, Any]:
    return {
        "key": f"node.kubernetes.io/{name}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["not-ready", "unreachable"]),
        ([toleration("not-ready", 5)], ["unreachable"]),
        ([{"key": "node.kubernetes.io/unreachable"}], ["not-ready"]),
        ([{"operator": "Exists"}], []),
        ([{"operator": "Exists", "effect": "NoSchedule"}], ["not-ready", "unreachable"]),
        ([{"key": "a", "operator": "Exists"}], ["not-ready", "unreachable"]),
    ],
)
def test_default_tolerations(given: list[dict[str, Any]], added: list[str]) -> None:
    told = admit(DefaultTolerationSeconds(), attributes("pods", pod(tolerations=given)))
    assert told.value is not None
    assert told.value["spec"]["tolerations"] == given + [toleration(name) for name in added]


def test_default_tolerations_of_other_lengths_and_where_there_are_none() -> None:
    told = admit(DefaultTolerationSeconds(1, 2), attributes("pods", pod()))
    assert told.value is not None
    assert told.value["spec"]["tolerations"] == [toleration("not-ready", 1), toleration("unreachable", 2)]
    assert admit(DefaultTolerationSeconds(), attributes("pods", pod(), subresource="status")).value == pod()
    assert admit(DefaultTolerationSeconds(), attributes("deployments", pod())).value == pod()


def test_new_nodes_have_a_taint() -> None:
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    node: dict[str, Any] = {"metadata": {"name": "n"}}
    told = admit(TaintNodesByCondition(), attributes("nodes", copy.deepcopy(node)))
    assert told.value == node | {"spec": {"taints": [taint]}}
    assert admit(TaintNodesByCondition(), attributes("nodes", copy.deepcopy(told.value))).value == told.value
    assert admit(TaintNodesByCondition(), attributes("nodes", copy.deepcopy(node), node)).value == node
    assert admit(TaintNodesByCondition(), attributes("nodes", copy.deepcopy(node), subresource="status")).value == node


# Classes of storage


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("persistentvolumeclaims", "kubernetes.io/pvc-protection"),
        ("persistentvolumes", "kubernetes.io/pv-protection"),
        ("configmaps", ""),
    ],
)
def test_new_claims_and_volumes_are_protected(resource: str, name: str) -> None:
    plugin, given = StorageObjectInUseProtection(), {"metadata": {"name": "a", "finalizers": ["me.example/x"]}}
    told = admit(plugin, attributes(resource, copy.deepcopy(given))).value
    assert told is not None
    assert told["metadata"]["finalizers"] == ["me.example/x", *filter(None, [name])]
    assert admit(plugin, attributes(resource, copy.deepcopy(told))).value == told
    assert admit(plugin, attributes(resource, copy.deepcopy(given), given)).value == given


def storage_class(name: str, created: str = "1", *, default: str = "true", **more: Any) -> tuple[str, dict[str, Any]]:
    metadata = {
        "name": name,
        "creationTimestamp": f"2026-11-23T00:00:0{created}Z",
        "annotations": {"storageclass.kubernetes.io/is-default-class": default},
    }
    return "storage.k8s.io/storageclasses", {"metadata": metadata, **more}


def claim(size: str = "1Gi", phase: str = "Bound", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"resources": {"requests": {"storage": size}}, **spec},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("value", "classes", "expected"),
    [
        (claim(), [], None),
        (claim(), [storage_class("a", default="false")], None),
        (claim(), [storage_class("a"), storage_class("b", "2"), storage_class("c", "2")], "b"),
        (claim(storageClassName=""), [storage_class("a")], ""),
        (claim(storageClassName="x"), [storage_class("a")], "x"),
    ],
)
def test_the_default_class(value: dict[str, Any], classes: list[Any], expected: str | None) -> None:
    told = admit(DefaultStorageClass(Objects(*classes)), attributes("persistentvolumeclaims", copy.deepcopy(value)))
    assert told.value is not None
    assert told.value["spec"].get("storageClassName") == expected
    updated = admit(
        DefaultStorageClass(Objects(*classes)), attributes("persistentvolumeclaims", copy.deepcopy(value), value)
    )
    assert updated.value == value


UNRESIZABLE = (
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
)


@pytest.mark.parametrize(
    ("new", "old", "refusal"),
    [
        (claim("2Gi", storageClassName="grows"), claim(storageClassName="grows"), ""),
        (claim(storageClassName="fixed"), claim("1024Mi", storageClassName="fixed"), ""),
        (claim("2Gi", storageClassName="fixed"), claim(storageClassName="fixed"), UNRESIZABLE),
        (claim("2Gi"), claim(), UNRESIZABLE),
        (
            claim("2Gi", storageClassName="grows"),
            claim(phase="Pending", storageClassName="grows"),
            "Only bound persistent volume claims can be expanded",
        ),
    ],
)
def test_claims_that_grow(new: dict[str, Any], old: dict[str, Any], refusal: str) -> None:
    plugin = PersistentVolumeClaimResize(
        Objects(storage_class("grows", allowVolumeExpansion=True), storage_class("fixed"))
    )
    told = attributes("persistentvolumeclaims", new, old)
    if not refusal:
        admit(plugin, told)
        return
    with pytest.raises(StatusError) as caught:
        admit(plugin, told)
    assert caught.value.message == f'persistentvolumeclaims "c" is forbidden: {refusal}'


# The chain


class Noting:
    """A plugin that writes down that it was asked."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self._name = name
        self._asked = asked

    def mutate(self, attributes: Attributes) -> None:
        self._asked.append(f"mutate {self._name}")

    def validate(self, attributes: Attributes) -> None:
        self._asked.append(f"validate {self._name}")


def asked(made: Chain, notes: list[str]) -> list[str]:
    admit(made, attributes("configmaps", pod()))
    mutated, validated = notes[: len(notes) // 2], notes[len(notes) // 2 :]
    names = [note.removeprefix("mutate ") for note in mutated]
    assert validated == [f"validate {name}" for name in names]
    return names


@pytest.mark.parametrize(
    ("enable", "disable", "expected"),
    [
        ((), (), ["NamespaceLifecycle", "PodSecurity", "ClassResources", "ResourceQuota"]),
        (
            ["AlwaysPullImages"],
            ["ResourceQuota"],
            ["NamespaceLifecycle", "AlwaysPullImages", "PodSecurity", "ClassResources"],
        ),
        (
            ["PodSecurity"],
            ["AlwaysPullImages"],
            ["NamespaceLifecycle", "PodSecurity", "ClassResources", "ResourceQuota"],
        ),
    ],
)
def test_plugins_are_asked_in_order(enable: list[str], disable: list[str], expected: list[str]) -> None:
    notes: list[str] = []
    names = ("ResourceQuota", "ClassResources", "PodSecurity", "AlwaysPullImages", "NamespaceLifecycle")
    made = chain({name: Noting(name, notes) for name in names}, enable, disable)
    assert asked(made, notes) == expected


@pytest.mark.parametrize(
    ("enable", "disable", "text", "hint"),
    [
        (
            ["PodSecurty"],
            [],
            'api.enable_admission_plugins: unknown admission plugin: "PodS',
            "did you mean PodSecurity?",
        ),
        (
            [],
            ["x"],
            "api.disable_admission_plugins: unknown admission plug",
            f"known: {', '.join(sorted(ORDER))}",
        ),
        (["PodSecurity"], ["PodSecurity"], "both enabled and disabled: PodSecurity", ""),
        ([], ["ClassResources"], "cannot be disabled: ClassResources", ""),
    ],
)
def test_wrong_lists(enable: list[str], disable: list[str], text: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        chain({}, enable, disable)
    assert text in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_every_plugin_has_its_place() -> None:
    assert len(set(ORDER)) == len(ORDER)
    assert set(ORDER) >= OFF | ALWAYS
    with pytest.raises(ValueError, match="without a place in the order: Mine"):
        chain({"Mine": Noting("Mine", [])})
