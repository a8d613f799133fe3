"""Options of requests, from their query or body, with the rules that kube-apiserver has for them. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta.selectors import FieldSelector, LabelSelector, parse_fields, parse_labels
from podkeep.apiserver.meta.status import StatusError, bad_request, invalid
from podkeep.apiserver.registry.registry import DeleteOptions
from podkeep.apiserver.requests.bodies import FieldValidation, decode_as
from podkeep.apiserver.requests.query import Query
from podkeep.apiserver.schema.table import kubernetes
from podkeep.base.frozen import FrozenStruct

MAX_MANAGER_BYTES = 128
NOT_OLDER_THAN = "NotOlderThan"
EXACT = "Exact"
_META = "meta.k8s.io"
_ALWAYS_SELECTABLE = frozenset({"metadata.name", "metadata.namespace"})
_EVERYTHING = LabelSelector(), FieldSelector()


def _refuse(kind: str, errors: FieldErrors) -> None:
    if errors.found:
        raise invalid(kind, _META, "", errors.found)


class ListOptions(FrozenStruct, kw_only=True):
    """``meta.k8s.io/v1`` ``ListOptions``. ``resource_version`` is None if there is none."""

    labels: LabelSelector = _EVERYTHING[0]
    fields: FieldSelector = _EVERYTHING[1]
    limit: int = 0
    continue_: str = ""
    resource_version: int | None = None
    match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: int = 0

    @property
    def selects(self) -> bool:
        """Whether a selector leaves anything out."""
        return bool(self.labels.requirements or self.fields.equal or self.fields.unequal)


def list_options(query: Query, resource: Resource, name: str, *, watch: bool) -> ListOptions:
    """Return how a list or watch is asked for.

    :param name: of the one object that the path names; empty if it names none.
    :raises StatusError: 400 or 422.
    """
    version_text, match = query.text("resourceVersion"), query.text("resourceVersionMatch")
    initial = query.boolean("sendInitialEvents")
    limit, timeout = query.integer("limit") or 0, query.integer("timeoutSeconds") or 0
    continue_ = query.text("continue")
    # A watch that names no revision begins with what is there (SetListOptionsDefaults).
    if watch and initial is None and not match and version_text in ("", "0"):
        initial, match = True, NOT_OLDER_THAN
    errors = FieldErrors()
    (_check_watch if watch else _check_list)(errors, version_text, match, continue_, initial)
    _refuse("ListOptions", errors)
    fields = parse_fields(query.text("fieldSelector"))
    _check_selectable(fields, resource)
    if name:
        if (selected := fields.value("metadata.name")) not in (None, name):
            raise bad_request("fieldSelector metadata.name doesn't match requested name")
        if selected is None:
            fields = FieldSelector((*fields.equal, ("metadata.name", name)), fields.unequal)
    return ListOptions(
        labels=parse_labels(query.text("labelSelector")),
        fields=fields,
        limit=max(limit, 0),
        continue_=continue_,
        resource_version=revision(version_text),
        match=match,
        watch=watch,
        bookmarks=bool(query.boolean("allowWatchBookmarks")),
        initial_events=initial,
        timeout=max(timeout, 0),
    )


def revision(text: str) -> int | None:
    """Return a resource version as a number; None if there is none.

    :raises StatusError: 400 or 422, if it is not one that this server gave.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        errors = FieldErrors()
        why = f'strconv.ParseUint: parsing "{text[:80]}": invalid syntax'
        errors.invalid("resourceVersion", text[:80], why)
        raise invalid("", "", "", errors.found)
    return int(text)


