"""Who manages which fields: ``metadata.managedFields``, and what writes and server-side applies make of it.

The rules are those of structured-merge-diff's updater and of kube-apiserver around it (KEP-555, server-side apply).
Objects are as the API serves them; their ``metadata.managedFields`` are read where that is said, and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from podkeep.api.fields import MAX_CHARACTERS
from podkeep.apiserver.patch import typed
from podkeep.apiserver.patch.errors import PatchError, as_json
from podkeep.apiserver.patch.field_set import FieldSet, shown
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.types import Struct
from podkeep.base.frozen import FrozenStruct

APPLY = "Apply"
UPDATE = "Update"
MAX_UPDATE_MANAGERS = 10
"""Entries of updates that are kept; the oldest of more become one, ``ancient-changes``."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which client-side apply keeps what it applied."""
MAX_ANNOTATION_BYTES = 256 << 10
"""All keys and values of an object's annotations together."""
BEFORE_FIRST_APPLY = "before-first-apply"


class Manager(NamedTuple):
    """What tells entries of ``managedFields`` apart. ``api_version`` is empty for applies."""

    name: str
    operation: str
    api_version: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


class Owned(FrozenStruct):
    """What a manager owns: fields, in which version, and since when (RFC 3339; empty if that is not known)."""

    fields: FieldSet
    api_version: str
    time: str = ""


Managed = dict[Manager, Owned]


class ApplyConflict(PatchError):
    """Others own fields that an apply would change. ``conflicts`` has each with its path, sorted.

    ``told`` has managers and paths as texts, the first ones of many.
    """

    def __init__(self, conflicts: list[tuple[Manager, tuple[str, ...]]]) -> None:
        self.conflicts = sorted(conflicts)
        self.told = list(_told(self.conflicts))
        if len(conflicts) == 1:
            ((manager, path),) = self.told
            message = f"Apply failed with 1 conflict: conflict with {manager}: {path}"
        else:
            lines: list[str] = []
            for manager, group in groupby(self.told, key=lambda conflict: conflict[0]):
                lines.append(f"conflicts with {manager}:")
                lines += [f"- {path}" for _, path in group]
            message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
        super().__init__(message, code=409)


def _told(conflicts: Iterable[tuple[Manager, tuple[str, ...]]]) -> Iterator[tuple[str, str]]:
    """Yield conflicts as texts, none after ``MAX_CHARACTERS``: clients choose names of managers and keys of items, and
    each path below a key has all of it."""
    characters = 0
    for manager, path in conflicts:
        if characters >= MAX_CHARACTERS:
            return
        texts = str(manager), shown(path)
        characters += sum(map(len, texts))
        yield texts


def _paths(*paths: tuple[str, ...]) -> FieldSet:
    found = FieldSet()
    for path in paths:
        found.insert([f"f:{name}" for name in path])
    return found


# What every object has and every client sends back: if it were owned, each apply would conflict (stripMetaManager).
_NEVER_OWNED = _paths(
    ("apiVersion",),
    ("kind",),
    ("metadata",),
    *(
        ("metadata", name)
        for name in ("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "resourceVersion")
    ),
)


def read(entries: Any) -> Managed:
    """Return what ``metadata.managedFields`` says.

    :raises PatchError: if it is not a list of entries.
    """
    managed: Managed = {}
    if not isinstance(entries or [], list):
        raise PatchError("managedFields must be a list")
    for entry in entries or []:
        operation = entry.get("operation")
        if operation not in (APPLY, UPDATE):
            raise PatchError(f"operation must be `Apply` or `Update`, got {as_json(operation, 80)}")
        if entry.get("fieldsType") != "FieldsV1":
            raise PatchError("fieldsType must be `FieldsV1`")
        version = entry.get("apiVersion", "")
        manager = Manager(
            entry.get("manager", ""), operation, version if operation == UPDATE else "", entry.get("subresource", "")
        )
        managed[manager] = Owned(FieldSet.decode(entry.get("fieldsV1", {})), version, entry.get("time", ""))
    return managed


def write(managed: Managed) -> list[dict[str, Any]]:
    """Return the entries of ``metadata.managedFields``: applies first, then by time."""
    entries = []
    for manager, owned in sorted(managed.items(), key=lambda item: (item[0].operation, item[1].time, item[0])):
        entry = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": owned.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": owned.fields.fields_v1(),
            "subresource": manager.subresource,
        }
        entries.append({name: content for name, content in entry.items() if content or name == "fieldsV1"})
    return entries


