"""``podkeep run`` on a machine with one mapping for its pods (KEP-127 draft)."""

from __future__ import annotations

import pytest
from agent.conftest import Runner
from agent.manifests import pod, shell

SETTINGS = (
    "agent.feature_gates.UserNamespaceSupport=true",
    'agent.uid_mapping="0:1000:10,10:5000:10"',
    'agent.gid_mapping="0:300000:65536"',
)


@pytest.mark.requirement("U47", "U48", "U53", "U55")
def test_pods_have_the_mapping_unless_they_cannot(runner: Runner, image: str) -> None:
    """Who shares the machine's user namespace without having asked for it is told why."""
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    script = "cat /proc/self/uid_map /proc/self/gid_map; echo left > /dev/termination-log"
    own = runner.daemon.run(*options, "run", str(runner.file(pod(shell(image, script)))))
    assert own.returncode == 0, own.stderr
    assert [line.split() for line in own.stdout.splitlines()] == [
        ["0", "1000", "10"],
        ["10", "5000", "10"],
        ["0", "300000", "65536"],
    ]
    shares = runner.daemon.run(*options, "run", str(runner.file(pod(shell(image, script), hostPID=True))))
    assert shares.returncode == 0, shares.stderr
    assert [line.split() for line in shares.stdout.splitlines()] == [["0", "0", "4294967295"]] * 2
    assert shares.stderr.count("the pod shares the user namespace of the node") == 1
    assert "in one of its own: hostPID." in shares.stderr
    assert own.stderr == ""
