"""What a node decides about containers that end, and what it says of them: with the real API, runtime and crun."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

from agent.manifests import FOREVER, mount, pod, shell

from podkeep.base.text import rfc3339
from support.running_node import RunningNode

ONCE = "[ -e /v/again ] || {{ touch /v/again; exit {code}; }}; {then}"
"""A script that ends with ``code`` the first time it runs in its pod."""
SHARED = {"volumes": [{"name": "volume", "emptyDir": {}}]}


def once(image: str, code: int, then: str = "exit 0", name: str = "main", **more: Any) -> dict[str, Any]:
    """Return a container that ends with ``code`` the first time."""
    return shell(image, ONCE.format(code=code, then=then), name, volumeMounts=[mount("/v")], **more)


def rule(action: str, *codes: int) -> dict[str, Any]:
    return {"action": action, "exitCodes": {"operator": "In", "values": list(codes)}}


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the statuses of all containers of a pod."""
    status = found["status"]
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return {item["name"]: item for kind in kinds for item in status.get(kind, ())}


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of a pod; empty if it has none of that kind."""
    return next((item for item in found["status"].get("conditions", ()) if item["type"] == kind), {})


def test_a_rule_restarts_a_container_of_a_pod_that_never_restarts(node: RunningNode, image: str) -> None:
    """An exit code with a rule is no end; the next one without is."""
    main = once(image, 42, restartPolicy="Never", restartPolicyRules=[rule("Restart", 42)])
    node.apply(pod(main, **SHARED))
    found = by_name(node.phase("web", "Succeeded"))["main"]
    assert found["restartCount"] == 1
    assert found["lastState"]["terminated"]["exitCode"] == 42
    assert found["state"]["terminated"]["reason"] == "Completed"


def test_a_rule_restarts_all_containers(node: RunningNode, image: str) -> None:
    """Init containers run again, others are started again; the count goes up for each, and the pod ends at last."""
    setup = shell(image, "echo run >>/v/runs", "setup", volumeMounts=[mount("/v")])
    script = f"while [ ! -e /v/up ]; do sleep 0.05; done; {ONCE.format(code=88, then='exit 0')}"
    trigger = shell(image, script, restartPolicy="Never", restartPolicyRules=[rule("RestartAllContainers", 88)])
    script = "touch /v/up; while [ ! -e /v/again ]; do sleep 0.05; done; sleep 0.1; wc -l </v/runs; exec cat /v/runs"
    beside = shell(image, script, "beside")
    trigger["volumeMounts"] = beside["volumeMounts"] = [mount("/v")]
    node.apply(pod(trigger, beside, initContainers=[setup], **SHARED))
    found = by_name(node.phase("web", "Succeeded"))
    assert {name: item["restartCount"] for name, item in found.items()} == {"setup": 1, "main": 1, "beside": 1}
    (log,) = (node.daemon.base / "logs").glob("default_web_*/beside/1.log")
    assert log.read_text().split("\n")[0].endswith(" 2")


def test_a_container_that_is_restarted_with_all_can_end_by_itself(node: RunningNode, image: str) -> None:
    """It gets SIGTERM and two seconds, as a kubelet does it, and what it has to save is saved."""
    script = f"while [ ! -e /v/up ]; do sleep 0.05; done; {ONCE.format(code=88, then='exit 0')}"
    trigger = shell(image, script, restartPolicy="Never", restartPolicyRules=[rule("RestartAllContainers", 88)])
    script = "[ -e /v/saved ] && exit 0; trap 'touch /v/saved; exit 0' TERM; touch /v/up; sleep 99999 & wait"
    beside = shell(image, script, "beside")
    trigger["volumeMounts"] = beside["volumeMounts"] = [mount("/v")]
    node.apply(pod(trigger, beside, **SHARED))
    node.phase("web", "Succeeded")
    killed = node.until(lambda: [item for item in node.events("web") if item["reason"] == "Killing"], "its event")
    assert [item["message"] for item in killed] == ["killing"]


def test_a_pod_beyond_its_deadline_fails(node: RunningNode, image: str) -> None:
    """The reason and message are a kubelet's, and the containers are stopped."""
    node.apply(pod(shell(image, FOREVER), activeDeadlineSeconds=1))
    found = node.pod("web", lambda item: "terminated" in by_name(item).get("main", {}).get("state", {}), "ended")
    status = found["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"
    assert condition(found, "Ready")["reason"] == "PodFailed"


def test_a_pod_has_failed_when_its_containers_have_ended(node: RunningNode, image: str) -> None:
    """While they take their time the pod is not ready and has not failed: a Job would start another one beside it."""
    script = "trap 'touch /v/told; while [ ! -e /v/go ]; do sleep 0.05; done; exit 0' TERM; sleep 99999 & wait"
    main = shell(image, script, volumeMounts=[mount("/v")])
    node.apply(pod(main, activeDeadlineSeconds=2, terminationGracePeriodSeconds=20, **SHARED))
    uid = node.running("web")["metadata"]["uid"]
    volume = node.daemon.base / "kubelet" / "pods" / uid / "volumes/kubernetes.io~empty-dir/volume"
    node.until(lambda: (volume / "told").exists(), "the container is told to end")
    found = node.pod("web", lambda item: condition(item, "Ready").get("reason") == "PodFailed", "not ready")
    assert (found["status"]["phase"], found["status"].get("reason")) == ("Running", None)
    (volume / "go").touch()
    assert node.phase("web", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_an_end_that_was_decided_holds_though_the_agent_is_killed_before_it_could_tell(
    node: RunningNode, image: str
) -> None:
    """The volume that was too large is small again when the next agent looks: the pod stays evicted."""
    script = "trap 'rm /v/file; sleep 99999' TERM; sleep 99999 & wait"
    volumes = [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]
    main = shell(image, script, volumeMounts=[mount("/v", "v")])
    node.apply(pod(main, name="full", volumes=volumes, restartPolicy="Always", terminationGracePeriodSeconds=30))
    uid = node.running("full")["metadata"]["uid"]
    file = node.daemon.base / "kubelet" / "pods" / uid / "volumes/kubernetes.io~empty-dir/v/file"
    # From now on nothing that the agent decides comes to the API.
    node.api.stop(signal.SIGKILL)
    file.write_bytes(bytes(4 << 20))
    node.until(lambda: not file.exists(), "the container is told to end")
    node.end_agent(signal.SIGKILL)
    node.api.start()
    assert node.phase("full", "Running")["status"].get("reason") is None
    node.start_agent()
    found = node.phase("full", "Failed")["status"]
    assert found["reason"] == "Evicted"
    assert found["message"] == 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
    assert by_name({"status": found})["main"]["restartCount"] == 0


def test_a_container_that_crashes_waits_and_says_so(node: RunningNode, image: str) -> None:
    """The second crash costs ten seconds: waiting with CrashLoopBackOff, the last end kept, and the pod Running."""
    node.apply(pod(shell(image, "exit 3"), restartPolicy="Always"))

    def waits(found: dict[str, Any]) -> bool:
        state = by_name(found).get("main", {}).get("state", {})
        return bool(state.get("waiting", {}).get("reason") == "CrashLoopBackOff")

    found = node.pod("web", waits, "in back-off")
    main, uid = by_name(found)["main"], found["metadata"]["uid"]
    said = f"back-off 10s restarting failed container=main pod=web_default({uid})"
    assert main["state"]["waiting"]["message"] == said
    ended = main["lastState"]["terminated"]
    assert (main["restartCount"], ended["exitCode"]) == (1, 3)
    assert found["status"]["phase"] == "Running"
    # While it waits, not when it is about to be started again.
    assert time.time() - rfc3339.seconds(ended["finishedAt"]) < 10
    events = node.until(lambda: [item for item in node.events("web") if item["reason"] == "BackOff"], "its event")
    (event,) = events
    assert event["message"] == f"Back-off restarting failed container main in pod web_default({uid})"


def test_an_image_that_is_put_right_is_not_waited_for(node: RunningNode, image: str) -> None:
    """The back-off is that of the wrong image, as a kubelet counts it."""
    main = shell(image, FOREVER, imagePullPolicy="IfNotPresent") | {"image": f"{image}-wrong"}
    node.apply(pod(main, restartPolicy="Always"))

    def is_backing_off(found: dict[str, Any]) -> bool:
        waiting = by_name(found).get("main", {}).get("state", {}).get("waiting", {})
        return bool(waiting.get("reason") == "ImagePullBackOff")

    node.pod("web", is_backing_off, "in back-off")
    corrected = time.time()
    node.patch("web", {"spec": {"containers": [{"name": "main", "image": image}]}})
    started = by_name(node.running("web"))["main"]["state"]["running"]["startedAt"]
    assert rfc3339.seconds(started) - corrected < 8


def test_a_container_that_crashed_with_another_image_is_not_waited_for(node: RunningNode, image: str) -> None:
    """Its crashes were those of the image before."""
    node.apply(pod(shell(image, "exit 3"), restartPolicy="Always"))

    def waits(found: dict[str, Any]) -> bool:
        waiting = by_name(found).get("main", {}).get("state", {}).get("waiting", {})
        return bool(waiting.get("reason") == "CrashLoopBackOff")

    other = by_name(node.pod("web", waits, "in back-off"))["main"]["imageID"]
    corrected = time.time()
    node.patch("web", {"spec": {"containers": [{"name": "main", "image": other}]}})

    def ran_again(found: dict[str, Any]) -> bool:
        main = by_name(found)["main"]
        return bool(main["restartCount"] == 2 and (main["state"].get("terminated") or waits(found)))

    main = by_name(node.pod("web", ran_again, "started again"))["main"]
    last = main["state"].get("terminated") or main["lastState"]["terminated"]
    assert rfc3339.seconds(last["startedAt"]) - corrected < 8


def test_a_readiness_gate_keeps_a_pod_from_being_ready(node: RunningNode, image: str) -> None:
    """Ready follows the condition that somebody else sets, which the node keeps."""
    node.apply(pod(shell(image, FOREVER), readinessGates=[{"conditionType": "example.com/gate"}]))
    found = node.phase("web", "Running")
    ready = condition(node.pod("web", lambda item: condition(item, "ContainersReady"), "seen"), "Ready")
    said = 'corresponding condition of pod readiness gate "example.com/gate" does not exist.'
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "ReadinessGatesNotReady", said)
    gate = {"type": "example.com/gate", "status": "True"}
    node.patch("web", {"status": {"conditions": [gate]}}, subresource="status")
    found = node.running("web")
    assert condition(found, "example.com/gate")["status"] == "True"
    assert {item["observedGeneration"] for item in found["status"]["conditions"] if item["type"] == "Ready"} == {1}


def test_an_ephemeral_container_sees_the_processes_of_its_target(node: RunningNode, image: str) -> None:
    """kubectl debug --target: it is started once in the running pod, and its end is the end of nothing else."""
    node.apply(pod(shell(image, FOREVER), restartPolicy="Always"))
    node.running("web")
    debugger = shell(image, "cat /proc/1/cmdline | tr '\\0' ' '", "debug", targetContainerName="main")
    node.patch("web", {"spec": {"ephemeralContainers": [debugger]}}, subresource="ephemeralcontainers")
    found = node.pod("web", lambda item: "terminated" in by_name(item).get("debug", {}).get("state", {}), "ended")
    assert by_name(found)["debug"]["state"]["terminated"]["exitCode"] == 0
    assert by_name(found)["main"]["restartCount"] == 0
    assert found["status"]["phase"] == "Running"
    (log,) = (node.daemon.base / "logs").glob("default_web_*/debug/0.log")
    assert "trap" in log.read_text()


def test_sidecars_start_first_and_do_not_keep_a_pod_alive(node: RunningNode, image: str) -> None:
    """The container finds what the sidecar made once its startup probe succeeded; the pod succeeds with it running."""
    ready = {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1}
    side = shell(image, f"touch /v/up; {FOREVER}", "side", restartPolicy="Always", startupProbe=ready)
    side["volumeMounts"] = [mount("/v")]
    main = shell(image, "test -e /v/up", volumeMounts=[mount("/v")])
    node.apply(pod(main, initContainers=[side], **SHARED))
    found = node.phase("web", "Succeeded")
    assert by_name(found)["main"]["state"]["terminated"]["exitCode"] == 0
    assert by_name(found)["side"]["restartCount"] == 0
    assert condition(found, "Initialized")["reason"] == "PodCompleted"


def test_an_init_container_that_fails_ends_a_pod_that_never_restarts(node: RunningNode, image: str) -> None:
    node.apply(pod(shell(image, "true"), initContainers=[shell(image, "exit 4", "setup")]))
    found = node.phase("web", "Failed")
    assert by_name(found)["setup"]["state"]["terminated"]["exitCode"] == 4
    assert by_name(found)["main"]["state"]["waiting"]["reason"] == "PodInitializing"
    assert condition(found, "Initialized") | {"lastTransitionTime": ""} == {
        "type": "Initialized",
        "status": "False",
        "reason": "ContainersNotInitialized",
        "message": "containers with incomplete status: [setup]",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }


def test_the_environment_of_a_container(node: RunningNode, image: str) -> None:
    """Fields, resources, a file that an init container left, and services are variables."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "my-db"},
        "spec": {"ports": [{"port": 5432}]},
    }
    node.apply(service)
    writer = shell(image, "printf \"A='from a file'\\n\" >/v/env", "writer", volumeMounts=[mount("/v")])
    names = {
        "NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "NODE": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        "IP": {"fieldRef": {"fieldPath": "status.podIP"}},
        "CPU": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
        "MEMORY": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}},
        "A": {"fileKeyRef": {"volumeName": "volume", "path": "env", "key": "A"}},
    }
    env = [{"name": name, "valueFrom": source} for name, source in names.items()]
    env.append({"name": "URL", "value": "$(MY_DB_PORT)/$(NAME)"})
    main = shell(image, "env", env=env, resources={"limits": {"cpu": "250m", "memory": "32Mi"}})
    node.apply(pod(main, initContainers=[writer], **SHARED))
    found = node.phase("web", "Succeeded")
    (log,) = (node.daemon.base / "logs").glob("default_web_*/main/0.log")
    said = dict(line.split(" ", 3)[3].split("=", 1) for line in log.read_text().splitlines() if "=" in line)
    db = node.get("my-db", resource="services")
    assert db is not None
    address = db["spec"]["clusterIP"]
    assert (said["MY_DB_SERVICE_HOST"], said["MY_DB_SERVICE_PORT"]) == (address, "5432")
    assert {name: said[name] for name in (*names, "URL")} == {
        "NAME": "web",
        "NODE": node.name,
        "IP": found["status"]["podIP"],
        "CPU": "250",
        "MEMORY": "32",
        "A": "from a file",
        "URL": f"tcp://{address}:5432/web",
    }


def test_what_a_pod_asks_of_its_surroundings(node: RunningNode, image: str) -> None:
    """Host name in full, hosts, groups, seccomp from a file of the node, unmasked proc, standard input."""
    profiles = node.daemon.base / "kubelet" / "seccomp"
    profiles.mkdir(parents=True)
    rules = [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]
    (profiles / "no-mkdir.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}))
    script = "hostname; grep example /etc/hosts; id -G; mkdir /tmp/x; grep Seccomp: /proc/self/status; cat; echo end"
    security = {
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "supplementalGroups": [2000],
        "supplementalGroupsPolicy": "Strict",
        "seccompProfile": {"type": "Localhost", "localhostProfile": "no-mkdir.json"},
    }
    main = shell(image, script, securityContext={"procMount": "Unmasked"})
    node.apply(
        pod(
            main,
            hostUsers=False,
            hostname="h",
            subdomain="example",
            setHostnameAsFQDN=True,
            hostAliases=[{"ip": "10.1.1.1", "hostnames": ["example.org"]}],
            securityContext=security,
        )
    )
    found = node.phase("web", "Succeeded")
    (log,) = (node.daemon.base / "logs").glob("default_web_*/main/0.log")
    lines = [line.split(" ", 3)[1:] for line in log.read_text().splitlines()]
    said = [text for stream, _, text in lines if stream == "stdout"]
    ip = found["status"]["podIP"]
    assert said == ["h.example", f"{ip}\th.example\th", "10.1.1.1\texample.org", "1000 2000", "Seccomp:\t2", "end"]
    (refused,) = [text for stream, _, text in lines if stream == "stderr"]  # which may come before or after
    assert "Operation not permitted" in refused
    assert by_name(found)["main"]["user"]["linux"] == {"uid": 1000, "gid": 1000, "supplementalGroups": [1000, 2000]}
