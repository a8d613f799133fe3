"""``podkeep run`` with probes and hooks: the same as on a node."""

from __future__ import annotations

from agent.conftest import Runner, interrupt
from agent.manifests import pod, shell

PROBE = {"periodSeconds": 1, "failureThreshold": 1}


def test_a_container_that_fails_its_liveness_probe_is_stopped(runner: Runner, image: str) -> None:
    """With restartPolicy Never that is the pod's end, and its reason is said."""
    probe = PROBE | {"exec": {"command": ["sh", "-c", "echo sick; exit 1"]}}
    done = runner.run(pod(shell(image, "exec sleep 1000", livenessProbe=probe)))
    assert done.returncode == 137
    assert "podkeep: main: Liveness probe failed: sick" in done.stderr


def test_a_failed_post_start_hook_is_said_and_ends_the_pod(runner: Runner, image: str) -> None:
    lifecycle = {"postStart": {"exec": {"command": ["false"]}}}
    done = runner.run(pod(shell(image, "exec sleep 1000", lifecycle=lifecycle)))
    assert done.returncode != 0
    assert "Exec lifecycle hook ([false]) for Container" in done.stderr


def test_a_pre_stop_hook_runs_when_the_pod_is_interrupted(runner: Runner, image: str) -> None:
    """Its output is the container's, which is still there."""
    lifecycle = {"preStop": {"exec": {"command": ["sh", "-c", "echo from the hook >/proc/1/fd/1"]}}}
    main = shell(image, "trap 'echo ends; exit 0' TERM; echo begins; while :; do sleep 0.05; done", lifecycle=lifecycle)
    process = runner.start(pod(main, terminationGracePeriodSeconds=30))
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "begins"
    _, out, _ = interrupt(process)
    assert out.split("\n")[:2] == ["from the hook", "ends"]
