"""Logs of a pod whose directory another one has exchanged for a link: nothing behind it is read, renamed or removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.manifests import pod, shell

from support.running_node import RunningNode

SECRET = "2026-01-02T03:04:05.000000006Z stdout F secret\n"


def mounted(image: str, script: str, directory: Path, name: str) -> dict[str, object]:
    container = shell(image, script, volumeMounts=[{"name": "host", "mountPath": "/host"}])
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return pod(container, name=name, volumes=[{"name": "host", "hostPath": {"path": str(directory)}}])


@pytest.mark.parametrize("what", ["container", "pod"])
def test_a_directory_of_logs_that_a_pod_exchanges_for_a_link(
    own_node: RunningNode, image: str, tmp_path: Path, what: str
) -> None:
    secret, go = tmp_path / "secret", tmp_path / "go"
    secret.mkdir(mode=0o700)
    go.mkdir()
    for place in (secret, secret / "main"):
        place.mkdir(exist_ok=True)
        (place / "0.log").write_text(SECRET * 10_000)
        for number in range(6):
            (place / f"0.log.20200131-08000{number}").write_text(SECRET)

    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_ino, path.stat().st_ctime_ns) for path in secret.rglob("*")}

    before = state()
    own_node.settings = ("agent.container_log_max_size=64Ki", "agent.container_log_max_files=2")
    with own_node as node:
        node.apply(mounted(image, "echo own; until [ -e /host/on ]; do sleep 0.05; done; exit 3", go, "web"))
        node.running("web")
        node.until(lambda: node.daemon.run("logs", "web").stdout == "own\n", "the log")
        directory = "/host/default_web_*" + ("/main" if what == "container" else "")
        script = f"d=$(echo {directory}); mv $d /host/moved; ln -s {secret} $d; sleep 1000"
        node.apply(mounted(image, script, node.daemon.base / "logs", "other"))
        node.until(lambda: "is not rotated" in node.said(), "the agent's word")
        for options in ((), ("-f",)):
            told = node.daemon.run("logs", "web", *options)
            assert (told.returncode != 0, told.stdout) == (True, "")
            assert "cannot be entered" in told.stderr
            assert "no link" in told.stderr
        assert "cannot be entered" in node.api.kubectl("logs", "web", status=1)
        (go / "on").touch()
        status = node.phase("web", "Failed")["status"]["containerStatuses"][0]
        assert "Error on reading termination message from logs" in status["state"]["terminated"]["message"]
        assert state() == before
        assert node.said().count("is not rotated") == 1
        node.delete_all_pods()
        (left,) = node.left_behind()
        assert left.endswith("/logs/moved"), "that the pod has put there, and is nobody's"
        assert state() == before
