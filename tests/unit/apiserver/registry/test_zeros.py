"""What is left out when it is zero, in writes of every sort: what is stored, and who owns it.

``zeros.json`` has manifests, and paths of them with a value that is empty, 0 or false: whether it is stored, and
whether who applies it owns it. The facts are those of Kubernetes 1.36: its Go types and their field managers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from podkeep.apiserver.endpoints.resources import applied
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.kinds.storage import persistent_volumes
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.patch.field_set import FieldSet, key_element
from podkeep.apiserver.registry.registry import PatchType, Registry, Request
from podkeep.apiserver.requests.bodies import FieldValidation, decode_object, given_kind
from podkeep.apiserver.schema.table import Kind
from podkeep.apiserver.schema.types import List, ListType, Map, Struct, Type
from podkeep.apiserver.storage.store import Store

_CORPUS = msgspec.json.decode(Path(__file__).with_name("zeros.json").read_bytes())
_SERVED = Served()


class Case(NamedTuple):
    kind: str
    path: str
    zero: Any
    kept: bool
    """It is stored."""
    owned: bool
    """Who applies it owns it."""


CASES = [Case(*given) for given in _CORPUS["cases"]]


class Sample:
    """A manifest without and with a zero, and the two as bodies and patches have them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.path = case.path.split("/")
        self.without: Object = _CORPUS["bases"][case.kind]
        self.given = _with(self.without, self.path, case.zero)
        found = _SERVED.by_kind(given_kind(self.without, Kind("", "", "")))
        assert found is not None
        self.resource: Resource = found

    def target(self, name: str) -> Target:
        return Target(self.resource, "default" if self.resource.namespaced else "", name)

    def body(self, value: Object, name: str) -> Object:
        sent = msgspec.json.encode(_named(value, name))
        return decode_object(sent, "application/json", self.resource.kind, FieldValidation.STRICT, [])

    def config(self, name: str) -> Object:
        sent = msgspec.json.encode(_named(self.given, name))
        return applied(sent, self.resource, FieldValidation.STRICT, [])

    def patch(self, kind: PatchType, live: Object) -> Any:
        if kind is PatchType.JSON:
            return [_operation(live, self.path, self.case.zero)]
        return _patch(live, self.path, self.case.zero, self.resource.struct if kind is PatchType.STRATEGIC else None)

    def is_stored(self, value: Object) -> bool:
        """Tell whether an object has the zero; a default in its place is none."""
        found = _at(value, self.path)
        return found == self.case.zero and found is not None

    def owned(self, value: Object, manager: str) -> bool:
        """Tell whether a manager owns the zero, or the atomic value around it."""
        place = tuple(_elements(self.given, self.path, self.resource.struct))
        return any(
            FieldSet.decode(entry["fieldsV1"]).has(place)
            for entry in metadata(value)["managedFields"]
            if entry["manager"] == manager
        )


def _named(value: Object, name: str) -> Object:
    return {**value, "metadata": {**value["metadata"], "name": name}}


def _with(value: Any, path: list[str], zero: Any) -> Any:
    if not path:
        return zero
    if isinstance(value, list):
        return [_with(item, path[1:], zero) if str(index) == path[0] else item for index, item in enumerate(value)]
    value = value or {}
    return {**value, path[0]: _with(value.get(path[0]), path[1:], zero)}


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value[int(name)] if isinstance(value, list) else (value or {}).get(name)
    return value


def _operation(live: Object, path: list[str], zero: Any) -> dict[str, Any]:
    """Return the JSON patch that adds a zero, with what is missing around it."""
    there = next(end for end in range(len(path)) if end == len(path) - 1 or _at(live, path[: end + 1]) is None)
    value = zero
    for name in reversed(path[there + 1 :]):
        value = {name: value}
    return {"op": "add", "path": "/" + "/".join(path[: there + 1]), "value": value}


def _patch(live: Any, path: list[str], zero: Any, kind: Type | None) -> Any:
    """Return the merge patch that sets a zero, or the strategic one if there is a type."""
    if not path:
        return zero
    name, rest = path[0], path[1:]
    inner = (live or {}).get(name)
    field = kind.fields[name] if isinstance(kind, Struct) else None
    if not isinstance(inner, list):
        return {name: _patch(inner, rest, zero, field.type if field else None)}
    if field is None or not field.patch_merge_key:
        return {name: _with(inner, rest, zero)}
    assert isinstance(field.type, List)
    item = inner[int(rest[0])]
    key = {field.patch_merge_key: item[field.patch_merge_key]}
    return {name: [key | _patch(item, rest[1:], zero, field.type.items)]}


def _elements(value: Any, path: list[str], kind: Type) -> Iterator[str]:
    """Yield the elements of a path in ``managedFields``, as far as something is told apart."""
    for name in path:
        if isinstance(kind, Struct | Map) and not kind.atomic:
            yield f"f:{name}"
            kind = kind.fields[name].type if isinstance(kind, Struct) else kind.values
            value = value[name]
        elif isinstance(kind, List) and kind.list_type is ListType.MAP:
            value = value[int(name)]
            given = {key: value.get(key, kind.key_defaults.get(key)) for key in kind.keys}
            yield key_element({key: item for key, item in given.items() if item is not None})
            kind = kind.items
        else:
            return


