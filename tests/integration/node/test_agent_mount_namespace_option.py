"""``podkeep agent`` that is told which mount namespace to be in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from node.test_user_namespace_gate import runs

from podkeep.mountns import lifecycle
from support import forked
from support.nodes import namespace_of, pin_of
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S

pytestmark = pytest.mark.container_mounts("hidden", reason="with all on the host there is no namespace to be told")


@pytest.fixture
def elsewhere(own_node: RunningNode) -> Iterator[Path]:
    """A mount namespace of this kind that is not the runtime's, pinned."""
    pin = Path("/run") / f"{own_node.daemon.token}-elsewhere" / "mnt"
    lifecycle.start(pin)
    yield pin
    lifecycle.stop(pin)


def refusal(node: RunningNode, *options: str) -> str:
    """Return what an agent says that must not start."""
    command = node.daemon.command("agent", "--unix-socket", str(node.api.socket), *options)
    done = forked.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.requirement("M14")
def test_an_agent_is_where_it_was_told_to_be(
    own_node: RunningNode, elsewhere: Path, image: str, tmp_path: Path
) -> None:
    """By file or by process; a place that is none, or is not the runtime's, is fatal."""
    with own_node as node:
        node.end_agent()
        by_file = ("--mount-namespace", str(pin_of(node.daemon)))
        by_process = ("--mount-namespace-pid", str(node.daemon.pid))
        for number, options in enumerate((by_file, by_process)):
            node.options = options
            node.start_agent()
            assert node.agent is not None
            assert namespace_of(node.agent.pid) == namespace_of(node.daemon.pid) != namespace_of()
            node.apply(runs(image, f"told-{number}"))
            node.running(f"told-{number}")
            node.end_agent()
        flag = "--mount-namespace"
        assert f"{flag}: {tmp_path}/none: no such file" in refusal(node, flag, f"{tmp_path}/none")
        assert "is a net namespace and no mount namespace" in refusal(node, flag, "/proc/self/ns/net")
        assert "there is no process 4194303" in refusal(node, "--mount-namespace-pid", "4194303")
        assert "name two namespaces" in refusal(node, *by_file, *by_process)
        assert "the runtime is in mount namespace" in refusal(node, flag, str(elsewhere))
