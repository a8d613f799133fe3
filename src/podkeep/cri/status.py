"""Error class <-> gRPC status: the only module that knows the codes.

Called by ``cri/server.py`` to answer with an error and by ``cri/client.py`` to raise one. The class decides the code
and the details are ``str(error)``, so an error crosses the socket with class, message and hint. A subclass that has no
code of its own (``KernelCallError``) travels as its parent.
"""

from __future__ import annotations

import podkeep.cri.transport  # noqa: F401 - before grpc

# isort: split
import grpc

from podkeep.base.errors import (
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodkeepError,
    RegistryUnavailable,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from podkeep.base.text.printable import printable_lines
from podkeep.base.text.redaction import redacted

MAX_DETAILS_BYTES = 6 * 1024
"""Longest details on the wire. gRPC core drops a whole answer whose trailers pass 8 KiB (its soft default limit)."""

_MAX_READ = 32 * 1024
"""Characters of each end of a text that are looked at, one by one: it may have in it what a caller has sent. Far more
than is shown, so that no credential in what is shown has lost what it is known by."""

_CODES: dict[type[PodkeepError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    # A kubelet compares the text, and has it without "rpc error: code = ..." in front from this code only
    # (kubernetes, cri-client/pkg/remote_image.go).
    RegistryUnavailable: grpc.StatusCode.UNKNOWN,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    DataLoss: grpc.StatusCode.DATA_LOSS,
    Internal: grpc.StatusCode.INTERNAL,
}

_CLASSES: dict[grpc.StatusCode, type[PodkeepError]] = {
    **{code: error for error, code in _CODES.items()},
    # What other runtimes send. A Go server answers UNKNOWN for any error without a code.
    grpc.StatusCode.UNKNOWN: Internal,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
    grpc.StatusCode.ABORTED: Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
}

_HINT = "; hint: "


def code_of(error: PodkeepError) -> grpc.StatusCode:
    """Return the code of the error's class, or of its nearest parent that has one; INTERNAL if none has."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return grpc.StatusCode.INTERNAL


def details_of(error: PodkeepError) -> str:
    """Return ``str(error)`` as it may travel: printable lines without secrets, of at most ``MAX_DETAILS_BYTES`` on the
    wire.

    From a text that is too long the middle is left out: the start says what failed, the end what a program said last.
    """
    text = str(error)
    whole = len(text) <= 2 * _MAX_READ
    start = printable_lines(redacted(text if whole else text[:_MAX_READ]))
    if whole and _wire_length(start) <= MAX_DETAILS_BYTES:
        return start
    end = start if whole else printable_lines(redacted(text[-_MAX_READ:]))
    gap = " [...] "
    half = (MAX_DETAILS_BYTES - len(gap)) // 2
    first, last = _prefix(start, half), _prefix(end[::-1], half)[::-1]
    # The word that was cut may be a part of a credential; it is shown only if far more was left out than is shown.
    if not whole and first == start:
        first = start.rpartition(" ")[0]
    if not whole and last == end:
        last = end.partition(" ")[2]
    return first + gap + last


def error_of(code: grpc.StatusCode, details: str) -> PodkeepError:
    """Return the error that ``code`` and ``details`` stand for; the inverse of ``code_of`` and ``details_of``.

    Total over the codes: one that podkeep never sends becomes the class whose caller would act alike.
    """
    message, _, hint = details.partition(_HINT)
    named = code is grpc.StatusCode.UNKNOWN and message.startswith(RegistryUnavailable.__name__)
    # UNKNOWN is also what other runtimes answer for any error: only the text tells that it is about a registry.
    kind = RegistryUnavailable if named else _CLASSES.get(code, Internal)
    return kind(message or f"no details, only {code.name}", hint=hint)


def _wire_bytes(char: str) -> int:
    """Bytes of one character in the grpc-message trailer, which is percent-encoded UTF-8 (gRPC over HTTP/2)."""
    return 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode("utf-8"))


def _wire_length(text: str) -> int:
    return sum(map(_wire_bytes, text))


def _prefix(text: str, limit: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += _wire_bytes(char)
        if used > limit:
            return text[:index]
    return text
