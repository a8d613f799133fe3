"""Server-side apply and managedFields, by the rules of KEP-555."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.api.fields import MAX_CHARACTERS
from podkeep.apiserver.patch import managers
from podkeep.apiserver.patch.errors import PatchError
from podkeep.apiserver.patch.field_set import FieldSet, shown
from podkeep.apiserver.patch.managers import ApplyConflict, Write
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.table import Kind, kubernetes

DEPLOYMENT = kubernetes().kind(Kind("apps", "v1", "Deployment"))


def by(
    manager: str, *, now: str = "2026-11-23T06:00:00Z", subresource: str = "", ignored: FieldSet | None = None
) -> Write:
    return Write(manager, DEPLOYMENT, "apps/v1", now, subresource, ignored or FieldSet())


def deployment(*containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "web"} | ({"labels": labels} if labels else {})
    if containers:
        spec = {**spec, "template": {"spec": {"containers": list(containers)}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata} | ({"spec": spec} if spec else {})


def applied(
    live: dict[str, Any] | None, config: dict[str, Any], manager: str = "a", *, force: bool = False
) -> dict[str, Any]:
    before = copy(live), copy(config)
    after = managers.apply(live, config, by(manager), force=force)
    assert (live, config) == before
    return after


def updated(live: dict[str, Any] | None, new: dict[str, Any], manager: str = "u", **more: Any) -> dict[str, Any]:
    return managers.track_update(live, new, by(manager, **more))


def owned(value: dict[str, Any], manager: str) -> list[str]:
    """Return what a manager owns, as messages show it."""
    for entry in value["metadata"].get("managedFields", []):
        if entry["manager"] == manager:
            return [shown(path) for path in FieldSet.decode(entry["fieldsV1"]).paths()]
    return []


def names(value: dict[str, Any]) -> list[str]:
    return [item["name"] for item in value["spec"]["template"]["spec"]["containers"]]


def test_who_creates_owns_what_is_there_and_containers_of_it() -> None:
    created = updated(None, deployment({"name": "a", "image": "x"}, labels={"app": "web"}, replicas=2))
    assert owned(created, "u") == [
        ".metadata.labels",
        ".metadata.labels.app",
        ".spec.replicas",
        '.spec.template.spec.containers[name="a"]',
        '.spec.template.spec.containers[name="a"].image',
        '.spec.template.spec.containers[name="a"].name',
    ]
    (entry,) = created["metadata"]["managedFields"]
    assert {name: entry[name] for name in entry if name != "fieldsV1"} == {
        "manager": "u",
        "operation": "Update",
        "apiVersion": "apps/v1",
        "time": "2026-11-23T06:00:00Z",
        "fieldsType": "FieldsV1",
    }


def test_what_is_always_there_is_owned_through_its_members() -> None:
    # As kube-apiserver has it of a Deployment that was created: pointers and maps are owned themselves, structs and the
    # list of containers are not.
    container = {"name": "a", "resources": {}, "securityContext": {"runAsUser": 1}}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    spec: dict[str, Any] = {"containers": [container], "securityContext": {}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    created = updated(None, deployment(strategy=strategy, template=template))
    item = 'k:{"name":"a"}'
    of_container = {".": {}, "f:name": {}, "f:resources": {}, "f:securityContext": {".": {}, "f:runAsUser": {}}}
    assert created["metadata"]["managedFields"][0]["fieldsV1"] == {
        "f:spec": {
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {"f:containers": {item: of_container}, "f:securityContext": {}},
            },
        }
    }
    # The container was there with its resources, so that whoever sets a limit adds a map and an amount.
    limited = copy(created)
    limited["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    path = '.spec.template.spec.containers[name="a"].resources.limits'
    assert owned(updated(created, limited, "v"), "v") == [path, f"{path}.cpu"]


def test_who_applies_owns_what_the_configuration_says() -> None:
    after = applied(None, deployment({"name": "a", "image": "x"}, labels={"app": "web"}, replicas=2))
    assert after["metadata"]["managedFields"] == [
        {
            "manager": "a",
            "operation": "Apply",
            "apiVersion": "apps/v1",
            "time": "2026-11-23T06:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {
                    "f:replicas": {},
                    "f:template": {
                        "f:spec": {
                            "f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}, "f:name": {}}},
                        }
                    },
                },
            },
        }
    ]


def test_an_update_takes_the_fields_that_it_changes() -> None:
    live = applied(None, deployment(replicas=1, paused=True))
    after = updated(live, deployment(replicas=5, paused=True))
    assert owned(after, "a") == [".spec.paused"]
    assert owned(after, "u") == [".spec.replicas"]


def test_an_update_that_changes_nothing_owns_nothing() -> None:
    live = applied(None, deployment(replicas=1))
    assert updated(live, deployment(replicas=1)) == live


def test_what_an_update_removes_is_owned_by_nobody() -> None:
    live = applied(None, deployment(replicas=1, paused=True))
    after = updated(live, deployment(replicas=1))
    assert owned(after, "a") == [".spec.replicas"]


def test_an_apply_that_changes_what_another_owns_is_a_conflict() -> None:
    live = updated(None, deployment(replicas=1))
    with pytest.raises(ApplyConflict) as caught:
        applied(live, deployment(replicas=2))
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "u" using apps/v1: .spec.replicas'
    assert caught.value.code == 409


def test_what_is_told_of_conflicts_is_bounded() -> None:
    """Each path below a container has its name, which is a client's, as is who is said to own them: both were long."""
    name, env = "x" * 100_000, [{"name": f"v{number}", "value": "a"} for number in range(100)]
    live = updated(None, deployment({"name": name, "env": env}), "u" * 100_000)
    with pytest.raises(ApplyConflict) as caught:
        applied(live, deployment({"name": name, "env": [{**item, "value": "b"} for item in env]}))
    assert str(caught.value).startswith("Apply failed with 100 conflicts: conflicts with ")
    assert len(str(caught.value)) < MAX_CHARACTERS + 4 * len(name)
    assert 1 < len(caught.value.told) < 12
    assert len(caught.value.conflicts) == 100


