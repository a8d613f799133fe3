"""What is asked of qemu itself: which port it has chosen, and a reset. Called by support/nested/machine.py."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)")


def forwarded_port(path: Path) -> int | None:
    """Return the TCP port on loopback that leads into the machine; None as long as qemu does not answer."""
    try:
        shown = _command(path, "human-monitor-command", {"command-line": "info usernet"})
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    found = FORWARD.search(shown)
    assert found is not None, f"qemu forwards no port: {shown}"
    return int(found[1])


def reset(path: Path) -> None:
    """Reset the machine at once; what is on its disks stays."""
    _command(path, "system_reset")


def _command(path: Path, command: str, arguments: dict[str, str] | None = None) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
        with connection.makefile("rwb") as stream:
            stream.readline()  # the greeting
            _ask(stream, "qmp_capabilities")
            return _ask(stream, command, arguments)


def _ask(stream: Any, command: str, arguments: dict[str, str] | None = None) -> Any:
    stream.write(json.dumps({"execute": command, "arguments": arguments or {}}).encode() + b"\n")
    stream.flush()
    while "return" not in (answer := json.loads(stream.readline())):
        assert "event" in answer, f"qemu refuses {command}: {answer}"
    return answer["return"]
