"""What somebody is told who may not do what they ask for (apiserver: ``responsewriters.ForbiddenStatusError``)."""

from __future__ import annotations

from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.meta import status
from podkeep.apiserver.meta.status import StatusError
from podkeep.base.text.printable import quote

_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""So that no error looks like valid HTML."""


def forbidden(user: User, attributes: RequestAttributes, reason: str = "") -> StatusError:
    """Return the error that a user may not do something; ``reason`` is the authorizer's."""
    why = _sentence(user, attributes).translate(_MARKUP) + (f": {reason}" if reason else "")
    return status.forbidden(attributes.resource, attributes.group, attributes.name, why)


def _sentence(user: User, attributes: RequestAttributes) -> str:
    who = f"User {quote(user.name)} cannot {attributes.verb}"
    if not attributes.resource_request:
        return f"{who} path {quote(attributes.path)}"
    resource = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
    where = f"in the namespace {quote(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    return f"{who} resource {quote(resource)} in API group {quote(attributes.group)} {where}"
