"""Namespaces, alone and over a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cluster import namespaces
from podkeep.apiserver.kinds.resources import Target
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import DeleteOptions, Registry, Request
from podkeep.apiserver.storage.store import Store
from support import kinds

(NAMESPACES,) = namespaces.RESOURCES
ME = Request(field_manager="me")


def test_a_namespace_has_its_label_its_finalizer_and_its_phase() -> None:
    given = {"metadata": {"labels": {"a": "b", namespaces.NAME_LABEL: "other"}}, "spec": {"finalizers": ["x.io/y"]}}
    new = kinds.created(NAMESPACES, given)
    assert new["metadata"]["labels"] == {"a": "b", namespaces.NAME_LABEL: "a"}
    assert new["spec"]["finalizers"] == ["x.io/y", "kubernetes"]
    assert new["status"] == {"phase": "Active"}
    assert NAMESPACES.strategy.selectable(new) == {"status.phase": "Active"}
    assert kinds.table(NAMESPACES, new) == {"Name": "a", "Status": "Active", "Age": "60m"}


def test_an_update_keeps_the_finalizers_of_the_spec() -> None:
    new, _ = kinds.updated(NAMESPACES, {}, {"spec": {"finalizers": ["x.io/y"]}})
    assert new["spec"] == {"finalizers": ["kubernetes"]}
    new, _ = kinds.updated(NAMESPACES, {}, {"spec": None, "metadata": {"labels": None}})
    assert new["spec"] == {"finalizers": ["kubernetes"]}
    assert new["metadata"]["labels"] == {namespaces.NAME_LABEL: "a"}


@pytest.mark.parametrize(
    ("finalizer", "expected"),
    [
        ("x.io/y", []),
        (
            "mine",
            [
                'spec.finalizers: Invalid value: "mine": name is neither a standard finalizer name nor is it fully'
                " qualified"
            ],
        ),
        ("-/y", [f'spec.finalizers: Invalid value: "-/y": {names.label_key("-/y")}']),
    ],
)
def test_finalizers(finalizer: str, expected: list[str]) -> None:
    assert kinds.problems(NAMESPACES, {"spec": {"finalizers": [finalizer]}}) == expected
    new = kinds.created(NAMESPACES, {"spec": {"finalizers": [finalizer]}})
    errors = FieldErrors()
    NAMESPACES.strategy.parts["finalize"].validate(new, new, errors)
    assert [str(error) for error in errors.found] == [
        text.replace("spec.finalizers:", "spec.finalizers[0]:") for text in expected
    ]


def test_the_phase_follows_the_deletion() -> None:
    assert kinds.status_problems(NAMESPACES, {}, {"phase": "Terminating"}) == [
        "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
    ]
    errors = FieldErrors()
    deleted = {"metadata": {"deletionTimestamp": "2026-11-23T11:00:00Z"}, "status": {"phase": "Active"}}
    NAMESPACES.strategy.validate_status(deleted, deleted, errors)
    assert [str(error) for error in errors.found] == [
        "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"
    ]


def test_a_deleted_namespace_stays_until_its_spec_has_no_finalizer(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store)
            target = Target(NAMESPACES, "", "a")
            await registry.create(target, {"metadata": {"name": "a"}}, ME)
            for _ in range(2):
                deleted, gone = await registry.delete(target, DeleteOptions(), ME)
                assert not gone
                assert deleted["status"]["phase"] == "Terminating"
                assert "deletionTimestamp" in deleted["metadata"]
                assert "deletionGracePeriodSeconds" not in deleted["metadata"]
            assert store.revision == 2  # the second deletion changes nothing
            change: dict[str, Any] = {"metadata": {"name": "a", "labels": {"x": "y"}}}
            updated, _ = await registry.update(target, change, ME)
            assert updated["spec"] == {"finalizers": ["kubernetes"]}
            finalized, _ = await registry.update(target._replace(subresource="finalize"), change, ME)
            assert "finalizers" not in finalized["spec"] if "spec" in finalized else True
            with pytest.raises(StatusError) as caught:
                registry.get(target)
            assert caught.value.code == 404

    asyncio.run(steps())


def test_a_generated_name_is_in_the_label(tmp_path: Path) -> None:
    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            created = await Registry(store).create(Target(NAMESPACES, ""), {"metadata": {"generateName": "a-"}}, ME)
            fields = created["metadata"]
            assert fields["labels"] == {namespaces.NAME_LABEL: fields["name"]}

    asyncio.run(steps())
