"""The verbs of resources: a request's options and body, what the registry makes of them, and the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from itertools import chain, repeat
from typing import Any

import msgspec

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.list_watch.facts import Facts
from podkeep.apiserver.list_watch.lists import Listed, Lists, Objects, Turn, no_turn
from podkeep.apiserver.list_watch.watches import Watches
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import (
    StatusError,
    bad_request,
    invalid,
    not_acceptable,
    too_large,
)
from podkeep.apiserver.patch.json_patch import MAX_OPERATIONS
from podkeep.apiserver.registry.registry import PatchType, Registry, Request
from podkeep.apiserver.requests import options
from podkeep.apiserver.requests.bodies import MAX_PATCH_VALUES, FieldValidation, Malformed, decode_object, parse
from podkeep.apiserver.requests.call import Call
from podkeep.apiserver.requests.limits import NoRoom, Room
from podkeep.apiserver.requests.media_types import APPLY, JSON, YAML
from podkeep.apiserver.requests.options import WriteOptions
from podkeep.apiserver.requests.output import ListBody, Pieces, Rendering
from podkeep.apiserver.requests.request_info import check_name
from podkeep.apiserver.schema.decode import WrongType, decode, json_word
from podkeep.apiserver.storage.store import Compacted, Store
from podkeep.http.messages import Response

DELETED_AT_ONCE = 20
"""Objects of a collection that are being deleted at a time, so that they share a transaction."""
_PATCHES = (*(str(item) for item in PatchType), APPLY)
_UNDECLARED = "field not declared in schema"


class Resources:
    """Answers requests for resources and their parts that are read and written as objects."""

    def __init__(self, store: Store, registry: Registry) -> None:
        facts = Facts()
        self._store = store
        self.registry = registry
        self.lists = Lists(store, facts)
        self.watches = Watches(store, facts)
        self._verbs = {
            "get": self.get,
            "list": self.list,
            "watch": self.watch,
            "create": self.create,
            "update": self.update,
            "patch": self.patch,
            "delete": self.delete,
            "deletecollection": self.delete_collection,
        }

    async def answer(self, call: Call, resource: Resource) -> Response:
        """Answer a request for a resource, or a part of it that its kind describes.

        :raises StatusError: whatever is wrong with it.
        """
        info = call.info
        if resource.deprecated:
            call.warnings.append(resource.deprecated)
        if info.parts > 1:
            check_name(info)
        target = Target(resource, info.namespace if resource.namespaced else "", info.name, info.subresource)
        return await self._verbs[info.verb](call, target)

    # reads

    async def get(self, call: Call, target: Target) -> Response:
        view = self._view(call, target.resource)
        stored = self.registry.get(target)
        if not view.is_copied:
            await call.turn(len(stored.value))
            stored = self.registry.get(target)
        body = view.one(view.seen(stored.value))
        # What is sent as it is stored is no copy, and takes no room.
        if body is not stored.value:
            call.take_room(len(body))
        return call.respond(body, content_type=view.form.content_type)

    async def list(self, call: Call, target: Target) -> Response:
        view = self._view(call, target.resource)
        if view.form.as_ == "PartialObjectMetadata":
            kind = f"*{target.resource.kind.version}.{target.resource.kind.kind}List"
            why = f"you requested PartialObjectMetadata, but the requested object is a list ({kind})"
            raise StatusError(406, "NotAcceptable", why)
        name = call.info.name if call.info.parts > 1 else ""
        asked = options.list_options(call.query, target.resource, name, watch=False)
        listed = await self.lists.find(target, asked, call.turn)
        try:
            return await _list_answer(call, view, listed)
        except Compacted:
            raise self.lists.expired(asked) from None

    async def watch(self, call: Call, target: Target) -> Response:
        view = self._view(call, target.resource)
        if view.form.media_type == YAML:
            raise not_acceptable([f"{JSON};stream=watch"])
        name = call.info.name if call.info.parts > 1 else ""
        asked = options.list_options(call.query, target.resource, name, watch=True)
        lines, end = self.watches.start(target, asked, view, call.request.write_now, call.room, call.turn)
        call.request.at_end.callback(end)
        return call.respond(lines, content_type=view.form.content_type)

    def _view(self, call: Call, resource: Resource) -> Rendering:
        form = call.form()
        return Rendering(resource, form, options.include_object(call.query) if form.as_ == "Table" else "Metadata")

    # writes

    async def create(self, call: Call, target: Target) -> Response:
        view = self._view(call, target.resource)
        body, media_type = await call.body()
        asked = options.write_options(call.query, "CreateOptions")
        value = decode_object(body, media_type, target.resource.kind, asked.validation, call.warnings)
        created = await self.registry.create(target, value, self.request(call, asked))
        return self._written(call, view, created, status=201)

    async def update(self, call: Call, target: Target) -> Response:
        """Replace an object by that of the body."""
        view = self._view(call, target.resource)
        body, media_type = await call.body()
        self._take_room(call, target)
        asked = options.write_options(call.query, "UpdateOptions")
        value = decode_object(body, media_type, target.resource.kind, asked.validation, call.warnings)
        _check_name(value, target)
        updated, created = await self.registry.update(target, value, self.request(call, asked))
        return self._written(call, view, updated, status=201 if created else 200)

    async def patch(self, call: Call, target: Target) -> Response:
        """Change an object by the patch of the body."""
        view = self._view(call, target.resource)
        body, media_type = await call.body(_PATCHES)
        self._take_room(call, target)
        asked = options.write_options(call.query, "PatchOptions", applies=media_type == APPLY)
        request = self.request(call, asked)
        if media_type == APPLY:
            config = applied(body, target.resource, asked.validation, call.warnings)
            value, created = await self.registry.apply(target, config, request, force=asked.force)
            return self._written(call, view, value, status=201 if created else 200)
        patch = patch_value(body, PatchType(media_type), asked.validation, call.warnings)
        check = _Unknown(asked.validation, call.warnings, body)
        value = await self.registry.patch(target, patch, PatchType(media_type), request, check)
        return self._written(call, view, value)

    async def delete(self, call: Call, target: Target) -> Response:
        view = self._view(call, target.resource)
        body = await media_body(call)
        self._take_room(call, target)
        asked = options.delete_options(*body, call.query)
        request = Request(user=call.user, dry_run=asked.dry_run, warnings=call.warnings)
        value, gone = await self.registry.delete(target, asked.options, request)
        if not gone or target.resource.strategy.returns_deleted:
            return self._written(call, view, value, status=202 if asked.accepted and not gone else 200)
        return call.answer(deleted(target, value), form=view.form)

    async def delete_collection(self, call: Call, target: Target) -> Response:
        """Delete the objects that a list would have."""
        view = self._view(call, target.resource)
        body = await media_body(call)
        asked = options.delete_options(*body, call.query)
        chosen = options.list_options(call.query, target.resource, "", watch=False)
        listed = await self.lists.find(target, chosen, call.turn)
        request = Request(user=call.user, dry_run=asked.dry_run, warnings=call.warnings)
        keys = listed.objects.keys()
        for start in range(0, len(keys), DELETED_AT_ONCE):
            some = keys[start : start + DELETED_AT_ONCE]
            targets = [target._replace(namespace=key.namespace, name=key.name) for key in some]
            # All of them end before the answer, whatever becomes of one.
            ends = await asyncio.gather(
                *(self._delete_one(one, asked, request) for one in targets), return_exceptions=True
            )
            for error in filter(None, ends):
                raise error
        try:
            return await _list_answer(call, view, listed)
        except (Compacted, NoRoom):  # they are gone, and what they were is gone, too, or too much
            return await _list_answer(call, view, self.lists.empty(listed))

    async def _delete_one(self, target: Target, asked: options.Deletion, request: Request) -> None:
        try:
            await self.registry.delete(target, asked.options, request)
        except StatusError as error:
            if error.code != 404:
                raise

    # what they have in common

    def request(self, call: Call, asked: WriteOptions) -> Request:
        return Request(
            field_manager=options.manager_of(asked, call.header("user-agent")),
            user=call.user,
            size=call.received,
            dry_run=asked.dry_run,
            warnings=call.warnings,
            require_creation=call.require_creation,
        )

    def _take_room(self, call: Call, target: Target) -> None:
        """Keep room for an answer with the object that is there, however short the request for a change of it is.

        :raises NoRoom: if there is none; nothing is changed then.
        """
        if (stored := self._store.get(target.key)) is not None:
            call.take_room(len(stored.value))

    def _written(self, call: Call, view: Rendering, value: Mapping[str, Any], *, status: int = 200) -> Response:
        return call.respond(view.one(value), status=status, content_type=view.form.content_type)


async def media_body(call: Call) -> tuple[bytes, str]:
    """Return a body that may be missing, and its media type, which counts only if there is one.

    :raises StatusError: 413 or 415.
    """
    if call.request.body.is_empty:
        return b"", JSON
    return await call.body()


def deleted(target: Target, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``Status`` that an object is gone."""
    details = {"name": target.name, "group": target.resource.group, "kind": target.resource.plural}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {name: text for name, text in details.items() if text} | {"uid": metadata(value).get("uid", "")},
    }


