"""What the API answers when it refuses: its Status object as an error."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from podkeep.base.errors import PodkeepError

_SHOWN = 1024
"""Characters of an answer that is no Status which an error shows."""


class ApiError(PodkeepError):
    """The API answered, and refused.

    :ivar code: the HTTP status.
    :ivar reason: of the Status, such as ``NotFound``; empty if what came is none.
    :ivar status: the Status as it came; empty likewise.
    :ivar retry_after: seconds after which the server wants to be asked again; 0 if it said nothing.
    """

    def __init__(self, code: int, message: str, status: Mapping[str, Any], retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        reason = status.get("reason", "")
        self.reason = reason if isinstance(reason, str) else ""
        self.status = status
        self.retry_after = retry_after

    @property
    def not_found(self) -> bool:
        """There is no such object, or no such resource."""
        return self.code == HTTPStatus.NOT_FOUND

    @property
    def already_exists(self) -> bool:
        return self.code == HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def forbidden(self) -> bool:
        """Who asks may not do that."""
        return self.code == HTTPStatus.FORBIDDEN

    @property
    def conflict(self) -> bool:
        """The object was changed meanwhile, or a precondition (UID, resourceVersion) does not hold."""
        return self.code == HTTPStatus.CONFLICT and self.reason != "AlreadyExists"

    @property
    def gone(self) -> bool:
        """The server has the resourceVersion or the continue token no more, or not yet (a copy was restored): list."""
        if self.code == HTTPStatus.GONE:
            return True
        try:
            return any(cause["reason"] == "ResourceVersionTooLarge" for cause in self.status["details"]["causes"])
        except (KeyError, TypeError):
            return False


def refusal(code: int, data: bytes, retry_after: float = 0.0) -> ApiError:
    """Return the error for an answer: with its Status if it has one, else with its text."""
    try:
        status = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = {}
    if status.get("kind") == "Status" and isinstance(status.get("message"), str):
        return ApiError(code, status["message"] or _name(code), status, retry_after)
    text = data[:_SHOWN].decode(errors="replace").strip()
    return ApiError(code, f"HTTP status {code}: {text or _name(code)}", {}, retry_after)


def status_error(status: Mapping[str, Any]) -> ApiError:
    """Return the error for the Status object of a watch's ERROR event."""
    code, message = status.get("code"), status.get("message")
    number = code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR.value
    return ApiError(number, message if isinstance(message, str) and message else _name(number), status)


def _name(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "unknown status"