def test_several_conflicts_are_told_by_manager() -> None:
    live = updated(None, deployment(replicas=1, paused=True))
    live = applied(live, deployment(paused=False), "b", force=True)
    with pytest.raises(ApplyConflict) as caught:
        applied(live, deployment(replicas=2, paused=True))
    assert str(caught.value) == (
        'Apply failed with 2 conflicts: conflicts with "b":\n- .spec.paused\nconflicts with "u" using apps/v1:\n'
        "- .spec.replicas"
    )


def test_an_apply_with_force_takes_the_fields() -> None:
    live = updated(None, deployment(replicas=1, paused=True))
    after = applied(live, deployment(replicas=2), force=True)
    assert after["spec"] == {"replicas": 2, "paused": True}
    assert ".spec.replicas" not in owned(after, "u")
    assert owned(after, "a") == [".spec.replicas"]


def test_the_same_value_is_owned_by_both() -> None:
    live = applied(None, deployment(replicas=2), "a")
    after = applied(live, deployment(replicas=2), "b")
    assert owned(after, "a") == owned(after, "b") == [".spec.replicas"]


def test_what_is_not_applied_any_more_is_removed() -> None:
    live = applied(None, deployment(replicas=2, paused=True, labels={"a": "1", "b": "2"}))
    after = applied(live, deployment(replicas=2, labels={"b": "2"}))
    assert after["spec"] == {"replicas": 2}
    assert after["metadata"]["labels"] == {"b": "2"}


def test_what_another_owns_too_is_not_removed() -> None:
    live = applied(None, deployment(replicas=2, paused=True), "a")
    live = applied(live, deployment(paused=True), "b")
    after = applied(live, deployment(replicas=2), "a")
    assert after["spec"] == {"replicas": 2, "paused": True}
    assert owned(after, "a") == [".spec.replicas"]


def test_items_of_lists_are_owned_one_by_one() -> None:
    live = applied(None, deployment({"name": "a", "image": "1"}, {"name": "b", "image": "1"}), "a")
    live = applied(live, deployment({"name": "c", "image": "1"}), "b")
    assert names(live) == ["a", "b", "c"]
    after = applied(live, deployment({"name": "b", "image": "2"}), "a")
    assert names(after) == ["b", "c"]
    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "2"


