"""A request's way through the server: who asks, what for, may they, and who answers; errors as ``Status``.

The order is kube-apiserver's (``DefaultBuildHandlerChain``): authentication, impersonation, the number of requests at
a time, authorization, and only then is anything read of a body.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from podkeep import __version__
from podkeep.apiserver.auth.impersonation import impersonate
from podkeep.apiserver.auth.interfaces import Authenticator, Authorizer, RequestAttributes
from podkeep.apiserver.auth.user import ANONYMOUS, NOBODY
from podkeep.apiserver.discovery import health, openapi, openid
from podkeep.apiserver.discovery.catalog import NOT_SERVED, Catalog, Entry
from podkeep.apiserver.discovery.groups import GROUP, Discovery, asked_version
from podkeep.apiserver.discovery.openapi import OpenApi
from podkeep.apiserver.endpoints import metrics
from podkeep.apiserver.endpoints.audit import AuditLog
from podkeep.apiserver.endpoints.metrics import Metrics
from podkeep.apiserver.endpoints.resources import Resources
from podkeep.apiserver.meta.status import StatusError, internal, method_not_allowed, no_such_resource
from podkeep.apiserver.requests import request_info
from podkeep.apiserver.requests.call import Call
from podkeep.apiserver.requests.limits import InFlight
from podkeep.apiserver.requests.media_types import JSON, PLAIN
from podkeep.apiserver.requests.query import Query
from podkeep.apiserver.requests.request_info import RequestInfo
from podkeep.base import log as request_log
from podkeep.base.frozen import FrozenStruct
from podkeep.http.budget import ClientGone
from podkeep.http.health import Check
from podkeep.http.messages import Refused, Request, Response, Upgrade

log = logging.getLogger(__name__)

Answer = Callable[[Call, Entry], Awaitable[Response | Upgrade]]
"""Answers a request for a subresource or a review."""


class Parts(FrozenStruct, kw_only=True):
    """What the handler is put together of. ``answers`` are by name in discovery, or by subresource."""

    catalog: Catalog
    resources: Resources
    authenticator: Authenticator
    authorizer: Authorizer
    discovery: Discovery
    openapi: OpenApi
    metrics: Metrics
    in_flight: InFlight
    answers: Mapping[str, Answer] = msgspec.field(default_factory=dict)
    checks: Sequence[Check] = ()
    audit: AuditLog | None = None
    downloads: Mapping[str, Callable[[], AsyncGenerator[bytes, None]]] = msgspec.field(default_factory=dict)
    """Copies of what is stored, by path: for who may do everything."""
    openid: Mapping[str, tuple[str, bytes]] = msgspec.field(default_factory=dict)
    """Documents about tokens with their content types, by path."""


class Handler:
    """Answers every request of a server."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._version = health.version(__version__)
        self._audit_warned = float("-inf")

    async def __call__(self, request: Request) -> Response | Upgrade:
        """Answer a request.

        :raises Refused: if its body does not come, or there is no room for it.
        """
        started, received = time.monotonic(), datetime.now(UTC)
        call = Call(
            request=request,
            query=_NO_QUERY,
            info=_NO_INFO,
            audit_id=str(uuid.uuid4()),
            authorizer=self._parts.authorizer,
        )
        known = False
        code = 500
        try:
            call.query = Query(request.target.partition("?")[2])
            call.info = request_info.parse(request.method, request.target, call.query)
            answer, known = await self._answer(call)
            code = answer.status if isinstance(answer, Response) else 101
        except StatusError as error:
            answer = call.refusal(error)
            code = answer.status  # another one, if there is no room for what is wrong
            known = self._is_known(call.info)
        except (Refused, ClientGone) as error:
            code = error.status if isinstance(error, Refused) else 499
            raise
        except Exception:  # the boundary: whatever happened must become an answer
            # The target is not logged: it may have what is secret.
            log.exception("a %s request for %s failed unexpectedly", call.info.verb, call.info.resource or "a path")
            answer = call.refusal(internal(f"the log says more under [{request_log.request_id()}]"))
        finally:
            dry_run = "dryRun" in call.query
            self._parts.metrics.count(call.info, code, time.monotonic() - started, known=known, dry_run=dry_run)
            if self._parts.audit is not None:
                self._write_audit(self._parts.audit, call, code, received)
        return answer

    def _write_audit(self, audit: AuditLog, call: Call, code: int, received: datetime) -> None:
        try:
            audit.write(call, code, received)
        except OSError as error:
            # Clients ask as often as they like, and a disk that is nearly full takes short lines in between.
            now = time.monotonic()
            is_due = now - self._audit_warned >= _AUDIT_WARNING_S
            log.log(logging.WARNING if is_due else logging.DEBUG, "requests are not in the audit log: %s", error)
            if is_due:
                self._audit_warned = now

    def _is_known(self, info: RequestInfo) -> bool:
        return bool(
            info.resource_request
            and self._parts.catalog.find(info.group, info.version, info.resource, info.subresource)
            and not info.name
        )

    async def _answer(self, call: Call) -> tuple[Response | Upgrade, bool]:
        parts = self._parts
        call.user = parts.authenticator.authenticate(call.request) or NOBODY
        if call.user.name != ANONYMOUS:
            call.request.admit()
        user = impersonate(call.user, call.request, parts.authorizer)
        if user is not call.user:
            call.impersonator, call.user = call.user, user
        # Until the whole answer is sent: a list or a watch may take long.
        selectors = len(call.query.text("labelSelector")) + len(call.query.text("fieldSelector"))
        call.request.at_end.enter_context(parts.in_flight.counted(call.info, call.user, selectors))
        call.room, call.turns = parts.in_flight.room(call.user), parts.in_flight.turns
        call.require(call.info)
        if not call.info.resource_request:
            return self._document(call), True
        if _asks_for_custom_resources(call.info):
            return call.answer(_NO_CUSTOM_RESOURCES), True
        entry = self._entry(call.info)
        if entry.is_generic and entry.resource:
            return await parts.resources.answer(call, entry.resource), True
        answer = parts.answers.get(entry.name) or parts.answers.get(entry.subresource)
        if answer is None:
            raise StatusError(501, "NotImplemented", f"{entry.name} is not served")
        return await answer(call, entry), True

    def _entry(self, info: RequestInfo) -> Entry:
        """Return what a request is for.

        :raises StatusError: 404 if there is nothing at its path, 405 if that has no such verb.
        """
        entry = self._parts.catalog.find(info.group, info.version, info.resource, info.subresource)
        if entry is None and (info.group, info.resource) in NOT_SERVED:
            raise no_such_resource(f"podkeep has no {info.resource}.{info.group}, since nothing would act on them")
        if entry is None or (info.rest and info.subresource != "proxy"):
            raise no_such_resource()
        # There are no such paths, whatever the method.
        if info.in_namespace and not entry.namespaced:
            raise no_such_resource()
        if info.parts > 1 and entry.namespaced and not info.namespace and info.verb != "watch":
            raise no_such_resource()
        if info.verb not in entry.verbs:
            raise method_not_allowed()
        on_all = info.verb in ("create", "deletecollection", "list") and not entry.subresource
        if on_all != (info.parts == 1) and info.verb != "watch":
            raise method_not_allowed()
        if entry.namespaced and not info.namespace and info.verb not in ("list", "watch"):
            raise method_not_allowed()
        return entry

    def _document(self, call: Call) -> Response:
        """Answer a request for a path that is no resource's."""
        info, parts = call.info, self._parts
        if info.verb not in ("get", "head"):
            raise method_not_allowed()
        path = info.path.rstrip("/") or "/"
        first = path.strip("/").partition("/")[0]
        if first in health.PATHS:
            found = health.answer(path, parts.checks, call.query)
            if found is None:
                raise no_such_resource()
            return call.respond(found[1].encode(), status=found[0], content_type="text/plain; charset=utf-8")
        if path == "/version":
            return call.answer(self._version)
        if path == "/metrics":
            return call.respond(parts.metrics.text(), content_type=metrics.CONTENT_TYPE)
        if (download := parts.downloads.get(path)) is not None:
            # Secrets are in it. Roles that read every path are for monitoring, and have no Secrets.
            call.require(_EVERYTHING)
            return call.respond(download(), content_type="application/octet-stream")
        if (published := parts.openid.get(path)) is not None:
            headers = [("Cache-Control", openid.CACHE_CONTROL), ("Content-Type", published[0])]
            return Response(headers=[*headers, ("Audit-Id", call.audit_id)], body=published[1])
        if path == "/":
            return call.answer({"paths": self._paths()})
        if path.startswith("/openapi/"):
            return self._openapi(call, path)
        if path in ("/api", "/apis") and (version := asked_version(call.header("accept"))):
            return _aggregated(call, *parts.discovery.aggregated(path, version), version)
        document = parts.discovery.plain(path)
        if document is None:
            raise no_such_resource()
        form = PLAIN if path in ("/api", "/apis") else None  # those who ask for the aggregated form take this one
        return call.answer(document, form=form)

    def _openapi(self, call: Call, path: str) -> Response:
        documents = self._parts.openapi
        if path == openapi.V3_PATH:
            return call.answer(documents.root(), form=PLAIN)
        if path == "/openapi/v2":
            if openapi.wants_protobuf(call.header("accept")):
                return call.respond(documents.v2_protobuf, content_type=openapi.PROTOBUF)
            return call.respond(documents.v2_json)
        place = path.removeprefix(f"{openapi.V3_PATH}/")
        body = documents.v3(place)
        if body is None:
            raise no_such_resource()
        tag = documents.hash(place)
        if (asked := call.query.text("hash")) and asked != tag:
            # A client has the hash from an older list of documents (kube-openapi: handler3).
            return Response(status=301, headers=[("Location", f"{path}?hash={tag}")])
        headers = [("ETag", f'"{tag}"'), ("Vary", "Accept"), ("Audit-Id", call.audit_id)]
        # What has its hash in its address never changes.
        headers.append(("Cache-Control", "public, immutable" if asked else "no-cache, private"))
        if call.header("if-none-match") == f'"{tag}"':
            return Response(status=304, headers=headers)
        return Response(headers=[*headers, ("Content-Type", JSON)], body=body)

    def _paths(self) -> list[str]:
        groups = [
            f"/apis/{group}/{version}" if group else f"/api/{version}"
            for group, version in self._parts.catalog.group_versions
        ]
        other = [
            "/api",
            "/apis",
            "/openapi/v2",
            openapi.V3_PATH,
            "/version",
            "/metrics",
            *self._parts.openid,
            *(f"/{name}" for name in health.PATHS),
        ]
        return sorted([*groups, *other])


