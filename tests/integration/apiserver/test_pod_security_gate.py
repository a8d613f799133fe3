"""The gate UserNamespacesPodSecurityStandards in a running API: what it lets in, and what it does not (KEP-127)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.api_client import Answer, ApiClient
from support.api_daemon import ApiDaemon

ON = ("--set", "api.feature_gates.UserNamespacesPodSecurityStandards=true")
AS_ROOT = {"runAsUser": 0, "runAsNonRoot": False}
POWERFUL = {"capabilities": {"add": ["SYS_ADMIN"]}}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the level asks of every pod, user namespace or not."""


def ask(api: ApiDaemon, path: str, body: dict[str, Any]) -> Answer:
    client = ApiClient(api.socket)
    try:
        return client.ask("POST", path, body)
    finally:
        client.close()


def admitted(api: ApiDaemon, level: str, security: dict[str, Any], **spec: Any) -> bool:
    """Return whether a pod whose container has ``security`` may be made in the namespace of that level."""
    container = {"name": "main", "image": "registry.test/image:1", "securityContext": security}
    spec |= {"containers": [container], "automountServiceAccountToken": False}
    answer = ask(api, f"/api/v1/namespaces/{level}/pods?dryRun=All", {"metadata": {"generateName": "p-"}, "spec": spec})
    assert answer.status in {201, 403}, answer.said
    assert answer.status == 201 or f'violates PodSecurity "{level}:latest"' in answer.said
    return answer.status == 201


@pytest.mark.requirement("U14", "U16", "U17", "U18")
def test_the_relaxed_policies_alone(tmp_path: Path, scratch_machine: None) -> None:
    """With the gate on a pod with a user namespace may be root, and have any capability at baseline; no other may."""
    with ApiDaemon(tmp_path) as api:
        for level in ("baseline", "restricted"):
            labels = {"pod-security.kubernetes.io/enforce": level}
            assert ask(api, "/api/v1/namespaces", {"metadata": {"name": level, "labels": labels}}).status == 201

        def outcomes(**spec: Any) -> list[bool]:
            return [
                admitted(api, "restricted", RESTRICTED | AS_ROOT, **spec),
                admitted(api, "baseline", POWERFUL, **spec),
                admitted(api, "restricted", RESTRICTED | AS_ROOT | POWERFUL, **spec),
            ]

        off = [outcomes(), outcomes(hostUsers=True), outcomes(hostUsers=False)]
        api.stop()
        api.options = ON
        api.start()
        on = [outcomes(), outcomes(hostUsers=True), outcomes(hostUsers=False)]
    assert off == [[False] * 3] * 3
    assert on == [[False] * 3, [False] * 3, [True, True, False]]