def test_an_item_to_which_another_added_a_field_stays() -> None:
    live = applied(None, deployment({"name": "a", "image": "1"}, {"name": "b", "image": "1"}), "a")
    live = applied(live, deployment({"name": "b", "tty": True}), "b")
    after = applied(live, deployment({"name": "a", "image": "1"}), "a")
    assert after["spec"]["template"]["spec"]["containers"][1] == {"name": "b", "tty": True}


def test_keys_that_a_list_has_a_default_for() -> None:
    live = applied(None, deployment({"name": "a", "ports": [{"containerPort": 80}]}))
    after = applied(
        live, deployment({"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}]})
    )
    (container,) = after["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP", "name": "http"}]


def test_sets_are_merged_by_value() -> None:
    one, other = deployment(), deployment()
    one["metadata"]["finalizers"] = ["a/x", "a/y"]
    other["metadata"]["finalizers"] = ["b/z", "a/x"]
    live = applied(applied(None, one, "a"), other, "b")
    assert live["metadata"]["finalizers"] == ["b/z", "a/x", "a/y"]
    assert owned(live, "b") == ['.metadata.finalizers[="a/x"]', '.metadata.finalizers[="b/z"]']
    after = applied(live, deployment(), "a")
    assert after["metadata"]["finalizers"] == ["b/z", "a/x"]


def test_atomic_fields_are_owned_and_replaced_as_a_whole() -> None:
    live = applied(None, deployment(selector={"matchLabels": {"a": "1"}}), "a")
    assert owned(live, "a") == [".spec.selector"]
    with pytest.raises(ApplyConflict, match=r"\.spec\.selector"):
        applied(live, deployment(selector={"matchLabels": {"b": "2"}}), "b")
    after = applied(live, deployment(selector={"matchLabels": {"b": "2"}}), "b", force=True)
    assert after["spec"]["selector"] == {"matchLabels": {"b": "2"}}
    assert owned(after, "a") == []


@pytest.mark.parametrize(
    ("live", "config", "merged"),
    [
        ("abc", "cx", "abcx"),
        ("abc", "xc", "abxc"),
        ("abc", "xa", "xabc"),
        ("abc", "cba", "cba"),
        ("abc", "axb", "axbc"),
        ("ab", "xyz", "abxyz"),
        ("", "ab", "ab"),
        ("abcd", "dxb", "acdxb"),
    ],
)
def test_the_order_of_merged_lists(live: str, config: str, merged: str) -> None:
    before = updated(None, deployment(*({"name": name} for name in live), replicas=1))
    after = applied(before, deployment(*({"name": name} for name in config)), force=True)
    assert "".join(names(after)) == merged


def test_an_apply_that_changes_nothing_keeps_its_time() -> None:
    live = applied(None, deployment(replicas=2))
    again = managers.apply(live, deployment(replicas=2), by("a", now="2027-01-01T00:00:00Z"), force=False)
    assert again == live


def test_an_object_without_managers_is_owned_by_before_first_apply() -> None:
    live = deployment(replicas=1, paused=True)
    with pytest.raises(ApplyConflict, match='"before-first-apply" using apps/v1'):
        applied(live, deployment(replicas=2))
    after = applied(live, deployment(replicas=2), force=True)
    assert owned(after, "before-first-apply") == [".spec.paused"]


def test_an_object_without_managers_is_not_tracked_by_updates() -> None:
    assert "managedFields" not in updated(deployment(replicas=1), deployment(replicas=2))["metadata"]


def test_kubectl_takes_over_what_client_side_apply_set() -> None:
    config = deployment(replicas=1, paused=True)
    text = msgspec.json.encode(config).decode()
    live = copy(config)
    live["metadata"]["annotations"] = {managers.LAST_APPLIED: text}
    live = updated(None, live, "kubectl-client-side-apply")
    after = applied(live, deployment(replicas=2, paused=True), "kubectl")
    assert after["spec"] == {"replicas": 2, "paused": True}
    assert msgspec.json.decode(after["metadata"]["annotations"][managers.LAST_APPLIED])["spec"]["replicas"] == 2
    with pytest.raises(ApplyConflict):
        applied(live, deployment(replicas=2), "other")


def test_the_last_applied_annotation_is_written_as_go_does() -> None:
    live = deployment(replicas=1)
    live["metadata"]["annotations"] = {managers.LAST_APPLIED: "{}"}
    config = deployment(replicas=1)
    config["metadata"]["annotations"] = {"why": "<a> & <b>"}
    after = applied(updated(None, live, "kubectl-client-side-apply"), config, "kubectl", force=True)
    text = after["metadata"]["annotations"][managers.LAST_APPLIED]
    assert r'"why":"\u003ca\u003e \u0026 \u003cb\u003e"' in text
    assert text.endswith("}\n")
    assert msgspec.json.decode(text) == config


def test_kubectl_does_not_take_what_changed_since_client_side_apply() -> None:
    config = deployment(replicas=1, paused=True)
    live = copy(config)
    live["metadata"]["annotations"] = {managers.LAST_APPLIED: msgspec.json.encode(config).decode()}
    live = updated(None, live, "kubectl-client-side-apply")
    scaled = copy(live)
    scaled["spec"]["replicas"] = 7
    live = updated(live, scaled, "scaler")
    with pytest.raises(ApplyConflict, match=r'conflict with "scaler" using apps/v1: \.spec\.replicas'):
        applied(live, deployment(replicas=2, paused=False), "kubectl")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"apiVersion": "v1"}', '{"apiVersion": "apps/v1", "spec": 1}'])
