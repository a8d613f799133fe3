"""Probes of containers on a node: what they make of the pod's status, and of the container."""

from __future__ import annotations

from typing import Any

from agent.manifests import pod, shell

from support.running_node import RunningNode

SERVE = "mkdir -p /www; echo hello >/www/index.html; exec httpd -f -p 8080 -h /www"


def every_second(**handler: Any) -> dict[str, Any]:
    """Return a probe that comes often and fails at once."""
    return {"periodSeconds": 1, "failureThreshold": 1, **handler}


def containers(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the statuses of a pod's containers by name."""
    status = found["status"]
    both = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return {item["name"]: item for item in both}


def events(node: RunningNode) -> list[str]:
    """Return the events of the pod ``web``, as ``reason: message``."""
    return [f"{item['reason']}: {item['message']}" for item in node.events("web")]


def said(node: RunningNode, text: str) -> None:
    """Return once an event of the pod says ``text``."""
    node.until(lambda: any(text in event for event in events(node)), f"event: {text}")


def test_a_readiness_probe_decides_whether_a_pod_is_ready(node: RunningNode, image: str) -> None:
    """Not ready while it fails, ready when it succeeds, and not again; the container runs on."""
    probe = every_second(exec={"command": ["sh", "-c", "cat /ok || { echo no file; exit 1; }"]})
    node.apply(pod(shell(image, "sleep 1000", readinessProbe=probe), restartPolicy="Always"))
    said(node, "Unhealthy: Readiness probe failed: no file")
    found = node.pod("web", lambda it: it["status"].get("phase") == "Running", "Running")
    status = containers(found)["main"]
    assert (status["ready"], status["started"]) == (False, True)
    conditions = {item["type"]: item for item in found["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["ContainersReady"]["reason"] == "ContainersNotReady"
    node.daemon.run("exec", "web", "--", "touch", "/ok", check=True)
    node.running("web")
    node.daemon.run("exec", "web", "--", "rm", "/ok", check=True)
    found = node.pod("web", lambda it: not containers(it)["main"]["ready"], "not ready again")
    assert containers(found)["main"]["restartCount"] == 0


def test_http_and_tcp_probes_go_to_the_address_of_the_pod(node: RunningNode, image: str) -> None:
    """A named port, a path that is there and one that is not."""
    ports = [{"name": "web", "containerPort": 8080}]
    good = shell(
        image,
        SERVE,
        "good",
        ports=ports,
        readinessProbe=every_second(httpGet={"port": "web", "path": "/index.html"}),
        livenessProbe=every_second(tcpSocket={"port": "web"}),
    )
    bad = shell(image, "sleep 1000", "bad", readinessProbe=every_second(httpGet={"port": 8080, "path": "/none"}))
    refused = shell(image, "sleep 1000", "refused", readinessProbe=every_second(tcpSocket={"port": 9}))
    node.apply(pod(good, bad, refused, restartPolicy="Always"))
    found = node.pod("web", lambda it: containers(it).get("good", {}).get("ready"), "good is ready")
    said(node, "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 404")
    address = found["status"]["podIP"]
    said(node, f"Unhealthy: Readiness probe failed: dial tcp {address}:9: connect: connection refused")
    assert not containers(found)["bad"]["ready"]
    assert not containers(found)["refused"]["ready"]


def test_a_container_that_fails_its_liveness_probe_is_restarted(node: RunningNode, image: str) -> None:
    """It is stopped with the probe's own grace period, and started anew."""
    probe = every_second(exec={"command": ["test", "!", "-e", "/sick"]}) | {"terminationGracePeriodSeconds": 1}
    main = shell(image, "trap '' TERM; while :; do sleep 1; done", livenessProbe=probe)
    node.apply(pod(main, restartPolicy="Always", terminationGracePeriodSeconds=1000))
    node.running("web")
    node.daemon.run("exec", "web", "--", "touch", "/sick", check=True)
    said(node, "Unhealthy: Liveness probe failed: ")
    said(node, "Killing: Container main failed liveness probe, will be restarted")
    found = node.pod("web", lambda it: containers(it)["main"]["restartCount"] == 1, "restarted")
    node.running("web")
    assert containers(found)["main"]["lastState"]["terminated"]["exitCode"] == 137
    node.delete("web", gracePeriodSeconds=1)


def test_the_first_end_by_a_probe_costs_no_back_off(node: RunningNode, image: str) -> None:
    """A kubelet looks at the end before it, so that the third is the first to wait."""
    probe = every_second(exec={"command": ["false"]}, terminationGracePeriodSeconds=1)
    node.apply(pod(shell(image, "exec sleep 1000", livenessProbe=probe), restartPolicy="Always"))

    def waits(found: dict[str, Any]) -> bool:
        state = containers(found).get("main", {}).get("state", {})
        return bool(state.get("waiting", {}).get("reason") == "CrashLoopBackOff")

    main = containers(node.pod("web", waits, "in back-off"))["main"]
    assert main["restartCount"] == 2
    assert main["state"]["waiting"]["message"].startswith("back-off 10s ")


def test_other_probes_wait_for_startup(node: RunningNode, image: str) -> None:
    """Neither liveness nor readiness is asked before startup is proven; what comes after a sidecar waits for that."""
    sidecar = shell(
        image,
        "sleep 1000",
        "proxy",
        restartPolicy="Always",
        startupProbe=every_second(exec={"command": ["test", "-e", "/up"]}) | {"failureThreshold": 1000},
        livenessProbe=every_second(exec={"command": ["test", "-e", "/up"]}),
    )
    node.apply(pod(shell(image, "sleep 1000"), initContainers=[sidecar], restartPolicy="Always"))
    said(node, "Unhealthy: Startup probe failed: ")
    found = node.get("web")
    assert found is not None
    assert found["status"]["phase"] == "Pending"
    assert containers(found)["proxy"]["started"] is False
    assert containers(found)["main"]["state"]["waiting"]["reason"] == "PodInitializing"
    node.daemon.run("exec", "web", "-c", "proxy", "--", "touch", "/up", check=True)
    found = node.running("web")
    assert containers(found)["proxy"]["restartCount"] == 0
    assert containers(found)["proxy"]["started"] is True


def test_a_container_that_never_starts_up_is_killed(node: RunningNode, image: str) -> None:
    """After as many failures as the startup probe allows."""
    probe = every_second(exec={"command": ["false"]}) | {"failureThreshold": 2}
    node.apply(pod(shell(image, "exec sleep 1000", startupProbe=probe), restartPolicy="Never"))
    said(node, "Killing: Container main failed startup probe")
    found = node.phase("web", "Failed")
    assert containers(found)["main"]["state"]["terminated"]["exitCode"] == 137


def test_a_probe_that_hangs_fails_after_its_timeout(node: RunningNode, image: str) -> None:
    """Whatever it ran is gone, and a probe beside it goes on."""
    hanging = shell(image, "sleep 1000", "hanging", readinessProbe=every_second(exec={"command": ["sleep", "999"]}))
    good = shell(image, SERVE, "good", readinessProbe=every_second(httpGet={"port": 8080}))
    node.apply(pod(hanging, good, restartPolicy="Always"))
    said(node, 'Unhealthy: Readiness probe failed: command timed out: "sleep 999" timed out after 1s')
    node.pod("web", lambda it: containers(it).get("good", {}).get("ready"), "good is ready")
    processes = node.daemon.run("exec", "web", "-c", "hanging", "--", "ps", check=True).stdout
    assert processes.count("sleep 999") <= 1


def test_the_next_agent_takes_a_ready_pod_for_ready(node: RunningNode, image: str) -> None:
    """A restart of the agent changes no container that was ready, though its probe comes seldom."""
    probe = {"periodSeconds": 600, "exec": {"command": ["true"]}}
    node.apply(
        pod(
            shell(image, "sleep 1000", readinessProbe=probe, startupProbe=every_second(exec={"command": ["true"]})),
            restartPolicy="Always",
        )
    )
    before = node.running("web")
    changed = {item["type"]: item["lastTransitionTime"] for item in before["status"]["conditions"]}
    node.end_agent()
    node.start_agent()
    node.apply(pod(shell(image, "sleep 1000"), name="other", restartPolicy="Always"))
    node.running("other")
    after = node.running("web")
    assert {item["type"]: item["lastTransitionTime"] for item in after["status"]["conditions"]} == changed
    assert containers(after)["main"]["containerID"] == containers(before)["main"]["containerID"]


def test_a_pod_on_the_nodes_network_is_probed_there(node: RunningNode, image: str) -> None:
    script = "mkdir -p /www; echo hello >/www/index.html; exec httpd -f -p 18080 -h /www"
    main = shell(image, script, readinessProbe=every_second(httpGet={"port": 18080}))
    node.apply(pod(main, hostNetwork=True, restartPolicy="Always"))
    found = node.running("web")
    assert found["status"]["podIP"] == found["status"]["hostIP"]
