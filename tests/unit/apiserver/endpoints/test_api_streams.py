"""Streams into pods, up to the kubelet: who may have them, and what others are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.api_calls import Api, run

ROLES = "/apis/rbac.authorization.k8s.io/v1"
READER = {"impersonate-user": "ann"}


@pytest.mark.parametrize("kind", ["exec", "attach", "portforward"])
def test_who_may_not_create_a_stream_is_told_what_they_may_not(tmp_path: Path, kind: str) -> None:
    """A WebSocket asks with GET, which a reader of pods may have; the message is that of any other refusal."""

    async def test(api: Api) -> None:
        rules = [{"apiGroups": [""], "resources": ["pods", f"pods/{kind}"], "verbs": ["get"]}]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
        subjects = [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]
        await api.call("POST", f"{ROLES}/clusterroles", {"metadata": {"name": "reader"}, "rules": rules})
        binding = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": subjects}
        await api.call("POST", f"{ROLES}/clusterrolebindings", binding)
        answer = await api.call("GET", f"/api/v1/namespaces/default/pods/web/{kind}?command=ls", headers=READER)
        assert answer.status == 403
        assert answer.message == (
            f'pods "web" is forbidden: User "ann" cannot create resource "pods/{kind}" in API group "" in the namespace'
            ' "default"'
        )

    run(tmp_path, test)