def test_a_last_applied_annotation_that_is_not_one(text: str) -> None:
    live = deployment(replicas=1)
    live["metadata"]["annotations"] = {managers.LAST_APPLIED: text}
    live = updated(None, live, "u")
    with pytest.raises(ApplyConflict):
        applied(live, deployment(replicas=2), "kubectl")


def test_the_oldest_updates_become_one_entry() -> None:
    live = updated(None, deployment(labels={"a": "b"}), "creator", now="2026-11-22T00:00:00Z")
    for number in range(13):
        new = copy(live)
        new["metadata"].setdefault("labels", {})[f"l{number}"] = "x"
        live = updated(live, new, f"m{number:02}", now=f"2026-11-23T06:00:{number:02}Z")
    entries = live["metadata"]["managedFields"]
    assert [entry["manager"] for entry in entries] == ["ancient-changes", *(f"m{number:02}" for number in range(4, 13))]
    labels = ["", ".a", ".l0", ".l1", ".l2", ".l3"]
    assert owned(live, "ancient-changes") == [f".metadata.labels{label}" for label in labels]
    assert entries[0]["time"] == "2026-11-23T06:00:03Z"


def test_a_subresource_has_an_entry_of_its_own_and_changes_nothing_else() -> None:
    status = FieldSet()
    status.insert(["f:spec"])
    live = updated(None, deployment(replicas=1), "u")
    new = copy(live) | {"status": {"replicas": 1}}
    new["spec"]["replicas"] = 3
    new["metadata"]["managedFields"] = []
    after = updated(live, new, "u", subresource="status", ignored=status)
    assert [(entry["manager"], entry.get("subresource")) for entry in after["metadata"]["managedFields"]] == [
        ("u", None),
        ("u", "status"),
    ]
    assert ".spec.replicas" in owned(after, "u")


@pytest.mark.parametrize("entries", [[], [{}]])
def test_managed_fields_are_cleared_when_that_is_asked_for(entries: list[Any]) -> None:
    live = updated(None, deployment(replicas=1))
    new = deployment(replicas=1)
    new["metadata"]["managedFields"] = entries
    assert "managedFields" not in updated(live, new)["metadata"]


@pytest.mark.parametrize(
    "entries", ["x", [{"operation": "Steal"}], [{"operation": "Update", "fieldsType": "FieldsV2"}]]
)
def test_managed_fields_that_are_wrong_are_not_taken(entries: Any) -> None:
    live = updated(None, deployment(replicas=1))
    new = deployment(replicas=1)
    new["metadata"]["managedFields"] = entries
    assert updated(live, new) == live


def test_a_configuration_may_not_have_managed_fields() -> None:
    config = deployment(replicas=1)
    config["metadata"]["managedFields"] = []
    with pytest.raises(PatchError, match=r"metadata\.managedFields must be nil"):
        applied(None, config)


