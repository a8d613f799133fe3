"""``podkeep run``: what a pod sees, how it ends, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import Runner, interrupt, until
from agent.manifests import config_map, pod, secret, shell

from podkeep.base import lockfile
from podkeep.cli.core import node_report
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.process import procfs
from support import filesystems, forked, processes
from support.daemon import Daemon

IDENTITY = ["0", "0", "4294967295"]


@pytest.mark.requirement("U1", "U111")
@pytest.mark.parametrize("spec", [{}, {"hostUsers": True}])
def test_a_pod_that_does_not_ask_for_a_user_namespace_has_the_hosts(
    runner: Runner, image: str, spec: dict[str, Any]
) -> None:
    done = runner.run(pod(shell(image, "cat /proc/self/uid_map"), **spec))
    assert (done.returncode, done.stdout.split()) == (0, IDENTITY)


def test_a_node_of_another_runtime_is_left_alone(runner: Runner, image: str, tmp_path: Path) -> None:
    """Its run directory has a default, which two configurations of one machine may leave as it is."""
    held = lockfile.acquire(tmp_path / node_report.LOCK)
    try:
        told = node_report.NodeReport(pid=1, runtime="/run/another.sock", kubeconfig="/none", embedded=True)
        node_report.write(tmp_path, told)
        file = runner.file(pod(shell(image, "echo here")))
        done = runner.daemon.run("--set", f"node.run={tmp_path}", "run", str(file))
    finally:
        os.close(held)
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr


@pytest.mark.requirement("U1", "U31", "U33", "U65", "U66", "U67", "U112")
def test_a_pod_in_its_own_user_namespace(runner: Runner, image: str) -> None:
    script = """
        cat /proc/self/uid_map /proc/self/gid_map
        stat -L -c '%u %g %a' /config/foo /data
        cat /config/foo; touch /data/made; stat -c '%u %g' /data/made
        until [ -e /data/go ]; do sleep 0.05; done
    """
    mounts = [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}]
    volumes = [
        {"name": "config", "configMap": {"name": "m", "defaultMode": 0o400}},
        {"name": "data", "emptyDir": {}},
    ]
    with runner.start(
        config_map("m", foo="bar\n"),
        pod(shell(image, script, volumeMounts=mounts), hostUsers=False, volumes=volumes),
    ) as process:
        (directory,) = until(runner.pods, "the pod's directory")
        data = directory / "volumes" / "kubernetes.io~empty-dir" / "data"
        made = until(lambda: (data / "made").exists() and data / "made", "the file the container makes")
        config = directory / "volumes" / "kubernetes.io~configmap" / "config" / "foo"
        record = json.loads((directory / "userns").read_bytes())
        owners = [(path.stat().st_uid, path.stat().st_gid) for path in (made, config)]
        (data / "go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (mapping,) = record["uidMappings"]
    assert record["gidMappings"] == [mapping]
    assert (mapping["containerId"], mapping["length"], mapping["hostId"] % 65536) == (0, 65536, 0)
    assert mapping["hostId"] >= 65536
    uid_map, gid_map, foo, empty, content, inside = out.splitlines()
    assert uid_map.split() == gid_map.split() == ["0", str(mapping["hostId"]), "65536"]
    assert (foo, empty, content, inside) == ("0 0 400", "0 0 777", "bar", "0 0")
    assert owners == [(0, 0), (0, 0)]


@pytest.mark.requirement("U2")
def test_the_containers_of_a_pod_share_one_user_namespace(runner: Runner, image: str) -> None:
    script = "readlink /proc/self/ns/user"
    containers = [shell(image, script, name) for name in ("a", "b")]
    init = shell(image, script, "init")
    first = runner.run(pod(*containers, hostUsers=False, initContainers=[init])).stdout.splitlines()
    namespaces = {line.split("] ")[1] for line in first}
    assert len(first) == 3
    assert len(namespaces) == 1
    assert os.readlink("/proc/self/ns/user") not in namespaces


@pytest.mark.requirement("U8", "U70", "U72", "U73")
@pytest.mark.parametrize(
    ("key", "empty_dir"),
    [({"secret": {"secretName": "s"}}, {"medium": "Memory"}), ({"configMap": {"name": "m"}}, {})],
    ids=["in memory", "on disk"],
)
def test_users_groups_and_files_of_a_pod_with_a_user_namespace(
    runner: Runner, image: str, key: dict[str, dict[str, Any]], empty_dir: dict[str, str]
) -> None:
    if empty_dir:
        filesystems.needed("tmpfs")
    script = """
        id -u; id -g; id -G
        stat -L -c '%u %g %a' /secret/key /data
        for file in /etc/hosts /etc/resolv.conf /etc/hostname /dev/termination-log /dev/shm; do stat -c %u $file; done
        echo 'last words' > /dev/termination-log
        touch /data/made && stat -c '%u %g' /data/made
    """
    mounts = [{"name": "key", "mountPath": "/secret"}, {"name": "data", "mountPath": "/data"}]
    volumes = [
        {"name": "key"} | {kind: source | {"defaultMode": 0o400} for kind, source in key.items()},
        {"name": "data", "emptyDir": empty_dir},
    ]
    done = runner.run(
        secret("s", key="private"),
        config_map("m", key="public"),
        pod(
            shell(image, script, volumeMounts=mounts),
            hostUsers=False,
            volumes=volumes,
            securityContext={"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 200},
        ),
        options=("-o", "json"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()[-11:]  # behind what a pull says, if it is the first pod of its runtime
    assert lines[:2] == ["1000", "1001"]
    assert {"1001", "200"} <= set(lines[2].split())
    assert lines[3:5] == ["0 200 440", "0 200 2777"]
    assert lines[5:10] == ["0"] * 5
    assert lines[10] == "1000 200"
    status = json.loads(done.stdout)["status"]
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (status["phase"], ended["reason"], ended["message"]) == ("Succeeded", "Completed", "last words\n")


def commands_of(user: int, daemon: Daemon) -> list[str]:
    """Return the names of the programs that run as a user of the machine, in pods of this daemon and no other."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended while we looked
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
            is_its = daemon.cgroup_parent in (status.parent / "cgroup").read_text()
            if is_its and int(fields["Uid"].split()[0]) == user:
                found.append(fields["Name"])
    return found