def _check_name(value: Object, target: Target) -> None:
    given = metadata(value).get("name", "")
    if not given:
        why = "name must be provided"
        raise bad_request(f"the name of the object ({target.name} based on URL) was undeterminable: {why}")
    if given != target.name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({target.name})")


class _Unknown:
    """Says of a patched object what its validation wants said of fields that are unknown."""

    def __init__(self, validation: FieldValidation, warnings: list[str], patch: bytes) -> None:
        self._validation, self._warnings, self._patch = validation, warnings, patch

    def __call__(self, unknown: list[str]) -> None:
        complaints = [f'unknown field "{path}"' for path in unknown]
        if complaints and self._validation is FieldValidation.STRICT:
            raise _strict(self._patch, complaints)
        if self._validation is FieldValidation.WARN:
            self._warnings.extend(complaints)


async def _list_answer(call: Call, view: Rendering, listed: Listed) -> Response:
    """Answer with a list piece by piece, as it is made: a whole one would take memory, and keep others waiting."""
    turn = no_turn if view.is_copied else call.turn
    pieces = _list_pieces(view.list_body(listed.metadata), listed.objects, call.room, turn)
    # Two pieces are made before the answer begins: until then a revision that is gone can still be told as 410.
    first = await anext(pieces)
    second = await anext(pieces, None)
    if second is None:
        return call.respond(first, content_type=view.form.content_type)

    async def body() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield first
            yield second
            async for piece in pieces:
                await asyncio.sleep(0)  # others have their turn
                yield piece

    return call.respond(body(), content_type=view.form.content_type)