@pytest.mark.parametrize(
    ("containers", "text"),
    [
        ([{"name": "a"}, {"name": "a"}], 'duplicate entries for key \\[name="a"\\]'),
        ([{"image": "a"}], "omits all key fields"),
        (["a"], "non-map elements"),
    ],
)
def test_lists_that_cannot_be_applied(containers: list[Any], text: str) -> None:
    with pytest.raises(PatchError, match=text):
        applied(None, deployment(*containers))


def test_an_item_that_is_there_twice_can_be_changed() -> None:
    """Older objects may have one, such as a variable of the environment."""
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    live = updated(None, deployment({"name": "a", "env": env}))
    after = updated(live, deployment({"name": "a", "env": env[:1]}), "v")
    assert '.spec.template.spec.containers[name="a"].env[name="A"]' in owned(after, "v")
    assert applied(live, deployment(replicas=1))["spec"]["template"] == live["spec"]["template"]


_ELEMENTS = st.one_of(
    st.text(max_size=4).map(lambda text: f"f:{text}"),
    st.text(max_size=4).map(lambda text: "v:" + msgspec.json.encode(text).decode()),
    st.integers(0, 9).map(lambda number: f"i:{number}"),
    st.dictionaries(st.text(min_size=1, max_size=2), st.text(max_size=2) | st.integers(0, 9), min_size=1).map(
        lambda keys: "k:" + msgspec.json.encode(keys, order="sorted").decode()
    ),
)
_PATHS = st.lists(st.lists(_ELEMENTS, min_size=1, max_size=4).map(tuple), max_size=8).map(set)


def _of(paths: set[Any]) -> FieldSet:
    found = FieldSet()
    for path in paths:
        found.insert(path)
    return found


@given(_PATHS, _PATHS)
@pytest.mark.slow
def test_sets_of_fields_are_sets(one: set[Any], other: set[Any]) -> None:
    left, right = _of(one), _of(other)
    assert set(left.union(right).paths()) == one | other
    assert left.union(right, right, left) == left.union(right)
    assert left == _of(one)
    assert set(left.intersection(right).paths()) == one & other
    assert set(left.difference(right).paths()) == one - other
    below = {path for path in one if any(path[:length] in other for length in range(1, len(path) + 1))}
    assert set(left.without(right).paths()) == one - below
    assert bool(left) is bool(one)
    assert all(left.has(path) for path in one)
    assert FieldSet.decode(msgspec.json.decode(msgspec.json.encode(left.fields_v1()))) == left


def test_fields_that_are_nested_too_deeply() -> None:
    fields: dict[str, Any] = {}
    for _ in range(5000):
        fields = {"f:a": fields}
    entry = {"manager": "x", "operation": "Update", "fieldsType": "FieldsV1", "apiVersion": "apps/v1"}
    for hostile in (fields, {'k:{"a":' + "[" * 5000 + "]" * 5000 + "}": {}}, {"v:" + "[" * 5000 + "]" * 5000: {}}):
        with pytest.raises(PatchError):
            managers.read([{**entry, "fieldsV1": hostile}])


def test_what_kubectl_applied_last_may_be_hostile() -> None:
    live = updated(None, deployment(replicas=1))
    for text in ('{"spec":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}", "[" * 100_000):
        live["metadata"]["annotations"] = {managers.LAST_APPLIED: text}
        with pytest.raises(ApplyConflict):
            managers.apply(live, deployment(replicas=2), by("kubectl"), force=False)


def test_what_kubectl_applied_last_is_not_kept_if_it_is_too_large() -> None:
    config = deployment(replicas=1)
    config["metadata"]["annotations"] = {managers.LAST_APPLIED: "{}", "a": "x" * 200_000}
    after = managers.apply(None, config, by("kubectl"), force=False)
    assert after["metadata"]["annotations"] == {"a": "x" * 200_000}
    config["metadata"]["annotations"]["a"] = "x"
    after = managers.apply(None, config, by("kubectl"), force=False)
    assert '"replicas":1' in after["metadata"]["annotations"][managers.LAST_APPLIED]


@pytest.mark.parametrize("fields", [[], {"x": {}}, {"f": {}}, {"k:[]": {}}, {"k:{": {}}, {"i:true": {}}, {"f:a": 1}])
def test_fields_that_are_not_fields_v1(fields: Any) -> None:
    with pytest.raises(PatchError):
        FieldSet.decode(fields)
