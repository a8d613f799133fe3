"""A node on which something is scarce: conditions, evictions, critical pods, limits of local storage."""

from __future__ import annotations

from typing import Any

import pytest
from agent.manifests import FOREVER, mount, pod, shell

from podkeep.cri.v1 import api_pb2
from support.cri import Pods
from support.running_node import RunningNode

MUCH = "99%"
"""Of memory, which no machine that runs anything has free."""


def forever(image: str, name: str, **spec: Any) -> dict[str, Any]:
    return pod(shell(image, FOREVER), name=name, restartPolicy="Always", **spec)


def node_condition(node: RunningNode, kind: str) -> str:
    found = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"].get("conditions", ())
    return next((item["status"] for item in found if item["type"] == kind), "")


def test_a_node_without_memory_evicts_what_it_may(own_node: RunningNode, image: str) -> None:
    """The pod that may go goes, with upstream's message; new ones of its class are refused, critical ones are not."""
    with own_node as node:
        node.apply(forever(image, "web"))
        node.running("web")
        node.end_agent()
        node.settings = (f'agent.eviction_hard={{"memory.available" = "{MUCH}"}}',)
        node.start_agent()

        evicted = node.phase("web", "Failed")

        assert evicted["status"]["reason"] == "Evicted"
        assert evicted["status"]["message"].startswith("The node was low on resource: memory. Threshold quantity: ")
        assert "Container main was using" in evicted["status"]["message"]
        (target,) = [item for item in evicted["status"]["conditions"] if item["type"] == "DisruptionTarget"]
        assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
        node.until(lambda: node_condition(node, "MemoryPressure") == "True", "MemoryPressure")
        node.until(lambda: "Evicted" in {item["reason"] for item in node.events("web")}, "event of the eviction")

        node.apply(forever(image, "refused"))
        refused = node.phase("refused", "Failed")
        assert refused["status"]["message"] == "Pod was rejected: The node had condition: [MemoryPressure]. "
        # As of every pod that a kubelet has seen: by it one sees when that was.
        assert refused["status"]["startTime"] >= refused["metadata"]["creationTimestamp"]


