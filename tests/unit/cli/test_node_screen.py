"""What ``podkeep status`` says of daemons that end, and of what it cannot know."""

from __future__ import annotations

import pytest

from podkeep.cli import status
from podkeep.cli.core.node_report import DaemonReport, NodeReport


@pytest.mark.parametrize(("had_served", "said"), [(True, "api has ended: killed"), (False, "api cannot start: killed")])
def test_a_daemon_that_is_started_again(had_served: bool, said: str) -> None:
    api = DaemonReport(name="api", state="starting", reason="killed", had_served=had_served)
    told = NodeReport(pid=1, runtime="/run/r.sock", kubeconfig="", embedded=True, daemons=(api,))
    found = status.judged(told, "one", status.Seen(problem="no socket"), 0.0)
    shown = list(status.lines(found, 0.0))
    assert shown[0] == f"node one: {said}"
    assert shown[-1] == "pods: not known, the API does not say; they run on"


def test_what_is_wrong_with_a_daemon_that_serves_is_in_the_first_line() -> None:
    agent = DaemonReport(name="agent", state="ready", problem="1 static pod is left out")
    told = NodeReport(pid=1, runtime="/run/r.sock", kubeconfig="", embedded=True, daemons=(agent,))
    node = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    found = status.judged(told, "one", status.Seen(node=node), 0.0)
    assert next(iter(status.lines(found, 0.0))) == "node one: Ready; 1 static pod is left out"
    assert not found.is_well


def test_a_node_without_pods_says_so() -> None:
    told = NodeReport(
        pid=1, runtime="/run/r.sock", kubeconfig="", embedded=True, daemons=(DaemonReport(name="api", state="ready"),)
    )
    assert list(status.lines(status.judged(told, "one", status.Seen(), 0.0), 0.0))[-1] == "pods: none"
