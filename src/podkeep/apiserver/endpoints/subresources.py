"""Subresources whose bodies are of another kind than their object: scale, binding, eviction, token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.auth.service_account_tokens import ServiceAccountTokens
from podkeep.apiserver.auth.token_request import request_token
from podkeep.apiserver.discovery.catalog import Entry
from podkeep.apiserver.endpoints import evictions
from podkeep.apiserver.endpoints.handler import Answer
from podkeep.apiserver.endpoints.resources import Resources, applied, patch_value
from podkeep.apiserver.kinds.pods.binding import bind
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.kinds.workloads import scale
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import MODIFIED, StatusError, bad_request, invalid, unprocessable
from podkeep.apiserver.patch import json_patch, merge_patch, strategic_merge
from podkeep.apiserver.patch.errors import PatchError
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request
from podkeep.apiserver.requests import options
from podkeep.apiserver.requests.bodies import decode_object
from podkeep.apiserver.requests.call import Call
from podkeep.apiserver.requests.media_types import APPLY
from podkeep.apiserver.requests.options import WriteOptions
from podkeep.apiserver.requests.output import Rendering
from podkeep.apiserver.requests.request_info import check_name
from podkeep.apiserver.schema.decode import WrongType, decode
from podkeep.apiserver.schema.table import Kind, kubernetes
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import rfc3339
from podkeep.http.messages import Response

ATTEMPTS = 5
"""Of a change that is computed from an object which others change."""
_PODS, _BUDGETS = Kind("", "v1", "Pod"), Kind("policy", "v1", "PodDisruptionBudget")
_BUDGETS_STORED = "policy/poddisruptionbudgets"
_SCALE = Resource(kind=scale.SCALE, plural="scales", columns=scale.COLUMNS)
_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class Subresources(FrozenStruct):
    """Answers requests for them."""

    resources: Resources
    registry: Registry
    lister: Lister
    served: Served
    tokens: ServiceAccountTokens | None = None

    def answers(self) -> dict[str, Answer]:
        """Return what answers, by name in discovery or by subresource."""
        found: dict[str, Answer] = {
            "scale": self.scale,
            "pods/binding": self.bind,
            "bindings": self.bind,
            "pods/eviction": self.evict,
        }
        return found | ({"serviceaccounts/token": self.token} if self.tokens is not None else {})

    # scale

    async def scale(self, call: Call, entry: Entry) -> Response:
        """Show or change how many replicas there are to be."""
        target = _target(call, entry)
        rendering = Rendering(_SCALE, call.form(), options.include_object(call.query))
        if call.info.verb == "get":
            found = scale.to_scale(await self._object(call, target))
        elif call.info.verb == "update":
            body, media_type = await call.body()
            asked = options.write_options(call.query, "UpdateOptions")
            value = decode_object(body, media_type, scale.SCALE, asked.validation, call.warnings)
            given = metadata(value).get("name", target.name)
            if given != target.name:
                why = f"the name of the object ({given}) does not match the name on the URL ({target.name})"
                raise bad_request(why)
            found = await self._scaled(call, target, value, asked)
        else:
            found = await self._patch_scale(call, target)
        return call.respond(rendering.one(found), content_type=rendering.form.content_type)

    async def _patch_scale(self, call: Call, target: Target) -> Object:
        body, media_type = await call.body((*map(str, PatchType), APPLY))
        if media_type == APPLY:
            return await self._apply_scale(call, target, body)
        asked = options.write_options(call.query, "PatchOptions")
        kind = PatchType(media_type)
        patch = patch_value(body, kind, asked.validation, call.warnings)
        for attempt in range(ATTEMPTS):
            before = scale.to_scale(await self._object(call, target))
            value = _patched(before, patch, kind)
            # A patch that names a revision wants a conflict told, and not to be tried on another one.
            named = metadata(value).get("resourceVersion") != metadata(before)["resourceVersion"]
            try:
                return await self._scaled(call, target, value, asked)
            except StatusError as error:
                if error.code != 409 or named or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _apply_scale(self, call: Call, target: Target, body: bytes) -> Object:
        """Apply a ``Scale``: who does it owns the replicas of the object, by its subresource."""
        asked = options.write_options(call.query, "PatchOptions", applies=True)
        config = applied(body, _SCALE, asked.validation, call.warnings)
        errors = FieldErrors()
        given = scale.as_applied(config, target.resource.kind, errors)
        if errors.found:
            raise invalid("Scale", "autoscaling", target.name, errors.found)
        request = self.resources.request(call, asked)
        return scale.to_scale((await self.registry.apply(target, given, request, force=asked.force))[0])

    async def _scaled(self, call: Call, target: Target, value: Object, asked: WriteOptions) -> Object:
        """Store what a ``Scale`` asks for, and return the one that follows."""
        errors = FieldErrors()
        stored = await self._object(call, target)
        # Decoded, since what is stored may have the form of an earlier release.
        new = decode(scale.from_scale(stored, value, errors), target.resource.struct).value
        if errors.found:
            raise invalid("Scale", "autoscaling", target.name, errors.found)
        # What is written was computed from this revision, whether or not the client named one.
        metadata(new).setdefault("resourceVersion", metadata(stored)["resourceVersion"])
        updated, _ = await self.registry.update(target, new, self.resources.request(call, asked))
        return scale.to_scale(updated)

    async def _object(self, call: Call, target: Target) -> Object:
        await call.turn(len(self.registry.get(target).value))
        stored = self.registry.get(target)
        found = self.lister.get(*stored.key)
        return dict(found) if found is not None else {}

    # pods

    async def bind(self, call: Call, entry: Entry) -> Response:
        body, media_type = await call.body()
        asked = options.write_options(call.query, "CreateOptions")
        value = decode_object(body, media_type, entry.kind, asked.validation, call.warnings)
        pods = self._resource(_PODS)
        name = call.info.name or metadata(value).get("name", "")
        target = Target(pods, call.info.namespace, name, "binding")
        await self.registry.change(target, value, bind, self.resources.request(call, asked))
        return call.answer(_SUCCESS | {"code": 201}, status=201)

    async def evict(self, call: Call, entry: Entry) -> Response:
        """Delete a pod, if its disruption budget allows it."""
        body, media_type = await call.body()
        asked = options.write_options(call.query, "CreateOptions")
        value = decode_object(body, media_type, entry.kind, asked.validation, call.warnings)
        if metadata(value).get("name", call.info.name) != call.info.name:
            raise bad_request("name in URL does not match name in Eviction object")
        deletion = options.deletion(value.get("deleteOptions", {}))
        request = self.resources.request(call, asked)
        # It may be asked for in the query or in `deleteOptions` (propagateDryRun).
        if asked.dry_run != deletion.dry_run and not asked.dry_run:
            request = Request(
                field_manager=request.field_manager, user=request.user, dry_run=True, warnings=request.warnings
            )
        await self._evict(call, value, deletion.options, request)
        return call.answer(_SUCCESS | {"code": 201}, status=201)

    async def _evict(self, call: Call, eviction: Object, given: DeleteOptions, request: Request) -> None:
        target = Target(self._resource(_PODS), call.info.namespace, call.info.name, "eviction")
        pod = await self._object(call, target._replace(subresource=""))
        revision = given.resource_version
        if not evictions.ignores_budget(pod):
            budget = evictions.budget_of(pod, await self._budgets(pod, target.namespace))
            if budget is not None:
                if evictions.is_unguarded(pod, budget):
                    # Not if it has become ready meanwhile.
                    revision = revision or metadata(pod)["resourceVersion"]
                else:
                    # First the budget: if the deletion fails then, one disruption too few is allowed for a while, and
                    # never one too many.
                    await self._charge(call, metadata(budget)["name"], request)
        if not request.dry_run:
            marked = await self.registry.change(target, eviction, _at_revision(given.uid, revision), request)
            revision = metadata(marked)["resourceVersion"] if revision else ""
        options_ = DeleteOptions(
            grace_period=given.grace_period, uid=given.uid, resource_version=revision, propagation=given.propagation
        )
        await self.registry.delete(target._replace(subresource=""), options_, request)

    async def _budgets(self, pod: Object, namespace: str) -> list[Mapping[str, Any]]:
        """Return the disruption budgets of a pod; of several, two."""
        found: list[Mapping[str, Any]] = []
        labels = metadata(pod).get("labels", {})
        for budget in self.lister.parts(_BUDGETS_STORED, namespace, evictions.Budget):
            if budget.has(labels) and (whole := self.lister.get(_BUDGETS_STORED, namespace, budget.metadata.name)):
                found.append(whole)
                if len(found) > 1:
                    break
            # There may be hundreds of large ones: others have their turn.
            await asyncio.sleep(0)
        return found

    async def _charge(self, call: Call, name: str, request: Request) -> None:
        """Note a disruption in a budget."""
        budgets = Target(self._resource(_BUDGETS), call.info.namespace, name, "status")
        for attempt in range(ATTEMPTS):
            now = rfc3339.of(datetime.now(UTC))
            new = evictions.charged(await self._object(call, budgets), call.info.name, now)
            try:
                await self.registry.update(budgets, new, request)
                return
            except StatusError as error:
                if error.code != 409 or attempt == ATTEMPTS - 1:
                    raise

    # service accounts

    async def token(self, call: Call, entry: Entry) -> Response:
        if self.tokens is None:
            raise bad_request("this server makes no tokens")
        body, media_type = await call.body()
        asked = options.write_options(call.query, "CreateOptions")
        value = decode_object(body, media_type, entry.kind, asked.validation, call.warnings)
        value = self.registry.admit(_target(call, entry), value, self.resources.request(call, asked))
        account = call.info.namespace, call.info.name
        made = request_token(value, account, self.lister, self.tokens, now=datetime.now(UTC))
        made |= {"kind": entry.kind.kind, "apiVersion": entry.kind.api_version}
        return call.answer(made, status=201)

    def _resource(self, kind: Kind) -> Resource:
        found = self.served.by_kind(kind)
        if found is None:
            raise bad_request(f"{kind.kind} is not served")
        return found


def _target(call: Call, entry: Entry) -> Target:
    check_name(call.info)
    assert entry.resource is not None
    return Target(entry.resource, call.info.namespace, call.info.name, entry.subresource)


def _patched(value: Object, patch: Any, kind: PatchType) -> Object:
    struct = kubernetes().kind(scale.SCALE)
    try:
        if kind is PatchType.JSON:
            found = json_patch.apply(value, patch)
        elif kind is PatchType.MERGE:
            found = merge_patch.apply(value, patch)
        else:
            found = strategic_merge.apply(value, patch, struct)
        return decode(found, struct).value
    except (PatchError, WrongType) as error:
        raise unprocessable(str(error)) from None


def _at_revision(uid: str, revision: str) -> Any:
    """Return what marks a pod as being evicted, if it is still the one that the eviction is about."""

    def mark(pod: Object, body: Object, now: str) -> Object:
        fields = metadata(pod)
        if uid and uid != fields["uid"]:
            why = (
                f"the UID in the precondition ({uid[:80]}) does not match the UID in record ({fields['uid']}). The"
                " object might have been deleted and then recreated"
            )
            raise StatusError(409, "Conflict", f'Operation cannot be fulfilled on Pod "{fields["name"]}": {why}')
        if revision and revision != fields["resourceVersion"]:
            raise StatusError(409, "Conflict", f'Operation cannot be fulfilled on Pod "{fields["name"]}": {MODIFIED}')
        return evictions.marked(pod, body, now)

    return mark
