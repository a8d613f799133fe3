"""One mapping for all pods of a node (KEP-127 draft): what pods get by default, who shares the node's, what fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import FOREVER, config_map, pod, secret, shell
from node.test_image_volume_gate import container_of, reasons, restart
from node.test_pod_volumes import claim_and_volume, log_of, mounted
from node.test_user_namespace_gate import IDENTITY, is_block, mapping_of, recreate, runs, stop_container

from podkeep.agent.user_namespaces import blocks
from podkeep.kernel.namespace.idmap import IdMap
from support import forked
from support.cri import Pods
from support.daemon import Daemon
from support.escaped import DONE, escaped
from support.images import busybox_layout, file
from support.processes import owner
from support.registry import Registry
from support.running_node import RunningNode, own_base
from support.waiting import TIMEOUT_S

GATE = "agent.feature_gates.UserNamespaceSupport=true"
WIDE = "0:300000:65536"
END = f"echo end; {FOREVER}"
"""What a pod does after it has written what a test reads."""


def with_mapping(uids: str, gids: str = "") -> tuple[str, ...]:
    """Return the options of the agent."""
    return "--uid-mapping", uids, "--gid-mapping", gids or uids


@pytest.fixture
def mapped(own_node: RunningNode) -> Iterator[RunningNode]:
    """A node with one mapping for its pods."""
    own_node.settings, own_node.options = (GATE,), with_mapping(WIDE)
    with own_node as node:
        yield node


def read(node: RunningNode, image: str, name: str, command: str) -> str:
    """Return what a command in a pod that runs writes."""
    container = container_of(node, name)[0]
    with Pods(node.daemon.socket, image) as client:
        return client.read(container.rpartition("/")[2], command)


def output(node: RunningNode, name: str) -> list[str]:
    """Return the lines that a pod writes before the line ``end``, once it has."""
    node.running(name)
    node.until(lambda: log_of(node, name).endswith("end"), f"the output of {name}")
    return log_of(node, name).splitlines()[:-1]


def maps(node: RunningNode, image: str, name: str) -> list[list[list[int]]]:
    """Return the maps of users and of groups in a pod that runs."""
    return [
        [list(map(int, line.split())) for line in read(node, image, name, f"cat /proc/self/{kind}_map").splitlines()]
        for kind in ("uid", "gid")
    ]


@pytest.mark.requirement("U47", "U48", "U50")
def test_pods_have_one_mapping_and_user_namespaces_of_their_own(own_node: RunningNode, image: str) -> None:
    """The example of the draft, then several extents: who runs keeps the first, over restarts and a lost sandbox."""
    own_node.settings, own_node.options = (GATE,), with_mapping("0:1000:10", "0:2000:20")
    first, second = [[[0, 1000, 10]], [[0, 2000, 20]]], [[[0, 1000, 10], [10, 5000, 10]], [[0, 70000, 65536]]]
    with own_node as node:
        node.apply(runs(image, "a"), runs(image, "b"), runs(image, "asks", hostUsers=False))
        names = ("a", "b", "asks")
        assert [maps(node, image, name) for name in names] == [first] * 3
        assert len({read(node, image, name, "readlink /proc/self/ns/user") for name in names}) == 3
        assert {owner(node.host_pid(name)) for name in names} == {1000}
        assert "0:1000:10 has host IDs below 65536" in "".join(node.log)

        node.end_agent()
        with Pods(node.daemon.socket, image) as client:
            for sandbox in client.sandboxes():
                if sandbox.metadata.name == "b":
                    client.stop_pod(sandbox.id)
        node.options = with_mapping("0:1000:10,10:5000:10", "0:70000:65536")
        node.start_agent()
        node.apply(runs(image, "new"))
        assert maps(node, image, "new") == second
        node.until(lambda: "SandboxChanged" in reasons(node, "b"), "the new sandbox")
        assert [maps(node, image, name) for name in names] == [first] * 3

        node.options = ()
        restart(node, (GATE,))
        assert "does nothing without agent.uid_mapping and agent.gid_mapping" in "".join(node.log)
        node.apply(runs(image, "block", hostUsers=False), runs(image, "plain"))
        assert [maps(node, image, name) for name in names] == [first] * 3
        assert mapping_of(node, image, "plain") == IDENTITY
        # The first two blocks have IDs that pods with the mapping of the node have.
        assert maps(node, image, "block") == [[[0, 196608, 65536]]] * 2


@pytest.mark.requirement("U51")
def test_the_gate_decides_what_a_pod_gets_that_says_nothing(own_node: RunningNode, image: str) -> None:
    """Off: the node's user namespace. On: one of its own. Who runs keeps what it has, either way."""
    own_node.options = with_mapping(WIDE)
    mapped = ["0", "300000", "65536"]
    with own_node as node:
        node.apply(runs(image, "web"), runs(image, "asks", hostUsers=False))
        assert mapping_of(node, image, "web") == IDENTITY
        assert is_block(mapping_of(node, image, "asks"))
        before = container_of(node, "web")
        restart(node, (GATE,))
        assert container_of(node, "web") == before
        stop(node, image, "web")
        assert mapping_of(node, image, "web") == IDENTITY
        recreate(node, runs(image, "web"))
        recreate(node, runs(image, "asks", hostUsers=False))
        assert mapping_of(node, image, "web") == mapping_of(node, image, "asks") == mapped
        restart(node, ())
        stop(node, image, "web")
        assert mapping_of(node, image, "web") == mapped
        recreate(node, runs(image, "web"))
        assert mapping_of(node, image, "web") == IDENTITY