@pytest.mark.requirement("U8")
def test_run_as_user_counts_from_the_pods_block(runner: Runner, image: str) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    script = "echo $$ > /data/started; until [ -e /data/go ]; do sleep 0.05; done"
    document = pod(
        shell(image, script, volumeMounts=mounts),
        hostUsers=False,
        volumes=[{"name": "data", "emptyDir": {}}],
        securityContext={"runAsUser": 1000},
    )
    with runner.start(document) as process:
        (directory,) = until(runner.pods, "the pod's directory")
        data = directory / "volumes" / "kubernetes.io~empty-dir" / "data"
        until(lambda: (data / "started").exists(), "the container")
        start = json.loads((directory / "userns").read_bytes())["uidMappings"][0]["hostId"]
        found = commands_of(start + 1000, runner.daemon)
        on_disk = (data / "started").stat().st_uid
        (data / "go").touch()
        process.communicate(timeout=60)
    assert "sh" in found
    assert on_disk == 1000


@pytest.mark.requirement("U8")
def test_run_as_non_root_refuses_root_inside(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "id"), hostUsers=False, securityContext={"runAsNonRoot": True}))
    assert done.returncode == 1
    assert "container has runAsNonRoot and image will run as root" in done.stderr


@pytest.mark.parametrize(
    ("scripts", "status"),
    [(("true", "true"), 0), (("exit 3", "true"), 3), (("sleep 5; exit 4", "exit 5"), 5)],
)
def test_the_exit_status_is_that_of_the_first_failure(
    runner: Runner, image: str, scripts: tuple[str, str], status: int
) -> None:
    done = runner.run(pod(*(shell(image, script, name) for name, script in zip("ab", scripts, strict=True))))
    assert done.returncode == status