def _check_list(errors: FieldErrors, version: str, match: str, continue_: str, initial: bool | None) -> None:
    if match:
        if not version:
            errors.forbidden(
                "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if continue_:
            errors.forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
        if match not in (EXACT, NOT_OLDER_THAN):
            errors.unsupported("resourceVersionMatch", match, [EXACT, NOT_OLDER_THAN, ""])
        if match == EXACT and version == "0":
            errors.forbidden(
                "resourceVersionMatch", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            )
    if initial is not None:
        errors.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if continue_ and version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")


def _check_watch(errors: FieldErrors, version: str, match: str, continue_: str, initial: bool | None) -> None:
    if initial is not None and match != NOT_OLDER_THAN:
        errors.forbidden(
            "resourceVersionMatch", f"sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"
        )
    if match:
        if initial is None:
            errors.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        if match != NOT_OLDER_THAN:
            errors.unsupported("resourceVersionMatch", match, [NOT_OLDER_THAN])
        if continue_:
            errors.forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")


def _check_selectable(selector: FieldSelector, resource: Resource) -> None:
    asked = {name for name, _ in (*selector.equal, *selector.unequal)} - _ALWAYS_SELECTABLE
    if not asked:
        return
    # Of an empty object: only the names of the fields are wanted.
    known = resource.strategy.selectable({"metadata": {}})
    for name in sorted(asked):
        if name not in known:
            only = f'"{name[:80]}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            raise bad_request(f"field label not supported: {name[:80]}" if known else only)


class WriteOptions(FrozenStruct, kw_only=True):
    """``CreateOptions``, ``UpdateOptions`` and ``PatchOptions``."""

    dry_run: bool = False
    field_manager: str = ""
    validation: FieldValidation = FieldValidation.WARN
    force: bool = False


def write_options(query: Query, kind: str, *, applies: bool = False) -> WriteOptions:
    """Return how a write is asked for.

    :param kind: of the options, for messages: ``CreateOptions``.
    :param applies: it is a server-side apply.
    :raises StatusError: 422.
    """
    errors = FieldErrors()
    manager, force = query.text("fieldManager"), query.boolean("force")
    if kind == "PatchOptions":
        if applies and not manager:
            errors.add("fieldManager", "Required value: is required for apply patch")
        if not applies and force is not None:
            errors.forbidden("force", "may not be specified for non-apply patch")
    if len(manager.encode(errors="replace")) > MAX_MANAGER_BYTES:
        errors.add("fieldManager", f"Too long: may not be more than {MAX_MANAGER_BYTES} bytes")
    shown_manager = manager[:MAX_MANAGER_BYTES]  # each error shows it
    for position, character in enumerate(shown_manager):
        if not _is_printable(character):
            shown = f"U+{ord(character):04X}"
            errors.invalid(
                "fieldManager", manager[:MAX_MANAGER_BYTES], f"invalid character {shown} (at position {position})"
            )
    dry_run = _dry_run(query.texts("dryRun"), errors)
    text = query.text("fieldValidation")
    if text and text not in list(FieldValidation):
        errors.unsupported("fieldValidation", text, ["", *FieldValidation])
        text = ""
    _refuse(kind, errors)
    return WriteOptions(
        dry_run=dry_run,
        field_manager=manager,
        validation=FieldValidation(text) if text else FieldValidation.WARN,
        force=bool(force),
    )


def _is_printable(character: str) -> bool:
    """Tell what Go's ``unicode.IsPrint`` tells."""
    return character == " " or unicodedata.category(character)[0] in "LMNPS"


def _dry_run(given: list[Any], errors: FieldErrors) -> bool:
    if wrong := [text for text in given if text != "All"]:
        errors.unsupported("dryRun", " ".join(map(str, wrong)), ["All"])
    return bool(given)


def manager_of(options: WriteOptions, user_agent: str) -> str:
    """Return the field manager of a write: the one that is named, or what its client calls itself."""
    if options.field_manager:
        return options.field_manager
    kept = ""
    for character in user_agent.partition("/")[0]:
        if not _is_printable(character):
            continue
        if len((kept + character).encode(errors="replace")) > MAX_MANAGER_BYTES:
            break
        kept += character
    return kept or "unknown"


class Deletion(FrozenStruct, kw_only=True):
    """``DeleteOptions``: what the registry is told, and what only concerns the answer."""

    options: DeleteOptions
    dry_run: bool = False
    accepted: bool = False
    """Whether an object that is not gone yet is answered with 202."""


def delete_options(body: bytes, media_type: str, query: Query) -> Deletion:
    """Return how a deletion is asked for: in the body, or in the query if there is none.

    :raises StatusError: 400 or 422.
    """
    if body:
        value = decode_as(body, media_type, kubernetes().struct("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"))
        kind = value.get("kind", "DeleteOptions")
        if kind != "DeleteOptions":
            raise bad_request("decoded object cannot be converted to DeleteOptions")
    else:
        value = {
            "gracePeriodSeconds": query.integer("gracePeriodSeconds"),
            "orphanDependents": query.boolean("orphanDependents"),
            "propagationPolicy": query.text("propagationPolicy") or None,
            "dryRun": query.texts("dryRun"),
        }
    return deletion(value)


def deletion(value: Mapping[str, Any]) -> Deletion:
    """Return what a ``DeleteOptions`` asks for.

    :raises StatusError: 422.
    """
    orphan, propagation = value.get("orphanDependents"), value.get("propagationPolicy")
    errors = FieldErrors()
    if orphan is not None and propagation is not None:
        errors.invalid("propagationPolicy", propagation, "orphanDependents and deletionPropagation cannot be both set")
    known = ["Foreground", "Background", "Orphan"]
    if propagation is not None and propagation not in known:
        errors.unsupported("propagationPolicy", propagation, [*known, "nil"])
    dry_run = _dry_run(value.get("dryRun") or [], errors)
    _refuse("DeleteOptions", errors)
    if orphan is not None:
        # How clients said it before there was propagationPolicy.
        propagation = "Orphan" if orphan else "Background"
    preconditions = value.get("preconditions") or {}
    options = DeleteOptions(
        grace_period=value.get("gracePeriodSeconds"),
        uid=preconditions.get("uid", ""),
        resource_version=preconditions.get("resourceVersion", ""),
        propagation=propagation or "",
    )
    return Deletion(options=options, dry_run=dry_run, accepted=orphan is False)


def include_object(query: Query) -> str:
    """Return what the rows of a Table have of their objects: ``Metadata``, ``Object`` or ``None``.

    :raises StatusError: 400.
    """
    text = query.text("includeObject") or "Metadata"
    if text not in ("Metadata", "Object", "None"):
        raise _no_table(text)
    return text


def _no_table(text: str) -> StatusError:
    why = f"includeObject: Invalid value: \"{text[:80]}\": must be 'Metadata', 'Object', 'None', or empty"
    return bad_request(f"Unable to convert to Table as requested: {why}")
