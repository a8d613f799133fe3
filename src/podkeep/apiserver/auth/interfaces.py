"""What asks who a request is from, and what decides whether it may: two protocols, and what the second is told.

The floor above calls both, once for each request; what is authorized is computed from method and path alone, before a
body is read.
"""

from __future__ import annotations

from typing import Protocol

from podkeep.apiserver.auth.user import User
from podkeep.base.frozen import FrozenStruct
from podkeep.http.messages import Request


class RequestAttributes(FrozenStruct, kw_only=True):
    """What a request would do (apiserver: ``authorizer.Attributes``).

    ``verb`` is one of Kubernetes' (``get``, ``list``, ``watch``, ``create``, ``update``, ``patch``, ``delete``,
    ``deletecollection``, ``impersonate``, ...), or the HTTP method in lower case for a path that is no resource's.
    ``group`` is empty for the core group. ``label_selector`` and ``field_selector`` are as the query has them.
    """

    verb: str
    resource_request: bool = True
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    label_selector: str = ""
    field_selector: str = ""


class Decision(FrozenStruct):
    """Whether a request is allowed. ``reason`` is for the answer and the audit log; it may be empty.

    ``denied`` is a refusal that no other authorizer overrules; without it, and not ``allowed``, the next one is asked.
    """

    allowed: bool
    reason: str = ""
    denied: bool = False


class Authenticator(Protocol):
    """Tells who asks."""

    def authenticate(self, request: Request) -> User | None:
        """Return who asks; None: the request has no credentials of the kinds that this one knows.

        :raises StatusError: 401, if it has some and they are wrong.
        """
        ...


class Authorizer(Protocol):
    """Tells who may do what."""

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision: ...
