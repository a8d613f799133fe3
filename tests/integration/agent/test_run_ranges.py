"""``podkeep run`` gives pods IDs of the same range as a node's agent does."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.conftest import Runner
from agent.manifests import pod, shell

from podkeep.kernel.mount import mounts

USER = "root:x:0:0::/root:/bin/sh\nkubelet:x:64990:64990::/nonexistent:/usr/sbin/nologin\n"
RANGE = "kubelet:3276800:14417920\n"
MAPS = "cat /proc/self/uid_map /proc/self/gid_map"


@pytest.mark.requirement("U38", "U40", "U31")
def test_pods_get_the_range_of_user_kubelet(own_runner: Runner, image: str, tmp_path: Path) -> None:
    """What is no range is told with its hint, and keeps no other pod from running."""
    own_runner.daemon.start()
    for name in ("passwd", "subuid", "subgid"):
        (tmp_path / name).write_text(USER if name == "passwd" else RANGE)
        mounts.bind(tmp_path / name, Path("/etc") / name)
    try:
        mapped = own_runner.run(pod(shell(image, MAPS), hostUsers=False))
        assert mapped.stdout.split() == ["0", "3276800", "65536"] * 2
        long = ("--set", "agent.user_namespaces.ids_per_pod=131072")
        file = str(own_runner.file(pod(shell(image, MAPS), hostUsers=False)))
        assert own_runner.daemon.run(*long, "run", file).stdout.split() == ["0", "3276800", "131072"] * 2
        (tmp_path / "subgid").write_text("")
        refused = own_runner.run(pod(shell(image, MAPS), hostUsers=False))
        assert own_runner.run(pod(shell(image, "true"))).returncode == 0
    finally:
        for name in ("passwd", "subuid", "subgid"):
            mounts.unmount(Path("/etc") / name)
    assert refused.returncode == 1
    assert refused.stderr == (
        "podkeep: Failed to create pod sandbox: the ID range could not be retrieved: `getsubids -g kubelet` failed with"
        " status 1: Error fetching ranges\n"
        "hint: give user kubelet a range in /etc/subuid and /etc/subgid, or remove the user\n"
    )
    assert own_runner.pods() == []