def stop(node: RunningNode, image: str, name: str) -> None:
    """End a pod's container, and return when it runs again."""
    container, count = container_of(node, name)
    stop_container(node, image, container)
    node.until(lambda: container_of(node, name)[1] == count + 1, "started again")


def triggers(image: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Return pods by name, each with one thing that does not work in a user namespace, and how that is called."""
    time = {"securityContext": {"capabilities": {"add": ["SYS_TIME"]}}}
    module = {"securityContext": {"capabilities": {"add": ["SYS_MODULE"]}}}
    device = {"securityContext": {"capabilities": {"add": ["MKNOD"]}}}
    privileged = {"securityContext": {"privileged": True}}
    path = {"name": "v", "hostPath": {"path": "/usr"}}

    def runs_with(name: str, **more: Any) -> dict[str, Any]:
        return pod(shell(image, FOREVER, **more), name=name)

    def after(name: str, **more: Any) -> dict[str, Any]:
        return runs(image, name, initContainers=[shell(image, "true", "first", **more)])

    return {
        "time": (runs_with("time", **time), 'container "main" adds capability SYS_TIME'),
        "module": (runs_with("module", **module), 'container "main" adds capability SYS_MODULE'),
        "device": (runs_with("device", **device), 'container "main" adds capability MKNOD'),
        "device-first": (after("device-first", **device), 'container "first" adds capability MKNOD'),
        "privileged": (runs_with("privileged", **privileged), 'container "main" is privileged'),
        "privileged-first": (after("privileged-first", **privileged), 'container "first" is privileged'),
        "net": (runs(image, "net", hostNetwork=True), "hostNetwork"),
        "pid": (runs(image, "pid", hostPID=True), "hostPID"),
        "ipc": (runs(image, "ipc", hostIPC=True), "hostIPC"),
        "path": (runs(image, "path", volumes=[path]), 'volume "v" (hostPath), whose owner cannot be changed'),
    }


@pytest.mark.requirement("U10", "U53", "U55")
def test_who_cannot_work_in_a_user_namespace_shares_the_nodes_and_is_told(mapped: RunningNode, image: str) -> None:
    """One pod for each trigger; a pod with none is mapped, and nothing is said."""
    node, table = mapped, triggers(image)
    node.apply(runs(image, "none"), *(document for document, _ in table.values()))
    for name, (_, trigger) in table.items():
        assert mapping_of(node, image, name) == IDENTITY, name
        assert f"in one of its own: {trigger}. `hostUsers: true`" in reasons(node, name)["HostUserNamespace"]
        kinds = {event["type"] for event in node.events(name) if event["reason"] == "HostUserNamespace"}
        assert kinds == {"Warning"}
    assert mapping_of(node, image, "none") == ["0", "300000", "65536"]
    assert "HostUserNamespace" not in reasons(node, "none")
    said = [line for line in node.log if "shares the user namespace of the node" in line]
    assert len(said) == len(table)


@pytest.mark.requirement("U59")
def test_a_claim_for_a_remote_volume_is_looked_behind(mapped: RunningNode, image: str) -> None:
    """Before the claim is bound nothing is decided; then it is the node's user namespace, though NFS is not mounted."""
    node = mapped
    volume = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
    node.apply(mounted(image, "true", volume))
    node.until(lambda: "not found" in reasons(node, "web").get("FailedMount", ""), "the event")
    assert "HostUserNamespace" not in reasons(node, "web")
    claim_and_volume(node, {"nfs": {"server": "192.0.2.1", "path": "/"}})
    node.until(lambda: "HostUserNamespace" in reasons(node, "web"), "the event")
    assert 'volume "d" (a claim for nfs), whose owner cannot be changed' in reasons(node, "web")["HostUserNamespace"]


@pytest.mark.requirement("U3", "U52", "U121")
def test_a_pod_switches_its_user_namespace_off(mapped: RunningNode, image: str) -> None:
    """By the name of the draft and by the final one, without a word; only there a device can be made."""
    node = mapped
    script = f"cat /proc/self/uid_map; mknod /dev/made c 1 3 2>/dev/null && echo made || echo refused; {END}"
    capable = {"securityContext": {"capabilities": {"add": ["MKNOD"]}}}
    pods = {"alias": {"userHostNamespace": True}, "final": {"hostUsers": True}, "not": {"hostUsers": False}}
    for name, spec in pods.items():
        node.apply(pod(shell(image, script, **capable), name=name, **spec))
    alias, final, other = (output(node, name) for name in pods)
    assert (alias[0].split(), alias[-1]) == (final[0].split(), final[-1]) == (IDENTITY, "made")
    assert (other[0].split(), other[-1]) == (["0", "300000", "65536"], "refused")
    assert all("HostUserNamespace" not in reasons(node, name) for name in pods)
    found = node.get("alias")
    assert found is not None
    assert found["spec"]["userHostNamespace"] is True
    assert "hostUsers" not in found["spec"]


@pytest.mark.requirement("U54")
def test_without_defaulting_only_who_says_so_shares_the_nodes(own_node: RunningNode, image: str) -> None:
    """A privileged pod has its own and cannot make a device; one that shares the node's network cannot be."""
    own_node.settings = (GATE, "agent.feature_gates.DisableHostUserNamespaceDefaulting=true")
    own_node.options = with_mapping(WIDE)
    privileged = {"securityContext": {"privileged": True}}
    script = f"mknod /dev/made c 1 3 2>/dev/null && echo made || echo refused; {END}"
    with own_node as node:
        node.apply(pod(shell(image, script, **privileged), name="own"))
        node.apply(pod(shell(image, script, **privileged), name="shares", userHostNamespace=True))
        node.apply(runs(image, "net", hostNetwork=True))
        assert mapping_of(node, image, "own") == ["0", "300000", "65536"]
        assert mapping_of(node, image, "shares") == IDENTITY
        assert (output(node, "own"), output(node, "shares")) == (["refused"], ["made"])
        node.until(lambda: "FailedCreatePodSandBox" in reasons(node, "net"), "the event")
        assert "HostUserNamespace" not in {
            reason for name in ("own", "shares", "net") for reason in reasons(node, name)
        }


VOLUMES = [
    {"name": "empty", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
    {"name": "config", "configMap": {"name": "m", "defaultMode": 0o400}},
    {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
    {"name": "downward", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    {"name": "projected", "projected": {"sources": [{"configMap": {"name": "m"}}]}},
]
MOUNTS = [{"name": volume["name"], "mountPath": f"/vol/{volume['name']}"} for volume in VOLUMES]


def owners(node: RunningNode, name: str) -> dict[str, list[str]]:
    """Return the owners of the files in a pod's volumes, on disk, each with what has it."""
    found = node.get(name)
    assert found is not None
    directory = node.daemon.base / "kubelet/pods" / found["metadata"]["uid"] / "volumes"
    command = ["find", str(directory), "-type", "f", "-printf", r"%U %G %P\n"]
    done = subprocess.run([*namespace_entered(node), *command], check=True, capture_output=True, text=True)
    owned: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        owned.setdefault(line.rpartition(" ")[0], []).append(line.rpartition(" ")[2])
    return owned


def owned_by_others(node: RunningNode, name: str, owner: str) -> dict[str, list[str]]:
    """Return which files in a pod's volumes do not belong to ``owner``, by whom they belong to."""
    found = owners(node, name)
    assert found.pop(owner)
    return found


def namespace_entered(node: RunningNode) -> list[str]:
    """Return the command that runs a program where the node's volumes are mounted."""
    assert node.agent is not None
    return ["nsenter", f"--mount=/proc/{node.agent.pid}/ns/mnt"]


@pytest.mark.requirement("U56", "U57", "U58")
def test_files_of_volumes_belong_to_the_pods_root_or_to_a_group_of_the_node(own_node: RunningNode, image: str) -> None:
    """What the node has under a host path stays what it is."""
    own_node.settings, own_node.options = (GATE,), with_mapping("0:1000:65536", "0:1000:65536")
    script = (
        "cat /proc/self/gid_map; stat -c '%u %g' /etc/hosts /dev/termination-log; echo $(cat /vol/secret/key);"
        f"cd /vol; touch empty/made memory/made; stat -L -c '%u %g' */made */foo secret/key downward/name; {END}"
    )
    kept = own_node.daemon.base / "kept"
    kept.mkdir(mode=0o755)
    (kept / "file").touch()
    path = {"name": "path", "hostPath": {"path": str(kept)}}
    mounts = [*MOUNTS, {"name": "path", "mountPath": "/path"}]
    with own_node as node:
        node.apply(config_map("m", foo="bar"), secret("s", key="word"))
        for name, group in (("plain", None), ("inside", 2000), ("outside", 80000)):
            spec = {} if group is None else {"securityContext": {"fsGroup": group}}
            main = shell(image, script, volumeMounts=mounts)
            node.apply(pod(main, name=name, volumes=[*VOLUMES, path], hostUsers=False, **spec))
        found = {name: output(node, name) for name in ("plain", "inside", "outside")}
        assert owned_by_others(node, "plain", "1000 1000") == {}
        assert owned_by_others(node, "inside", "1000 2000") == {}
        assert owned_by_others(node, "outside", "1000 80000") == {}
        lines = {name: [line.split() for line in text if len(line.split()) == 3] for name, text in found.items()}
        assert lines["plain"] == [["0", "1000", "65536"]]
        assert lines["inside"] == [
            ["0", "1000", "1000"],
            ["1001", "2001", "999"],
            ["2000", "2000", "1"],
            ["2001", "3001", "63535"],
        ]
        assert lines["outside"] == [["0", "1000", "65536"], ["80000", "80000", "1"]]
        for name, group in (("plain", "0"), ("inside", "2000"), ("outside", "80000")):
            seen = found[name][len(lines[name]) :]
            assert seen[:3] == ["0 0", "0 0", "word"], seen
            assert set(seen[3:]) == {f"0 {group}"}
        assert [(item.stat().st_uid, item.stat().st_gid) for item in (kept, kept / "file")] == [(0, 0)] * 2
        (uid,) = (item["metadata"]["uid"] for item in [node.get("inside")] if item is not None)
        record = blocks.record(node.daemon.base / "kubelet/pods", uid)
        assert isinstance(record, IdMap)
        assert record.host_gid(2000) == 2000

        node.apply(runs(image, "root-group", securityContext={"fsGroup": 1000}))
        node.until(lambda: "FailedCreatePodSandBox" in reasons(node, "root-group"), "the event")
        assert reasons(node, "root-group")["FailedCreatePodSandBox"] == (
            "Failed to create pod sandbox: fsGroup 1000 is the group of the node that the pod's GID 0 is mapped to,"
            " which must stay mapped"
        )


@pytest.mark.requirement("U60")
@pytest.mark.parametrize(
    ("spec", "main", "message"),
    [
        ({"runAsUser": 500}, {}, "UID 500 of the container is not mapped by 0:1000:10"),
        ({"runAsUser": 5, "runAsGroup": 500}, {}, "GID 500 of the container is not mapped by 0:1000:10"),
        ({"supplementalGroups": [3, 700]}, {}, "GID 700 of the container is not mapped by 0:1000:10"),
        ({}, {"securityContext": {"runAsUser": 10}}, "UID 10 of the container is not mapped by 0:1000:10"),
    ],
)
def test_ids_outside_of_the_mapping_are_named(
    small: RunningNode, image: str, spec: Any, main: Any, message: str
) -> None:
    node = small
    node.apply(pod(shell(image, FOREVER, **main), name="bad", restartPolicy="Always", securityContext=spec))
    assert message in refusal(node, "bad")
    node.delete("bad")
    node.gone("bad")


def refusal(node: RunningNode, name: str) -> str:
    """Return why a pod's container cannot be created."""

    def waiting(found: dict[str, Any]) -> Any:
        statuses = found["status"].get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting", {})

    found = node.pod(name, lambda item: waiting(item).get("reason") == "CreateContainerError", "refused")
    message: str = waiting(found)["message"]
    assert f"Error: {message}" in {event["message"] for event in node.events(name) if event["reason"] == "Failed"}
    return message


@pytest.fixture(scope="module")
def small(open_directory: Path, registry: Registry) -> Iterator[RunningNode]:
    """A node whose pods have ten users, for tests that leave it as it was."""
    extra = f'[registries."{registry.host}"]\ninsecure = true\n'
    node = RunningNode(
        Daemon(own_base(open_directory), extra=extra), settings=(GATE,), options=with_mapping("0:1000:10")
    )
    with node as running:
        yield running


PASSWD = "root:x:0:0::/:/bin/sh\napp:x:5:6::/:/bin/sh\nfar:x:70000:70000::/:/bin/sh\n"


def image_of(registry: Registry, directory: Path, name: str, user: str) -> str:
    """Return an image whose processes run as ``user``, with files of users 5 and 70000."""
    files = [
        file("etc/passwd", PASSWD),
        file("etc/group", "root:x:0:\ngroup:x:7:app\n"),
        file("of-5", "5", uid=5, gid=6),
        file("of-70000", "70000", uid=70000, gid=70000),
    ]
    layout = busybox_layout(directory / name, config={"User": user}, layers=[files])
    return registry.push(layout, f"users-{name}:1")


@pytest.mark.requirement("U60", "U61", "U120")
def test_images_of_any_user_run_as_far_as_they_are_mapped(
    mapped: RunningNode, registry: Registry, tmp_path: Path
) -> None:
    """A user with a number or a name, with or without a group; what is not mapped is nobody's, or named."""
    node = mapped
    users = {"none": "", "number": "1234", "both": "1000:2000", "name": "app", "name-group": "app:group"}
    script = f"id -u; id -g; stat -c '%u %g' /of-5 /of-70000; echo $(cat /of-70000); {END}"
    for name, user in users.items():
        node.apply(pod(shell(image_of(registry, tmp_path, name, user), script), name=name))
    # Of an image's USER a kubelet takes the user alone: the group is the user's own.
    ids = {"none": (0, 0), "number": (1234, 0), "both": (1000, 0), "name": (5, 6), "name-group": (5, 6)}
    for name, (uid, gid) in ids.items():
        assert output(node, name) == [str(uid), str(gid), "5 6", "65534 65534", "70000"], name
    node.apply(pod(shell(image_of(registry, tmp_path, "beyond", "far"), script), name="beyond", restartPolicy="Always"))
    assert "UID 70000 of the container is not mapped by 0:300000:65536" in refusal(node, "beyond")


@pytest.mark.requirement("U119")
def test_root_that_breaks_out_is_nobody_on_the_machine(mapped: RunningNode, image: str, open_directory: Path) -> None:
    """It can neither read nor change what is root's; what another pod has, it can, as they have the same users."""
    node = mapped
    private, program = open_directory / "private-of-root", open_directory / "program-of-root"
    private.write_text("secret")
    private.chmod(0o600)
    program.write_bytes(Path("/bin/busybox").read_bytes())
    program.chmod(0o755)
    for name, spec in (("real", {"hostUsers": True}), ("rogue", {}), ("other", {})):
        node.apply(runs(image, name, **spec))
    real, rogue, other = (node.host_pid(name) for name in ("real", "rogue", "other"))
    deeds = [("read", private), ("overwrite", program), ("overwrite", Path("/proc/sys/kernel/core_pattern"))]
    deeds.append(("take_over", program))
    deeds += [("overwrite", path) for path in Path("/sys/fs/cgroup").glob("*/release_agent")]
    assert [escaped(real, *deed) for deed in deeds] == [DONE] * len(deeds)
    assert {escaped(rogue, *deed) for deed in deeds} == {"EACCES"}
    assert (owner(real), owner(rogue), owner(other)) == (0, 300000, 300000)
    # The weakness of one mapping, which the documentation warns of.
    assert escaped(rogue, "signal", other) == DONE


BAD = {
    "syntax": ("0:1000", "'0:1000' is not container_id:host_id:length"),
    "length": ("0:1000:0", "has no length"),
    "overflow": ("0:4294967290:10", "leaves the range"),
    "inside": ("0:1000:10,5:5000:10", "overlap on the container side"),
    "outside": ("0:1000:10,10:1005:10", "overlap on the host side"),
    "root": ("1:1000:10", "0 of the container is not mapped"),
    "page": (",".join(f"{n}:{n + 1000000}:1" for n in range(330)), "are more than the kernel takes"),
    "machine": ("0:0:65536", "maps ID 0 of the node"),
}


@pytest.mark.requirement("U49")
@pytest.mark.parametrize("verb", ["agent", "node"])
@pytest.mark.parametrize("kind", [*BAD, "one", "other"])
def test_a_mapping_that_cannot_be_keeps_it_from_starting(
    tmp_path: Path, scratch_machine: None, verb: str, kind: str
) -> None:
    if kind in BAD:
        text, message = BAD[kind]
        options, named = with_mapping(WIDE, text), "--gid-mapping"
    else:
        named, given = ("--gid-mapping", "--uid-mapping") if kind == "one" else ("--uid-mapping", "--gid-mapping")
        options, message = (given, WIDE), f"is given without agent.{named[2:].replace('-', '_')} ({named})"
    settings = (f"agent.root={tmp_path}", f"node.run={tmp_path}/run")
    command = [sys.executable, "-m", "podkeep", *(part for setting in settings for part in ("--set", setting))]
    done = forked.run([*command, verb, *options], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode != 0
    assert message in done.stderr
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []
