"""``podkeep run`` when something is wrong: one clear error, and nothing half-done left."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import Background, Runner, free_blocks, until
from agent.manifests import config_map, pod, secret, shell, text

from podkeep.agent.events import Event, StepFailed
from podkeep.agent.node import this_node
from podkeep.agent.objects.sources import Sources
from podkeep.agent.pod.admission import with_identity
from podkeep.agent.pod.worker import PodWorker
from podkeep.api import manifest
from podkeep.base import config
from podkeep.cri.client import CriClient
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mounts
from podkeep.kernel.process import procfs
from support import processes

SLEEP = "until [ -e /data/go ]; do sleep 0.05; done"
DATA: dict[str, Any] = {"volumes": [{"name": "data", "emptyDir": {}}]}
MOUNT = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}


def let_go(directory: Path) -> None:
    (directory / "volumes" / "kubernetes.io~empty-dir" / "data" / "go").touch()


def test_a_wrong_manifest_names_every_field(runner: Runner, image: str) -> None:
    document = pod(shell(image, "true", imagee="x"), hostUsers="no")
    done = runner.run(document)
    assert (done.returncode, done.stdout) == (1, "")
    file = done.stderr.split(": ")[1]
    assert done.stderr.splitlines() == [
        f"podkeep: {file}: document 1 (Pod default/web): spec.containers[0].imagee: unknown field "
        "(did you mean image?)",
        f"podkeep: {file}: document 1 (Pod default/web): spec.hostUsers: expected boolean, got string",
    ]


@pytest.mark.parametrize("content", ["", "# nothing\n", "a: [", "\x80"])
def test_a_file_without_a_pod(runner: Runner, tmp_path: Path, content: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(content, encoding="latin-1")
    done = runner.daemon.run("run", str(file))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"podkeep: {file}: ")


def test_a_file_without_a_pod_is_told_with_what_is_in_it(runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(json.dumps(config_map("one", a="b")))
    done = runner.daemon.run("run", str(file))
    assert (done.returncode, done.stderr) == (1, f"podkeep: {file}: there is no Pod in it, only ConfigMap\n")


def test_a_file_that_is_not_there(runner: Runner) -> None:
    done = runner.daemon.run("run", "/nowhere/f.yaml")
    assert (done.returncode, done.stderr) == (1, "podkeep: /nowhere/f.yaml: No such file or directory\n")


def test_an_image_that_is_not_there(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    done = runner.run(pod(shell(missing, "true"), hostUsers=False))
    assert done.returncode == 1
    assert f'Failed to pull image "{missing}": ' in done.stderr
    assert "Traceback" not in done.stderr


def test_an_image_that_may_not_be_pulled(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    done = runner.run(pod(shell(missing, "true", imagePullPolicy="Never")))
    assert done.returncode == 1
    assert f'Container image "{missing}" is not present with pull policy of Never' in done.stderr


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"hostPath": {"path": "/etc/passwd", "type": "Directory"}}, "/etc/passwd is not a directory"),
        ({"hostPath": {"path": "/none", "type": "File"}}, "/none is not a file"),
    ],
)
def test_a_volume_that_cannot_be_made(runner: Runner, image: str, source: dict[str, Any], why: str) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]  # as with a kubelet, a volume that no container mounts is not made
    document = pod(shell(image, "true", volumeMounts=mounts), hostUsers=False, volumes=[{"name": "v"} | source])
    done = runner.run(document)
    assert done.returncode == 1
    assert 'podkeep: MountVolume.SetUp failed for volume "v" : ' in done.stderr
    assert why in done.stderr


@pytest.mark.parametrize(
    ("command", "why"), [("/no/such/program", "No such file or directory"), ("/etc/passwd", "Permission denied")]
)
def test_a_command_that_cannot_be_run(runner: Runner, image: str, command: str, why: str) -> None:
    done = runner.run(pod({"name": "main", "image": image, "command": [command]}))
    assert done.returncode == 1
    assert "podkeep: Error: " in done.stderr
    assert why in done.stderr


def test_a_sub_path_that_leads_out(runner: Runner, image: str) -> None:
    mount = {"name": "data", "mountPath": "/data"}
    init = shell(image, "ln -s /etc /data/link", "init", volumeMounts=[mount])
    main = shell(image, "true", volumeMounts=[mount | {"subPath": "link"}])
    done = runner.run(pod(main, initContainers=[init], **DATA))
    assert done.returncode == 1
    assert 'failed to prepare subPath "link" of volume "data": it leads out of the volume' in done.stderr


@pytest.mark.requirement("U74")
def test_a_file_system_that_cannot_be_idmapped(runner: Runner, image: str, open_directory: Path) -> None:
    target = open_directory / "ramfs"
    target.mkdir()
    mounts.mount("ramfs", target, fstype="ramfs")
    try:
        mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        volumes = [{"name": "v", "hostPath": {"path": str(target)}}]
        document = pod(shell(image, "true", **mount), volumes=volumes)
        assert runner.run(document).returncode == 0
        document["spec"]["hostUsers"] = False
        done = runner.run(document)
    finally:
        mounts.unmount(target)
        target.rmdir()
    assert done.returncode == 1
    assert "podkeep: Error: " in done.stderr
    assert f"failed to set MOUNT_ATTR_IDMAP on {target}: invalid argument" in done.stderr
    assert "(maybe the source filesystem doesn't support idmap mounts on this kernel?)" in done.stderr


class _Events:
    """Hears what happens to a pod, and looks at its mounts at each failure."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.warnings: list[tuple[Event, list[str]]] = []

    def event(self, event: Event) -> None:
        if event.type == "Warning":
            self.warnings.append((event, [Path(path).name for path in self._runner.left_behind() if "volume" in path]))

    def waiting(self, container: str, reason: str, message: str) -> None:
        """See :class:`PodListener`."""

    def started(self, container: str, attempt: int, log: Path) -> None:
        """See :class:`PodListener`."""


