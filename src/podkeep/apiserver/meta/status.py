"""Errors as the API answers them: ``Status`` objects with kube-apiserver's reasons and texts; clients match on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from podkeep.api.fields import FieldError
from podkeep.base.text.printable import aggregated

_CAUSES = {
    "Not found": "FieldValueNotFound",
    "Required value": "FieldValueRequired",
    "Duplicate value": "FieldValueDuplicate",
    "Invalid value": "FieldValueInvalid",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
    "Too few": "FieldValueTooFew",
    "Internal error": "InternalError",
}
"""The type of a cause, by the words that its message begins with."""


class StatusError(Exception):
    """A request that failed.

    :param code: the HTTP status.
    :param reason: one of Kubernetes' reasons, such as ``NotFound``; empty if it has none.
    :param details: of the ``Status``: ``name``, ``group``, ``kind``, ``causes``, ``retryAfterSeconds``.
    """

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = {name: value for name, value in details.items() if value}

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }
        # Go leaves out no struct for being empty.
        return {name: value for name, value in answer.items() if value or name == "metadata"}


def qualified(resource: str, group: str) -> str:
    """Return a resource or kind as messages name it: ``pods``, ``deployments.apps``."""
    return f"{resource}.{group}" if group else resource


def not_found(resource: str, group: str, name: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, name=name, group=group, kind=resource)


def no_such_resource(why: str = "") -> StatusError:
    """There is nothing at that path. kube-apiserver never says why."""
    message = "the server could not find the requested resource"
    return StatusError(404, "NotFound", f"{message}: {why}" if why else message)


def already_exists(resource: str, group: str, name: str) -> StatusError:
    message = f'{qualified(resource, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, name=name, group=group, kind=resource)


def conflict(resource: str, group: str, name: str, why: str) -> StatusError:
    """The object is not what the request was computed from."""
    message = f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, name=name, group=group, kind=resource)


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
"""Why a write with an old ``resourceVersion`` is a conflict."""


def forbidden(resource: str, group: str, name: str, why: str) -> StatusError:
    """The user may not do that, or admission refused it."""
    named = f' "{name}"' if name else ""
    message = f"{qualified(resource, group)}{named} is forbidden: {why}" if resource else f"forbidden: {why}"
    return StatusError(403, "Forbidden", message, name=name, group=group, kind=resource)


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Validation found errors; each becomes a cause. What is found twice is told once."""
    causes = [{"reason": cause(error), "message": error.problem, "field": error.path} for error in errors]
    message = f'{qualified(kind, group)} "{name}" is invalid: {aggregated(map(str, errors))}'
    return StatusError(422, "Invalid", message, name=name, group=group, kind=kind, causes=causes)


def cause(error: FieldError) -> str:
    return _CAUSES.get(error.problem.partition(":")[0], "FieldValueInvalid")


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """The credentials are wrong, or there are none."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed(message: str = "the server does not allow this method on the requested resource") -> StatusError:
    """The resource has no such verb."""
    return StatusError(405, "MethodNotAllowed", message)


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """The client takes nothing that is served."""
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return StatusError(406, "NotAcceptable", message)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)


def too_large(message: str) -> StatusError:
    """The body, or what a patch makes, is too large."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {message}")


def expired(message: str) -> StatusError:
    """The revision that was asked for is not kept any more."""
    return StatusError(410, "Expired", message)


def too_many_requests(seconds: int = 1, message: str = "Too many requests, please try again later.") -> StatusError:
    return StatusError(429, "TooManyRequests", message, retryAfterSeconds=seconds)


def unavailable(message: str) -> StatusError:
    """What the request needs does not answer now."""
    return StatusError(503, "ServiceUnavailable", message)


def internal(why: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {why}", causes=[{"message": why}])


def unprocessable(why: str) -> StatusError:
    """A patch does not fit the object. kube-apiserver says no more than the first half."""
    return StatusError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")