async def _list_pieces(body: ListBody, objects: Objects, room: Room, turn: Turn) -> AsyncGenerator[bytes, None]:
    """Yield a list in pieces.

    :raises NoRoom: if there is none for one of them.
    """
    pieces = Pieces()
    for piece in pieces.add(body.start):
        yield piece
    separators = chain([body.before], repeat(body.between))
    sent = objects.sent(pieces, room, lambda stored: (next(separators), body.item(stored.value)), turn)
    async with aclosing(sent):
        async for piece in sent:
            yield piece
    yield pieces.rest() + (body.end if len(objects) else body.end_of_empty)


def _strict(patch: bytes, complaints: list[str]) -> StatusError:
    errors = FieldErrors()
    errors.invalid("patch", patch.decode(errors="replace"), f"strict decoding error: {', '.join(complaints)}")
    return invalid("", "", "", errors.found)


def patch_value(body: bytes, kind: PatchType, validation: FieldValidation, warnings: list[str]) -> Any:
    """Return the value of a patch.

    :raises StatusError: 400, 413 or 422.
    """
    try:
        most = MAX_PATCH_VALUES if kind is PatchType.JSON else None
        parsed = parse(body, JSON, strict=validation is not FieldValidation.IGNORE, most=most)
    except Malformed as error:
        raise bad_request(f"error decoding patch: {error}") from None
    if parsed.value is None:
        if kind is PatchType.MERGE:
            raise bad_request("Invalid JSON Patch")  # jsonpatch.ErrBadJSONPatch
        # Go decodes null into a map or a list that has nothing, and a patch of nothing changes nothing
        # (strategicPatchObject, jsonpatch.DecodePatch).
        return [] if kind is PatchType.JSON else {}
    if kind is PatchType.JSON:
        if not isinstance(parsed.value, list):
            raise _another_type("patch", parsed.value, "[]handlers.jsonPatchOp")
        if len(parsed.value) > MAX_OPERATIONS:
            raise too_large(
                f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(parsed.value)}"
            )
    elif not isinstance(parsed.value, dict):
        raise _another_type("patch", parsed.value, "map[string]interface {}")
    if parsed.duplicates:
        prefix = "json patch " if kind is PatchType.JSON else ""
        complaints = [f"{prefix}{text}" for text in parsed.complaints]
        if validation is FieldValidation.STRICT:
            raise _strict(body, complaints)
        warnings.extend(complaints)
    return parsed.value


