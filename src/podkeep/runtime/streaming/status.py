"""The last word of a session: a ``v1.Status`` as Kubernetes' API has it, or a plain text for older clients.

Pure. Kubernetes' clients read an exit code only from this form (k8s.io/client-go, tools/remotecommand).
"""

from __future__ import annotations

import json
from typing import Any


def success() -> bytes:
    """Return the status of a command that ended with 0, or of a container that ended while attached."""
    return _encode({"status": "Success"})


def exit_code(code: int) -> bytes:
    if code == 0:
        return success()
    return _encode(
        {
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    )


def failure(message: str) -> bytes:
    """Return the status of a session that could not be carried out."""
    return _encode(
        {
            "status": "Failure",
            "message": f"Internal error occurred: {message}",
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }
    )


def plain(status: bytes) -> bytes:
    """Return what clients of the protocol's versions 1 to 3 are told: nothing, or why it failed."""
    message = json.loads(status)
    return b"" if message["status"] == "Success" else str(message["message"]).encode()


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({"metadata": {}, **fields}).encode()
