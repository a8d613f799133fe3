"""A manifest: the Pods to run and the ConfigMaps and Secrets they use, decoded, defaulted and validated.

Called by the command line and, for static pods, by the agent. Every wrong field of every document is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from podkeep.api import class_resources, defaults
from podkeep.api.configuration import ConfigMap, Secret
from podkeep.api.decode import decode as decode_struct
from podkeep.api.decode import type_name
from podkeep.api.documents import Document
from podkeep.api.documents import parse as parse_documents
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod
from podkeep.api.support import refuse_unsupported
from podkeep.api.validation import objects as validation
from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import shortened

Key = tuple[str, str]
"""Namespace and name."""
Object = TypeVar("Object", Pod, ConfigMap, Secret)
_DEFAULT_GATES = FeatureGates()
_KINDS = ("Pod", "ConfigMap", "Secret", "List")
_SHOWN = 400
"""Characters of an object's kind, namespace and name in each of its problems; valid ones have no more."""


class Manifest(FrozenStruct, kw_only=True):
    """What a file asks for: pods in file order; ConfigMaps and Secrets by (namespace, name)."""

    pods: tuple[Pod, ...]
    config_maps: Mapping[Key, ConfigMap]
    secrets: Mapping[Key, Secret]


def parse(text: str, *, source: str, gates: FeatureGates = _DEFAULT_GATES, node: bool = False) -> Manifest:
    """Return the manifest in ``text``.

    :param source: name of the file for messages; ``-`` is standard input.
    :param gates: which features pods may ask for; every one that is on by default if nothing is said.
    :param node: a node agent takes care of the pods.
    :raises InvalidArgument: with one line per wrong field.
    """
    return decode(parse_documents(text, source=source), gates, node=node)


def decode(documents: Iterable[Document], gates: FeatureGates = _DEFAULT_GATES, *, node: bool = False) -> Manifest:
    """Return the manifest that ``documents`` form; a ``v1`` ``List`` counts as its items.

    :param gates: which features pods may ask for.
    :param node: a node agent takes care of the pods.
    :raises InvalidArgument: with one line per wrong field, each starting with file, document, kind and name.
    """
    reader = _Reader(gates, node=node)
    for document in documents:
        reader.read(document.value, document, "")
    if reader.problems:
        raise InvalidArgument("\n".join(reader.problems))
    return Manifest(pods=tuple(reader.pods.values()), config_maps=reader.config_maps, secrets=reader.secrets)


class _Reader:
    """Collects objects and problems over all documents."""

    def __init__(self, gates: FeatureGates, *, node: bool) -> None:
        self._gates = gates
        self._node = node
        self.pods: dict[Key, Pod] = {}
        self.config_maps: dict[Key, ConfigMap] = {}
        self.secrets: dict[Key, Secret] = {}
        self.problems: list[str] = []

    def read(self, value: Any, document: Document, path: str) -> None:
        """Decode one object and file it."""
        errors = FieldErrors()
        if not isinstance(value, dict):
            errors.add("", f"expected object, got {type_name(value)}")
        elif self._version(value, errors):
            kind = value["kind"]
            if kind == "Pod":
                self._pod(value, errors)
            elif kind == "ConfigMap":
                self._store(
                    value,
                    ConfigMap,
                    self.config_maps,
                    errors,
                    (defaults.default_config_map, validation.validate_config_map),
                )
            elif kind == "Secret":
                self._store(value, Secret, self.secrets, errors, (defaults.default_secret, validation.validate_secret))
            else:
                self._items(value, document, errors)
        where = _where(value, document, path)
        self.problems += [f"{where}: {error}" for error in errors.found]

    def _version(self, value: Mapping[str, Any], errors: FieldErrors) -> bool:
        version, kind = value.get("apiVersion"), value.get("kind")
        if not isinstance(kind, str) or not kind:
            errors.add("kind", "Required value")
            return False
        if not isinstance(version, str) or not version:
            errors.add("apiVersion", "Required value")
            return False
        meant = next((name for name in _KINDS if version == "v1" and name.lower() == kind.lower()), kind)
        if meant != kind:
            errors.add("kind", f"{kind} is not supported: kinds have capital letters, this one is written {meant}")
            return False
        if version != "v1" or kind not in _KINDS:
            # On a node it is a file of static pods: other objects are its API's.
            instead = "" if self._node else ", or `podkeep node`, whose API has the others"
            text = f"{kind} ({version}) is not supported by this version; use v1 Pod, ConfigMap or Secret{instead}"
            errors.add("kind", text)
            return False
        return True

    def _pod(self, value: Mapping[str, Any], errors: FieldErrors) -> None:
        def check(pod: Pod, errors: FieldErrors) -> None:
            validation.validate_pod(pod, errors)
            class_resources.validate(pod, self._gates, errors, node=self._node)
            refuse_unsupported(pod, errors, node=self._node)

        self._store(value, Pod, self.pods, errors, (defaults.default_pod, check))

    @staticmethod
    def _store(
        value: Mapping[str, Any],
        kind: type[Object],
        into: dict[Key, Object],
        errors: FieldErrors,
        rules: tuple[Callable[[Object], Object], Callable[[Object, FieldErrors], None]],
    ) -> None:
        default, validate = rules
        decoded = decode_struct(kind, value, errors)
        # A field of the wrong type was left empty: further rules would only complain about that.
        if errors.found:
            return
        complete = default(decoded)
        validate(complete, errors)
        key = (complete.metadata.namespace, complete.metadata.name)
        if key in into:
            errors.duplicate("metadata.name", "/".join(key))
        into[key] = complete

    def _items(self, value: Mapping[str, Any], document: Document, errors: FieldErrors) -> None:
        for name in value.keys() - {"apiVersion", "kind", "metadata", "items"}:
            errors.add(name, "unknown field")
        items = value.get("items")
        if not isinstance(items, list):
            errors.add("items", f"expected list, got {type_name(items)}")
            return
        for index, item in enumerate(items):
            if isinstance(item, dict) and item.get("kind") == "List":
                errors.add(f"items[{index}]", "a List may not hold a List")
            else:
                self.read(item, document, f"items[{index}]")


def _where(value: Any, document: Document, path: str) -> str:
    """Return ``FILE: document 2 (Pod default/web)``, as much of it as can be known."""
    text = f"{document.source}: document {document.index}"
    text += f" {path}" if path else ""
    if not isinstance(value, dict):
        return f"{text} (line {document.line})"
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kind, name = value.get("kind"), metadata.get("name")
    if not isinstance(kind, str) or not isinstance(name, str):
        return f"{text} (line {document.line})"
    namespace = metadata.get("namespace") or defaults.DEFAULT_NAMESPACE
    return f"{text} ({shortened(f'{kind} {namespace}/{name}', _SHOWN)})"
