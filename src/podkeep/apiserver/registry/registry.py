"""Creating, updating, patching, applying and deleting objects of any resource.

Each verb reads the newest revision, computes what is to be stored without waiting for anything, and hands it to the
store, so that no other write comes between. What it waits for is the disk, and before it begins its turn, if the object
is large. The newest revision may itself still be on its way there; an answer without a write of its own, such as a
refusal, is held back until it has arrived, and is 500 if it does not.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import MAX_ERRORS, FieldErrors
from podkeep.apiserver.admission.attributes import Admission, AdmitAll, Attributes, Operation, Waits
from podkeep.apiserver.auth.user import NOBODY, User, is_of_the_cluster, share_of
from podkeep.apiserver.kinds.resources import Resource, Strategy, Target
from podkeep.apiserver.meta import objects, values
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import (
    MODIFIED,
    StatusError,
    already_exists,
    bad_request,
    forbidden,
    internal,
    invalid,
    too_large,
    unprocessable,
)
from podkeep.apiserver.patch import json_patch, managers, merge_patch, strategic_merge
from podkeep.apiserver.patch.errors import PatchError
from podkeep.apiserver.patch.field_set import FieldSet
from podkeep.apiserver.patch.managers import ApplyConflict, Write
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.decode import WrongType, decode
from podkeep.apiserver.schema.table import Kind, kubernetes
from podkeep.apiserver.storage.records import Stored
from podkeep.apiserver.storage.store import Store
from podkeep.base.concurrency.turns import Turns
from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339

MAX_OBJECT_BYTES = 1_536 << 10
"""Of an object as it is stored (etcd's default)."""
MAX_NAMESPACE_BYTES = 256 << 20
"""Of the objects of a namespace together, for who is not of the cluster (etcd: 2 GiB for all, for everybody), unless
``api.namespace_size_limit`` says otherwise."""
LARGE_BYTES = 16 << 10
"""Of an object or a body, from which on a write waits for its turn: it takes 20 ms for each MB, of short values 250 ms,
and several times its size in memory."""
LARGE_AT_A_TIME = 2
"""One computes while the other waits for the disk."""
MAX_GENERATED_BASE = 58
"""Characters of ``generateName`` that are kept, before five that are random."""
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The last time that RFC 3339 can write."""
_ABSENT = {"uid": ("",), "resourceVersion": ("", "0")}
_GENERATED = "bcdfghjklmnpqrstvwxz2456789"
_GENERATE_ATTEMPTS = 8
_INSTANTIATE = "cronjob.kubernetes.io/instantiate"
_AFTER_ADMISSION = " after mutating admission happens"


def _allow(name: str) -> None:
    """Let a part of the server itself create what it updates."""


class Request(FrozenStruct, kw_only=True):
    """How a write is asked for: by whom, as which field manager, and whether it is only tried.

    ``warnings`` go back to the client, ``annotations`` to the audit log.
    """

    field_manager: str = "unknown"
    user: User = NOBODY
    size: int = 0
    """Bytes of its body."""
    dry_run: bool = False
    warnings: list[str] = msgspec.field(default_factory=list)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    require_creation: Callable[[str], None] = _allow
    """Called with its name before an update or apply creates an object; raises StatusError if that is not allowed."""


class DeleteOptions(FrozenStruct, kw_only=True):
    """How an object is deleted. ``propagation`` is ``Orphan``, ``Background``, ``Foreground`` or empty."""

    grace_period: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""


class PatchType(StrEnum):
    """How a patch is written, by its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


def _utc() -> datetime:
    return datetime.now(UTC)


def _ignore(unknown: list[str]) -> None:
    """Take unknown fields without a word."""


class Registry:
    """The objects of a store, by the rules of their kinds.

    :param gates: fields of a gate that is off are dropped, unless the stored object uses them.
    :param now: tells the time; whole seconds of it are kept.
    :param namespace_bytes: of the objects of a namespace together, for who is not of the cluster.
    """

    def __init__(
        self,
        store: Store,
        admission: Admission | None = None,
        gates: FeatureGates | None = None,
        now: Callable[[], datetime] = _utc,
        namespace_bytes: int = MAX_NAMESPACE_BYTES,
    ) -> None:
        self._store = store
        self._admission = admission or AdmitAll()
        self._gates = gates or FeatureGates()
        self._now = now
        self._namespace_bytes = namespace_bytes
        self._turns = Turns(LARGE_BYTES, LARGE_AT_A_TIME)
        self._begun = store.revision

    # reads

    def get(self, target: Target) -> Stored:
        """Return an object as it is acknowledged.

        :raises StatusError: 404, if there is none.
        """
        found = self._store.get(target.key)
        if found is None:
            raise target.not_found()
        return found

    def _newest(self, target: Target) -> tuple[Stored, Object]:
        found = self._store.newest(target.key)
        if found is None:
            raise target.not_found()
        return found, self._read(target, found)

    def _read(self, target: Target, stored: Stored) -> Object:
        """Return the object that is stored, as the resource has it, in the form that writes have today."""
        value: Object = msgspec.json.decode(stored.value)
        view = target.resource.view
        value = value if view is None else view.read(value)
        # An earlier release may have stored what is left out now: an update without it would change what is immutable.
        return decode(value, target.resource.struct).value if stored.revision <= self._begun else value

    async def _settle(self, target: Target) -> None:
        """Wait until the revision that an answer is computed from is on the disk.

        :raises StatusError: 500, if it cannot be written.
        """
        try:
            await self._store.settled(target.key)
        except PodkeepError as error:
            raise internal(str(error)) from error

    async def _ready(self, target: Target) -> None:
        if isinstance(self._admission, Waits):
            await self._admission.ready(target)

    @asynccontextmanager
    async def _turn(self, target: Target, request: Request) -> AsyncIterator[None]:
        """Wait for the turn of a write, and hold back a refusal until the revision that it is computed from is on the
        disk."""
        newest = self._store.newest(target.key)
        size = max(request.size, len(newest.value) if newest else 0)
        async with self._turns.taken(share_of(request.user), size):
            try:
                yield
            except StatusError:
                await self._settle(target)
                raise

    # writes

    async def create(self, target: Target, value: Object, request: Request) -> Object:
        """Create an object; its name is that of ``value``.

        :param value: decoded against its type; not changed.
        :returns: the object as it is stored, or would be.
        :raises StatusError: 400, 403, 409, 422 or 500.
        """
        await self._ready(target)
        async with self._turns.taken(share_of(request.user), request.size):
            return await self._create(target, value, request)

    async def _create(self, target: Target, value: Object, request: Request) -> Object:
        created = copy(value)
        self._place(target, created)
        request.warnings.extend(objects.drop_repeated_owners(created))
        if metadata(created).get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        target.resource.strategy.default(created)
        created = managers.track_update(None, created, self._write(target, request))
        for _ in range(_GENERATE_ATTEMPTS):
            # A copy for each attempt: admission and validation change the object, and the next attempt has to start
            # from the same.
            attempt = copy(created)
            generated = self._generate_name(attempt)
            self._admit_creation(target, attempt, request)
            target = target._replace(name=metadata(attempt)["name"])
            # No await between this and the put: nobody creates the object in between.
            if self._store.newest(target.key) is None:
                return await self._put(target, attempt, None, request)
            if not generated:
                break
        await self._settle(target)
        raise already_exists(target.resource.plural, target.resource.group, target.name)

    def _place(self, target: Target, value: Object) -> None:
        """Put the namespace of the request into an object, and drop what says no more than if it were not there."""
        fields = value.setdefault("metadata", {})
        value["apiVersion"], value["kind"] = target.resource.kind.api_version, target.resource.kind.kind
        if target.resource.namespaced:
            fields["namespace"] = fields.get("namespace") or target.namespace
            if fields["namespace"] != target.namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        else:
            fields.pop("namespace", None)
        for name in ("uid", "resourceVersion"):
            if fields.get(name) in _ABSENT[name]:
                del fields[name]

    def _generate_name(self, value: Object) -> bool:
        fields = metadata(value)
        prefix = fields.get("generateName", "")
        if fields.get("name") or not prefix:
            return False
        suffix = "".join(secrets.choice(_GENERATED) for _ in range(5))
        fields["name"] = prefix[:MAX_GENERATED_BASE] + suffix
        return True

    def _admit_creation(self, target: Target, value: Object, request: Request) -> None:
        attributes = self._attributes(Operation.CREATE, target, value, None, request)
        self._admission.mutate(attributes)
        request.warnings.extend(objects.drop_repeated_owners(value, _AFTER_ADMISSION))
        values.require_few(value)
        strategy = target.resource.strategy
        objects.initialize(value, uid=str(uuid.uuid4()), now=self._time())
        if strategy.generation:
            value["metadata"]["generation"] = 1
        if strategy.status and not strategy.status_on_create:
            value.pop("status", None)
        strategy.drop(value, None, self._gates)
        strategy.prepare_create(value)
        errors = FieldErrors()
        strategy.validate(value, errors)
        strategy.validate_create(value, errors)
        self._require_valid(target, value, None, errors)
        self._admission.validate(attributes)
        request.warnings.extend(strategy.warnings(value, None))
        request.warnings.extend(_unserved(target.resource, value, None))

    async def update(self, target: Target, value: Object, request: Request) -> tuple[Object, bool]:
        """Replace an object, or of the subresource ``status`` that part of it.

        :param value: decoded against its type; not changed.
        :returns: the object as it is stored, or would be, and whether it was created.
        :raises StatusError: 400, 403, 404, 409, 422 or 500.
        """
        await self._ready(target)
        async with self._turn(target, request):
            _require_name(target, metadata(value).get("name", target.name))
            new = copy(value)
            new.setdefault("metadata", {})["name"] = target.name
            if self._store.newest(target.key) is None and target.resource.strategy.create_on_update:
                if uid := metadata(new).get("uid"):
                    raise target.conflict(_other_uid(uid, ""))
                request.require_creation(target.name)
                return await self._create(target, new, request), True
            stored, old = self._newest(target)
            self._place(target, new)
            request.warnings.extend(objects.drop_repeated_owners(new))
            target.resource.strategy.default(new)
            return await self._replace(target, stored, old, self._tracked(target, old, new, request), request), False

    async def patch(
        self,
        target: Target,
        patch: Any,
        kind: PatchType,
        request: Request,
        check: Callable[[list[str]], None] = _ignore,
    ) -> Object:
        """Change an object by a patch.

        :param patch: decoded JSON.
        :param check: told the unknown fields of the result, which are dropped; may raise.
        :raises StatusError: 400, 403, 404, 409, 413, 422 or 500.
        """
        await self._ready(target)
        async with self._turn(target, request):
            stored, old = self._newest(target)
            try:
                patched = _patched(old, patch, kind, target.resource)
                values.require_no_more(patched, old)
                decoded = decode(patched, target.resource.struct)
            except PatchError as error:
                raise _patch_status(error) from None
            except WrongType as error:
                raise _wrong_patch(patch, error) from None
            new = decoded.value
            # A strategic merge patch goes into the object's own type, whatever it says (applyPatchToObject).
            if kind is not PatchType.STRATEGIC:
                _require_kind(target.resource, new, patch)
            check(decoded.unknown)
            name = new.setdefault("metadata", {}).get("name", "")
            self._place(target, new)
            _require_name(target, name)
            target.resource.strategy.default(new)
            return await self._replace(target, stored, old, self._tracked(target, old, new, request), request)

    async def apply(self, target: Target, config: Object, request: Request, *, force: bool) -> tuple[Object, bool]:
        """Server-side apply.

        :param config: decoded against its type, with its zeros; not changed.
        :returns: the object as it is stored, or would be, and whether it was created.
        :raises StatusError: as :meth:`patch`; 409 also if others own what would change.
        """
        await self._ready(target)
        async with self._turn(target, request):
            stored = self._store.newest(target.key)
            if stored is None and target.subresource:
                raise target.not_found()
            old = None if stored is None else self._read(target, stored)
            applied = copy(config)
            self._place(target, applied)
            _require_name(target, metadata(applied).setdefault("name", target.name))
            if old is None and (uid := metadata(applied).get("uid")):
                raise target.conflict(
                    f"uid mismatch: the provided object specified uid {uid[:80]}, and no existing object was found"
                )
            try:
                merged = managers.apply(old, applied, self._write(target, request), force=force)
            except ApplyConflict as error:
                raise _apply_conflict(error) from None
            except PatchError as error:
                raise _patch_status(error) from None
            # Zeros that are left out have an owner now, and are not stored.
            new = decode(merged, target.resource.struct).value
            target.resource.strategy.default(new)
            if stored is not None and old is not None:
                return await self._replace(target, stored, old, new, request, applied=True), False
            new["metadata"].pop("resourceVersion", None)
            request.require_creation(target.name)
            self._admit_creation(target, new, request)
            return await self._put(target, new, None, request, applied=True), True

    async def change(
        self, target: Target, body: Object, change: Callable[[Object, Object, str], Object], request: Request
    ) -> Object:
        """Change an object as a subresource of another kind asks for it, such as ``binding``.

        :param body: the object of that kind, decoded against its type; admission may change it.
        :param change: returns the new object, given the old one, which it does not change, the body and the time.
        :raises StatusError: as ``change``; 403, 404, 409 or 500.
        """
        await self._ready(target)
        async with self._turn(target, request):
            stored, old = self._newest(target)
            attributes = self._attributes(Operation.CREATE, target, copy(body), None, request)
            self._admission.mutate(attributes)
            self._admission.validate(attributes)
            new = self._tracked(target, old, change(old, attributes.value or body, self._time()), request)
            return await self._put(target, new, stored, request)

    def admit(self, target: Target, body: Object, request: Request) -> Object:
        """Ask admission about what is posted to a subresource and stored nowhere, such as a request for a token.

        :param body: decoded against its type; not changed.
        :returns: the body as admission left it.
        :raises StatusError: of the plugin that refuses it.
        """
        attributes = self._attributes(Operation.CREATE, target, copy(body), None, request)
        self._admission.mutate(attributes)
        self._admission.validate(attributes)
        return attributes.value or body

    def _tracked(self, target: Target, old: Object, new: Object, request: Request) -> Object:
        return copy(managers.track_update(old, new, self._write(target, request)))

    async def _replace(
        self, target: Target, stored: Stored, old: Object, new: Object, request: Request, *, applied: bool = False
    ) -> Object:
        """Store ``new`` in place of ``old``, after everything that may change or refuse it."""
        self._check_version(target, stored, old, new)
        new = _kept_apart(target, old, new)
        objects.keep_identity(new, old)
        attributes = self._attributes(Operation.UPDATE, target, new, old, request)
        self._admission.mutate(attributes)
        request.warnings.extend(objects.drop_repeated_owners(new, _AFTER_ADMISSION))
        values.require_no_more(new, old)
        strategy = target.resource.strategy
        errors = FieldErrors()
        strategy.drop(new, old, self._gates)
        part = strategy.parts.get(target.subresource)
        if target.subresource == "status":
            strategy.prepare_status(new, old)
            strategy.validate_status(new, old, errors)
        elif part is not None:
            part.prepare(new, old)
            part.validate(new, old, errors)
        else:
            strategy.prepare_update(new, old)
            strategy.validate(new, errors)
            strategy.validate_update(new, old, errors)
        if strategy.generation and not equal(_spec(new), _spec(old)):
            new["metadata"]["generation"] = metadata(old).get("generation", 0) + 1
        self._require_valid(target, new, old, errors)
        self._admission.validate(attributes)
        if target.subresource != "status" and part is None:
            request.warnings.extend(strategy.warnings(new, old))
            request.warnings.extend(_unserved(target.resource, new, old))
        # As kube-apiserver: an update that changes nothing but the times of managedFields writes no revision.
        if _same_but_for_times(new, old):
            await self._settle(target)
            return old
        fields = metadata(new)
        if "deletionTimestamp" in fields and _may_go(new, strategy):
            return await self._remove(target, stored, new, request)
        return await self._put(target, new, stored, request, applied=applied)

    def _check_version(self, target: Target, stored: Stored, old: Object, new: Object) -> None:
        fields = metadata(new)
        given = fields.get("resourceVersion", "")
        if not given and not target.resource.strategy.unconditional_update:
            errors = FieldErrors()
            errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(target.resource.plural, target.resource.group, target.name, errors.found)
        if given and not (given.isascii() and given.isdecimal()):
            raise bad_request(f'invalid resource version "{given[:80]}"')
        if given and given != str(stored.revision):
            raise target.conflict(MODIFIED)
        uid = metadata(old)["uid"]
        if fields.get("uid", uid) != uid:
            raise target.conflict(_other_uid(fields["uid"], uid))

    async def delete(self, target: Target, options: DeleteOptions, request: Request) -> tuple[Object, bool]:
        """Delete an object, or begin to.

        :returns: the object as it was last, and whether it is gone.
        :raises StatusError: 403, 404, 409 or 500.
        """
        if why := target.resource.strategy.undeletable(target.name):
            raise forbidden(target.resource.plural, target.resource.group, target.name, why)
        async with self._turn(target, request):
            stored, old = self._newest(target)
            self._check_preconditions(target, stored, old, options)
            self._admission.validate(self._attributes(Operation.DELETE, target, None, old, request))
            new = self._deleting(target, old, options)
            if _may_go(new, target.resource.strategy):
                return await self._remove(target, stored, old, request), True
            if equal(new, old):
                await self._settle(target)
                return old, False
            return await self._put(target, new, stored, request, deletes=True), False

    def _deleting(self, target: Target, old: Object, options: DeleteOptions) -> Object:
        """Return an object as it is once its deletion has begun, or its grace period or dependents' fate has changed.

        Options change a deletion that has begun unless it waits for an agent (apiserver: ``BeforeDelete``).
        """
        new = copy(old)
        fields = new["metadata"]
        wanted = options.grace_period
        # A negative grace period counts as one second (apiserver: BeforeDelete).
        if wanted is not None and wanted < 0:
            wanted = 1
        if "deletionTimestamp" in fields:
            before = fields.get("deletionGracePeriodSeconds", 0)
            if before and (wanted is None or wanted >= before):
                return new  # it waits for its agent already, no less long
            if before and wanted is not None:
                self._shorten(fields, before, wanted)
        else:
            grace = target.resource.strategy.grace_period(new, wanted) or 0
            fields["deletionGracePeriodSeconds"], fields["deletionTimestamp"] = grace, self._time(grace)
            if fields.get("generation"):
                fields["generation"] += 1
            target.resource.strategy.begin_deletion(new)
        if finalizers := _finalizers(fields.get("finalizers", []), options.propagation):
            fields["finalizers"] = finalizers
        else:
            fields.pop("finalizers", None)
        return new

    def _shorten(self, fields: dict[str, Any], before: int, seconds: int) -> None:
        end = datetime.fromisoformat(fields["deletionTimestamp"])
        # A deletion that ends with time itself was moved there, so that its beginning is not known.
        begun = self._now() if end == _LAST else end - timedelta(seconds=before)
        end = _later(begun, seconds)
        if end < self._now():
            end, seconds = self._now(), min(seconds, 1)
        fields["deletionTimestamp"], fields["deletionGracePeriodSeconds"] = rfc3339.of(end), seconds

    def _check_preconditions(self, target: Target, stored: Stored, old: Object, options: DeleteOptions) -> None:
        uid = metadata(old)["uid"]
        if options.uid and options.uid != uid:
            raise target.conflict(
                f"the UID in the precondition ({options.uid[:80]}) does not match the UID in record ({uid}). The object"
                " might have been deleted and then recreated"
            )
        if options.resource_version and options.resource_version != str(stored.revision):
            raise target.conflict(
                f"the ResourceVersion in the precondition ({options.resource_version[:80]}) does not match the"
                f" ResourceVersion in record ({stored.revision}). The object might have been modified"
            )

    # storing

    async def _put(
        self,
        target: Target,
        value: Object,
        previous: Stored | None,
        request: Request,
        *,
        applied: bool = False,
        deletes: bool = False,
    ) -> Object:
        """Store an object; without its managedFields if they are too many, or it is too large, unless an apply needs
        them."""
        size = len(msgspec.json.encode(value))
        many = values.has_more(values.managed_fields(value), values.MAX_MANAGED_VALUES)
        if many and applied:
            raise values.too_many_managed()
        if many or (size > MAX_OBJECT_BYTES and not applied):
            value = values.without_managed_fields(value)
            size = len(msgspec.json.encode(value))
        if size > MAX_OBJECT_BYTES:
            raise too_large(f"limit is {MAX_OBJECT_BYTES}, the object has {size} bytes")
        growth = size - (len(previous.value) if previous else 0)
        # That something is about to go may be said; what is held back meanwhile may not grow.
        if growth > 0 and not deletes:
            self._require_memory(target, growth, request.user)
        if request.dry_run:
            await self._settle(target)
            return value
        return await self._stored(self._store.put(target.key, _written(target, value), previous), value)

    def _require_memory(self, target: Target, growth: int, user: User) -> None:
        """Refuse what a namespace has no room for: all objects are in memory, and again after each start.

        :raises StatusError: 403.
        """
        if not target.namespace or is_of_the_cluster(user):
            return
        if self._store.bytes_in(target.namespace) + growth > self._namespace_bytes:
            most = f"{self._namespace_bytes >> 20} MiB (api.namespace_size_limit)"
            why = f"the objects of namespace {target.namespace} may have {most}; delete some first"
            raise forbidden(target.resource.plural, target.resource.group, target.name, why)

    async def _remove(self, target: Target, stored: Stored, value: Object, request: Request) -> Object:
        if request.dry_run:
            await self._settle(target)
            return value
        return await self._stored(self._store.delete(target.key, _written(target, value), stored), value)

    async def _stored(self, write: Awaitable[Stored], value: Object) -> Object:
        try:
            stored = await write
        except PodkeepError as error:
            raise internal(str(error)) from error
        return {**value, "metadata": {**value["metadata"], "resourceVersion": str(stored.revision)}}

    # helpers

    def _attributes(
        self, operation: Operation, target: Target, value: Object | None, old: Object | None, request: Request
    ) -> Attributes:
        name = target.name or metadata(value or {}).get("name", "")
        return Attributes(
            operation=operation,
            target=target._replace(name=name),
            value=value,
            old=old,
            user=request.user,
            dry_run=request.dry_run,
            warnings=request.warnings,
            annotations=request.annotations,
        )

    def _write(self, target: Target, request: Request) -> Write:
        resource = target.resource
        ignored = FieldSet()
        if target.subresource == "status":
            for name in resource.struct.fields.keys() - {"status", "metadata"}:
                ignored.insert([f"f:{name}"])
        elif resource.strategy.status:
            ignored.insert(["f:status"])
        version = resource.kind.api_version
        return Write(request.field_manager, resource.struct, version, self._time(), target.subresource, ignored)

    def _time(self, after: int = 0) -> str:
        return rfc3339.of(_later(self._now(), after))

    def _require_valid(self, target: Target, value: Object, old: Object | None, errors: FieldErrors) -> None:
        """Raise what was found; before it, as kube-apiserver has it, what is wrong with the metadata."""
        resource, first = target.resource, FieldErrors()
        if old is not None:
            objects.validate_update(value, old, first)
        objects.validate(value, namespaced=resource.namespaced, name_rule=resource.strategy.name_rule, errors=first)
        if found := first.found + errors.found:
            name = metadata(value).get("name") or metadata(value).get("generateName", "")
            raise invalid(resource.kind.kind, resource.group, name, found[:MAX_ERRORS])


def _require_name(target: Target, name: str) -> None:
    """Refuse an object of another name than the request's.

    :raises StatusError: 400.
    """
    if not name:
        why = "was undeterminable: name must be provided"
        raise bad_request(f"the name of the object ({target.name} based on URL) {why}")
    if name != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")


def _written(target: Target, value: Object) -> Object:
    """Return an object of the resource as it is stored."""
    view = target.resource.view
    return value if view is None else view.write(value)


def _may_go(value: Object, strategy: Strategy) -> bool:
    """Tell whether nothing holds back an object whose deletion has begun."""
    fields = metadata(value)
    return not (fields.get("finalizers") or fields.get("deletionGracePeriodSeconds")) and strategy.removable(value)


def _patched(old: Object, patch: Any, kind: PatchType, resource: Resource) -> Any:
    if kind is PatchType.JSON:
        return json_patch.apply(old, patch)
    if kind is PatchType.MERGE:
        return merge_patch.apply(old, patch)
    return strategic_merge.apply(old, patch, resource.struct)


def _kept_apart(target: Target, old: Object, new: Object) -> Object:
    """Return ``new`` with what this subresource cannot change as it was."""
    if target.subresource == "status":
        status = {"status": new["status"]} if "status" in new else {}
        return (
            copy({name: item for name, item in old.items() if name != "status"})
            | status
            | {"metadata": new["metadata"]}
        )
    if target.resource.strategy.status:
        status = {"status": copy(old["status"])} if "status" in old else {}
        return {name: item for name, item in new.items() if name != "status"} | status
    return new


def _later(moment: datetime, seconds: int) -> datetime:
    try:
        return min(moment + timedelta(seconds=seconds), _LAST)
    except OverflowError:
        return _LAST


def _other_uid(given: str, found: str) -> str:
    return f"Precondition failed: UID in precondition: {given[:80]}, UID in object meta: {found}"


def _spec(value: Object) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in ("metadata", "status")}


