"""Hooks of containers on a node, and the order and times of a pod's end."""

from __future__ import annotations

from typing import Any

from agent.manifests import pod, shell
from node.test_probes import containers, events, said

from support.cri import Pods
from support.running_node import RunningNode

NOTES = {"name": "notes", "emptyDir": {}}
MOUNT = [{"name": "notes", "mountPath": "/notes"}]
OBEDIENT = "trap 'echo {0} ends >>/notes/all; exit 0' TERM; touch /notes/{0}; sleep 99999 & wait"


def noted(node: RunningNode) -> str:
    """Return what containers of the one pod have noted in its volume."""
    found = sorted((node.daemon.base / "kubelet" / "pods").glob("*/volumes/*/notes/all"))
    return found[0].read_text() if found else ""


def hook(script: str) -> dict[str, Any]:
    """Return a hook that runs ``script``."""
    return {"exec": {"command": ["sh", "-c", script]}}


def waits(found: dict[str, Any]) -> str:
    """Return why the container ``main`` waits; empty if it does not."""
    reason: str = containers(found)["main"]["state"].get("waiting", {}).get("reason", "")
    return reason


def test_what_comes_next_waits_for_a_post_start_hook(node: RunningNode, image: str) -> None:
    """The second container is started after the hook of the first has ended."""
    first = shell(
        image,
        "sleep 1000",
        "first",
        volumeMounts=MOUNT,
        lifecycle={"postStart": hook("until test -e /notes/go; do sleep 0.05; done; echo hook >>/notes/all")},
    )
    second = shell(image, "echo second >>/notes/all; sleep 1000", "second", volumeMounts=MOUNT)
    node.apply(pod(first, second, volumes=[NOTES], restartPolicy="Always"))
    said(node, "Started: ")
    node.until(lambda: node.daemon.run("exec", "web", "-c", "first", "--", "touch", "/notes/go").returncode == 0, "go")
    node.running("web")
    node.until(lambda: noted(node) == "hook\nsecond\n", "the second")


def test_a_container_whose_post_start_hook_fails_is_killed(node: RunningNode, image: str) -> None:
    """The event does not tell what the hook printed, the status does; the container is started again, as after a crash.

    Of its attempts two are kept, though the hook fails each time.
    """
    main = shell(image, "exec sleep 1000", lifecycle={"postStart": hook("echo secret; exit 7")})
    node.apply(pod(main, restartPolicy="Always"))
    said(node, "FailedPostStartHook: PostStartHook failed")
    said(node, "Killing: FailedPostStartHook")
    found = node.pod("web", lambda it: waits(it) == "PostStartHookError", "waits")
    message = containers(found)["main"]["state"]["waiting"]["message"]
    uid = found["metadata"]["uid"]
    assert message == (
        f'Exec lifecycle hook ([sh -c echo secret; exit 7]) for Container "main" in Pod "web_default({uid})" failed - '
        "error: command 'sh -c echo secret; exit 7' exited with 7: , message: \"secret\n\""
    )
    assert not any("secret" in event for event in events(node))
    node.pod("web", lambda it: containers(it)["main"]["restartCount"] >= 2, "started again, and again")
    with Pods(node.daemon.socket, "") as runtime:
        assert len(runtime.containers()) == 2


def test_a_pre_stop_hook_runs_before_the_stop_signal(node: RunningNode, image: str) -> None:
    """It reaches the container while that still serves; then comes the signal."""
    main = shell(
        image,
        OBEDIENT.format("main"),
        volumeMounts=MOUNT,
        lifecycle={"preStop": hook("echo hook >>/notes/all")},
    )
    node.apply(pod(main, volumes=[NOTES], restartPolicy="Always", terminationGracePeriodSeconds=30))
    node.running("web")
    kept = open_notes(node)
    node.delete("web")
    node.gone("web")
    assert kept() == "hook\nmain ends\n"


def open_notes(node: RunningNode) -> Any:
    """Return what reads the notes of the one pod also after they were removed."""
    found = sorted((node.daemon.base / "kubelet" / "pods").glob("*/volumes/*/notes"))
    (found[0] / "all").touch(mode=0o666)
    (found[0] / "all").chmod(0o666)
    file = (found[0] / "all").open()

    def read() -> str:
        file.seek(0)
        with file:
            return file.read()

    return read


