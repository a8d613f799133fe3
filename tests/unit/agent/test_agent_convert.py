"""What the runtime is asked for: a table of pods and the CRI messages they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from podkeep.agent.convert.container import ContainerPlan, PlannedImage, PlannedMount, container_config
from podkeep.agent.convert.sandbox import SandboxPlan, sandbox_config
from podkeep.agent.convert.security import ImageUser, SeccompPolicy
from podkeep.agent.network.dns import ResolvConf
from podkeep.agent.resources.qos import linux_resources
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.agent.user_namespaces.model import PodUserNamespace, of, of_block
from podkeep.agent.volumes.images import policies
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

BLOCK = 3 * 65536
UID = "0a1b2c3d-0000-1111-2222-333344445555"


def make(spec: dict[str, Any] | None = None, container: dict[str, Any] | None = None) -> Pod:
    containers = [{"name": "c", "image": "busybox:1"} | (container or {})]
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": UID, "labels": {"app": "x"}, "annotations": {"note": "y"}},
        "spec": {"containers": containers} | (spec or {}),
    }
    (pod,) = manifest.parse(yaml.safe_dump(document), source="f").pods
    return pod


def own(start: int | None) -> PodUserNamespace | None:
    return None if start is None else of_block(Block(first=start))


def sandbox(pod: Pod, start: int | None = None) -> api_pb2.PodSandboxConfig:
    plan = SandboxPlan(
        user_namespace=own(start),
        dns=ResolvConf(servers=("10.0.0.1",)),
        cgroup_root="/podkeep",
        pod_logs="/var/log/pods",
    )
    return sandbox_config(pod, plan)


def container(pod: Pod, start: int | None = None, **plan: Any) -> api_pb2.ContainerConfig:
    wanted = {
        "attempt": 0,
        "image_ref": "sha256:1",
        "image_user": ImageUser(uid=0),
        "environment": {"A": "1"},
        "mounts": [
            PlannedMount(host_path=Path("/pods/v"), container_path="/v", read_only=True),
            PlannedMount(host_path=Path("/pods/hosts"), container_path="/etc/hosts"),
        ],
        "resources": linux_resources(pod, pod.spec.containers[0], 8 << 30),
        "user_namespace": own(start),
        "seccomp": SeccompPolicy(root="/seccomp"),
    } | plan
    return container_config(pod, pod.spec.containers[0], ContainerPlan(**wanted))


@pytest.mark.requirement("U64", "U118")
def test_every_mount_of_a_pod_with_a_user_namespace_carries_its_block() -> None:
    pod = make({"hostUsers": False})
    mapping = [api_pb2.IDMapping(host_id=BLOCK, container_id=0, length=65536)]
    message = container(pod, BLOCK)
    assert len(message.mounts) == 2
    for mount in message.mounts:
        assert list(mount.uidMappings) == mapping
        assert list(mount.gidMappings) == mapping
    for options in (
        message.linux.security_context.namespace_options.userns_options,
        sandbox(pod, BLOCK).linux.security_context.namespace_options.userns_options,
    ):
        assert (options.mode, list(options.uids), list(options.gids)) == (api_pb2.POD, mapping, mapping)


@pytest.mark.requirement("U27", "U62")
def test_the_nodes_mapping_is_said_as_a_pods_own_and_its_mounts_are_plain() -> None:
    """The same fields of the same messages as with a block; extents of users and groups differ, and have an order."""
    uids = [(0, 1000, 10), (10, 5000, 10)]
    gids = [(0, 1000, 1000), (2000, 2000, 1)]

    def extents(triples: list[tuple[int, int, int]]) -> tuple[IdMapping, ...]:
        return tuple(IdMapping(container_id=c, host_id=h, length=n) for c, h, n in triples)

    given = of(IdMap(uids=extents(uids), gids=extents(gids)))
    pod = make()
    message = container(pod, user_namespace=given)
    plan = SandboxPlan(user_namespace=given, dns=ResolvConf(), cgroup_root="/p", pod_logs="/l")
    options = message.linux.security_context.namespace_options.userns_options
    assert options == sandbox_config(pod, plan).linux.security_context.namespace_options.userns_options
    assert options.mode == api_pb2.POD
    assert [(item.container_id, item.host_id, item.length) for item in options.uids] == uids
    assert [(item.container_id, item.host_id, item.length) for item in options.gids] == gids
    assert [bool(mount.uidMappings or mount.gidMappings) for mount in message.mounts] == [False, False]
    assert {field.name for field, _ in options.ListFields()} == {
        field.name
        for field, _ in container(pod, BLOCK).linux.security_context.namespace_options.userns_options.ListFields()
    }


@pytest.mark.requirement("U64", "U118")
@pytest.mark.parametrize("host_users", [None, True])
def test_mounts_of_a_pod_on_the_hosts_ids_carry_none_and_node_mode_is_said(host_users: bool | None) -> None:
    pod = make({} if host_users is None else {"hostUsers": host_users})
    message = container(pod)
    assert all(not mount.uidMappings and not mount.gidMappings for mount in message.mounts)
    options = sandbox(pod).linux.security_context.namespace_options
    assert options.HasField("userns_options")
    assert options.userns_options.mode == api_pb2.NODE
    assert not options.userns_options.uids


@pytest.mark.requirement("U8")
def test_ids_are_sent_as_they_are_written_whatever_the_user_namespace() -> None:
    pod = make(
        {
            "hostUsers": False,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 7, "supplementalGroups": [5]},
        },
        {"securityContext": {"runAsUser": 2000}},
    )
    security = container(pod, BLOCK).linux.security_context
    assert (security.run_as_user.value, security.run_as_group.value) == (2000, 1001)
    assert list(security.supplemental_groups) == [5, 7]


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("spec", "image_user", "message"),
    [
        ({"runAsUser": 0}, ImageUser(uid=5), "container's runAsUser breaks non-root policy"),
        ({}, ImageUser(uid=0), "container has runAsNonRoot and image will run as root"),
        ({}, ImageUser(), "container has runAsNonRoot and image will run as root"),
        ({}, ImageUser(name="app"), "image has non-numeric user (app)"),
    ],
)
def test_run_as_non_root_refuses_root(spec: dict[str, Any], image_user: ImageUser, message: str) -> None:
    pod = make({"hostUsers": False, "securityContext": {"runAsNonRoot": True} | spec})
    with pytest.raises(InvalidArgument) as caught:
        container(pod, BLOCK, image_user=image_user)
    assert message in caught.value.message


def test_run_as_non_root_accepts_another_user() -> None:
    pod = make({"securityContext": {"runAsNonRoot": True}})
    assert container(pod, image_user=ImageUser(uid=5)).linux.security_context.run_as_user.value == 5


def test_the_sandbox() -> None:
    message = sandbox(make())
    assert message.metadata == api_pb2.PodSandboxMetadata(name="web", namespace="default", uid=UID)
    assert message.hostname == "web"
    assert message.log_directory == f"/var/log/pods/default_web_{UID}"
    assert list(message.dns_config.servers) == ["10.0.0.1"]
    assert message.labels == {
        "app": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": UID,
    }
    assert message.annotations["note"] == "y"
    assert message.linux.cgroup_parent == f"/podkeep/besteffort/pod{UID}"
    options = message.linux.security_context.namespace_options
    assert (options.network, options.ipc, options.pid) == (api_pb2.POD, api_pb2.POD, api_pb2.CONTAINER)


@pytest.mark.parametrize(
    ("spec", "network", "ipc", "pid"),
    [
        ({"hostNetwork": True}, api_pb2.NODE, api_pb2.POD, api_pb2.CONTAINER),
        ({"hostIPC": True}, api_pb2.POD, api_pb2.NODE, api_pb2.CONTAINER),
        ({"hostPID": True}, api_pb2.POD, api_pb2.POD, api_pb2.NODE),
        ({"shareProcessNamespace": True}, api_pb2.POD, api_pb2.POD, api_pb2.POD),
    ],
)
def test_shared_namespaces(spec: dict[str, Any], network: int, ipc: int, pid: int) -> None:
    message = sandbox(make(spec))
    options = message.linux.security_context.namespace_options
    assert (options.network, options.ipc, options.pid) == (network, ipc, pid)
    assert message.hostname == ("" if spec.get("hostNetwork") else "web")


def test_the_container() -> None:
    pod = make(container={"command": ["echo", "$(A) $(B) $$(A)"], "args": ["$(A)"], "workingDir": "/w", "tty": True})
    message = container(pod, attempt=2)
    assert (list(message.command), list(message.args)) == (["echo", "1 $(B) $(A)"], ["1"])
    assert [(env.key, env.value) for env in message.envs] == [("A", b"1")]
    assert (message.working_dir, message.tty, message.log_path) == ("/w", True, "c/2.log")
    assert message.metadata == api_pb2.ContainerMetadata(name="c", attempt=2)
    assert (message.image.image, message.image.user_specified_image) == ("sha256:1", "busybox:1")
    assert message.labels["io.kubernetes.container.name"] == "c"
    assert message.annotations["io.kubernetes.container.restartCount"] == "2"
    assert (message.mounts[0].host_path, message.mounts[0].readonly) == ("/pods/v", True)


def test_security_settings() -> None:
    pod = make(
        container={
            "securityContext": {
                "capabilities": {"add": ["NET_ADMIN", "CAP_CHOWN"], "drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        }
    )
    security = container(pod).linux.security_context
    assert list(security.capabilities.add_capabilities) == ["NET_ADMIN", "CHOWN"]
    assert list(security.capabilities.drop_capabilities) == ["ALL"]
    assert (security.readonly_rootfs, security.no_new_privs, security.privileged) == (True, True, False)
    assert security.seccomp.profile_type == api_pb2.SecurityProfile.RuntimeDefault
    assert "/proc/kcore" in security.masked_paths


def test_a_privileged_container_sees_everything() -> None:
    pod = make(container={"securityContext": {"privileged": True}})
    security = container(pod).linux.security_context
    assert security.privileged
    assert not security.masked_paths
    assert not security.readonly_paths
    assert sandbox(pod).linux.security_context.privileged


@pytest.mark.parametrize(
    ("resources", "cgroup", "expected"),
    [
        ({}, "/besteffort", (2, 0, 0, 1000)),
        ({"limits": {"cpu": "500m", "memory": "64Mi"}}, "", (512, 50_000, 64 << 20, -997)),
        ({"requests": {"memory": "4Gi"}}, "/burstable", (2, 0, 0, 500)),
        ({"requests": {"cpu": "2", "memory": "1"}, "limits": {"cpu": "4"}}, "/burstable", (2048, 400_000, 0, 999)),
        ({"requests": {"memory": "8Gi"}}, "/burstable", (2, 0, 0, 3)),
    ],
)
def test_resources(resources: dict[str, Any], cgroup: str, expected: tuple[int, int, int, int]) -> None:
    pod = make(container={"resources": resources})
    found = container(pod).linux.resources
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes, found.oom_score_adj) == expected
    assert sandbox(pod).linux.cgroup_parent == f"/podkeep{cgroup}/pod{UID}"


def test_memory_that_runs_out_ends_the_whole_container_where_the_kernel_can() -> None:
    pod = make()
    (only,) = pod.spec.containers
    whole = container(pod, resources=linux_resources(pod, only, 8 << 30, ends_whole=True)).linux.resources
    assert dict(whole.unified) == {"memory.oom.group": "1"}
    assert dict(container(pod).linux.resources.unified) == {}


def test_nothing_of_a_container_goes_to_swap_where_the_kernel_can_see_to_it() -> None:
    pod = make()
    (only,) = pod.spec.containers
    kept = container(pod, resources=linux_resources(pod, only, 8 << 30, no_swap=True)).linux.resources
    assert dict(kept.unified) == {"memory.swap.max": "0"}


@pytest.mark.requirement("V32", "V33", "V35", "V36", "V47", "V114")
def test_an_image_volume_is_asked_for_by_what_the_pull_returned() -> None:
    pod = make({"runtimeClassName": "crun"})
    image = PlannedImage(reference="data:1", ref="sha256:5")
    mount = PlannedMount(image=image, sub_path="dir", container_path="/v", read_only=True)
    (message,) = container(pod, mounts=[mount]).mounts
    assert message == api_pb2.Mount(
        container_path="/v",
        readonly=True,
        image=api_pb2.ImageSpec(
            image="sha256:5",
            user_specified_image="data:1",
            runtime_handler="crun",
            annotations=pod.metadata.annotations,
        ),
        image_sub_path="dir",
    )


def volume_pod(*volumes: tuple[str, str, str], mounted: str) -> Pod:
    """Return a pod with image volumes of a name, a reference and a policy, those named in ``mounted`` mounted."""
    return make(
        {
            "volumes": [
                {"name": name, "image": {"reference": reference, "pullPolicy": policy}}
                for name, reference, policy in volumes
            ],
        },
        {"volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in mounted]},
    )


def test_annotations_of_the_pod_do_not_multiply_by_its_images() -> None:
    """Each mount of an image has them: with 1,000 mounts and 256 KiB the message had 256 MiB before it was refused."""
    pod = make()
    annotations = {"a": "x" * 100_000}
    pod = structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=annotations))
    image = PlannedImage(reference="i", ref="i")
    mounts = [PlannedMount(image=image, container_path=f"/{number}") for number in range(84)]
    assert container(pod, mounts=mounts[:83]).mounts[82].image.annotations == annotations
    with pytest.raises(InvalidArgument, match="have 8400084 characters in all of the container's 84 mounts of images"):
        container(pod, mounts=mounts)


class _Walked(tuple[Any, ...]):
    """What may be walked, and not looked through for one item after the other."""

    def __contains__(self, item: object) -> bool:
        raise AssertionError("all are looked through for one")


def test_ports_of_very_many_containers() -> None:
    ports = [{"containerPort": 80}]
    pod = make({"initContainers": [{"name": name, "image": "i", "ports": ports} for name in "ab"]}, {"ports": ports})
    spec = structs.replace(
        pod.spec,
        init_containers=(
            pod.spec.init_containers[0],
            structs.replace(pod.spec.init_containers[1], restart_policy="Always"),
        ),
        containers=_Walked(pod.spec.containers),
    )
    assert [port.container_port for port in sandbox(structs.replace(pod, spec=spec)).port_mappings] == [80, 80]


@pytest.mark.requirement("V21", "V26")
def test_which_images_of_volumes_are_had() -> None:
    volumes = (
        ("a", "one:1", "Never"),
        ("b", "two:1", "Always"),
        ("c", "one:1", "IfNotPresent"),
        ("d", "three:1", "Always"),
    )
    assert policies(volume_pod(*volumes, mounted="abc")) == {"one:1": "IfNotPresent", "two:1": "Always"}
    assert policies(volume_pod(*volumes, mounted="a")) == {"one:1": "Never"}
    assert policies(volume_pod(*volumes, mounted="")) == {}