def _another_type(what: str, value: object, wanted: str) -> StatusError:
    given = json_word(value)
    return bad_request(f"error decoding {what}: json: cannot unmarshal {given} into Go value of type {wanted}")


def applied(body: bytes, resource: Resource, validation: FieldValidation, warnings: list[str]) -> Object:
    """Return what is applied.

    :raises StatusError: 400, if it is not of the resource's kind, or has a field that the kind has not.
    """
    try:
        parsed = parse(body, YAML, strict=validation is not FieldValidation.IGNORE)
    except Malformed as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    value, kind = parsed.value, resource.kind
    if not isinstance(value, dict):
        raise _another_type("YAML", value, "map[string]interface {}")
    for name in ("apiVersion", "kind"):
        if not value.get(name):
            raise bad_request(f"Object '{name}' is missing in '{msgspec.json.encode(value).decode()[:200]}'")
    if value["apiVersion"] != kind.api_version:
        raise bad_request(
            "Incorrect version specified in apply patch. Specified patch version:"
            f" {value['apiVersion']}, expected: {kind.api_version}"
        )
    if value["kind"] != kind.kind:
        raise bad_request(f"invalid object type: {kind.api_version}, Kind={value['kind']}")
    if parsed.complaints:
        if validation is FieldValidation.STRICT:
            raise bad_request(f"error strict decoding YAML: {', '.join(parsed.complaints)}")
        warnings.extend(parsed.complaints)
    # What is applied is owned, so that nothing of it may be dropped: an unknown field is an error in any case.
    try:
        decoded = decode(value, resource.struct, zeros=True)
    except WrongType as error:
        raise _untyped(value, resource, str(error)) from None
    if decoded.unknown:
        raise _untyped(value, resource, _validation_errors(f".{path}: {_UNDECLARED}" for path in decoded.unknown))
    return decoded.value


def _validation_errors(errors: Iterable[str]) -> str:
    """Return errors as upstream's structured-merge-diff writes them (``typed``, ValidationErrors)."""
    first, *others = errors
    return "\n  ".join(("errors:", first, *others)) if others else first


def _untyped(value: Mapping[str, Any], resource: Resource, why: str) -> StatusError:
    fields = value.get("metadata")
    namespace, name = (
        found if isinstance(fields, dict) and isinstance(found := fields.get(key), str) else ""
        for key in ("namespace", "name")
    )
    kind = resource.kind  # as Go prints it, with a slash also before the version of the core group
    name = f"{namespace}/{name}; {kind.group}/{kind.version}, Kind={kind.kind}"
    return bad_request(f"failed to create typed patch object ({name}): {why}")
