"""``/healthz``, ``/livez`` and ``/readyz``, with the texts that kube-apiserver has for them; ``/version``."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podkeep.apiserver.endpoints.query import Query

PATHS = ("healthz", "livez", "readyz")
KUBERNETES = (1, 36, 0)
"""The version of Kubernetes whose interface is served."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``look`` returns what is wrong, or nothing."""

    name: str
    look: Callable[[], str]
    only_ready: bool = False
    """It says whether requests should be sent here, not whether the process should be ended."""


PING = Check("ping", lambda: "")


def answer(path: str, checks: Sequence[Check], query: Query) -> tuple[int, str] | None:
    """Return status and text for a path; None if there is no such check."""
    endpoint, _, name = path.strip("/").partition("/")
    chosen = [check for check in (PING, *checks) if not (check.only_ready and endpoint == "livez")]
    if name:
        chosen = [check for check in chosen if check.name == name]
        if not chosen:
            return None
    excluded = set(query.texts("exclude"))
    lines, failed = [], False
    for check in chosen:
        if check.name in excluded:
            lines.append(f"[+]{check.name} excluded: ok")
            continue
        why = check.look()
        failed = failed or bool(why)
        lines.append(f"[-]{check.name} failed: reason withheld" if why else f"[+]{check.name} ok")
    if failed:
        return 500, "\n".join((*lines, f"{endpoint} check failed", ""))
    if "verbose" in query:
        return 200, "\n".join((*lines, f"{endpoint} check passed", ""))
    return 200, "ok"


def version(podkeep: str) -> Mapping[str, Any]:
    """Return the document at ``/version``; clients compare it as one of Kubernetes."""
    major, minor, patch = KUBERNETES
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": str(major),
        "minor": str(minor),
        "gitVersion": f"v{major}.{minor}.{patch}+podkeep-{podkeep}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{machine}",
    }