def _unserved(resource: Resource, new: Object, old: Object | None) -> list[str]:
    """Return that nothing acts on what was asked for; what a controller made is no news to its client.

    ``kubectl create job --from=cronjob/NAME`` writes the owner that a controller would, and an annotation.
    """
    fields = metadata(new)
    by_hand = fields.get("annotations", {}).get(_INSTANTIATE) == "manual"
    owned = any(owner.get("controller") for owner in fields.get("ownerReferences", ()))
    if not resource.unserved or (owned and not by_hand):
        return []
    if old is not None and equal(_spec(new), _spec(old)):
        return []
    return [f"this {resource.kind.kind} is only stored: {resource.unserved}"]


def _same_but_for_times(new: Object, old: Object) -> bool:
    """Tell whether an update changes nothing, but the times of managedFields if anything."""
    return equal(_timeless(new), _timeless(old))


def _timeless(value: Object) -> Object:
    fields = {name: item for name, item in metadata(value).items() if name != "resourceVersion"}
    if "managedFields" in fields:
        fields["managedFields"] = [
            {name: item for name, item in entry.items() if name != "time"} for entry in fields["managedFields"]
        ]
    return {**value, "metadata": fields}


def _finalizers(finalizers: Sequence[str], propagation: str) -> list[str]:
    """Return the finalizers of an object that is deleted: those for its dependents as the request says."""
    if not propagation:
        return list(finalizers)
    kept = [name for name in finalizers if name not in (objects.ORPHAN, objects.FOREGROUND)]
    return kept + {"Orphan": [objects.ORPHAN], "Foreground": [objects.FOREGROUND]}.get(propagation, [])


