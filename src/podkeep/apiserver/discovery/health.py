"""``/healthz``, ``/livez`` and ``/readyz``, with the texts that kube-apiserver has for them; ``/version``."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.apiserver.requests.query import Query
from podkeep.http import health
from podkeep.http.health import Check

PATHS = ("healthz", "livez", "readyz")
KUBERNETES = (1, 36, 0)
"""The version of Kubernetes whose interface is served."""


def answer(path: str, checks: Sequence[Check], query: Query) -> tuple[int, str] | None:
    """Return status and text for a path; None if there is no such check."""
    endpoint, _, name = path.strip("/").partition("/")
    chosen = [check for check in (health.PING, *checks) if not (check.only_ready and endpoint == "livez")]
    return health.answer(endpoint, name, chosen, excluded=query.texts("exclude"), verbose="verbose" in query)


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