def test_the_next_pod_is_evicted_only_when_the_volumes_of_the_last_one_are_gone(
    own_node: RunningNode, image: str
) -> None:
    """What is in them counts as used until then, in memory as on a disk: with it gone no other pod might have to go."""
    with own_node as node:
        volumes = [{"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]
        script = "cd /data && seq 100000 | xargs touch; dd if=/dev/zero of=/memory/file bs=1M count=64; echo full; "
        mounts = [mount("/data", "data"), mount("/memory", "memory")]
        node.apply(
            pod(shell(image, script + FOREVER, volumeMounts=mounts), name="full", volumes=volumes),
            forever(image, "other"),
        )
        # What dd says comes by another pipe, before or after it.
        node.until(lambda: "full" in node.written("full").split("\n"), "the volumes are full")
        uid = node.running("full")["metadata"]["uid"]
        node.running("other")
        node.end_agent()
        node.settings = (f'agent.eviction_hard={{"memory.available" = "{MUCH}"}}',)
        node.start_agent()

        ended = node.until(lambda: [line for line in node.log if "evicting pod default/other" in line], "its eviction")
        left = (node.daemon.base / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "data").exists()

        assert len(ended) == 1
        assert not left
        assert node.phase("full", "Failed")["status"]["reason"] == "Evicted"


def test_a_full_disk_ends_the_pod_that_filled_it(own_node: RunningNode, image: str) -> None:
    """Not one that wrote less, though the runtime had counted that before the other wrote at all."""
    with own_node as node, Pods(node.daemon.socket, "") as client:
        script = "dd if=/dev/zero of=/file bs=1M count=4; " + FOREVER
        node.apply(pod(shell(image, script), name="innocent"), pod(shell(image, FOREVER), name="culprit"))
        uids = {name: node.running(name)["metadata"]["uid"] for name in ("innocent", "culprit")}

        def layers() -> dict[str, int]:
            answer = client.call("ListPodSandboxStats", api_pb2.ListPodSandboxStatsRequest())
            return {
                item.attributes.metadata.uid: item.linux.containers[0].writable_layer.used_bytes.value
                for item in answer.stats
                if item.linux.containers[0].writable_layer.HasField("used_bytes")
            }

        node.until(lambda: layers().get(uids["innocent"], 0) >= 4 << 20 and uids["culprit"] in layers(), "sizes")
        node.end_agent()
        node.settings = (f'agent.eviction_hard={{"nodefs.available" = "{MUCH}"}}',)
        command = ["dd", "if=/dev/zero", "of=/file", "bs=1M", "count=32"]
        container = node.running("culprit")["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        request = api_pb2.ExecSyncRequest(container_id=container, cmd=command, timeout=60)
        assert client.call("ExecSync", request).exit_code == 0
        node.start_agent()

        evicted = node.phase("culprit", "Failed")

        assert evicted["status"]["reason"] == "Evicted"
        ended = [line for line in node.log if "evicting pod" in line]
        assert "default/culprit" in ended[0]


def test_a_volume_beyond_its_limit_evicts_its_pod(node: RunningNode, image: str) -> None:
    """An emptyDir that grows beyond its sizeLimit ends its pod, and no other."""
    volumes = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    script = "dd if=/dev/zero of=/data/file bs=64k count=64; " + FOREVER
    node.apply(
        pod(shell(image, script, volumeMounts=[mount("/data", "data")]), name="full", volumes=volumes),
        forever(image, "other", volumes=volumes),
    )

    evicted = node.phase("full", "Failed")

    assert evicted["status"]["reason"] == "Evicted"
    assert evicted["status"]["message"] == 'Usage of EmptyDir volume "data" exceeds the limit "1Mi". '
    node.running("other")


@pytest.mark.parametrize("after", ["", "exec 3>&-; "], ids=["that does not answer", "whose server has ended"])
def test_what_a_pod_mounts_over_its_volume_keeps_no_other_from_being_measured(
    node: RunningNode, image: str, after: str
) -> None:
    """A FUSE in a Bidirectional volume, which the agent sees as well."""
    volumes = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    options = "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other"
    script = f"exec 3<>/dev/fuse; mount -t fuse -o {options} none /data && {after}echo mounted; {FOREVER}"
    covering = shell(
        image,
        script,
        securityContext={"privileged": True},
        volumeMounts=[mount("/data", "data", mountPropagation="Bidirectional")],
    )
    node.apply(pod(covering, name="covering", volumes=volumes))
    node.until(lambda: node.written("covering") == "mounted", "the mount over the volume")

    full = "dd if=/dev/zero of=/data/file bs=64k count=64; " + FOREVER
    node.apply(pod(shell(image, full, volumeMounts=[mount("/data", "data")]), name="full", volumes=volumes))

    assert node.phase("full", "Failed")["status"]["reason"] == "Evicted"
    node.running("covering")


def test_a_pod_is_evicted_while_the_api_is_away(node: RunningNode, image: str) -> None:
    """An agent that was started meanwhile looks after the pods that run, and tells what became of them afterwards."""
    volumes = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    full = "until test -e /go; do sleep 0.1; done; dd if=/dev/zero of=/data/file bs=64k count=64; " + FOREVER
    node.apply(pod(shell(image, full, volumeMounts=[mount("/data", "data")]), name="full", volumes=volumes))
    node.running("full")
    node.end_agent()
    node.api.stop()

    node.start_agent("are looked after as they were")
    assert node.daemon.run("exec", "full", "--", "touch", "/go").returncode == 0

    node.until(lambda: not node.pods_with_processes(), "the end of the pod")
    node.api.start()
    assert node.phase("full", "Failed")["status"]["reason"] == "Evicted"


@pytest.mark.parametrize("place", ["/etc/hosts", "/dev/termination-log", "/etc/resolv.conf", "/etc/hostname"])
def test_what_is_written_to_a_file_of_the_node_counts_against_the_limit(
    node: RunningNode, image: str, place: str
) -> None:
    """They are on the node's disk, and no volume, log or layer: a pod could fill it by them (CVE-2020-8557)."""
    script = f"dd if=/dev/zero of={place} bs=64k count=128; " + FOREVER
    name = "full-" + place.rpartition("/")[2].replace(".", "-")
    node.apply(pod(shell(image, script, resources={"limits": {"ephemeral-storage": "2Mi"}}), name=name))

    evicted = node.phase(name, "Failed")

    assert evicted["status"]["reason"] == "Evicted"
    assert "exceeds the total limit of containers 2Mi" in evicted["status"]["message"]


def test_a_critical_pod_takes_the_place_of_another(node: RunningNode, image: str) -> None:
    """A critical pod for which there is no room runs, and the pod that had to go is Failed with upstream's words."""
    most = int(node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["allocatable"]["cpu"])
    large, small = {"requests": {"cpu": str(most)}}, {"requests": {"cpu": "10m"}}
    node.apply(pod(shell(image, FOREVER, resources=large), name="large", restartPolicy="Always"))
    node.running("large")

    critical = {"priorityClassName": "system-node-critical", "restartPolicy": "Always"}
    node.apply(pod(shell(image, FOREVER, resources=small), name="critical", **critical))

    ended = node.phase("large", "Failed")
    assert (ended["status"]["reason"], ended["status"]["message"]) == (
        "Preempting",
        "Preempted in order to admit critical pod",
    )
    (target,) = [item for item in ended["status"]["conditions"] if item["type"] == "DisruptionTarget"]
    assert target["message"] == "Pod was preempted by Kubelet to accommodate a critical pod."
    node.running("critical")


def test_nobody_is_ended_for_a_critical_pod_that_cannot_run(node: RunningNode, image: str) -> None:
    """It asks for a class that the node does not have; whoever makes it again and again would end pods each time."""
    most = int(node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["allocatable"]["cpu"])
    large, small = {"requests": {"cpu": str(most)}}, {"requests": {"cpu": "10m"}, "classes": {"rdt": "gold"}}
    node.apply(pod(shell(image, FOREVER, resources=large), name="large", restartPolicy="Always"))
    node.running("large")

    critical = {"priorityClassName": "system-node-critical", "restartPolicy": "Always", "nodeName": node.name}
    node.apply(pod(shell(image, FOREVER, resources=small), name="critical", **critical))

    refused = node.phase("critical", "Failed")
    assert refused["status"]["reason"] == "ClassResourceUnavailable"
    assert node.running("large")["status"]["phase"] == "Running"
    assert "Preempting" not in {event["reason"] for event in node.events("large")}


def test_a_pod_with_hardly_any_memory_runs(node: RunningNode, image: str) -> None:
    """What the runtime itself needs beside containers is not taken from the limit of the pod."""
    limits = {"limits": {"cpu": "100m", "memory": "2Mi"}}
    node.apply(pod(shell(image, FOREVER, resources=limits), name="small", restartPolicy="Always"))

    assert node.running("small")["status"]["containerStatuses"][0]["restartCount"] == 0
