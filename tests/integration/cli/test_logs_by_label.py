"""``podkeep logs -l``: of pods whose names others had before them."""

from __future__ import annotations

from pathlib import Path

from support.cri import Pods, pod
from support.daemon import Daemon


def test_logs_of_labels_are_those_of_the_pod_that_was_made_again(daemon: Daemon, image: str, tmp_path: Path) -> None:
    """Its predecessor of the same name is not removed yet, and had crashed three times."""
    with Pods(daemon.socket, image) as pods:
        pods.pull()
        for text, attempt in (("old", 3), ("new", 0)):
            config = pod("web", log_directory=str(tmp_path / text), labels={"app": "web"})
            config.metadata.uid = text
            sandbox = pods.run(config)
            container = pods.launch(sandbox, "echo", text, attempt=attempt, log_path="main.log")
            pods.exited(container)
            if text == "old":
                pods.stop_pod(sandbox)
        for which in (["web"], ["-l", "app=web"], ["web", "--all-containers"]):
            assert daemon.run("logs", "-n", "tests", *which, check=True).stdout == "new\n", which