@pytest.mark.requirement("U75")
@pytest.mark.container_mounts("shown", reason="the agent core runs in the test's own process")
def test_the_event_of_an_idmap_failure_and_the_end_of_the_pods_other_volumes(
    runner: Runner, image: str, open_directory: Path
) -> None:
    target = open_directory / "ramfs"
    target.mkdir()
    mounts.mount("ramfs", target, fstype="ramfs")
    volumes = [
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "disk", "emptyDir": {}},
        {"name": "refused", "hostPath": {"path": str(target)}},
    ]
    names = [{"name": str(volume["name"]), "mountPath": f"/{volume['name']}"} for volume in volumes]
    # The one that is refused comes first: before Linux 6.3, those on tmpfs are refused as well.
    main = shell(
        image, "true", volumeMounts=[*reversed(names), {"name": "disk", "mountPath": "/sub", "subPath": "a/b"}]
    )
    found = manifest.parse(
        text(secret("s", key="x"), pod(main, hostUsers=False, securityContext={"fsGroup": 7}, volumes=volumes)),
        source="f",
    )
    events = _Events(runner)
    before = runner.daemon.resources()

    async def run() -> None:
        async with CriClient(runner.daemon.socket) as client:
            worker = PodWorker(
                pod=with_identity(found.pods[0]),
                sources=Sources(config_maps=found.config_maps, secrets=found.secrets),
                node=this_node(client, config.load(runner.daemon.config)),
                listener=events,
                retry=False,
            )
            try:
                with pytest.raises(StepFailed):
                    await worker.run()
            finally:
                await worker.tear_down()

    try:
        asyncio.run(run())
    finally:
        mounts.unmount(target)
        target.rmdir()
    ((event, mounted),) = events.warnings
    assert (event.reason, event.container) == ("Failed", "main")
    assert event.message.startswith("Error: ")
    assert f"failed to set MOUNT_ATTR_IDMAP on {target}: invalid argument" in event.message
    assert sorted(mounted) == ["4", "memory", "secret"], "they were mounted, the last one for the sub path"
    assert runner.left_behind() == []
    assert runner.daemon.resources() == before


