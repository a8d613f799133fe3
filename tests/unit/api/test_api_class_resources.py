"""``resources.classes`` and the alpha annotations of a Pod: what they may hold, and how they go together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from podkeep.api import class_resources, manifest, names
from podkeep.api.containers import EphemeralContainer, ResourceRequirements
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument

ON = FeatureGates(given={"ClassResources": True})
OFF = FeatureGates(given={"ClassResources": False})
NO_CLASS = "must be 1 to 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit"
RDT = "rdt.resources.alpha.kubernetes.io"
BLOCKIO = "blockio.resources.alpha.kubernetes.io"


def document(classes: Any = None, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Pod with a container ``main`` in ``classes``."""
    container: dict[str, Any] = {"name": "main", "image": "busybox:1"}
    if classes is not None:
        container["resources"] = {"classes": classes}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations or {}},
        "spec": {"containers": [container]} | spec,
    }


def parse(value: dict[str, Any], gates: FeatureGates = ON) -> Pod:
    (pod,) = manifest.parse(yaml.safe_dump(value), source="f", gates=gates).pods
    return pod


def problems(value: dict[str, Any], gates: FeatureGates = ON) -> list[str]:
    with pytest.raises(InvalidArgument) as caught:
        parse(value, gates)
    return [line.split("): ", 1)[1] for line in caught.value.message.split("\n")]


@pytest.mark.requirement("Q51", "Q90")
def test_every_kind_of_container_names_its_classes() -> None:
    init = {"name": "setup", "image": "i", "resources": {"classes": {"rdt": "silver"}}}
    sidecar = {"name": "proxy", "image": "i", "restartPolicy": "Always", "resources": {"classes": {"blockio": "slow"}}}
    pod = parse(document({"rdt": "gold", "vendor.io/res": "A.b_c-9"}, initContainers=[init, sidecar]))
    found = {container.name: container.resources.classes for _, container in class_resources.containers(pod.spec)}
    assert found == {
        "setup": {"rdt": "silver"},
        "proxy": {"blockio": "slow"},
        "main": {"rdt": "gold", "vendor.io/res": "A.b_c-9"},
    }


@pytest.mark.requirement("Q54", "Q55", "Q90")
@pytest.mark.parametrize(
    "key", ["rdt", "a", "9", "A.b_c-9", "x" * 63, "vendor.io/res", "v/r", f"{'a.' * 126}b/{'x' * 63}"]
)
def test_names_of_types_that_are_good(key: str) -> None:
    assert parse(document({key: "c"})).spec.containers[0].resources.classes == {key: "c"}


@pytest.mark.requirement("Q54", "Q55", "Q56", "Q90")
@pytest.mark.parametrize("key", ["", "x" * 64, "-a", "a-", "a.", "_a", "a b", "v/", "ä"])
def test_names_of_types_that_are_none(key: str) -> None:
    (problem,) = problems(document({key: "c"}))
    assert problem == f'spec.containers[0].resources.classes[{key}]: Invalid value: "{key}": {names.label_key(key)}'


@pytest.mark.requirement("Q55", "Q56")
@pytest.mark.parametrize("key", ["/a", "a/b/c", "Vendor/a", "-v/a", "v_x/a", f"{'a' * 254}/b"])
def test_prefixes_of_types_that_are_none(key: str) -> None:
    (problem,) = problems(document({key: "c"}))
    assert names.label_key(key)
    assert problem == f'spec.containers[0].resources.classes[{key}]: Invalid value: "{key}": {names.label_key(key)}'


@pytest.mark.requirement("Q54", "Q55")
@pytest.mark.parametrize("value", ["gold", "a", "9", "A.b_c-9", "x" * 63, "default"])
def test_names_of_classes_that_are_good(value: str) -> None:
    assert parse(document({"rdt": value})).spec.containers[0].resources.classes == {"rdt": value}


@pytest.mark.requirement("Q54", "Q55", "Q56", "Q90")
@pytest.mark.parametrize("value", ["", "x" * 64, "-a", "a-", "a.", "_a", "a b", "a/b", "system/default", "ä"])
def test_names_of_classes_that_are_none(value: str) -> None:
    expected = f'resources.classes[rdt]: Invalid value: "{value}": {NO_CLASS}'
    assert problems(document({"rdt": value})) == [f"spec.containers[0].{expected}"]
    init = {"name": "setup", "image": "i", "resources": {"classes": {"rdt": value}}}
    assert problems(document(initContainers=[init])) == [f"spec.initContainers[0].{expected}"]
    assert problems(document(resources={"classes": {"rdt": value}})) == [f"spec.{expected}"]


