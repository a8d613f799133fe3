"""What other commands say of a pod whose init containers run: kubectl's words."""

from __future__ import annotations

import re
from typing import Any

from agent.conftest import Runner, interrupt, until
from agent.manifests import pod, shell

SETUP = "echo preparing; until [ -e /tmp/go ]; do sleep 0.05; done"


def cells(runner: Runner) -> list[str]:
    """Return READY and STATUS of the one pod there is."""
    found = re.search(r"^web +default +(\S+) +(\S+)", runner.daemon.run("ps", check=True).stdout, re.MULTILINE)
    return list(found.groups()) if found else []


def with_init(image: str, *containers: dict[str, Any], script: str = SETUP, **spec: Any) -> dict[str, Any]:
    """Return a pod whose init container waits to be told."""
    return pod(*containers, initContainers=[shell(image, script, name="setup")], **spec)


def test_a_pod_whose_init_container_runs(runner: Runner, image: str) -> None:
    with runner.start(with_init(image, shell(image, "echo here; exec sleep 1000"))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[setup] preparing\n"
        assert cells(runner) == ["0/1", "Init:0/1"]
        for words in (("logs", "web/main"), ("logs", "web"), ("exec", "web", "true"), ("exec", "web/main", "true")):
            done = runner.daemon.run(*words)
            said = 'podkeep: container "main" in pod "web" is waiting to start: PodInitializing\n'
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(said)
        assert runner.daemon.run("logs", "web/setup").stdout == "preparing\n"
        assert runner.daemon.run("exec", "web/setup", "touch", "/tmp/go").returncode == 0
        assert process.stdout.readline() == "[main] here\n"
        assert cells(runner) == ["1/1", "Running"]
        # Init containers are no reason to name the only other one.
        assert runner.daemon.run("logs", "web").stdout == "here\n"
        assert runner.daemon.run("exec", "web", "echo", "inside").stdout == "inside\n"
        wrong = runner.daemon.run("logs", "web/none")
        assert wrong.stderr.splitlines() == ["podkeep: pod web has no container none", "hint: it has main, setup"]
        assert interrupt(process)[0] == 130


def test_a_pod_whose_init_container_failed(runner: Runner, image: str) -> None:
    ended = runner.run(with_init(image, shell(image, "true"), script="exit 3"), options=("--keep",))
    assert ended.returncode == 3
    assert cells(runner) == ["0/1", "Init:Error"]
    done = runner.daemon.run("logs", "web")
    assert done.returncode == 1
    assert done.stderr.startswith('podkeep: container "main" in pod "web" has not run, and nobody starts it\n')
    assert runner.daemon.run("rm", "web").returncode == 0


def test_an_init_container_in_back_off(runner: Runner, image: str) -> None:
    document = with_init(image, shell(image, "true"), script="exit 3", restartPolicy="OnFailure")
    with runner.start(document) as process:
        until(lambda: cells(runner) == ["0/1", "Init:CrashLoopBackOff"], "the back-off")
        assert interrupt(process)[0] == 130


def test_a_pod_with_several_containers_is_asked_which(runner: Runner, image: str) -> None:
    containers = (shell(image, "sleep 1000", name="one"), shell(image, "sleep 1000", name="two"))
    with runner.start(with_init(image, *containers)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[setup] preparing\n"
        done = runner.daemon.run("logs", "web")
        assert done.stderr.splitlines() == [
            "podkeep: pod web has containers one, setup, two",
            "hint: choose one with -c one",
        ]
        assert interrupt(process)[0] == 130


def test_a_sidecar_counts_as_ready(runner: Runner, image: str) -> None:
    sidecar = shell(image, "exec sleep 1000", name="side", restartPolicy="Always")
    setup = shell(image, SETUP, name="setup")
    with runner.start(pod(shell(image, "echo here; sleep 1000"), initContainers=[sidecar, setup])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[setup] preparing\n"
        assert cells(runner) == ["1/2", "Init:1/2"]
        assert runner.daemon.run("exec", "web/setup", "touch", "/tmp/go").returncode == 0
        assert process.stdout.readline() == "[main] here\n"
        assert cells(runner) == ["2/2", "Running"]
        assert interrupt(process)[0] == 130


def test_nothing_is_said_to_wait_when_nobody_runs_the_pod(runner: Runner, image: str) -> None:
    process = runner.start(with_init(image, shell(image, "true")))
    assert process.stdout is not None
    assert process.stdout.readline() == "[setup] preparing\n"
    process.kill()
    process.communicate()
    assert 'container "main" in pod "web" has not run' in runner.daemon.run("logs", "web").stderr
    assert cells(runner) == ["0/1", "Init:0/1"]
    assert runner.daemon.run("rm", "web", "--grace-period", "0").returncode == 0
