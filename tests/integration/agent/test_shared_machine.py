"""What is not podkeep's stays: other agents' pods, other people's files, user data behind links and mounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.conftest import Runner
from agent.manifests import pod, shell

from podkeep.cli.core.output import EXIT_CONFIGURATION
from support.daemon import Daemon


@pytest.mark.requirement("U35")
def test_a_kubelets_pod_in_the_same_directory_stays(own_runner: Runner, image: str) -> None:
    volume = own_runner.daemon.base / "kubelet/pods/11111111-2222-3333-4444-555555555555/volumes/kubernetes.io~csi/pv"
    volume.mkdir(parents=True)
    (volume / "precious").write_text("x")
    own_runner.daemon.start()
    assert own_runner.run(pod(shell(image, "true"), hostUsers=False)).returncode == 0
    assert own_runner.daemon.run("rm", "web").returncode == 1
    assert (volume / "precious").read_text() == "x"
    assert [path.name for path in own_runner.pods()] == ["11111111-2222-3333-4444-555555555555"]
    (volume / "precious").unlink()
    for path in (volume, *volume.parents[:3]):
        path.rmdir()


def test_directories_behind_links_are_unmounted_before_they_are_removed(own_runner: Runner, image: str) -> None:
    base = own_runner.daemon.base
    for name in ("kubelet", "run", "root"):
        (base / f"real-{name}").mkdir(mode=0o711)
        (base / name).symlink_to(f"real-{name}")
    data = base / "data"
    (data / "inner").mkdir(parents=True)
    (data / "inner/precious").write_text("x")
    mount = {"name": "v", "mountPath": "/v", "subPath": "inner"}
    volumes = [{"name": "v", "hostPath": {"path": str(data)}}]
    own_runner.daemon.start()
    done = own_runner.run(pod(shell(image, "cat /v/precious", volumeMounts=[mount]), volumes=volumes))
    assert (done.returncode, done.stdout) == (0, "x"), done.stderr
    assert (data / "inner/precious").read_text() == "x"
    assert own_runner.left_behind() == []


def test_files_of_others_in_the_run_directory_stay(own_daemon: Daemon) -> None:
    mine = own_daemon.layout.run / "mine"
    mine.mkdir(parents=True)
    (mine / "precious").write_text("x")
    own_daemon.start()
    assert own_daemon.stop() == 0
    assert [path.name for path in own_daemon.layout.run.iterdir()] == ["mine"]
    assert (mine / "precious").read_text() == "x"


def test_a_directory_of_the_machine_is_refused(own_daemon: Daemon, tmp_path: Path) -> None:
    own_daemon.config.write_text('[runtime]\nrun = "/run"\n')
    done = own_daemon.run("runtime")
    assert done.returncode == EXIT_CONFIGURATION
    assert f"{own_daemon.config}: runtime.run: /run is the machine's" in done.stderr


def test_sub_paths_are_made_for_the_group_of_the_volume(runner: Runner, image: str) -> None:
    security = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}
    mounts = [
        {"name": "v", "mountPath": "/v", "subPath": "one"},
        {"name": "v", "mountPath": "/w", "subPath": "two/three"},
    ]
    script = "umask 077; echo x > /v/f; echo y > /w/f; stat -c '%a %g' /v /w; stat -c %g /v/f"
    done = runner.run(
        pod(
            shell(image, script, volumeMounts=mounts),
            securityContext=security,
            volumes=[{"name": "v", "emptyDir": {}}],
        )
    )
    assert (done.returncode, done.stdout) == (0, "2777 2000\n2777 2000\n2000\n"), done.stderr