def by(manager: str) -> Request:
    return Request(field_manager=manager)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.path}")
def test_a_zero_is_stored_where_the_type_in_go_keeps_it(tmp_path: Path, case: Case) -> None:
    sample = Sample(case)

    async def create(registry: Registry) -> None:
        created = await registry.create(sample.target(""), sample.body(sample.given, "created"), by("c"))
        assert sample.is_stored(created) is case.kept
        # Around an atomic value there is something else that is owned.
        if case.kept:
            assert sample.owned(created, "c")

    async def change(registry: Registry, verb: PatchType | None) -> None:
        name = "put" if verb is None else verb.name.lower()
        before = await registry.create(sample.target(""), sample.body(sample.without, name), by("c"))
        if verb is None:
            given = sample.body(_with(before, sample.path, case.zero), name)
            after, _ = await registry.update(sample.target(name), given, by("u"))
        else:
            after = await registry.patch(sample.target(name), sample.patch(verb, before), verb, by("u"))
        assert sample.is_stored(after) is case.kept, name
        # Who sets what a default set already changes nothing.
        if case.kept and not sample.is_stored(before):
            assert sample.owned(after, "u"), name
        else:
            assert after == before, name

    async def apply(registry: Registry, name: str) -> None:
        target, config = sample.target(name), sample.config(name)
        after, _ = await registry.apply(target, config, by("a"), force=True)
        assert sample.is_stored(after) is case.kept, name
        assert sample.owned(after, "a") is case.owned, name
        again, _ = await registry.apply(target, config, by("a"), force=True)
        assert again == after, name

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store)
            await create(registry)
            for verb in (None, *PatchType):
                await change(registry, verb)
            await registry.create(sample.target(""), sample.body(sample.without, "applied"), by("c"))
            for name in ("applied", "new"):
                await apply(registry, name)

    asyncio.run(steps())


def test_who_applies_a_zero_that_another_applied_has_a_conflict(tmp_path: Path) -> None:
    """It is not in what is stored, so that each apply adds it anew."""
    sample = Sample(Case("Deployment", "spec/paused", zero=False, kept=False, owned=True))

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            registry = Registry(store)
            target, config = sample.target("a"), sample.config("a")
            await registry.apply(target, config, by("first"), force=False)
            with pytest.raises(StatusError) as caught:
                await registry.apply(target, config, by("second"), force=False)
            assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "first": .spec.paused'
            forced, _ = await registry.apply(target, config, by("second"), force=True)
            assert not sample.owned(forced, "first")
            assert sample.owned(forced, "second")

    asyncio.run(steps())


def test_a_change_of_what_an_earlier_release_stored_may_leave_out_its_zeros(tmp_path: Path) -> None:
    """The source of a volume is immutable, and a client has it without them."""
    source = {"server": "s", "path": "/"}
    (resource,) = persistent_volumes.RESOURCES
    target = Target(resource, "", "a")
    base = _CORPUS["bases"]["PersistentVolume"]
    spec = {name: item for name, item in base["spec"].items() if name != "hostPath"}
    label = {"metadata": {"labels": {"a": "b"}}}

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            created = await Registry(store).create(target, {**base, "spec": {**spec, "nfs": source}}, by("c"))
            earlier = {**created, "spec": {**created["spec"], "nfs": {**source, "readOnly": False}}}
            await store.put(target.key, earlier, store.newest(target.key))
            changed = await Registry(store).patch(target, label, PatchType.MERGE, by("u"))
            assert changed["spec"] == created["spec"]
            assert changed["metadata"]["labels"] == {"a": "b"}

    asyncio.run(steps())


def test_who_applies_a_zero_that_an_update_of_an_earlier_release_owns_has_no_conflict(tmp_path: Path) -> None:
    """It was stored then, and the update did what today's would: it set nothing."""
    sample = Sample(Case("Deployment", "spec/paused", zero=False, kept=False, owned=True))
    target = sample.target("a")

    async def steps() -> None:
        async with Store(tmp_path / "db") as store:
            created = await Registry(store).create(target, sample.body(sample.without, "a"), by("c"))
            (entry,) = metadata(created)["managedFields"]
            entry["fieldsV1"]["f:spec"]["f:paused"] = {}
            earlier = _with(created, sample.path, sample.case.zero)
            await store.put(target.key, earlier, store.newest(target.key))
            assert sample.owned(earlier, "c")
            registry = Registry(store)
            # Written with what the client was shown of owners, as Go's clients do.
            seen = {**earlier, "metadata": {**metadata(earlier), "resourceVersion": "", "labels": {"a": "b"}}}
            await registry.update(target, sample.body(seen, "a"), by("u"))
            applied, _ = await registry.apply(target, sample.config("a"), by("a"), force=False)
            assert sample.owned(applied, "a")
            assert not sample.owned(applied, "c")

    asyncio.run(steps())