@pytest.mark.requirement("U35", "U42")
def test_a_node_without_a_free_block(own_runner: Runner, image: str) -> None:
    config = own_runner.daemon.config
    config.write_text(config.read_text().replace("[agent]\n", "[agent]\nmax_pods = 1\n"))
    own_runner.daemon.start()
    first = own_runner.start(pod(shell(image, SLEEP, **MOUNT), name="first", hostUsers=False, **DATA))
    (directory,) = until(own_runner.pods, "the first pod")
    until(lambda: (directory / "userns").exists(), "its block")
    done = own_runner.run(pod(shell(image, "true"), name="second", hostUsers=False))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "podkeep: Failed to create pod sandbox: can't allocate user namespace: "
        "could not find an empty slot to allocate a user namespace\n"
    )
    assert own_runner.pods() == [directory]
    assert own_runner.run(pod(shell(image, "true"), name="third")).returncode == 0
    until(lambda: (directory / "volumes").exists(), "the volume")
    let_go(directory)
    first.communicate(timeout=60)
    assert own_runner.run(pod(shell(image, "true"), name="second", hostUsers=False)).returncode == 0


@contextmanager
def subordinate_ids(tmp_path: Path, name: str, text: str) -> Iterator[None]:
    """Have ``text`` in /etc/subuid or /etc/subgid, in the mount namespace of the tests."""
    file = tmp_path / name
    file.write_text(text)
    mounts.bind(file, Path("/etc") / name)
    try:
        yield
    finally:
        mounts.unmount(Path("/etc") / name)


@pytest.mark.requirement("U41")
def test_ids_that_a_user_may_map_are_no_pods(own_runner: Runner, image: str, tmp_path: Path) -> None:
    """With Debian's usual range a user was root for the files of the second pod, and half of the first."""
    own_runner.daemon.start()
    maps = pod(shell(image, "cat /proc/self/uid_map /proc/self/gid_map"), hostUsers=False)
    with subordinate_ids(tmp_path, "subuid", "alice:100000:65536\n"), subordinate_ids(tmp_path, "subgid", ""):
        assert own_runner.run(maps).stdout.split() == ["0", "196608", "65536"] * 2
        with subordinate_ids(tmp_path, "subgid", "bob:196608:1\n"):
            assert own_runner.run(maps).stdout.split() == ["0", "262144", "65536"] * 2
    with subordinate_ids(tmp_path, "subuid", "alice:65536:4294901760\n"):
        done = own_runner.run(maps)
        assert own_runner.run(pod(shell(image, "true"))).returncode == 0
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "could not find an empty slot to allocate a user namespace" in done.stderr
    assert "65534 blocks are left out, as /etc/subuid gives IDs to alice" in done.stderr


@pytest.mark.requirement("U37")
def test_more_pods_than_the_id_space_has_blocks(own_runner: Runner, image: str) -> None:
    config = own_runner.daemon.config
    config.write_text(config.read_text().replace("[agent]\n", "[agent]\nmax_pods = 70000\n"))
    own_runner.daemon.start()
    done = own_runner.run(pod(shell(image, "true"), hostUsers=False))
    assert done.returncode == 1
    assert "hint: set agent.max_pods to at most 65534" in done.stderr


@pytest.mark.requirement("U33", "U35")
def test_what_a_killed_run_left_is_reclaimed_by_the_next(runner: Runner, image: str) -> None:
    killed = runner.start(
        pod(shell(image, "true"), name="killed", hostUsers=False),
        env={"PODKEEP_FAILPOINTS": "agent.userns.recorded=kill"},
    )
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    (directory,) = runner.pods()
    assert json.loads((directory / "userns").read_bytes())["uidMappings"][0]["length"] == 65536
    assert runner.daemon.run("ps", "-a", "-o", "json").stdout == "[]\n"
    assert runner.run(pod(shell(image, "true"), hostUsers=False)).returncode == 0
    assert runner.pods() == []


@pytest.mark.requirement("U33", "U34")
def test_a_pod_whose_run_was_killed_keeps_its_block_until_it_is_removed(runner: Runner, image: str) -> None:
    killed = runner.start(
        pod(shell(image, "true"), name="killed", hostUsers=False),
        env={"PODKEEP_FAILPOINTS": "agent.sandbox.created=kill"},
    )
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    (directory,) = runner.pods()
    record = json.loads((directory / "userns").read_bytes())
    other = runner.run(pod(shell(image, "cat /proc/self/uid_map"), hostUsers=False))
    assert other.stdout.split()[1] != str(record["uidMappings"][0]["hostId"])
    assert runner.daemon.run("rm", "killed").returncode == 0
    assert runner.pods() == []