def _aggregated(call: Call, body: bytes, etag: str, version: str) -> Response:
    content_type = f"application/json;g={GROUP};v={version};as=APIGroupDiscoveryList"
    headers = [("ETag", etag), ("Vary", "Accept"), ("Cache-Control", "public"), ("Audit-Id", call.audit_id)]
    if call.header("if-none-match") == etag:
        return Response(status=304, headers=headers)
    return Response(headers=[*headers, ("Content-Type", content_type)], body=body)


def _asks_for_custom_resources(info: RequestInfo) -> bool:
    """Return whether that is the list of custom resources, which kubectl reads before it says that a kind is unknown.

    Discovery does not have it: there are none, and none can be made.
    """
    return info.verb == "list" and info.path.rstrip("/") == _CUSTOM_RESOURCES


_CUSTOM_RESOURCES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NO_CUSTOM_RESOURCES: Mapping[str, object] = {
    "kind": "CustomResourceDefinitionList",
    "apiVersion": "apiextensions.k8s.io/v1",
    "metadata": {},
    "items": [],
}
_EVERYTHING = RequestAttributes(verb="*", group="*", version="*", resource="*")
_NO_QUERY = Query("")
_AUDIT_WARNING_S = 60.0
"""Between two warnings that requests are not in the audit log."""
_NO_INFO = RequestInfo(path="", verb="", resource_request=False)