@pytest.mark.requirement("Q56")
@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"rdt": None}, f'spec.containers[0].resources.classes[rdt]: Invalid value: "": {NO_CLASS}'),
        ({"rdt": 1}, "spec.containers[0].resources.classes[rdt]: expected string, got integer: write it in quotes"),
        # YAML 1.1, which Kubernetes speaks: on, off, yes and no are booleans.
        (
            {"turbo": True},
            "spec.containers[0].resources.classes[turbo]: expected string, got boolean: write it in quotes",
        ),
        (["rdt"], "spec.containers[0].resources.classes: expected object, got list"),
    ],
)
def test_classes_that_are_no_map_of_texts(classes: Any, expected: str) -> None:
    assert problems(document(classes)) == [expected]


@pytest.mark.requirement("Q56")
def test_what_is_not_printable_is_shown_as_what_it_is() -> None:
    where = "spec.containers[0].resources.classes"
    assert problems(document({"a": "a\n"})) == [f'{where}[a]: Invalid value: "a\\n": {NO_CLASS}']
    (problem,) = problems(document({"a\x1b": "b"}))
    assert problem.startswith(f'{where}[a\\x1b]: Invalid value: "a\\x1b": ')


@pytest.mark.requirement("Q54", "Q56", "Q23")
def test_ephemeral_containers_are_held_to_the_same_rules() -> None:
    ephemeral = EphemeralContainer(name="debug", resources=ResourceRequirements(classes={"rdt": "a b"}))
    pod = parse(document())
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, ephemeral_containers=(ephemeral,)))
    errors = FieldErrors()
    class_resources.validate(pod, ON, errors)
    assert [error.path for error in errors.found] == ["spec.ephemeralContainers[0].resources.classes[rdt]"]


@pytest.mark.requirement("Q52", "Q90")
@pytest.mark.parametrize(
    ("kind", "value"), [("limits", {"cpu": "1"}), ("requests", {"memory": "1Gi"}), ("claims", [{"name": "gpu"}])]
)
@pytest.mark.parametrize("gates", [ON, OFF])
def test_a_pod_as_a_whole_has_classes_alone(kind: str, value: Any, gates: FeatureGates) -> None:
    why = "may not be set for a pod as a whole, only for its containers"
    assert problems(document(resources={kind: value}), gates) == [f"spec.resources.{kind}: Forbidden: {why}"]
    pod = parse(document(resources={"classes": {"blockio": "slow"}}))
    assert pod.spec.resources == ResourceRequirements(classes={"blockio": "slow"})


@pytest.mark.requirement("Q52", "Q76")
def test_the_pods_own_qos_class_is_nobodys_to_choose() -> None:
    why = "Forbidden: it follows from the limits and requests of the containers"
    assert problems(document(resources={"classes": {"qos": "Guaranteed"}})) == [f"spec.resources.classes[qos]: {why}"]
    assert parse(document({"qos": "Guaranteed"})).spec.containers[0].resources.classes == {"qos": "Guaranteed"}


@pytest.mark.requirement("Q58", "Q90")
@pytest.mark.parametrize("rest", ["default", "container.main"])
def test_field_and_annotation_are_the_same_or_refused(rest: str) -> None:
    key = f"{RDT}/{rest}"
    assert parse(document({"rdt": "gold"}, {key: "gold"})).spec.containers[0].resources.classes == {"rdt": "gold"}
    assert problems(document({"rdt": "gold"}, {key: "silver"})) == [
        f'metadata.annotations[{key}]: Invalid value: "silver": must be the same as '
        'spec.containers[0].resources.classes[rdt], which is "gold"'
    ]


@pytest.mark.requirement("Q58", "Q20")
def test_an_annotation_that_another_one_overrides_is_in_no_conflict() -> None:
    annotations = {f"{RDT}/default": "silver", f"{RDT}/container.main": "gold"}
    assert parse(document({"rdt": "gold"}, annotations)).spec.containers[0].resources.classes == {"rdt": "gold"}


@pytest.mark.requirement("Q58")
def test_annotations_of_one_type_and_fields_of_another_go_together() -> None:
    pod = parse(document({"blockio": "slow"}, {f"{RDT}/default": "gold"}))
    found = class_resources.annotated(pod.metadata.annotations, "main")
    assert {name: item.class_name for name, item in found.items()} == {"rdt": "gold"}


