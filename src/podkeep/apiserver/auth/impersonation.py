"""Acting as somebody else: the headers ``Impersonate-*``, and whether who asks may (apiserver, impersonation.go)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from podkeep.apiserver.auth.interfaces import Authorizer, RequestAttributes
from podkeep.apiserver.auth.refusals import forbidden
from podkeep.apiserver.auth.user import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    User,
    service_account_groups,
    service_account_of,
)
from podkeep.apiserver.meta.status import bad_request
from podkeep.base.frozen import FrozenStruct
from podkeep.http.messages import Head

_USER = "impersonate-user"
_GROUP = "impersonate-group"
_UID = "impersonate-uid"
_EXTRA = "impersonate-extra-"
_GROUP_VERSION = ("authentication.k8s.io", "v1")
MAX_PARTS = 1_000
"""Groups and other values that one request may ask for; each is authorized."""


class _Part(FrozenStruct, kw_only=True):
    """One of the things that are asked for: a kind, as ``ObjectReference`` names it, and what is to be allowed."""

    kind: str
    resource: str
    name: str
    namespace: str = ""
    extra: str = ""

    @property
    def attributes(self) -> RequestAttributes:
        group, version = _GROUP_VERSION if self.kind in ("UserExtra", "UID") else ("", "v1")
        return RequestAttributes(
            verb="impersonate",
            group=group,
            version=version,
            resource=self.resource,
            subresource=self.extra,
            namespace=self.namespace,
            name=self.name,
        )

    def __str__(self) -> str:
        api_version = "/".join(_GROUP_VERSION) if self.kind in ("UserExtra", "UID") else ""
        return f"{{{self.kind} {self.namespace} {self.name}  {api_version}  {self.extra}}}"


def impersonate(user: User, request: Head, authorizer: Authorizer) -> User:
    """Return whom a request is to be treated as coming from: ``user``, who sends it, if it names nobody.

    :raises StatusError: 400, if the headers make no sense; 403, if ``user`` may not act as somebody that they name.
    """
    headers = request.headers
    if not any(name.startswith("impersonate-") for name in headers):
        return user
    parts = list(_parts(headers))
    if not parts:
        return user
    if len(parts) > MAX_PARTS:
        raise bad_request(f"more than {MAX_PARTS} values to impersonate")
    if parts[0].kind not in ("User", "ServiceAccount"):
        shown = " ".join(map(str, parts))
        raise bad_request(f"requested [{shown}] without impersonating a user")
    for part in parts:
        decision = authorizer.authorize(user, part.attributes)
        if not decision.allowed:
            raise forbidden(user, part.attributes, decision.reason)
    return _user(parts)


def _parts(headers: Mapping[str, Sequence[str]]) -> Iterator[_Part]:
    if name := _text((headers.get(_USER) or ("",))[0]):
        account = service_account_of(name)
        if account is None:
            yield _Part(kind="User", resource="users", name=name)
        else:
            yield _Part(kind="ServiceAccount", resource="serviceaccounts", namespace=account[0], name=account[1])
    for value in headers.get(_GROUP, ()):
        yield _Part(kind="Group", resource="groups", name=_text(value))
    for header, values in headers.items():
        if header.startswith(_EXTRA):
            key = unquote(header.removeprefix(_EXTRA))
            for value in values:
                yield _Part(kind="UserExtra", resource="userextras", name=_text(value), extra=key)
    if uid := _text((headers.get(_UID) or ("",))[0]):
        yield _Part(kind="UID", resource="uids", name=uid)


def _text(value: str) -> str:
    """Return the value of a header, whose bytes the server read as Latin-1, as what it is."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise bad_request("a value to impersonate is not UTF-8 text") from None


def _user(parts: Sequence[_Part]) -> User:
    first, *others = parts
    groups = [part.name for part in others if part.kind == "Group"]
    name = first.name
    if first.kind == "ServiceAccount":
        name = f"system:serviceaccount:{first.namespace}:{first.name}"
        groups = groups or list(service_account_groups(first.namespace))
    if name == ANONYMOUS:
        groups += [UNAUTHENTICATED] if UNAUTHENTICATED not in groups else []
    elif not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
        groups.append(AUTHENTICATED)
    extra: dict[str, tuple[str, ...]] = {}
    for part in others:
        if part.kind == "UserExtra":
            extra[part.extra] = (*extra.get(part.extra, ()), part.name)
    uid = next((part.name for part in others if part.kind == "UID"), "")
    return User(name=name, uid=uid, groups=tuple(groups), extra=extra)
