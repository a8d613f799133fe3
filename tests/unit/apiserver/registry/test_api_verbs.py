"""The verbs on any resource, over a real store."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import AdmitAll, Attributes, Operation
from podkeep.apiserver.auth.user import MASTERS, User
from podkeep.apiserver.kinds.resources import Resource, Strategy, Target
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import StatusError, forbidden
from podkeep.apiserver.registry import registry as verbs
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request
from podkeep.apiserver.schema.table import Kind
from podkeep.apiserver.storage.store import Store

CONFIG_MAPS = Resource(kind=Kind("", "v1", "ConfigMap"), plural="configmaps")
NODES = Resource(kind=Kind("", "v1", "Node"), plural="nodes", namespaced=False, strategy=Strategy(status=True))
LEASES = Resource(
    kind=Kind("coordination.k8s.io", "v1", "Lease"),
    plural="leases",
    strategy=Strategy(create_on_update=True, unconditional_update=False),
)


def _default(value: Object) -> None:
    value.setdefault("spec", {}).setdefault("replicas", 1)


def _validate(value: Object, errors: FieldErrors) -> None:
    if value["spec"]["replicas"] < 0:
        errors.invalid("spec.replicas", value["spec"]["replicas"], "must be greater than or equal to 0")


DEPLOYMENTS = Resource(
    kind=Kind("apps", "v1", "Deployment"),
    plural="deployments",
    strategy=Strategy(default=_default, validate=_validate, status=True, generation=True),
)
PODS = Resource(
    kind=Kind("", "v1", "Pod"),
    plural="pods",
    strategy=Strategy(status=True, grace_period=lambda _, asked: 30 if asked is None else asked),
)
NOW = datetime(2026, 11, 23, 6, 0, 0, 500_000, tzinfo=UTC)
ME = Request(field_manager="me")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def run(path: Path, steps: Callable[[Registry, Store, Clock], Awaitable[None]], **more: Any) -> None:
    async def within() -> None:
        clock = Clock()
        async with Store(path / "db") as store:
            await steps(Registry(store, now=clock, **more), store, clock)

    asyncio.run(within())


def config_map(name: str = "a", **data: str) -> Object:
    return {"metadata": {"name": name}} | ({"data": data} if data else {})


def at(resource: Resource, name: str = "a", subresource: str = "") -> Target:
    return Target(resource, "default" if resource.namespaced else "", name, subresource)


async def refused(work: Awaitable[Any]) -> StatusError:
    with pytest.raises(StatusError) as caught:
        await work
    return caught.value


def test_what_is_created_has_an_identity(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = config_map(key="value")
        given["metadata"] |= {
            "uid": "mine",
            "generation": 7,
            "selfLink": "x",
            "creationTimestamp": "2000-01-01T00:00:00Z",
        }
        created = await registry.create(at(CONFIG_MAPS), given, ME)
        fields = metadata(created)
        assert (created["apiVersion"], created["kind"], created["data"]) == ("v1", "ConfigMap", {"key": "value"})
        assert (fields["namespace"], fields["creationTimestamp"], fields["resourceVersion"]) == (
            "default",
            "2026-11-23T06:00:00Z",
            "1",
        )
        assert len(fields["uid"]) == 36
        assert not {"generation", "selfLink"} & fields.keys()
        assert fields["managedFields"][0]["manager"] == "me"
        assert registry.get(at(CONFIG_MAPS)).revision == 1
        assert "namespace" not in given["metadata"]

    run(tmp_path, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"namespace": "other"}, 400, "does not match the namespace sent on the request"),
        ({"resourceVersion": "5"}, 400, "resourceVersion should not be set"),
        ({"name": ""}, 422, "metadata.name: Required value: name or generateName is required"),
        ({"name": "A"}, 422, 'metadata.name: Invalid value: "A"'),
        ({"labels": {"-": "x"}}, 422, "metadata.labels: Invalid value"),
        ({"labels": {"a": "-"}}, 422, "metadata.labels: Invalid value"),
        ({"annotations": {"a": "x" * 300_000}}, 422, "metadata.annotations: Too long"),
        ({"finalizers": ["mine"]}, 422, "neither a standard finalizer name nor is it fully qualified"),
        ({"finalizers": ["orphan", "foregroundDeletion"]}, 422, "cannot be both set"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a"}]}, 422, "metadata.ownerReferences.uid"),
        (
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True} for name in "ab"
                ]
            },
            422,
            "Only one reference can have Controller set to true",
        ),
    ],
)
def test_what_cannot_be_created(tmp_path: Path, changes: dict[str, Any], code: int, text: str) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = config_map()
        given["metadata"] |= changes
        error = await refused(registry.create(at(CONFIG_MAPS), given, ME))
        assert (error.code, text in error.message) == (code, True), error.message
        assert store.revision == 0

    run(tmp_path, steps)


def test_a_namespace_is_that_of_the_request(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = {"metadata": {"name": "n", "namespace": "default"}}
        node = await registry.create(at(NODES, ""), given, ME)
        assert "namespace" not in metadata(node)
        given = {"metadata": {"name": "n", "namespace": "other", "labels": {"a": "b"}}}
        node, _ = await registry.update(at(NODES, "n"), given, ME)
        assert "namespace" not in metadata(node)
        given = {"metadata": {"name": "a", "namespace": ""}}
        assert metadata(await registry.create(at(CONFIG_MAPS, ""), given, ME))["namespace"] == "default"

    run(tmp_path, steps)


def test_an_empty_uid_and_version_0_are_not_given(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        none = {"uid": "", "resourceVersion": "0"}
        given = config_map()
        given["metadata"] |= none
        created = await registry.create(at(CONFIG_MAPS), given, ME)
        given["data"] = {"a": "1"}
        after, _ = await registry.update(at(CONFIG_MAPS), given, ME)
        assert metadata(after)["uid"] == metadata(created)["uid"]
        after = await registry.patch(at(CONFIG_MAPS), {"metadata": none, "data": {"a": "2"}}, PatchType.MERGE, ME)
        assert metadata(after)["uid"] == metadata(created)["uid"]
        lease = {"metadata": {"name": "a", "uid": ""}}
        assert (await registry.update(at(LEASES), lease, ME))[1]
        lease["metadata"]["resourceVersion"] = "0"
        error = await refused(registry.update(at(LEASES), lease, ME))
        assert "must be specified for an update" in error.message
        assert (await registry.apply(at(CONFIG_MAPS, "b"), {"metadata": none}, ME, force=False))[1]

    run(tmp_path, steps)


def test_an_object_with_a_uid_is_not_created_anew(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = {"metadata": {"name": "a", "uid": "u1"}}
        error = await refused(registry.update(at(LEASES), given, ME))
        assert (error.code, error.reason) == (409, "Conflict")
        assert "Precondition failed: UID in precondition: u1, UID in object meta: " in error.message
        error = await refused(registry.apply(at(LEASES), given, ME, force=True))
        assert (error.code, error.reason) == (409, "Conflict")
        assert "uid mismatch: the provided object specified uid u1, and no existing object was found" in error.message
        assert store.revision == 0

    run(tmp_path, steps)


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        results = await asyncio.gather(
            *(registry.create(at(CONFIG_MAPS), config_map(), ME) for _ in range(3)), return_exceptions=True
        )
        assert [getattr(result, "reason", "") for result in results] == ["", "AlreadyExists", "AlreadyExists"]

    run(tmp_path, steps)


def resource_limit(size: int) -> int:
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    return before


def test_what_was_computed_from_a_write_that_fails_is_not_answered(tmp_path: Path) -> None:
    """A file that grows past its limit is one of the ways in which a disk refuses."""

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        here = at(CONFIG_MAPS)
        first = await registry.create(here, config_map(), ME)
        large = config_map(a="x" * 15_000)  # of larger ones the next write would wait for the end of this one
        stale = {**large, "metadata": {"name": "a", "resourceVersion": "1"}}
        finalized = config_map("b")
        finalized["metadata"]["finalizers"] = ["x.io/a"]
        failing = [{"op": "test", "path": "/data/a", "value": "y"}]
        tried = Request(field_manager="me", dry_run=True)
        limits = resource_limit(max(file.stat().st_size for file in tmp_path.iterdir()))
        try:
            answers = await asyncio.gather(
                registry.update(here, large, ME),
                registry.update(here, large, ME),
                registry.update(here, stale, ME),
                registry.update(here, config_map(), tried),
                registry.create(here, config_map(), ME),
                registry.patch(here, failing, PatchType.JSON, ME),
                registry.patch(here, {"metadata": {"uid": "other"}}, PatchType.MERGE, ME),
                registry.delete(here, DeleteOptions(uid="other"), ME),
                registry.delete(here, DeleteOptions(), ME),
                registry.patch(here, {}, PatchType.MERGE, ME),
                registry.delete(here, DeleteOptions(), ME),
                registry.apply(at(CONFIG_MAPS, subresource="status"), {}, ME, force=False),
                registry.create(at(CONFIG_MAPS, "b"), finalized, ME),
                registry.delete(at(CONFIG_MAPS, "b"), DeleteOptions(), ME),
                registry.delete(at(CONFIG_MAPS, "b"), DeleteOptions(), ME),
                return_exceptions=True,
            )
        finally:
            resource_limit(limits)
        assert [getattr(answer, "code", answer) for answer in answers] == [500] * len(answers)
        assert await registry.update(here, first, ME) == (first, False)

    run(tmp_path, steps)


@pytest.mark.slow
def test_a_namespace_has_no_more_objects_than_memory_for_them(tmp_path: Path) -> None:
    """Whoever may write there can take some away, and nodes and controllers go on."""
    node = Request(field_manager="n", user=User(name="system:node:n", groups=("system:nodes",)))
    root = Request(field_manager="r", user=User(name="root", groups=(MASTERS,)))
    full = "the objects of namespace default may have 3 MiB (api.namespace_size_limit); delete some first"

    async def fill(registry: Registry, store: Store, clock: Clock) -> None:
        for name in "abc":
            await registry.create(at(CONFIG_MAPS), config_map(name, a="x" * 1_000_000), ME)

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        error = await refused(registry.create(at(CONFIG_MAPS), config_map("d", a="x" * 1_000_000), ME))
        assert (error.code, error.message) == (403, f'configmaps "d" is forbidden: {full}')
        grows = {"data": {"b": "y" * 200_000}}
        assert full in (await refused(registry.patch(at(CONFIG_MAPS), grows, PatchType.MERGE, ME))).message
        elsewhere = at(CONFIG_MAPS)._replace(namespace="other")
        await registry.create(elsewhere, config_map("d", a="x" * 1_000_000), ME)
        for number, request in enumerate((node, root)):
            await registry.create(at(CONFIG_MAPS), config_map(f"e-{number}", a="x" * 200_000), request)
        held = {"metadata": {"finalizers": ["x.io/a"]}}
        await registry.patch(at(CONFIG_MAPS), held, PatchType.MERGE, root)
        await registry.delete(at(CONFIG_MAPS), DeleteOptions(), ME)
        assert "deletionTimestamp" in msgspec.json.decode(registry.get(at(CONFIG_MAPS)).value)["metadata"]
        # A finalizer can hold it back for ever.
        assert full in (await refused(registry.patch(at(CONFIG_MAPS), grows, PatchType.MERGE, ME))).message
        await registry.patch(at(CONFIG_MAPS, "b"), {"data": {"a": "y"}}, PatchType.MERGE, ME)
        await registry.delete(at(CONFIG_MAPS, "c"), DeleteOptions(), ME)
        await registry.create(at(CONFIG_MAPS), config_map("d", a="x" * 1_000_000), ME)

    run(tmp_path, fill, namespace_bytes=3 << 20)
    run(tmp_path, steps, namespace_bytes=3 << 20)  # after a start


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_a_small_write_does_not_wait_for_many_of_large_objects(tmp_path: Path, size: int) -> None:
    """Which one user asks for in a few bytes each; a large one of somebody else's has the turn after next.

    One of 20 kB takes 5 ms if its values are short.
    """

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        for name in ("large", "other"):
            await registry.create(at(CONFIG_MAPS), config_map(name, a="x" * size), ME)
        ended: list[str] = []

        async def ends(name: str, work: Awaitable[object]) -> None:
            await work
            ended.append(name)

        async def change(name: str, number: int, user: str) -> object:
            patch = {"metadata": {"annotations": {"number": str(number)}}}
            asked = Request(field_manager="me", user=User(name=user))
            return await registry.patch(at(CONFIG_MAPS, name), patch, PatchType.MERGE, asked)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(ends("large", change("large", number, "one")))
            group.create_task(ends("small", registry.create(at(CONFIG_MAPS), config_map("small"), ME)))
            group.create_task(ends("other", change("other", 0, "two")))
        assert ended.index("small") < 4
        assert ended.index("other") < 8

    run(tmp_path, steps)


def test_who_gives_up_waiting_takes_no_write_back(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        first = asyncio.ensure_future(registry.create(at(CONFIG_MAPS), config_map(), ME))
        again = [asyncio.ensure_future(registry.create(at(CONFIG_MAPS), config_map(), ME)) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        again[0].cancel()
        assert (await refused(again[1])).reason == "AlreadyExists"
        assert registry.get(at(CONFIG_MAPS)).revision == 1

    run(tmp_path, steps)


def test_names_are_generated(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = {"metadata": {"generateName": "web-"}}
        names = {metadata(await registry.create(at(CONFIG_MAPS, ""), given, ME))["name"] for _ in range(20)}
        assert len(names) == 20
        assert all(name.startswith("web-") and len(name) == 9 for name in names)

    run(tmp_path, steps)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        dry = Request(field_manager="me", dry_run=True)
        assert metadata(await registry.create(at(CONFIG_MAPS), config_map(), dry))["uid"]
        assert store.revision == 0
        await registry.create(at(CONFIG_MAPS), config_map(), ME)
        tried, _ = await registry.update(at(CONFIG_MAPS), config_map(key="x"), dry)
        assert tried["data"] == {"key": "x"}
        await registry.delete(at(CONFIG_MAPS), DeleteOptions(), dry)
        assert store.revision == 1

    run(tmp_path, steps)


def test_updates_are_checked_against_what_they_were_computed_from(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        first = await registry.create(at(CONFIG_MAPS), config_map(), ME)
        second, created = await registry.update(at(CONFIG_MAPS), {**first, "data": {"a": "1"}}, ME)
        assert not created
        error = await refused(registry.update(at(CONFIG_MAPS), {**first, "data": {"a": "2"}}, ME))
        assert (error.code, error.reason) == (409, "Conflict")
        assert "the object has been modified" in error.message
        third, _ = await registry.update(at(CONFIG_MAPS), config_map(a="3"), ME)
        assert metadata(third)["uid"] == metadata(first)["uid"]
        assert metadata(third)["creationTimestamp"] == metadata(first)["creationTimestamp"]
        assert int(metadata(third)["resourceVersion"]) == int(metadata(second)["resourceVersion"]) + 1
        for changes, code in (({"uid": "other"}, 409), ({"resourceVersion": "x"}, 400), ({"name": "b"}, 400)):
            value = config_map(a="4")
            value["metadata"] |= changes
            assert (await refused(registry.update(at(CONFIG_MAPS), value, ME))).code == code
        assert (await refused(registry.update(at(CONFIG_MAPS, "b"), config_map("b"), ME))).reason == "NotFound"

    run(tmp_path, steps)


def test_an_owner_that_is_named_twice_is_kept_once(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        one, two = ({"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"u-{name}"} for name in ("one", "two"))
        told = Request(field_manager="me")
        value: Object = {"metadata": {"name": "a", "ownerReferences": [two, one, two]}}
        created = await registry.create(at(CONFIG_MAPS), value, told)
        assert created["metadata"]["ownerReferences"] == [two, one]
        updated, _ = await registry.update(at(CONFIG_MAPS), value, told)
        assert updated["metadata"]["ownerReferences"] == [two, one]
        again = [{"op": "add", "path": "/metadata/ownerReferences/-", "value": one}]
        patched = await registry.patch(at(CONFIG_MAPS), again, PatchType.JSON, told)
        assert patched["metadata"]["ownerReferences"] == [two, one]
        rest = (
            "; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix"
            " your requests; duplicate UID(s) observed: u-"
        )
        start = ".metadata.ownerReferences contains duplicate entries"
        after = f"{start} after mutating admission happens"
        assert told.warnings == [f"{start}{rest}two", f"{start}{rest}two", f"{after}{rest}one"]

    run(tmp_path, steps)


def test_a_patch_does_not_rename(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        await registry.create(at(CONFIG_MAPS), config_map(), ME)
        renaming = {"metadata": {"name": "b"}}
        error = await refused(registry.patch(at(CONFIG_MAPS), renaming, PatchType.MERGE, ME))
        assert error.message == "the name of the object (b) does not match the name on the URL (a)"
        error = await refused(registry.patch(at(CONFIG_MAPS), {"metadata": None}, PatchType.MERGE, ME))
        assert error.message == "the name of the object (a based on URL) was undeterminable: name must be provided"

    run(tmp_path, steps)


@pytest.mark.parametrize(
    ("patch", "kind", "text"),
    [
        ({"kind": "Secret"}, PatchType.MERGE, "converting (v1.Secret) to (core.ConfigMap): unknown conversion"),
        ({"apiVersion": "v2"}, PatchType.MERGE, 'no kind "ConfigMap" is registered for version "v2"'),
        (
            [{"op": "replace", "path": "/kind", "value": "Map"}],
            PatchType.JSON,
            'no kind "Map" is registered for version "v1"',
        ),
        ({"kind": None}, PatchType.MERGE, ""),
        ({"kind": "Secret"}, PatchType.STRATEGIC, ""),  # which kube-apiserver does not look at
    ],
)
def test_a_patch_makes_no_other_kind(tmp_path: Path, patch: Any, kind: PatchType, text: str) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        created = await registry.create(at(CONFIG_MAPS), config_map(), ME)
        if not text:
            assert await registry.patch(at(CONFIG_MAPS), patch, kind, ME) == created
            return
        error = await refused(registry.patch(at(CONFIG_MAPS), patch, kind, ME))
        assert error.code == 422
        assert error.message.endswith(text)

    run(tmp_path, steps)


def test_an_update_that_changes_nothing_is_not_stored(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        created = await registry.create(at(DEPLOYMENTS), {"metadata": {"name": "a"}, "spec": {"replicas": 1}}, ME)
        clock.now += timedelta(hours=1)
        for same in (created, {"metadata": {"name": "a"}, "spec": {}}):
            after, _ = await registry.update(at(DEPLOYMENTS), same, ME)
            assert after == created
        assert store.revision == 1

    run(tmp_path, steps)


def test_some_kinds_are_created_by_an_update_and_need_a_version_after_that(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        lease = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}}
        created, was_created = await registry.update(at(LEASES), lease, ME)
        assert was_created
        error = await refused(registry.update(at(LEASES), lease, ME))
        assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in error.message
        assert not (await registry.update(at(LEASES), created, ME))[1]

    run(tmp_path, steps)


def test_status_and_spec_are_written_apart(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = {"metadata": {"name": "a"}, "spec": {"replicas": 2}, "status": {"replicas": 9}}
        created = await registry.create(at(DEPLOYMENTS), given, ME)
        assert "status" not in created
        assert metadata(created)["generation"] == 1
        both = {"metadata": {"name": "a"}, "spec": {"replicas": 3}, "status": {"replicas": 3}}
        told, _ = await registry.update(at(DEPLOYMENTS, subresource="status"), both, Request(field_manager="agent"))
        assert (told["spec"], told["status"], metadata(told)["generation"]) == ({"replicas": 2}, {"replicas": 3}, 1)
        entries = metadata(told)["managedFields"]
        assert [(entry["manager"], entry.get("subresource", "")) for entry in entries] == [
            ("agent", "status"),
            ("me", ""),
        ]
        both["status"] = {"replicas": 7}
        scaled, _ = await registry.update(at(DEPLOYMENTS), both, ME)
        assert (scaled["spec"], scaled["status"], metadata(scaled)["generation"]) == (
            {"replicas": 3},
            {"replicas": 3},
            2,
        )

    run(tmp_path, steps)


def test_patches_of_every_type(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        await registry.create(at(CONFIG_MAPS), config_map(a="1", b="2"), ME)
        target = at(CONFIG_MAPS)
        patch: Any = [{"op": "replace", "path": "/data/a", "value": "x"}]
        assert (await registry.patch(target, patch, PatchType.JSON, ME))["data"] == {"a": "x", "b": "2"}
        patch = {"data": {"b": None}}
        assert (await registry.patch(target, patch, PatchType.MERGE, ME))["data"] == {"a": "x"}
        patch = {"data": {"$patch": "replace", "c": "3"}}
        assert (await registry.patch(target, patch, PatchType.STRATEGIC, ME))["data"] == {"c": "3"}
        unknown: list[str] = []
        patched = await registry.patch(target, {"date": {}}, PatchType.MERGE, ME, unknown.extend)
        assert (unknown, "date" in patched) == (["date"], False)
        assert store.revision == 4

    run(tmp_path, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "kind", "code"),
    [
        ([{"op": "test", "path": "/data/a", "value": "2"}], PatchType.JSON, 422),
        ({}, PatchType.JSON, 400),
        ([{"op": "remove", "path": "/data/a"}] * 10_001, PatchType.JSON, 413),
        ({"data": "x"}, PatchType.MERGE, 422),
        ({"metadata": None}, PatchType.MERGE, 400),
        ({"metadata": {"name": "b"}}, PatchType.MERGE, 400),
        ({"metadata": {"namespace": "b"}}, PatchType.MERGE, 400),
        ({"metadata": {"resourceVersion": "17"}}, PatchType.MERGE, 409),
        ({"metadata": {"labels": {"$patch": "merge"}}}, PatchType.STRATEGIC, 400),
        ("x", PatchType.STRATEGIC, 400),
    ],
)
def test_patches_that_are_refused(tmp_path: Path, patch: Any, kind: PatchType, code: int) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = config_map(a="1")
        given["metadata"]["labels"] = {"x": "y"}
        await registry.create(at(CONFIG_MAPS), given, ME)
        error = await refused(registry.patch(at(CONFIG_MAPS), patch, kind, ME))
        assert error.code == code, error.message
        assert store.revision == 1

    run(tmp_path, steps)


def test_patches_at_once_are_computed_one_after_the_other(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        await registry.create(at(CONFIG_MAPS), config_map(), ME)
        patches = [{"data": {str(number): "x"}} for number in range(50)]
        await asyncio.gather(*(registry.patch(at(CONFIG_MAPS), patch, PatchType.MERGE, ME) for patch in patches))
        after = await registry.patch(at(CONFIG_MAPS), {}, PatchType.MERGE, ME)
        assert len(after["data"]) == 50

    run(tmp_path, steps)


def test_an_apply_creates_changes_and_conflicts(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        target, other = at(DEPLOYMENTS), Request(field_manager="other")
        created, was_created = await registry.apply(target, {"spec": {"replicas": 2}}, ME, force=False)
        assert was_created
        assert (created["spec"], metadata(created)["generation"]) == ({"replicas": 2}, 1)
        same, was_created = await registry.apply(target, {"spec": {"replicas": 2}}, ME, force=False)
        assert (same, was_created) == (created, False)
        error = await refused(registry.apply(target, {"spec": {"replicas": 3}}, other, force=False))
        assert (error.code, error.reason) == (409, "Conflict")
        assert error.details["causes"] == [
            {"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".spec.replicas"}
        ]
        taken, _ = await registry.apply(target, {"spec": {"replicas": 3}}, other, force=True)
        assert (taken["spec"], metadata(taken)["generation"]) == ({"replicas": 3}, 2)
        error = await refused(registry.apply(target, {"metadata": {"managedFields": []}}, ME, force=False))
        assert error.code == 400
        error = await refused(registry.apply(target, {"metadata": {"name": "b"}}, ME, force=False))
        assert error.code == 400
        assert (await refused(registry.apply(at(DEPLOYMENTS, "x", "status"), {}, ME, force=False))).code == 404

    run(tmp_path, steps)


def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        created = await registry.create(at(CONFIG_MAPS), config_map(), ME)
        uid = metadata(created)["uid"]
        for options, text in (
            (DeleteOptions(uid="other"), "the UID in the precondition"),
            (DeleteOptions(resource_version="9"), "the ResourceVersion in the precondition"),
        ):
            error = await refused(registry.delete(at(CONFIG_MAPS), options, ME))
            assert (error.code, text in error.message) == (409, True)
        gone, is_gone = await registry.delete(at(CONFIG_MAPS), DeleteOptions(uid=uid, resource_version="1"), ME)
        assert (is_gone, metadata(gone)["uid"]) == (True, uid)
        assert (await refused(registry.delete(at(CONFIG_MAPS), DeleteOptions(), ME))).code == 404

    run(tmp_path, steps)


def test_finalizers_keep_an_object_until_the_last_is_removed(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = config_map()
        given["metadata"]["finalizers"] = ["x.io/a", "x.io/b"]
        await registry.create(at(CONFIG_MAPS), given, ME)
        marked, is_gone = await registry.delete(at(CONFIG_MAPS), DeleteOptions(grace_period=5), ME)
        assert not is_gone
        assert metadata(marked)["deletionTimestamp"] == "2026-11-23T06:00:00Z"
        assert metadata(marked)["deletionGracePeriodSeconds"] == 0
        again, is_gone = await registry.delete(at(CONFIG_MAPS), DeleteOptions(), ME)
        assert (again, is_gone) == (marked, False)
        more = {"metadata": {"finalizers": ["x.io/a", "x.io/b", "x.io/c"]}}
        error = await refused(registry.patch(at(CONFIG_MAPS), more, PatchType.MERGE, ME))
        assert (
            'no new finalizers can be added if the object is being deleted, found new finalizers []string{"x.io/c"}'
            in (error.message)
        )
        fewer = {"metadata": {"finalizers": ["x.io/b"]}}
        await registry.patch(at(CONFIG_MAPS), fewer, PatchType.MERGE, ME)
        assert store.get(at(CONFIG_MAPS).key)
        await registry.patch(at(CONFIG_MAPS), {"metadata": {"finalizers": None}}, PatchType.MERGE, ME)
        assert store.get(at(CONFIG_MAPS).key) is None

    run(tmp_path, steps)


@pytest.mark.parametrize(
    ("propagation", "finalizers"),
    [("Orphan", ["orphan"]), ("Foreground", ["foregroundDeletion"]), ("Background", None), ("", ["orphan"])],
)
def test_dependents_are_told_by_finalizers(tmp_path: Path, propagation: str, finalizers: list[str] | None) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = config_map()
        given["metadata"]["finalizers"] = ["orphan"]
        await registry.create(at(CONFIG_MAPS), given, ME)
        marked, is_gone = await registry.delete(at(CONFIG_MAPS), DeleteOptions(propagation=propagation), ME)
        assert is_gone is (finalizers is None)
        if finalizers:
            assert metadata(marked)["finalizers"] == finalizers

    run(tmp_path, steps)


def test_dependents_may_be_let_go_while_an_object_is_being_deleted(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        async def deleted(target: Target, options: DeleteOptions) -> tuple[list[str], bool]:
            after, is_gone = await registry.delete(target, options, ME)
            return metadata(after).get("finalizers", []), is_gone

        here = at(CONFIG_MAPS)
        await registry.create(here, config_map(), ME)
        assert await deleted(here, DeleteOptions(propagation="Foreground")) == (["foregroundDeletion"], False)
        assert await deleted(here, DeleteOptions()) == (["foregroundDeletion"], False)
        assert await deleted(here, DeleteOptions(propagation="Orphan")) == (["orphan"], False)
        _, is_gone = await deleted(here, DeleteOptions(propagation="Background"))
        assert is_gone
        assert store.get(here.key) is None
        pod = at(PODS)
        await registry.create(pod, {"metadata": {"name": "a"}}, ME)
        assert await deleted(pod, DeleteOptions(propagation="Foreground")) == (["foregroundDeletion"], False)
        assert await deleted(pod, DeleteOptions(propagation="Background")) == (["foregroundDeletion"], False)
        assert await deleted(pod, DeleteOptions(grace_period=9, propagation="Orphan")) == (["orphan"], False)
        assert (await deleted(pod, DeleteOptions(grace_period=0, propagation="Background")))[1]

    run(tmp_path, steps)


def test_a_pod_is_deleted_when_its_agent_has_ended_it(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        await registry.create(at(PODS), {"metadata": {"name": "a"}}, ME)
        marked, is_gone = await registry.delete(at(PODS), DeleteOptions(), ME)
        assert not is_gone
        assert metadata(marked)["deletionTimestamp"] == "2026-11-23T06:00:30Z"
        assert metadata(marked)["deletionGracePeriodSeconds"] == 30
        longer, _ = await registry.delete(at(PODS), DeleteOptions(grace_period=60), ME)
        assert longer == marked
        clock.now += timedelta(seconds=5)
        shorter, _ = await registry.delete(at(PODS), DeleteOptions(grace_period=10), ME)
        assert metadata(shorter)["deletionTimestamp"] == "2026-11-23T06:00:10Z"
        assert metadata(shorter)["deletionGracePeriodSeconds"] == 10
        told, _ = await registry.update(at(PODS, subresource="status"), {**shorter, "status": {"phase": "Failed"}}, ME)
        assert told["status"] == {"phase": "Failed"}
        _, is_gone = await registry.delete(at(PODS), DeleteOptions(grace_period=0), ME)
        assert is_gone
        assert store.get(at(PODS).key) is None

    run(tmp_path, steps)


def test_a_grace_period_may_be_longer_than_time(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        most = (1 << 63) - 1
        await registry.create(at(PODS), {"metadata": {"name": "a"}}, ME)
        for grace in (most, most - 1, 300_000_000_000):
            marked, _ = await registry.delete(at(PODS), DeleteOptions(grace_period=grace), ME)
            assert metadata(marked)["deletionTimestamp"] == "9999-12-31T23:59:59Z"
            assert metadata(marked)["deletionGracePeriodSeconds"] == grace
        shorter, _ = await registry.delete(at(PODS), DeleteOptions(grace_period=10), ME)
        assert metadata(shorter)["deletionTimestamp"] == "2026-11-23T06:00:10Z"
        assert metadata(shorter)["deletionGracePeriodSeconds"] == 10

    run(tmp_path, steps)


def test_a_clock_before_the_year_1000(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        clock.now = NOW.replace(year=1)
        created = await registry.create(at(CONFIG_MAPS), config_map(), ME)
        assert metadata(created)["creationTimestamp"] == "0001-11-23T06:00:00Z"

    run(tmp_path, steps)


class OnlyConfigMaps(AdmitAll):
    def __init__(self) -> None:
        self.seen: list[tuple[Operation, str]] = []

    def mutate(self, attributes: Attributes) -> None:
        if attributes.value is not None:
            attributes.value["metadata"].setdefault("labels", {})["admitted"] = "yes"

    def validate(self, attributes: Attributes) -> None:
        self.seen.append((attributes.operation, attributes.target.name))
        if attributes.target.resource is not CONFIG_MAPS:
            raise forbidden(attributes.target.resource.plural, "", attributes.target.name, "only ConfigMaps")


def test_admission_changes_and_refuses(tmp_path: Path) -> None:
    admission = OnlyConfigMaps()

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        created = await registry.create(at(CONFIG_MAPS, ""), config_map(), ME)
        assert metadata(created)["labels"] == {"admitted": "yes"}
        await registry.update(at(CONFIG_MAPS), config_map(a="1"), ME)
        await registry.delete(at(CONFIG_MAPS), DeleteOptions(), ME)
        assert (await refused(registry.create(at(NODES, ""), {"metadata": {"name": "n"}}, ME))).code == 403
        assert admission.seen == [
            (Operation.CREATE, "a"),
            (Operation.UPDATE, "a"),
            (Operation.DELETE, "a"),
            (Operation.CREATE, "n"),
        ]

    run(tmp_path, steps, admission=admission)


def test_objects_have_a_largest_size(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        error = await refused(registry.create(at(CONFIG_MAPS), config_map(a="x" * verbs.MAX_OBJECT_BYTES), ME))
        assert (error.code, error.reason) == (413, "RequestEntityTooLarge")

    run(tmp_path, steps)


@pytest.mark.slow
def test_an_object_too_large_for_its_managers_is_stored_without_them(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        keys = {f"{number:06}{'x' * 190}": "" for number in range(5_000)}
        created = await registry.create(at(CONFIG_MAPS), config_map(**keys), ME)
        assert "managedFields" not in metadata(created)
        assert len(created["data"]) == 5_000
        less = config_map(**dict(list(keys.items())[:100]))
        await registry.create(at(CONFIG_MAPS, "b"), less | {"metadata": {"name": "b"}}, ME)
        patched = await registry.patch(at(CONFIG_MAPS, "b"), {"data": keys}, PatchType.MERGE, ME)
        assert "managedFields" not in metadata(patched)
        error = await refused(registry.apply(at(CONFIG_MAPS, "c"), {"data": keys}, ME, force=False))
        assert error.code == 413
        await registry.create(at(CONFIG_MAPS, "d"), config_map("d"), ME)
        error = await refused(registry.apply(at(CONFIG_MAPS, "d"), {"data": keys}, ME, force=True))
        assert error.code == 413

    run(tmp_path, steps)


@pytest.mark.slow
def test_an_object_gets_no_more_values_by_patches_than_it_may_be_created_with(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        await registry.create(at(CONFIG_MAPS), config_map(**{f"a{number}": "" for number in range(9_000)}), ME)
        more = {f"b{number}": "" for number in range(2_000)}
        copies = [{"op": "copy", "from": "/data/a0", "path": f"/data/{name}"} for name in more]
        for patch, kind in (({"data": more}, PatchType.MERGE), (copies, PatchType.JSON)):
            error = await refused(registry.patch(at(CONFIG_MAPS), patch, kind, ME))
            assert (error.code, error.message) == (413, "Request entity too large: limit is 10000 values")
        error = await refused(registry.apply(at(CONFIG_MAPS), {"data": more}, ME, force=False))
        assert error.code == 413
        assert store.revision == 1

    run(tmp_path, steps)


@pytest.mark.slow
def test_what_older_rules_let_in_may_stay_and_become_less(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        await registry.create(at(CONFIG_MAPS), config_map(), ME)
        old = store.get(at(CONFIG_MAPS).key)
        assert old is not None
        value = msgspec.json.decode(old.value)
        value["data"] = {f"a{number}": "" for number in range(15_000)}
        await store.put(at(CONFIG_MAPS).key, value, old)
        await registry.patch(at(CONFIG_MAPS), {"data": {"a0": "x"}}, PatchType.MERGE, ME)
        await registry.patch(at(CONFIG_MAPS), {"data": {"a0": None}}, PatchType.MERGE, ME)
        error = await refused(registry.patch(at(CONFIG_MAPS), {"data": {"b": "", "c": ""}}, PatchType.MERGE, ME))
        assert error.code == 413

    run(tmp_path, steps)


@pytest.mark.slow
def test_managed_fields_that_are_too_many_are_not_kept(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = config_map(**{f"a{number}": "" for number in range(9_000)})
        for name in ("one", "other"):
            request = Request(field_manager=name)
            new, _ = await registry.apply(at(CONFIG_MAPS), given, request, force=False)
        assert len(metadata(new)["managedFields"]) == 2
        error = await refused(registry.apply(at(CONFIG_MAPS), given, Request(field_manager="third"), force=False))
        assert (error.code, error.message) == (
            413,
            "Request entity too large: limit is 20000 values of managedFields",
        )

    run(tmp_path, steps)


def test_validation_of_a_kind_is_told_with_that_of_metadata(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        given = {"metadata": {"name": "A"}, "spec": {"replicas": -1}}
        error = await refused(registry.create(at(DEPLOYMENTS), given, ME))
        assert [cause["field"] for cause in error.details["causes"]] == ["metadata.name", "spec.replicas"]
        assert error.message.startswith('Deployment.apps "A" is invalid: [metadata.name: Invalid value: "A": a lower')
        stored = await registry.create(at(DEPLOYMENTS), {"metadata": {"name": "a"}, "spec": {}}, ME)
        changed = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "-"}}, "spec": {"replicas": -1}}
        error = await refused(registry.update(at(DEPLOYMENTS), changed, ME))
        assert [cause["field"] for cause in error.details["causes"]] == ["metadata.labels", "spec.replicas"]

    run(tmp_path, steps)


def test_admission_is_asked_about_what_is_posted_and_stored_nowhere(tmp_path: Path) -> None:
    class Tokens(AdmitAll):
        def mutate(self, attributes: Attributes) -> None:
            assert attributes.value is not None
            attributes.value["seen"] = f"{attributes.operation} {attributes.target.subresource}"

        def validate(self, attributes: Attributes) -> None:
            if attributes.dry_run:
                raise forbidden("pods", "", attributes.target.name, "no")

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        body: Object = {"spec": {}}
        assert registry.admit(at(PODS, subresource="token"), body, ME) == {"spec": {}, "seen": "CREATE token"}
        assert body == {"spec": {}}
        with pytest.raises(StatusError, match='pods "a" is forbidden: no'):
            registry.admit(at(PODS, subresource="token"), body, Request(dry_run=True))
        assert store.revision == 0

    run(tmp_path, steps, admission=Tokens())


def test_who_asks_for_what_nothing_acts_on_is_told(tmp_path: Path) -> None:
    """At each change of the specification, but not the controller that keeps objects of its own."""
    resource = Resource(kind=Kind("apps", "v1", "ReplicaSet"), plural="replicasets", unserved="no pods are made of it")
    said = "this ReplicaSet is only stored: no pods are made of it"
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "1", "controller": True}

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        here, told = at(resource), Request(field_manager="me")
        await registry.create(here, {"metadata": {"name": "a"}, "spec": {"replicas": 7}}, told)
        assert told.warnings == [said]
        await registry.patch(here, {"metadata": {"labels": {"a": "b"}}}, PatchType.MERGE, told)
        assert told.warnings == [said]
        await registry.patch(here, {"spec": {"replicas": 8}}, PatchType.MERGE, told)
        assert told.warnings == [said, said]
        quiet = Request(field_manager="controller")
        owned = {"metadata": {"name": "owned", "ownerReferences": [owner]}, "spec": {"replicas": 7}}
        await registry.create(at(resource, "owned"), owned, quiet)
        assert quiet.warnings == []
        manual = {
            "name": "x",
            "ownerReferences": [owner],
            "annotations": {"cronjob.kubernetes.io/instantiate": "manual"},
        }
        await registry.create(at(resource, "x"), {"metadata": manual, "spec": {"replicas": 7}}, told)
        assert told.warnings == [said] * 3

    run(tmp_path, steps)


def test_only_of_what_is_valid_there_are_warnings(tmp_path: Path) -> None:
    def warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
        return [f"{new['spec']['replicas']} are many"]

    def validate(value: Object, errors: FieldErrors) -> None:
        errors.required("spec.replicas", value.get("spec", {}).get("replicas"))

    resource = Resource(
        kind=Kind("apps", "v1", "Deployment"),
        plural="deployments",
        strategy=Strategy(validate=validate, warnings=warnings),
    )

    async def steps(registry: Registry, store: Store, clock: Clock) -> None:
        here, told = at(resource), Request(field_manager="me")
        error = await refused(registry.create(here, {"metadata": {"name": "a"}, "spec": {}}, told))
        assert (error.code, told.warnings) == (422, [])
        await registry.create(here, {"metadata": {"name": "a"}, "spec": {"replicas": 7}}, told)
        patch = {"spec": {"replicas": None}}
        error = await refused(registry.patch(here, patch, PatchType.MERGE, told))
        assert (error.code, told.warnings) == (422, ["7 are many"])

    run(tmp_path, steps)