@pytest.mark.requirement("U43")
def test_a_corrupt_record_of_another_pod(runner: Runner, image: str) -> None:
    assert runner.run(pod(shell(image, "true"), name="kept", hostUsers=False), options=("--keep",)).returncode == 0
    (directory,) = runner.pods()
    (directory / "userns").write_bytes(b"garbage")
    done = runner.run(pod(shell(image, "true"), hostUsers=False))
    assert done.returncode == 1
    assert (
        f"user namespace of pod {directory.name}: {directory / 'userns'}: invalid user namespace mappings"
        in done.stderr
    )
    assert runner.run(pod(shell(image, "true"))).returncode == 0
    assert runner.daemon.run("rm", "kept").returncode == 0


@pytest.mark.requirement("U44")
def test_a_node_whose_disk_cannot_be_written(own_runner: Runner, image: str) -> None:
    own_runner.daemon.start()
    kubelet = own_runner.daemon.base / "kubelet"
    pods = kubelet / "pods"
    pods.mkdir(parents=True)
    (kubelet / ".podkeep.lock").touch()
    mounts.bind(pods, pods, readonly=True)
    try:
        done = own_runner.run(pod(shell(image, "true"), hostUsers=False))
    finally:
        mounts.unmount(pods)
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr
    mapped = own_runner.run(pod(shell(image, "cat /proc/self/uid_map"), hostUsers=False)).stdout.split()
    assert mapped[1] == str(free_blocks(1)[0])


def test_a_runtime_that_is_killed_and_comes_back(own_runner: Runner, image: str) -> None:
    own_runner.daemon.start()
    process = own_runner.start(pod(shell(image, f"echo up; {SLEEP}; exit 9", **MOUNT), hostUsers=False, **DATA))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    own_runner.daemon.kill()
    (directory,) = own_runner.pods()
    let_go(directory)
    own_runner.daemon.start()
    process.communicate(timeout=60)
    assert process.returncode == 9


def interrupted_without_a_runtime(runner: Runner, image: str) -> Background:
    """Return a run that was told to end when the runtime was away."""
    runner.daemon.start()
    process = runner.start(pod(shell(image, "echo up; sleep 1000")))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "up\n"
    runner.daemon.kill()
    assert any("trying again" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    return process


def test_a_pod_is_ended_while_the_runtime_is_restarted(own_runner: Runner, image: str) -> None:
    """Otherwise its containers would run on, and nobody would look after them."""
    process = interrupted_without_a_runtime(own_runner, image)
    own_runner.daemon.start()
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "podkeep: " not in rest
    assert own_runner.pods() == []


def test_a_pod_cannot_be_ended_without_a_runtime(own_runner: Runner, image: str) -> None:
    process = interrupted_without_a_runtime(own_runner, image)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "podkeep: no runtime answers on" in said
    own_runner.daemon.start()
    own_runner.daemon.run("rm", "--grace-period", "0", "web", check=True)


def test_a_runtime_that_is_away_is_told_once(own_runner: Runner, image: str) -> None:
    own_runner.daemon.start()
    process = own_runner.start(pod(shell(image, f"echo up; {SLEEP}; exit 9", **MOUNT), **DATA))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "up\n"
    own_runner.daemon.kill()
    assert any("trying again" in line for line in process.stderr)
    (directory,) = own_runner.pods()
    own_runner.daemon.start()
    let_go(directory)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 9
    assert "trying again" not in rest
    assert rest.count("answers again") == 1


def test_a_config_map_key_that_is_missing(runner: Runner, image: str) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "no"}}}]
    done: subprocess.CompletedProcess[str] = runner.run(config_map("m", k="v"), pod(shell(image, "true", env=env)))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "podkeep: Error: couldn't find key no in ConfigMap default/m"


