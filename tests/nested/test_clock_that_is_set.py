"""A node whose clock is set: pods run on, start again when it is time, and may still ask the API.

What waits waits by a steady clock; what is good until a time of day (tokens) is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.images import busybox_layout
from support.nested.machine import Machine
from support.nested.node import NestedNode

IMAGE = "localhost/busybox:nested"
WAITS = "trap 'exit 0' TERM; while :; do sleep 1; done"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
CONFIG = "/etc/podkeep/config.toml"
SOON = "[agent.crash_loop_back_off]\nmax_container_restart_period = 5.0\n"
"""The clock is set by hours: a wait that goes by it is told from one of five seconds as well as from one of minutes."""
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def pod(name: str, command: str = WAITS, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": IMAGE, "command": ["sh", "-c", command]}
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def restarts(found: dict[str, Any]) -> int:
    return int(found["status"]["containerStatuses"][0]["restartCount"])


def conditions(node: NestedNode) -> dict[str, tuple[str, str]]:
    found = node.ask("GET", f"/api/v1/nodes/{node.name}")
    return {item["type"]: (item["status"], item["lastTransitionTime"]) for item in found["status"]["conditions"]}


@pytest.mark.timeout(2400)
def test_pods_run_on_whatever_is_done_to_the_clock(boot: Callable[..., Machine], tmp_path: Path) -> None:
    node = NestedNode(boot())
    node.machine.write(CONFIG, SOON)
    node.start(busybox_layout(tmp_path / "busybox", name=IMAGE))
    node.name = node.ask("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    node.apply(
        pod("steady", automountServiceAccountToken=True),
        pod("limited", activeDeadlineSeconds=1800),
        pod("loops", "exit 3"),
    )
    for name in ("steady", "limited"):
        node.running(name)
    node.pod("loops", lambda found: restarts(found) >= 1, "started again")
    before = conditions(node)

    def token_is_good() -> bool:
        token = node.machine.podkeep("exec", "steady", "cat", TOKEN, check=False).stdout
        client = node.connection()
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = client.ask("POST", REVIEW, body, Authorization=f"Bearer {token}")
        finally:
            client.close()
        return answer.status == 201 and "serviceaccount:default" in answer.value["status"]["userInfo"]["username"]

    assert token_is_good()
    for change in ("+2 hours", "-3 hours"):
        node.machine.run(f"date --set '{change}'", check=True)
        crashed = restarts(node.get("loops") or {})
        ended = restarts(node.get("steady") or {})
        node.machine.podkeep("exec", "steady", "kill", "1")
        node.pod("steady", lambda found, ended=ended: restarts(found) > ended, f"started again after {change}")
        node.pod("loops", lambda found, crashed=crashed: restarts(found) > crashed, f"started again after {change}")
        node.until(token_is_good, f"a token that is good after {change}")
        assert node.get("limited")["status"]["phase"] == "Running"  # type: ignore[index]
        assert conditions(node) == before, change
    # A container that was created and not started yet ignores SIGTERM: systemd would wait for it as the machine ends.
    node.delete_all_pods()
