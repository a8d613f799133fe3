"""The metadata that every object has: filling it in, and its rules (apimachinery: ``ValidateObjectMeta``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.patch.managers import MAX_ANNOTATION_BYTES, annotation_bytes
from podkeep.apiserver.patch.values import equal

Object: TypeAlias = dict[str, Any]
"""An object as decoded JSON, held against its type."""

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
MAX_MANAGER_CHARACTERS = 128
_SYSTEM_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generation",
)


def metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an object; an empty one if it has none."""
    found: dict[str, Any] = value.get("metadata", {})
    return found


def has_condition(status: Mapping[str, Any], kind: str, wanted: str = "True") -> bool:
    return any(item.get("type") == kind and item.get("status") == wanted for item in status.get("conditions", ()))


def path_segment(name: str) -> str:
    """Return why ``name`` cannot be a part of a URL's path, or nothing."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    found = [f"'{character}'" for character in "/%" if character in name]
    return f"may not contain {' or '.join(found)}" if found else ""


def initialize(value: Object, *, uid: str, now: str) -> None:
    """Give a new object its identity; what a client set there does not count."""
    fields = value["metadata"]
    for name in _SYSTEM_FIELDS:
        fields.pop(name, None)
    fields |= {"uid": uid, "creationTimestamp": now}


def keep_identity(value: Object, old: Object) -> None:
    """Take over what an update cannot change, and what it left out of that."""
    fields, before = value["metadata"], old["metadata"]
    for name in ("creationTimestamp", "deletionTimestamp", "generation"):
        keep_field(fields, before, name)
    # Left out they are as before; another value is for validate_update() to refuse.
    for name in ("uid", "deletionGracePeriodSeconds"):
        if name not in fields:
            keep_field(fields, before, name)
    fields.pop("selfLink", None)


def keep_field(fields: dict[str, Any], before: Mapping[str, Any], name: str) -> None:
    """Make a field what it was, or take it away if there was none."""
    if name in before:
        fields[name] = before[name]
    else:
        fields.pop(name, None)


def drop_repeated_owners(value: Object, when: str = "") -> list[str]:
    """Drop owners that an object names again, and return what is to be said of them (``dedupOwnerReferences``).

    :param when: they were found, if not in what the client sent.
    """
    kept: dict[frozenset[tuple[str, Any]], Mapping[str, Any]] = {}
    repeated = []
    for owner in metadata(value).get("ownerReferences", ()):
        fields = frozenset(owner.items())
        if fields in kept:
            repeated.append(owner.get("uid", ""))
        kept.setdefault(fields, owner)
    if not repeated:
        return []
    value["metadata"]["ownerReferences"] = list(kept.values())
    return [
        f".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and"
        " may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed:"
        f" {', '.join(repeated)}"
    ]


def validate(value: Object, *, namespaced: bool, name_rule: Callable[[str], str], errors: FieldErrors) -> None:
    """Note what is wrong with the metadata of any object."""
    fields = metadata(value)
    if prefix := fields.get("generateName", ""):
        # What is generated ends with letters and digits, so that a hyphen before them is right.
        _note(
            errors,
            "metadata.generateName",
            prefix,
            name_rule(f"{prefix.removesuffix('-')}" if len(prefix) > 1 else prefix),
        )
    if not fields.get("name"):
        errors.add("metadata.name", "Required value: name or generateName is required")
    else:
        _note(errors, "metadata.name", fields["name"], name_rule(fields["name"]) or path_segment(fields["name"]))
    if namespaced:
        if errors.required("metadata.namespace", fields.get("namespace", "")):
            _note(errors, "metadata.namespace", fields["namespace"], names.dns_label(fields["namespace"]))
    elif fields.get("namespace"):
        errors.forbidden("metadata.namespace", "not allowed on this type")
    if fields.get("generation", 0) < 0:
        errors.invalid("metadata.generation", fields["generation"], "must be greater than or equal to 0")
    _maps(fields, errors)
    _owners(fields.get("ownerReferences", ()), errors)
    _finalizers(fields.get("finalizers", ()), errors)
    _managers(fields.get("managedFields", ()), errors)


def _note(errors: FieldErrors, path: str, value: str, why: str) -> None:
    if why:
        errors.invalid(path, value, why)


def _maps(fields: Mapping[str, Any], errors: FieldErrors) -> None:
    for key, content in fields.get("labels", {}).items():
        for why in names.label_key_problems(key):
            _note(errors, "metadata.labels", key, why)
        _note(errors, "metadata.labels", content, names.label_value(content))
    annotations = fields.get("annotations", {})
    for key in annotations:
        # Case does not matter here (ValidateAnnotations).
        for why in names.label_key_problems(key.lower()):
            _note(errors, "metadata.annotations", key, why)
    if annotation_bytes(annotations) > MAX_ANNOTATION_BYTES:
        errors.add("metadata.annotations", f"Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes")


def _owners(owners: Iterable[Mapping[str, Any]], errors: FieldErrors) -> None:
    path = "metadata.ownerReferences"
    controller = ""
    for owner in owners:
        if not owner.get("apiVersion"):
            errors.invalid(f"{path}.apiVersion", "", "version must not be empty")
        for name in ("kind", "name", "uid"):
            if not owner.get(name):
                errors.invalid(f"{path}.{name}", "", "must not be empty")
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            errors.invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get("controller"):
            this = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                errors.add(
                    path,
                    'Invalid value: Only one reference can have Controller set to true. Found "true" in references for'
                    f" {controller} and {this}",
                )
            controller = controller or this


def _finalizers(finalizers: Iterable[str], errors: FieldErrors) -> None:
    found = list(finalizers)
    for name in found:
        if problems := names.label_key_problems(name):
            for why in problems:
                errors.invalid("metadata.finalizers", name, why)
        elif "/" not in name and name not in (ORPHAN, FOREGROUND, "kubernetes"):
            errors.invalid(
                "metadata.finalizers", name, "name is neither a standard finalizer name nor is it fully qualified"
            )
    if {ORPHAN, FOREGROUND} <= set(found):
        errors.invalid("metadata.finalizers", found, f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set")


def _managers(entries: Iterable[Mapping[str, Any]], errors: FieldErrors) -> None:
    for index, entry in enumerate(entries):
        path = f"metadata.managedFields[{index}]"
        if entry.get("operation") not in ("Apply", "Update"):
            errors.invalid(f"{path}.operation", entry.get("operation", ""), "must be `Apply` or `Update`")
        if entry.get("fieldsType") != "FieldsV1":
            errors.invalid(f"{path}.fieldsType", entry.get("fieldsType", ""), "must be `FieldsV1`")
        validate_manager(entry.get("manager", ""), f"{path}.manager", errors)
        if len(entry.get("subresource", "")) > 256:
            errors.add(f"{path}.subresource", "Too long: may not be more than 256 bytes")


def validate_manager(name: str, path: str, errors: FieldErrors) -> None:
    """Note why ``name`` cannot be a field manager."""
    if len(name) > MAX_MANAGER_CHARACTERS:
        errors.add(path, f"Too long: may not be more than {MAX_MANAGER_CHARACTERS} bytes")
    elif not re.fullmatch(r"[^\x00-\x1f\x7f]*", name):
        errors.invalid(path, name, "should only contain printable characters")


def validate_update(value: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update changes that it may not, of the metadata of any object."""
    fields, before = metadata(value), metadata(old)
    if "deletionTimestamp" in before:
        extra = sorted(set(fields.get("finalizers", ())) - set(before.get("finalizers", ())))
        if extra:
            shown = "{" + ", ".join(f'"{name}"' for name in extra) + "}"
            errors.forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, found new finalizers []string" + shown,
            )
    for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if not equal(fields.get(name), before.get(name)):
            errors.invalid(f"metadata.{name}", fields.get(name, ""), "field is immutable")