@pytest.mark.requirement("U33", "U34")
def test_a_pod_whose_run_is_killed_while_its_sandbox_is_made_keeps_its_block(own_runner: Runner, image: str) -> None:
    daemon = own_runner.daemon.start()
    assert daemon.process is not None
    helper = processes.namespace_helper(daemon.process.pid)
    assert procfs.kill(helper, signal.SIGSTOP)
    try:
        killed = own_runner.start(pod(shell(image, "true"), name="killed", hostUsers=False))
        until(lambda: list(daemon.layout.root.glob("sandboxes/*")), "the sandbox is being made")
        killed.kill()
        killed.communicate(timeout=60)
        (directory,) = own_runner.pods()
        other = own_runner.start(pod(shell(image, "cat /proc/self/uid_map"), hostUsers=False))
        until(lambda: len(list(daemon.layout.root.glob("sandboxes/*"))) == 2, "the other sandbox is being made")
    finally:
        assert procfs.kill(helper, signal.SIGCONT)
    out, err = other.communicate(timeout=60)
    assert other.returncode == 0, err
    record = json.loads((directory / "userns").read_bytes())
    assert out.split()[1] != str(record["uidMappings"][0]["hostId"])
    assert daemon.run("rm", "killed").returncode == 0


@pytest.mark.parametrize("host_users", [False, True])
def test_a_pod_that_writes_to_its_config_map_harms_nothing_of_the_machine(
    runner: Runner, image: str, open_directory: Path, *, host_users: bool
) -> None:
    """What it puts into the volume is there when a container of the pod starts again, and the volume is made anew."""
    victim = open_directory / "victim"
    victim.mkdir()
    (victim / "precious").write_text("kept")
    script = f"""
        echo x >> /data/tries
        if [ $(wc -l < /data/tries) = 1 ]; then
            mount -o remount,bind,rw /config && rm /config/..data && ln -s {victim} /config/..data &&
                rm /config/k && ln -s {victim}/precious /config/k && mkfifo /config/pipe && mkdir -p /config/full/er
            exit 1
        fi
        cat /config/k; ls -d /config/[a-z]*
    """
    mounts_ = [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "config", "configMap": {"name": "m"}}, {"name": "data", "emptyDir": {}}]
    security = {"capabilities": {"add": ["SYS_ADMIN"]}, "appArmorProfile": {"type": "Unconfined"}}
    main = shell(image, script, volumeMounts=mounts_, securityContext=security)
    try:
        done = runner.run(
            config_map("m", k="content\n"),
            pod(main, restartPolicy="OnFailure", hostUsers=host_users, volumes=volumes),
        )
        assert (victim / "precious").read_text() == "kept"
    finally:
        for path in (victim / "precious", victim):
            remove_tree(path)
    # In a user namespace it cannot even make its mount writable.
    left = "/config/full\n/config/k\n/config/pipe\n" if host_users else "/config/k\n"
    assert (done.returncode, done.stdout) == (0, f"content\n{left}"), done.stderr


def test_termination_message_is_in_the_last_line(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "echo no disk >/dev/termination-log; exit 3")))
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "podkeep: container main ended with exit status 3: no disk"


def test_init_container_that_failed_is_named(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "true"), initContainers=[shell(image, "exit 4", "setup")]))
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "podkeep: init container setup ended with exit status 4"


def test_end_for_want_of_memory_is_named(runner: Runner, image: str) -> None:
    script = "exec dd if=/dev/zero of=/dev/null bs=64M"
    done = runner.run(pod(shell(image, script, resources={"limits": {"memory": "16Mi"}})))
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1] == "podkeep: container main ended with exit status 137: OOMKilled"


def test_deadline_is_named(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "exec sleep 600"), activeDeadlineSeconds=1))
    assert any(
        line == "podkeep: DeadlineExceeded: Pod was active on the node longer than the specified deadline"
        for line in done.stderr.splitlines()
    ), done.stderr


def test_exit_status_alone_says_enough_of_one_container(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "exit 3")))
    assert (done.returncode, "podkeep:" in done.stderr) == (3, False)


def test_logs_of_a_pod_that_waits_say_what_for(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    with runner.start(pod(shell(missing, "true")), options=("--retry",)) as process:
        assert process.stderr is not None
        until(lambda: "ErrImagePull" in process.stderr.readline(), "the first attempt")
        done = runner.daemon.run("logs", "web")
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert done.returncode == 1
    assert done.stderr.startswith('podkeep: container "main" in pod "web" is waiting to start: ')
    assert "ImagePull" in done.stderr