def _patch_status(error: PatchError) -> StatusError:
    if error.code == 422:
        return unprocessable(str(error))
    return too_large(str(error)) if error.code == 413 else bad_request(str(error))


def _wrong_patch(patch: Any, error: WrongType) -> StatusError:
    """A patch would give a field a value of another type; the text is in the message, where Go's clients show it."""
    errors = FieldErrors()
    errors.invalid("patch", msgspec.json.encode(patch).decode()[:1000], str(error))
    return invalid("", "", "", errors.found)


def _require_kind(resource: Resource, value: Object, patch: Any) -> None:
    """Refuse what a patch has made an object of another kind.

    :raises StatusError: 422.
    """
    wanted = resource.kind
    version, name = value.get("apiVersion") or wanted.api_version, value.get("kind") or wanted.kind
    if (version, name) == (wanted.api_version, wanted.kind):
        return
    group, _, short = version.rpartition("/")
    made = Kind(group, short, name)
    known = made in kubernetes().kinds
    why = made.no_conversion_to(wanted) if known else f'no kind "{name}" is registered for version "{version}"'
    raise _wrong_patch(patch, WrongType(why))


def _apply_conflict(error: ApplyConflict) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in error.told
    ]
    return StatusError(409, "Conflict", str(error), causes=causes)
