"""The kubelet's endpoints: kubectl over the API, and clients that ask the kubelet itself."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from agent.manifests import pod, shell

from support.daemon import Daemon
from support.kubelet_client import Kubelet
from support.registry import Registry
from support.running_node import RunningNode, own_base
from support.waiting import TIMEOUT_S

TALK = "echo one; echo two >&2; echo three; trap exit TERM; sleep 99999 & wait"


KUBELET_CONFIGURATION = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: 77
cpuManagerPolicy: static
authentication: {webhook: {cacheTTL: 1m0s}}
"""


@pytest.fixture(scope="module")
def node(open_directory: Path, registry: Registry) -> Iterator[RunningNode]:
    """One node for all of these tests: starting it takes longer than any of them."""
    extra = f'[registries."{registry.host}"]\ninsecure = true\n'
    base = own_base(open_directory)
    configuration = base / "kubelet.yaml"
    configuration.write_text(KUBELET_CONFIGURATION)
    with RunningNode(Daemon(base, extra=extra), options=("--config", str(configuration))) as running:
        yield running


@pytest.fixture(scope="module")
def kubelet(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Kubelet:
    """The kubelet, asked by an administrator."""
    return Kubelet(node, tmp_path_factory.mktemp("client"), user="root-of-all", groups=("system:masters",))


@pytest.fixture(scope="module")
def talker(node: RunningNode, image: str) -> str:
    """Name of a pod that runs and has written three lines."""
    node.apply(pod(shell(image, TALK), name="talker", restartPolicy="Always"))
    node.running("talker")
    node.until(lambda: len(node.api.kubectl("logs", "talker").splitlines()) == 3, "three lines")
    return "talker"


def test_kubectl_shows_logs(node: RunningNode, talker: str) -> None:
    logs = node.api.kubectl("logs", talker)
    assert sorted(logs.split()) == ["one", "three", "two"]
    assert node.api.kubectl("logs", talker, "--tail=1").split() == logs.split()[-1:]
    assert node.api.kubectl("logs", talker, "--limit-bytes=5") == logs[:5]
    stamped = node.api.kubectl("logs", talker, "--timestamps").splitlines()
    moments = [line.split(" ", 1)[0] for line in stamped]
    assert [line.split(" ", 1)[1] for line in stamped] == logs.split()
    assert all(len(moment.partition(".")[2].rstrip("Z+-:0123456789")) == 0 for moment in moments)
    assert node.api.kubectl("logs", talker, "--since-time=2099-01-01T00:00:00Z") == ""
    assert node.api.kubectl("logs", talker, "--since=1h") == logs
    missing = node.api.kubectl("logs", talker, "--previous", status=1)
    assert 'previous terminated container "main" in pod "talker" not found' in missing


def test_following_a_log_ends_with_its_container(node: RunningNode, image: str) -> None:
    script = "echo first; until [ -e /tmp/go ]; do sleep 0.1; done; echo last"
    node.apply(pod(shell(image, script), name="short", restartPolicy="Never"))
    node.running("short")
    environment = {**os.environ, "KUBECONFIG": str(node.api.kubeconfig)}
    with subprocess.Popen(
        ["kubectl", "logs", "-f", "short"], stdout=subprocess.PIPE, text=True, env=environment
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first\n"
        node.api.kubectl("exec", "short", "--", "touch", "/tmp/go")
        rest, _ = following.communicate(timeout=TIMEOUT_S)
    assert (rest, following.returncode) == ("last\n", 0)


def test_kubectl_runs_commands(node: RunningNode, talker: str) -> None:
    assert node.api.kubectl("exec", talker, "--", "sh", "-c", "echo $((6 * 7))") == "42\n"
    assert node.api.kubectl("exec", "-i", talker, "--", "cat", stdin="through and back") == "through and back"
    assert "exit code 3" in node.api.kubectl("exec", talker, "--", "sh", "-c", "exit 3", status=3)


def test_kubectl_attaches(node: RunningNode, image: str) -> None:
    """What is typed reaches the container's own process, and what it answers comes back."""
    waiting = {**shell(image, "read line; echo you said $line; sleep 1000"), "stdin": True, "stdinOnce": True}
    node.apply(pod(waiting, name="listening"))
    node.running("listening")
    environment = {**os.environ, "KUBECONFIG": str(node.api.kubeconfig)}
    command = ["kubectl", "attach", "-i", "-q", "listening"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as attached:
        assert attached.stdin is not None
        assert attached.stdout is not None
        attached.stdin.write("hello\n")
        attached.stdin.flush()
        assert attached.stdout.readline() == "you said hello\n"
        attached.terminate()


def test_a_terminal_is_one(node: RunningNode, talker: str) -> None:
    """A command with a terminal sees one, and has one output."""
    command = ["kubectl", "exec", "-it", talker, "--", "sh", "-c", "test -t 1 && echo terminal >&2"]
    environment = {**os.environ, "KUBECONFIG": str(node.api.kubeconfig)}
    leader, follower = pty.openpty()
    with closing(os.fdopen(leader, "rb", buffering=0)) as screen:
        done = subprocess.run(command, stdin=follower, stdout=follower, env=environment, timeout=TIMEOUT_S, check=True)
        os.close(follower)
        assert (done.returncode, screen.read(100)) == (0, b"terminal\r\n")


def test_kubectl_copies_files(node: RunningNode, talker: str, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 1000)
    node.api.kubectl("cp", str(there), f"{talker}:/tmp/file")
    # kubectl 1.32 discards what arrives before it has made its streams ("Unknown stream id 1, discarding message"),
    # and may end with status 0 then: one of a thousand copies on a busy machine, whichever server it talks to.
    for _ in range(3):
        node.api.kubectl("cp", f"{talker}:/tmp/file", str(back), status=None)
        if back.exists() and back.stat().st_size == there.stat().st_size:
            break
    assert back.read_bytes() == there.read_bytes()


def test_kubectl_forwards_ports(node: RunningNode, image: str) -> None:
    script = "while :; do echo hello | nc -l -p 7000; done"
    node.apply(pod(shell(image, script), name="served", restartPolicy="Always"))
    node.running("served")
    environment = {**os.environ, "KUBECONFIG": str(node.api.kubeconfig)}
    with subprocess.Popen(
        ["kubectl", "port-forward", "pod/served", ":7000"], stdout=subprocess.PIPE, text=True, env=environment
    ) as forwarding:
        try:
            assert forwarding.stdout is not None
            port = int(forwarding.stdout.readline().rpartition(":")[2].split()[0])
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
                assert connection.recv(100) == b"hello\n"
        finally:
            forwarding.terminate()


def test_statistics_have_the_pod(kubelet: Kubelet, talker: str) -> None:
    summary = kubelet.json("/stats/summary")
    (found,) = [item for item in summary["pods"] if item["podRef"]["name"] == talker]
    (container,) = found["containers"]
    assert container["name"] == "main"
    assert container["memory"]["workingSetBytes"] > 0
    assert container["cpu"]["usageCoreNanoSeconds"] > 0
    assert container["rootfs"]["usedBytes"] >= 0
    assert container["logs"]["usedBytes"] > 0
    assert found["ephemeral-storage"]["usedBytes"] >= container["logs"]["usedBytes"]
    assert found["network"]["interfaces"][0]["name"] == "eth0"
    node = summary["node"]
    assert node["nodeName"] == "node-1"
    assert 0 < node["memory"]["workingSetBytes"] < node["memory"]["availableBytes"] + node["memory"]["workingSetBytes"]
    assert node["fs"]["capacityBytes"] > node["fs"]["usedBytes"] > 0
    assert node["runtime"]["imageFs"]["usedBytes"] > 0
    assert node["rlimit"]["curproc"] > 1
    small = kubelet.json("/stats/summary?only_cpu_and_memory=true")
    assert small["pods"]
    assert set(small["pods"][0]) <= {"podRef", "startTime", "containers", "cpu", "memory", "swap"}


def test_metrics_are_kubelets(kubelet: Kubelet, talker: str) -> None:
    resource = kubelet.samples("/metrics/resource")
    place = {"container": "main", "pod": talker, "namespace": "default"}
    assert [value > 0 for labels, value in resource["container_memory_working_set_bytes"] if labels == place] == [True]
    pods = [labels for labels, _ in resource["pod_cpu_usage_seconds_total"]]
    assert {"pod": talker, "namespace": "default"} in pods
    assert resource["resource_scrape_error"] == [({}, 0.0)]
    own = kubelet.samples("/metrics")
    assert own["kubelet_node_name"] == [({"node": "node-1"}, 1.0)]
    assert own["process_resident_memory_bytes"][0][1] > 0
    assert "prober_probe_total" not in own
    assert any(labels["path"] == "containerLogs" for labels, _ in own["kubelet_http_requests_total"])
    (running,) = own["kubelet_running_pods"]
    assert running[1] >= 1
    assert sum(value for _, value in own["kubelet_desired_pods"]) >= running[1]
    assert [
        value for labels, value in own["kubelet_started_containers_total"] if labels["container_type"] == "container"
    ]
    assert own["kubelet_started_pods_total"][0][1] >= 1
    assert own["kubelet_pod_start_duration_seconds_count"][0][1] >= 1
    assert own["pod_start_sli_duration_seconds_count"] == own["kubelet_pod_start_sli_duration_seconds_count"]
    assert own["kubelet_pleg_last_seen_seconds"][0][1] > 1e9
    assert ({"operation_type": "run_podsandbox"}, own["kubelet_started_pods_total"][0][1]) in own[
        "kubelet_runtime_operations_total"
    ]
    of_runtime = kubelet.samples("/metrics/cadvisor")
    assert any(labels.get("pod") == talker for labels, _ in of_runtime["container_memory_working_set_bytes"])


def test_pods_health_and_configuration_are_told(node: RunningNode, kubelet: Kubelet, talker: str) -> None:
    listed = kubelet.json("/pods")
    (found,) = [item for item in listed["items"] if item["metadata"]["name"] == talker]
    assert (listed["kind"], found["status"]["phase"]) == ("PodList", "Running")
    assert found["metadata"]["uid"] == (node.get(talker) or {})["metadata"]["uid"]
    (running,) = [item for item in kubelet.json("/runningpods/")["items"] if item["metadata"]["name"] == talker]
    assert [item["name"] for item in running["spec"]["containers"]] == ["main"]
    assert kubelet.ask("/healthz") == (200, "ok")
    assert kubelet.ask("/healthz/ping") == (200, "ok")
    assert kubelet.ask(f"/run/default/{talker}/main?cmd=echo+hi", "POST") == (200, "hi\n")


def test_a_kubelet_configuration_file_is_in_force(node: RunningNode, kubelet: Kubelet) -> None:
    """Its fields are settings, ``/configz`` shows them, and what means nothing here is told once."""
    shown = kubelet.json("/configz")["kubeletconfig"]
    assert shown["maxPods"] == 77
    assert shown["authentication"]["webhook"] == {"enabled": True, "cacheTTL": "1m0s"}
    assert node.ask("GET", "/api/v1/nodes/node-1")["status"]["capacity"]["pods"] == "77"
    told = [line for line in node.log if "mean nothing here" in line]
    assert [line.rpartition(": ")[2].strip() for line in told] == ["cpuManagerPolicy"]


def test_a_kubelet_configuration_with_an_unknown_field_is_refused(node: RunningNode, tmp_path: Path) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(KUBELET_CONFIGURATION + "maxPodz: 1\n")
    done = node.daemon.run("agent", "--config", str(path))
    assert done.returncode != 0
    assert f"{path}: maxPodz: unknown field" in done.stderr


@pytest.mark.requirement("V94", "V95", "V99", "V100")
def test_image_volumes_in_use_are_seen_under_both_names(node: RunningNode, kubelet: Kubelet, image: str) -> None:
    """A pod with an image volume raises the counts of requests and mounts, upstream's names and the seed's alike."""
    pairs = (
        ("kubelet_image_volume_requested_total", "image_volume_requested_total"),
        ("kubelet_image_volume_mounted_succeed_total", "image_volume_mounted_success_total"),
    )
    before = kubelet.samples("/metrics")
    using = pod(shell(image, "sleep 1000"), name="with-image")
    using["spec"]["volumes"] = [{"name": "tools", "image": {"reference": image}}]
    using["spec"]["containers"][0]["volumeMounts"] = [{"name": "tools", "mountPath": "/tools"}]
    node.apply(using)
    node.running("with-image")
    after = kubelet.samples("/metrics")
    for upstream, seed in pairs:
        assert after[upstream][0][1] == before[upstream][0][1] + 1
        assert after[seed] == after[upstream]
    assert "image_volume_mounted_error 0" in kubelet.ask("/metrics")[1].splitlines()
    node.delete("with-image")
    node.gone("with-image")


def test_an_agent_with_user_namespaces_is_healthy(node: RunningNode, kubelet: Kubelet, image: str) -> None:
    """The node is healthy, and stays so while a pod has a user namespace of its own, which is counted."""
    assert kubelet.ask("/healthz") == (200, "ok")
    started = kubelet.samples("/metrics")["kubelet_started_user_namespaced_pods_total"][0][1]
    node.apply(pod(shell(image, "sleep 1000"), name="own-users", hostUsers=False))
    node.running("own-users")
    assert kubelet.ask("/healthz?verbose")[1].splitlines() == [
        "[+]ping ok",
        "[+]log ok",
        "[+]syncloop ok",
        "healthz check passed",
    ]
    assert kubelet.samples("/metrics")["kubelet_started_user_namespaced_pods_total"][0][1] == started + 1
    node.delete("own-users")
    node.gone("own-users")


def test_a_pod_with_a_user_namespace_whose_container_fails_is_counted(
    node: RunningNode, kubelet: Kubelet, image: str
) -> None:
    """Once for its sandbox, as a kubelet counts (e2e: "metrics should report count of started and failed user
    namespaced pods").
    """
    names = [f"kubelet_started_user_namespaced_pods_{end}total" for end in ("", "errors_")]
    before = kubelet.samples("/metrics")
    failing = pod(shell(image, "sleep 1000"), name="own-users", hostUsers=False)
    failing["spec"]["containers"][0]["command"] = ["bogus"]
    node.apply(failing)
    node.until(lambda: "Failed" in [event["reason"] for event in node.events("own-users")], "its failure")
    after = kubelet.samples("/metrics")
    assert [after[name][0][1] - before[name][0][1] for name in names] == [1, 1]
    node.delete("own-users")
    node.gone("own-users")


@pytest.mark.requirement("U106")
def test_pods_that_cannot_run_are_desired_and_not_running(node: RunningNode, kubelet: Kubelet, image: str) -> None:
    """A pod with a user namespace that cannot be started widens the gap between desired and running pods."""

    def gap() -> float:
        own = kubelet.samples("/metrics")
        return sum(value for _, value in own["kubelet_desired_pods"]) - own["kubelet_running_pods"][0][1]

    before = gap()
    failing = pod(shell(image, "sleep 1000"), name="mapped", hostUsers=False)
    missing = {"path": "/nowhere", "type": "Directory"}
    failing["spec"]["volumes"] = [{"name": "data", "hostPath": missing}]
    failing["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    node.apply(failing)
    node.until(lambda: "FailedMount" in [event["reason"] for event in node.events("mapped")], "its failure")
    assert gap() == before + 1
    node.delete("mapped")
    node.gone("mapped")
    node.until(lambda: gap() == before, "the pod is not desired any more")


def test_strangers_and_users_without_a_role_are_refused(node: RunningNode, tmp_path: Path) -> None:
    """Who shows nothing, or a token that is nobody's, is 401; who is somebody may do what a role says (RBAC)."""
    nobody = Kubelet(node, tmp_path)
    assert nobody.ask("/pods") == (401, "Unauthorized")
    assert nobody.ask("/healthz", token="made.up") == (401, "Unauthorized")
    somebody = Kubelet(node, tmp_path, user="ann")
    refused = somebody.ask("/pods")
    assert refused == (403, "Forbidden (user=ann, verb=get, resource=nodes, subresource(s)=[pods proxy])\n")
    node.api.kubectl("create", "clusterrole", "see-statistics", "--verb=get", "--resource=nodes/stats")
    node.api.kubectl("create", "clusterrolebinding", "ann", "--clusterrole=see-statistics", "--user=ann")
    assert somebody.ask("/stats/summary")[0] == 200
    assert somebody.ask("/metrics")[0] == 403
    node.api.kubectl("create", "serviceaccount", "scraper")
    node.api.kubectl("create", "clusterrole", "scrape", "--verb=get", "--resource=nodes/metrics")
    node.api.kubectl(
        "create", "clusterrolebinding", "scraper", "--clusterrole=scrape", "--serviceaccount=default:scraper"
    )
    token = node.api.kubectl("create", "token", "scraper").strip()
    assert nobody.ask("/metrics/resource", token=token)[0] == 200
    assert nobody.ask("/stats/summary", token=token)[0] == 403


def test_without_a_runtime_it_says_why_there_are_no_statistics(own_node: RunningNode, tmp_path: Path) -> None:
    with own_node as node:
        kubelet = Kubelet(node, tmp_path, user="root-of-all", groups=("system:masters",))
        node.daemon.kill()
        status, text = kubelet.ask("/stats/summary")
        assert (status, text.partition("/")[0]) == (500, "Internal Error: no runtime answers on ")
