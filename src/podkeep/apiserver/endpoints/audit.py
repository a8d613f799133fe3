"""The audit log: a line of JSON for each request, with who asked for what and the code of the answer (level Metadata).

The form is ``audit.k8s.io/v1`` ``Event``. Bodies are never written: they may be secret.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from podkeep.apiserver.auth.reviews import user_info
from podkeep.apiserver.requests.call import Call
from podkeep.apiserver.requests.output import encode

MAX_BYTES = 100 << 20
"""Of one file; the one before it is kept beside it, as ``.1``."""


def event(call: Call, code: int, received: datetime, now: datetime) -> dict[str, Any]:
    """Return what is written of a request."""
    info = call.info
    found: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": call.audit_id,
        "stage": "ResponseComplete" if info.verb != "watch" else "ResponseStarted",
        "requestURI": call.request.target[:4096],
        "verb": info.verb,
        "user": user_info(call.user),
        "sourceIPs": [call.request.peer.address] if call.request.peer.address else [],
        "userAgent": call.header("user-agent")[:1024],
        "responseStatus": {"metadata": {}, "code": code},
        "requestReceivedTimestamp": f"{received:%Y-%m-%dT%H:%M:%S.%fZ}",
        "stageTimestamp": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    if call.impersonator is not None:
        found["user"], found["impersonatedUser"] = user_info(call.impersonator), user_info(call.user)
    if info.resource_request:
        object_ref = {
            "resource": info.resource,
            "namespace": info.namespace,
            "name": info.name,
            "apiGroup": info.group,
            "apiVersion": info.version,
            "subresource": info.subresource,
        }
        found["objectRef"] = {name: text for name, text in object_ref.items() if text}
    return found


class AuditLog:
    """Appends to a file, which is renamed when it is too long."""

    def __init__(self, path: Path, limit: int = MAX_BYTES) -> None:
        """Open it.

        :raises OSError: if that is not possible.
        """
        self._path, self._limit = path, limit
        self._file, self._size = _opened(path)

    def write(self, call: Call, code: int, received: datetime) -> None:
        """Write a line, the whole of it or nothing.

        :raises OSError: if the disk does not take it.
        """
        line = encode(event(call, code, received, datetime.now(UTC))) + b"\n"
        if self._size + len(line) > self._limit and self._size:
            self._rename()
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            if written:  # the next line would go on behind it
                os.ftruncate(self._file, self._size)
            raise
        self._size += written

    def _rename(self) -> None:
        # The open file is given up last: if one of these fails, its number must not become another file's.
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        before = self._file
        self._file, self._size = _opened(self._path)
        os.close(before)

    def close(self) -> None:
        os.close(self._file)


def _opened(path: Path) -> tuple[int, int]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return file, os.fstat(file).st_size