def test_the_exit_status_of_a_killed_container_is_128_and_the_signal(runner: Runner, image: str) -> None:
    time = f"98765.{int.from_bytes(os.urandom(4), 'big'):010}"  # of this run alone: others may run the same test now
    with runner.start(pod(shell(image, f"echo up; exec sleep {time}"))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (found,) = until(lambda: processes.find_by_argument(time), "the process")
        procfs.kill(found, signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == 137


def test_init_containers_sidecars_and_output(runner: Runner, image: str) -> None:
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    done = runner.run(
        pod(
            shell(image, "cat /data/log; printf 'no newline'; echo oops >&2", "main", **mounts),
            volumes=[{"name": "data", "emptyDir": {}}],
            initContainers=[
                shell(image, "echo first >> /data/log", "first", **mounts),
                shell(
                    image,
                    "trap 'echo bye; exit 0' TERM; echo side >> /data/log; while true; do sleep 0.05; done",
                    "side",
                    restartPolicy="Always",
                    **mounts,
                ),
                shell(
                    image, "until grep side /data/log; do sleep 0.05; done; echo last >> /data/log", "last", **mounts
                ),
            ],
        )
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[last] side",
        "[main] first",
        "[main] side",
        "[main] last",
        "[side] bye",
        "[main] no newline",
    ]
    assert done.stderr.endswith("[main] oops\n")


def test_a_container_that_fails_is_started_again(runner: Runner, image: str) -> None:
    script = "echo x >> /data/tries; [ $(wc -l < /data/tries) = 2 ]"
    container = shell(image, script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    document = pod(container, restartPolicy="OnFailure", volumes=[{"name": "data", "emptyDir": {}}])
    done = runner.run(document, options=("-o", "json"))
    status = json.loads(done.stdout)["status"]["containerStatuses"][0]
    assert (done.returncode, status["restartCount"]) == (0, 1)
    assert status["lastState"]["terminated"]["exitCode"] == 1


def test_environment_command_and_hosts(runner: Runner, image: str) -> None:
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "B", "value": "$(A)b"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    script = 'echo $(B) "$1"; hostname; grep -c "$IP.web" /etc/hosts; pwd'
    container = shell(image, script, env=env, args=["sh", "$(A)"], workingDir="/tmp")
    done = runner.run(config_map("m", k="v"), pod(container))
    assert (done.returncode, done.stdout.splitlines()) == (0, ["vb v", "web", "1", "/tmp"])


@pytest.mark.requirement("U69")
@pytest.mark.parametrize("host_users", [True, False])
def test_sub_paths_and_read_only_mounts(runner: Runner, image: str, host_users: bool) -> None:
    mounts = [
        {"name": "m", "mountPath": "/one", "subPath": "a"},
        {"name": "e", "mountPath": "/all"},
        {"name": "e", "mountPath": "/ro", "readOnly": True},
        {"name": "e", "mountPath": "/sub", "subPath": "x/y"},
        {"name": "e", "mountPath": "/named", "subPathExpr": "$(NAME)"},
    ]
    script = """
        cat /one; touch /sub/f /named/g; ls /all /all/x/y /all/n1; stat -c %u /all/x/y/f
        touch /ro/no 2>/dev/null || echo read-only; touch /one 2>/dev/null || echo read-only
    """
    done = runner.run(
        config_map("m", a="content\n"),
        pod(
            shell(image, script, volumeMounts=mounts, env=[{"name": "NAME", "value": "n1"}]),
            hostUsers=host_users,
            volumes=[{"name": "m", "configMap": {"name": "m"}}, {"name": "e", "emptyDir": {}}],
        ),
    )
    assert done.returncode == 0, done.stderr
    expected = ["content", "/all:", "n1", "x", "", "/all/n1:", "g", "", "/all/x/y:", "f", "0", "read-only", "read-only"]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


@pytest.mark.parametrize("host_users", [True, False])
def test_a_volume_is_mounted_inside_another_that_is_read_only(runner: Runner, image: str, host_users: bool) -> None:
    """Also when a container starts again beside another one that has it mounted."""
    mounts = [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/config/deep/er"}]
    once = shell(
        image,
        "ls /config; echo x >> /config/deep/er/tries; [ $(wc -l < /config/deep/er/tries) = 2 ]",
        volumeMounts=mounts,
    )
    beside = shell(
        image, "until [ $(wc -l < /config/deep/er/tries) = 2 ]; do sleep 0.1; done", "beside", volumeMounts=mounts
    )
    done = runner.run(
        config_map("m", k="content\n"),
        pod(
            once,
            beside,
            restartPolicy="OnFailure",
            hostUsers=host_users,
            volumes=[{"name": "config", "configMap": {"name": "m"}}, {"name": "data", "emptyDir": {}}],
        ),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[main] deep\n[main] k\n" * 2


@pytest.mark.parametrize("host_users", [True, False])
@pytest.mark.parametrize("outer", ["config", "empty"])
def test_files_and_directories_of_volumes_are_mounted_inside_another_that_is_read_only(
    runner: Runner, image: str, outer: str, host_users: bool
) -> None:
    """Also when the container starts again, and finds what it was mounted on."""
    mounts = [
        {"name": outer, "mountPath": "/outer/", "readOnly": True},
        {"name": "other", "mountPath": "/outer/deep/file", "subPath": "k"},
        {"name": "data", "mountPath": "/outer/er", "subPath": "a/b"},
        {"name": "data", "mountPath": "/outer/er/c", "subPath": "c"},
    ]
    script = """
        cat /outer/deep/file; touch /outer/no 2>/dev/null || echo read-only
        echo x >> /outer/er/c/tries; [ $(wc -l < /outer/er/c/tries) = 2 ]
    """
    done = runner.run(
        config_map("m", k="content\n"),
        pod(
            shell(image, script, volumeMounts=mounts),
            restartPolicy="OnFailure",
            hostUsers=host_users,
            volumes=[
                {"name": "config", "configMap": {"name": "m"}},
                {"name": "other", "configMap": {"name": "m"}},
                {"name": "data", "emptyDir": {}},
                {"name": "empty", "emptyDir": {}},
            ],
        ),
    )
    assert (done.returncode, done.stdout) == (0, "content\nread-only\n" * 2), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_pod_politely_and_cleans_up(runner: Runner, image: str, number: signal.Signals) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.05; done"
    with runner.start(pod(shell(image, script), terminationGracePeriodSeconds=30)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        status, out, err = interrupt(process, number)
    assert (status, out) == (128 + number, "bye\n"), err


def test_a_second_signal_does_not_wait(runner: Runner, image: str) -> None:
    script = "trap 'echo asked' TERM; echo up; while true; do sleep 0.05; done"
    with runner.start(pod(shell(image, script), terminationGracePeriodSeconds=3600)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        assert interrupt(process)[0] == 130


def test_a_deadline_ends_the_pod(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "sleep 600"), activeDeadlineSeconds=1), options=("-o", "json"))
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert done.returncode != 0


def test_kept_pods_stay_until_they_are_removed(runner: Runner, image: str) -> None:
    assert runner.run(pod(shell(image, "echo hi")), options=("--keep",)).returncode == 0
    (directory,) = runner.pods()
    again = runner.run(pod(shell(image, "echo hi")))
    assert again.returncode == 1
    assert again.stderr.splitlines() == [
        "podkeep: pod default/web already exists",
        "hint: remove it with `podkeep rm web`",
    ]
    assert runner.pods() == [directory]
    assert runner.daemon.run("rm", "web").returncode == 0


def test_removing_a_pod_that_another_command_runs(runner: Runner, image: str) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.05; done"
    with runner.start(pod(shell(image, script), restartPolicy="Always")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert runner.daemon.run("rm", "--grace-period", "5", "web").returncode == 0
        assert process.communicate(timeout=60)[0] == "bye\n"
        assert process.returncode == 0


@pytest.mark.parametrize(("options", "last"), [((), ""), (("--grace-period", "60"), "bye\n")])
def test_a_removed_pod_has_its_own_grace_period(
    runner: Runner, image: str, options: tuple[str, ...], last: str
) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.05; done"
    with runner.start(pod(shell(image, script), terminationGracePeriodSeconds=0)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert runner.daemon.run("rm", *options, "web").returncode == 0
        assert process.communicate(timeout=60)[0] == last


@pytest.mark.requirement("U34")
def test_a_pod_keeps_its_block_when_its_sandbox_is_made_again(runner: Runner, image: str) -> None:
    async def stop_sandbox() -> None:
        async with CriClient(runner.daemon.socket) as client:
            (sandbox,) = (await client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest())).items
            await client.runtime.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))

    script = "cat /proc/self/uid_map; while true; do sleep 0.05; done"
    document = pod(shell(image, script), restartPolicy="Always", hostUsers=False)
    with runner.start(document) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        asyncio.run(stop_sandbox())
        assert process.stdout.readline() == first
        interrupt(process)


@pytest.mark.requirement("U32", "U112")
def test_pods_that_start_at_the_same_time_have_different_blocks(runner: Runner, image: str) -> None:
    script = "cat /proc/self/uid_map; until [ -e /data/go ]; do sleep 0.05; done"
    mounts = [{"name": "data", "mountPath": "/data"}]
    gate = {"volumes": [{"name": "data", "emptyDir": {}}]}
    processes = [
        runner.start(pod(shell(image, script, volumeMounts=mounts), name=f"p{n}", hostUsers=False, **gate))
        for n in range(4)
    ]
    maps = []
    for process in processes:
        assert process.stdout is not None
        maps.append(process.stdout.readline().split())
    for directory in runner.pods():
        (directory / "volumes" / "kubernetes.io~empty-dir" / "data" / "go").touch()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert len({start for _, start, _ in maps}) == 4
    assert all(int(start) % 65536 == 0 and length == "65536" for _, start, length in maps)


def test_several_pods_in_one_file(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "echo one"), name="p1"), pod(shell(image, "echo two; exit 6"), name="p2"))
    assert done.returncode == 6
    assert sorted(done.stdout.splitlines()) == ["[p1/main] one", "[p2/main] two"]
    assert "podkeep: p2: container main ended with exit status 6\n" in done.stderr


def test_standard_input(runner: Runner, image: str) -> None:
    text = runner.file(pod(shell(image, "echo hi"))).read_text()
    done = forked.run(
        runner.daemon.command("run", "-"), input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hi\n")


def test_output_that_nobody_reads_any_more_ends_the_pod(runner: Runner, image: str, tmp_path: Path) -> None:
    document = pod(shell(image, "while echo x; do sleep 0.01; done"))
    with runner.start(document) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x\n"
        process.stdout.close()
        assert process.wait(timeout=60) == 1


def test_more_pods_than_threads_come_to_their_end(runner: Runner, image: str) -> None:
    threads = min(32, (os.cpu_count() or 1) + 4)  # of an event loop's executor, as concurrent.futures documents it
    names = [f"web-{index}" for index in range(max(12, 2 * threads))]
    more: dict[str, Any] = {"volumes": [{"name": "data", "emptyDir": {}}], "hostUsers": False}
    mounts = [{"name": "data", "mountPath": "/data"}]
    done = runner.run(
        *(
            pod(shell(image, f"echo {name} >/data/f; cat /data/f", volumeMounts=mounts), name=name, **more)
            for name in names
        )
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == sorted(names)
