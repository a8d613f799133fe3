"""Manifests of every kind as people write them: decoded, defaulted, found to be valid, encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.served import RESOURCES, Served
from podkeep.apiserver.requests.bodies import FieldValidation, decode_object, given_kind
from podkeep.apiserver.schema.table import Kind
from support.api_kinds import creation

_SERVED = Served()


def _corpus() -> Iterator[Any]:
    for path in sorted(Path(__file__).with_name("corpus").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            if manifest:
                yield pytest.param(manifest, id=f"{path.stem}-{manifest['kind']}-{manifest['metadata']['name']}")


_CORPUS = list(_corpus())


def _resource(manifest: Mapping[str, Any]) -> Resource:
    resource = _SERVED.by_kind(given_kind(manifest, Kind("", "", "")))
    assert resource is not None
    return resource


def _at(value: Any, path: str) -> Any:
    """Return what an object has at a path; a key may have dots."""
    if not path:
        return value
    if isinstance(value, list):
        index, _, rest = path.partition(".")
        return _at(value[int(index)], rest)
    for name in sorted(value, key=len, reverse=True):
        if path == name or path.startswith(f"{name}."):
            return _at(value[name], path[len(name) + 1 :])
    raise AssertionError(f"there is no {path} in {value}")


@pytest.mark.parametrize("manifest", _CORPUS)
def test_manifests_are_taken_as_they_are_written(manifest: Mapping[str, Any]) -> None:
    resource = _resource(manifest)
    sent = {name: value for name, value in manifest.items() if name != "expected"}
    warnings: list[str] = []
    decoded = decode_object(
        msgspec.json.encode(sent), "application/json", resource.kind, FieldValidation.STRICT, warnings
    )
    value, problems = creation(resource, decoded)
    assert (problems, warnings) == ([], [])
    for path, wanted in manifest.get("expected", {}).items():
        assert _at(value, path) == wanted, path
    # What is stored is read again as it is, and defaults change nothing a second time.
    encoded = msgspec.json.encode(value)
    again = decode_object(encoded, "application/json", resource.kind, FieldValidation.STRICT, warnings)
    resource.strategy.default(again)
    assert msgspec.json.decode(msgspec.json.encode(again)) == msgspec.json.decode(encoded)


def test_the_corpus_has_every_kind_that_is_stored() -> None:
    kinds = {_resource(param.values[0]).kind for param in _CORPUS}
    assert {resource.kind for resource in RESOURCES} - kinds == set()
    assert len(_CORPUS) >= 150