class Write(FrozenStruct):
    """Who writes what: the manager's name, the kind, the subresource, fields that this request cannot change, and the
    time (RFC 3339, whole seconds)."""

    manager: str
    struct: Struct
    api_version: str
    now: str
    subresource: str = ""
    ignored: FieldSet = msgspec.field(default_factory=FieldSet)

    def by(self, operation: str) -> Manager:
        """Return the manager that this write is for."""
        version = self.api_version if operation == UPDATE else ""
        return Manager(self.manager, operation, version, self.subresource)


def track_update(old: dict[str, Any] | None, new: dict[str, Any], write_: Write) -> dict[str, Any]:
    """Return ``new`` with the ``managedFields`` that an update (or creation, patch) of ``old`` to it makes.

    A request may change ``managedFields`` itself: what ``new`` has counts, one empty entry clears them, none means
    those of ``old`` (through a subresource always). An object that has none is not tracked before it is applied,
    nor one whose lists have items without their keys.
    """
    given = new.get("metadata", {}).get("managedFields")
    after = _bare(new)
    # An empty list, or one empty entry, is how a client clears the tracking (isResetManagedFields).
    if old is not None and not write_.subresource and _is_reset(given):
        return after
    # Through a subresource nobody may set owners of fields that it does not reach (decodeLiveOrNew).
    managed = _current(old, None if write_.subresource else given)
    # What is not tracked stays so until it is applied for the first time (skipNonAppliedManager).
    if old is not None and not managed:
        return after
    try:
        return _with_managed(after, _updated(_bare(old or {}), after, managed, write_))
    except PatchError:
        return after  # what is wrong with a list is told by validation, in the words of its kind


def apply(live: dict[str, Any] | None, config: dict[str, Any], write_: Write, *, force: bool) -> dict[str, Any]:
    """Return ``live`` after a server-side apply of ``config``, with its ``managedFields``.

    What the manager applied before and does not any more is removed, if no other owns it.

    :param live: None if the object is not there yet.
    :raises ApplyConflict: if others own what would change, and ``force`` is not set.
    :raises PatchError: if ``config`` cannot be applied.
    """
    if "managedFields" in config.get("metadata", {}):
        raise PatchError("metadata.managedFields must be nil")
    managed = read((live or {}).get("metadata", {}).get("managedFields"))
    before = _bare(live or {})
    if live is not None and not managed:
        # Everything that is there gets an owner first: the first apply would overwrite it without a conflict otherwise.
        managed = _updated({}, before, managed, structs.replace(write_, manager=BEFORE_FIRST_APPLY, subresource=""))
    try:
        after, managed = _applied(before, config, managed, write_, force=force)
    except ApplyConflict as conflict:
        # Only kubectl's own name takes over what client-side apply set; another name opts out of it
        # (lastAppliedManager).
        if write_.manager != "kubectl":
            raise
        allowed = _from_last_applied(before, write_)
        left = [(manager, path) for manager, path in conflict.conflicts if not allowed.has(path)]
        if left:
            raise ApplyConflict(left) from None
        after, managed = _applied(before, config, managed, write_, force=True)
    # Kept up to date where it is, so that client-side apply goes on from what is applied now (lastAppliedUpdater).
    if write_.manager == "kubectl" and after.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED):
        after = copy(after)
        annotations = after["metadata"]["annotations"]
        annotations[LAST_APPLIED] = _last_applied_text(config)
        # Without the annotation the object is valid: it must not make the apply fail.
        if annotation_bytes(annotations) > MAX_ANNOTATION_BYTES:
            del annotations[LAST_APPLIED]
    return _with_managed(after, managed)