def test_sidecars_end_last_and_in_reverse_order(node: RunningNode, image: str) -> None:
    """The containers first, then the sidecar that was started last."""
    sidecars = [
        shell(image, OBEDIENT.format(name), name, restartPolicy="Always", volumeMounts=MOUNT) for name in ("one", "two")
    ]
    main = shell(image, OBEDIENT.format("main"), volumeMounts=MOUNT)
    node.apply(
        pod(main, initContainers=sidecars, volumes=[NOTES], restartPolicy="Always", terminationGracePeriodSeconds=30)
    )
    node.running("web")
    kept = open_notes(node)
    node.delete("web")
    node.gone("web")
    assert kept() == "main ends\ntwo ends\none ends\n"


def test_a_pre_stop_hook_that_fails_or_takes_too_long_ends_nothing_but_itself(node: RunningNode, image: str) -> None:
    """The time of hooks counts into the grace period; a pod whose hook would sleep for ever goes in time."""
    failing = shell(image, "exec sleep 1000", "failing", lifecycle={"preStop": hook("exit 1")})
    endless = shell(image, "exec sleep 1000", "endless", lifecycle={"preStop": hook("sleep 100000")})
    refused = shell(image, "exec sleep 1000", "refused", lifecycle={"preStop": {"tcpSocket": {"port": 80}}})
    node.apply(pod(failing, endless, refused, restartPolicy="Always", terminationGracePeriodSeconds=2))
    node.running("web")
    node.delete("web")
    node.gone("web")

    def failed() -> list[str]:
        found = [item for item in node.events("web") if item["reason"] == "FailedPreStopHook"]
        assert {item["message"] for item in found} <= {"PreStopHook failed"}
        return sorted(item["involvedObject"]["fieldPath"] for item in found)

    node.until(lambda: failed() == ["spec.containers{failing}", "spec.containers{refused}"], "both failures said")


def test_a_shorter_grace_period_ends_a_hook(node: RunningNode, image: str) -> None:
    """A second deletion with less time counts, also while a hook runs."""
    main = shell(image, "exec sleep 1000", lifecycle={"preStop": {"sleep": {"seconds": 100000}}})
    node.apply(pod(main, restartPolicy="Always", terminationGracePeriodSeconds=100000))
    node.running("web")
    node.delete("web")
    said(node, "Killing: Stopping container main")
    node.delete("web", gracePeriodSeconds=1)
    node.gone("web")
    killings = [item for item in node.events("web") if item["reason"] == "Killing"]
    assert [(item["message"], item["count"]) for item in killings] == [("Stopping container main", 1)]


def test_a_pod_that_is_being_stopped_is_not_ready_when_its_probe_says_so(node: RunningNode, image: str) -> None:
    """Readiness is probed until the end; liveness is not, so a container that is stopping is not killed for it."""
    probe = {"periodSeconds": 1, "failureThreshold": 1, "exec": {"command": ["test", "!", "-e", "/draining"]}}
    main = shell(
        image,
        "trap 'touch /draining' TERM; until test -e /go; do sleep 0.05; done",
        readinessProbe=probe,
        livenessProbe=probe,
    )
    node.apply(pod(main, restartPolicy="Always", terminationGracePeriodSeconds=1000))
    node.running("web")
    node.delete("web")
    said(node, "Unhealthy: Readiness probe failed: ")
    found = node.pod("web", lambda it: not containers(it)["main"]["ready"], "not ready")
    assert found["metadata"]["deletionTimestamp"]
    assert "running" in containers(found)["main"]["state"]
    node.daemon.run("exec", "web", "--", "touch", "/go", check=True)
    node.gone("web")
    assert not any("Liveness probe failed" in event for event in events(node))


def test_a_pod_can_be_deleted_while_a_post_start_hook_hangs(node: RunningNode, image: str) -> None:
    main = shell(image, "exec sleep 1000", lifecycle={"postStart": hook("sleep 100000")})
    node.apply(pod(main, restartPolicy="Always"))
    said(node, "Started: ")
    node.delete("web", gracePeriodSeconds=1)
    node.gone("web")
    assert not any("FailedPostStartHook" in event for event in events(node))


def test_no_hook_runs_for_a_container_that_never_ran(node: RunningNode, image: str) -> None:
    """Its sidecar's image is not there, so it was not made either."""
    first = shell("none.invalid/none:1", "true", "first", restartPolicy="Always", lifecycle={"preStop": hook("exit 1")})
    main = shell(image, "exec sleep 1000", lifecycle={"preStop": hook("exit 1")})
    node.apply(pod(main, initContainers=[first | {"imagePullPolicy": "Never"}], restartPolicy="Always"))
    said(node, "ErrImageNeverPull")
    node.delete("web", gracePeriodSeconds=1)
    node.gone("web")
    assert not any("FailedPreStopHook" in event or "Killing" in event for event in events(node))