@pytest.mark.requirement("Q23", "Q24", "Q90")
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (f"{RDT}/container.mian", "gold", 'Not found: "mian"'),
        (f"{BLOCKIO}/container.", "gold", None),  # no key of an annotation ends in a dot
        (f"{RDT}/pod", "gold", "Invalid value: \"pod\": must be 'default' or 'container.' and the name of a container"),
        (f"{RDT}/defualt", "gold", "Invalid value: \"defualt\": must be 'default' or 'container.' and the name of a"),
        (f"{BLOCKIO}/default", "", f'Invalid value: "": {NO_CLASS}'),
        (f"{BLOCKIO}/container.main", "a b", f'Invalid value: "a b": {NO_CLASS}'),
    ],
)
def test_annotations_that_would_silently_do_nothing_are_refused(key: str, value: str, expected: str | None) -> None:
    found = problems(document(annotations={key: value}))
    assert all(problem.startswith(f"metadata.annotations[{key}]: ") for problem in found)
    if expected is not None:
        assert [problem.split("]: ", 1)[1][: len(expected)] for problem in found] == [expected]
    # Others' annotations are others', and with the gate off these are, too.
    assert parse(
        document(annotations={f"x{RDT}/container.mian": "a b", "memory.resources.alpha.kubernetes.io/pod": ""})
    )
    if expected is not None:
        assert parse(document(annotations={key: value}), OFF)


@pytest.mark.requirement("Q61", "Q25", "Q90")
def test_with_the_gate_off_fields_are_not_accepted_and_annotations_mean_nothing() -> None:
    forbidden = "Forbidden: the feature gate ClassResources is off"
    assert problems(document({"rdt": "gold"}), OFF) == [f"spec.containers[0].resources.classes: {forbidden}"]
    assert problems(document(resources={"classes": {"a": "b"}}), OFF) == [f"spec.resources.classes: {forbidden}"]
    assert parse(document(annotations={f"{RDT}/default": "gold"}), OFF).metadata.annotations
    assert parse(document(classes={}, resources={}), OFF)


@pytest.mark.requirement("Q61")
def test_what_a_stored_pod_says_is_kept_whatever_the_gate() -> None:
    pod = parse(document({"rdt": "gold"}, resources={"classes": {"blockio": "slow"}}))
    stored = msgspec.json.encode(pod)
    errors = FieldErrors()
    class_resources.validate(pod, OFF, errors)
    assert len(errors.found) == 2
    assert msgspec.json.decode(stored, type=Pod) == pod


@pytest.mark.requirement("Q63")
def test_a_class_makes_an_object_a_few_bytes_larger() -> None:
    def size(pod: Pod) -> int:
        return len(msgspec.json.encode(pod))

    none, one = size(parse(document())), size(parse(document({"rdt": "gold"})))
    two = size(parse(document({"rdt": "gold", "blockio": "slow"})))
    assert one - none == len('"classes":{"rdt":"gold"}')
    assert two - one == len(',"blockio":"slow"')


@pytest.mark.requirement("Q94")
def test_classes_from_the_command_line_are_for_what_names_none() -> None:
    init = {"name": "setup", "image": "i", "resources": {"classes": {"rdt": "silver"}}}
    other = {"name": "annotated", "image": "i", "restartPolicy": "Always"}
    pod = parse(document(annotations={f"{RDT}/container.annotated": "bronze"}, initContainers=[init, other]))
    changed = class_resources.assign(
        pod, container_classes={"rdt": "gold", "oom": "first"}, pod_classes={"blockio": "slow"}
    )
    found = {container.name: container.resources.classes for _, container in class_resources.containers(changed.spec)}
    assert found == {
        "setup": {"rdt": "silver", "oom": "first"},
        "annotated": {"oom": "first"},
        "main": {"rdt": "gold", "oom": "first"},
    }
    assert changed.spec.resources == ResourceRequirements(classes={"blockio": "slow"})
    again = class_resources.assign(changed, container_classes={}, pod_classes={"blockio": "fast", "demo": "a"})
    assert again.spec.resources == ResourceRequirements(classes={"blockio": "slow", "demo": "a"})
    assert class_resources.assign(pod, container_classes={}, pod_classes={}) == pod