def annotation_bytes(annotations: Mapping[str, str]) -> int:
    """Return what counts towards :data:`MAX_ANNOTATION_BYTES`."""
    texts = (text for pair in annotations.items() for text in pair)
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


def _is_reset(entries: Any) -> bool:
    return entries in ([], [{}])


def _current(old: dict[str, Any] | None, given: Any) -> Managed:
    # Entries that are missing or malformed do not clear those that are stored: some clients know nothing of them.
    for entries in (given, (old or {}).get("metadata", {}).get("managedFields")):
        try:
            if managed := read(entries):
                return managed
        except PatchError:
            continue
    return {}


def _bare(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object without its ``managedFields``."""
    if "managedFields" not in value.get("metadata", {}):
        return value
    metadata = {name: item for name, item in value["metadata"].items() if name != "managedFields"}
    return {**value, "metadata": metadata}


def _with_managed(value: dict[str, Any], managed: Managed) -> dict[str, Any]:
    entries = write(managed)
    return {**value, "metadata": {**value.get("metadata", {}), "managedFields": entries}} if entries else value


def _updated(old: dict[str, Any], new: dict[str, Any], managed: Managed, write_: Write) -> Managed:
    comparison = typed.compare(old, new, write_.struct).without(write_.ignored)
    # No entry is spared, not even the writer's own, which is given what has changed below: as managedFieldsUpdater does
    # with a manager of its own for the operation, so that an entry's time is that of its last change.
    managed = _without_removed_and_taken(managed, comparison, None)
    changed = comparison.modified.union(comparison.added).difference(_NEVER_OWNED)
    if changed:
        manager = write_.by(UPDATE)
        before = managed.get(manager)
        fields = before.fields.union(changed) if before else changed
        managed[manager] = Owned(fields, write_.api_version, write_.now)
    return _capped(managed)


def _applied(
    live: dict[str, Any], config: dict[str, Any], managed: Managed, write_: Write, *, force: bool
) -> tuple[dict[str, Any], Managed]:
    manager, struct = write_.by(APPLY), write_.struct
    fields = typed.field_set(config, struct).without(write_.ignored)
    last = managed.get(manager)
    owned = {**managed, manager: Owned(fields, write_.api_version, last.time if last else "")}
    # `owned` has this apply already: what it still names counts as claimed when the rest of the last one is pruned.
    after = _pruned(typed.merge(live, config, struct), last.fields if last else FieldSet(), owned.values(), struct)
    comparison = typed.compare(live, after, struct).without(write_.ignored)
    # Conflicts are about what changes: applying the value that is there makes another owner of it, and no conflict.
    if not force and (conflicts := _conflicts(owned, comparison, manager)):
        raise ApplyConflict(conflicts)
    owned = _without_removed_and_taken(owned, comparison, manager)
    if manager in owned:
        kept = owned[manager].fields.difference(_NEVER_OWNED)
        # An apply that changes nothing keeps its time: repeated, it must not make another revision.
        time = owned[manager].time if equal(live, after) else write_.now
        owned[manager] = Owned(kept, write_.api_version, time)
        if not kept:
            del owned[manager]
    return after, owned


def _pruned(merged: Any, last: FieldSet, owned: Iterable[Owned], struct: Struct) -> Any:
    """Return ``merged`` without what the manager applied last and that neither it nor another owns now."""
    if not last:
        return merged
    # A field of a struct is owned by what is in it: it is named itself to be removed as a whole
    # (EnsureNamedFieldsAreMembers).
    named = last.with_named_fields(struct)
    pruned = typed.remove(merged, named, struct)
    everything = typed.field_set_of_any(merged, struct).with_named_fields(struct)
    # Removing an item removes all below it: what anybody claims of that is put back (addBackOwnedItems).
    claimed = FieldSet().union(*(item.fields for item in owned))
    left = typed.field_set_of_any(pruned, struct).with_named_fields(struct)
    pruned = typed.remove(merged, everything.difference(left.union(claimed.with_named_fields(struct))), struct)
    left = typed.field_set_of_any(pruned, struct).with_named_fields(struct)
    # What nobody owns below an item stays as well: only what was applied last goes (addBackDanglingItems).
    return typed.remove(merged, everything.difference(left).intersection(named), struct)


def _conflicts(
    managed: Managed, comparison: typed.Comparison, applying: Manager
) -> list[tuple[Manager, tuple[str, ...]]]:
    changed = comparison.modified.union(comparison.added)
    return [
        (manager, path)
        for manager, owned in managed.items()
        if manager != applying
        # An update owns nothing that is not there, but the zeros that an earlier release stored.
        for path in owned.fields.intersection(comparison.modified if manager.operation == UPDATE else changed).paths()
    ]


def _without_removed_and_taken(managed: Managed, comparison: typed.Comparison, writer: Manager | None) -> Managed:
    """Return who owns what after a change: what is gone is owned by no one, what was changed by the writer alone."""
    changed = comparison.modified.union(comparison.added)
    kept: Managed = {}
    for manager, owned in managed.items():
        fields = owned.fields
        if manager != writer:
            fields = fields.difference(changed).difference(comparison.removed)
        if fields:
            kept[manager] = structs.replace(owned, fields=fields)
    return kept


def _capped(managed: Managed) -> Managed:
    """Return ``managed`` with the oldest updates as one entry a version, if there are too many."""
    updates = sorted(
        (manager for manager in managed if manager.operation == UPDATE),
        key=lambda manager: (managed[manager].time, manager),
    )
    surplus = len(updates) - MAX_UPDATE_MANAGERS
    capped = dict(managed)
    first: dict[str, Manager] = {}
    for manager in updates:
        if surplus <= 0:
            break
        # One bucket for each version, whose paths mean something in it alone; the second entry makes it
        # (capUpdateManagers).
        oldest = first.setdefault(manager.api_version, manager)
        if oldest == manager:
            continue
        bucket = Manager("ancient-changes", UPDATE, manager.api_version)
        if bucket not in capped:
            capped[bucket] = capped.pop(oldest)
        if manager != bucket:
            merged = capped[bucket].fields.union(capped.pop(manager).fields)
            capped[bucket] = Owned(merged, manager.api_version, managed[manager].time)
            surplus -= 1
    return capped


def _from_last_applied(live: Mapping[str, Any], write_: Write) -> FieldSet:
    """Return the fields that are as client-side apply set them: kubectl may take them without a conflict."""
    text = live.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED, "")
    try:
        config = msgspec.json.decode(text)
        # Paths of another version need not be paths of this one.
        if not isinstance(config, dict) or config.get("apiVersion") != write_.api_version:
            return FieldSet()
        fields = typed.field_set(config, write_.struct)
        comparison = typed.compare(config, live, write_.struct)
    # Any client can have written the annotation: what cannot be read lets nobody take a field.
    except (msgspec.DecodeError, PatchError, TypeError, AttributeError, RecursionError):
        return FieldSet()
    return fields.difference(comparison.modified).difference(comparison.added).difference(comparison.removed)


def _last_applied_text(config: dict[str, Any]) -> str:
    bare = copy(config)
    bare.get("metadata", {}).get("annotations", {}).pop(LAST_APPLIED, None)
    # Go's encoder, which kube-apiserver writes the annotation with, ends with a line end.
    text = msgspec.json.encode(bare).decode() + "\n"
    # It also escapes these three, which JSON has in strings alone.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
