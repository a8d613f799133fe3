"""What a container in a user namespace does to volumes that it shares: with other containers, and with the node."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from agent.conftest import Runner, until
from agent.manifests import pod, shell

from podkeep.kernel.mount import mountinfo

DISK = "volumes/kubernetes.io~empty-dir/data"
DATA = {"name": "data", "emptyDir": {}}


def as_nobody(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a user of the node without any power."""
    whole = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *map(str, command)]
    return subprocess.run(whole, capture_output=True, text=True)


def test_a_program_that_runs_as_root_is_out_of_reach_of_the_nodes_users(runner: Runner, image: str) -> None:
    """Root of the pod is root on disk where mounts are idmapped: so are the set-user-ID programs that it leaves."""
    script = "cp /bin/busybox /data/su; chmod 4755 /data/su /data; until [ -e /data/go ]; do sleep 0.05; done"
    container = shell(image, script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    with runner.start(pod(container, hostUsers=False, volumes=[DATA])) as process:
        (directory,) = until(runner.pods, "the pod's directory", process)
        program = directory / DISK / "su"

        def made() -> bool:
            return program.exists() and bool(program.stat().st_mode & stat.S_ISUID)

        until(made, "the program", process)
        status = program.stat()
        reached = as_nobody("stat", program)
        (directory / DISK / "go").touch()
        process.communicate(timeout=60)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o4755)
    assert reached.returncode != 0
    assert "Permission denied" in reached.stderr


@pytest.mark.parametrize("propagation", ["None", "HostToContainer"])
def test_what_a_container_mounts_in_a_shared_volume_stays_with_it(runner: Runner, image: str, propagation: str) -> None:
    """With every power in its user namespace: neither the node nor a neighbour sees it, if nobody asked for that."""
    attack = """
        mkdir /data/sub /data/other; echo volume > /data/sub/file
        mount -t tmpfs none /data/sub && echo mine > /data/sub/file && mount -o bind / /data/other && echo mounted
        touch /data/mounted; until [ -e /data/go ]; do sleep 0.05; done
    """
    wait = "until [ -e /data/mounted ]; do sleep 0.05; done; cat /data/sub/file; ls /data/other; touch /data/seen"
    wait += "; until [ -e /data/go ]; do sleep 0.05; done"
    own = {"name": "data", "mountPath": "/data", "mountPropagation": propagation}
    attacker = shell(image, attack, "attacker", volumeMounts=[own], securityContext={"privileged": True})
    follows = {"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"}
    neighbour = shell(image, wait, "neighbour", volumeMounts=[follows])
    with runner.start(pod(attacker, neighbour, hostUsers=False, volumes=[DATA])) as process:
        (directory,) = until(runner.pods, "the pod's directory", process)
        volume = directory / DISK
        until(lambda: (volume / "seen").exists(), "the neighbour's look", process)
        on_node = (volume / "sub/file").read_text()
        mounted = [item.mount_point for item in mountinfo.under(volume, runner.daemon.pid)]
        (volume / "go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[attacker] mounted", "[neighbour] volume"]
    assert (on_node, mounted) == ("volume\n", [])


def test_a_sub_path_that_is_changed_while_containers_start_never_leads_out(runner: Runner, image: str) -> None:
    """Directory, link to the node's /etc, and back: each attempt is refused, or has the directory."""
    attack = """
        mkdir -p /data/sub; echo inside > /data/sub/shadow
        until [ -e /data/go ]; do
            mv /data/sub /data/kept; ln -s /etc /data/sub; rm /data/sub; mv /data/kept /data/sub
        done
    """
    whole, part = {"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/part", "subPath": "sub"}
    tries = "n=$(cat /data/tries 2>/dev/null || echo 0); echo $((n + 1)) > /data/tries; cat /part/shadow 2>/dev/null"
    victim = shell(image, f"{tries}; [ $n = 2 ] && touch /data/go", "victim", volumeMounts=[whole, part])
    attacker = shell(image, attack, "attacker", volumeMounts=[whole])
    done = runner.run(pod(attacker, victim, hostUsers=False, restartPolicy="OnFailure", volumes=[DATA]))
    assert done.returncode == 0 or 'failed to prepare subPath "sub"' in done.stderr, done.stderr
    seen = {line for line in done.stdout.splitlines() if line.startswith("[victim]")}
    assert seen <= {"[victim] inside"}
