"""The stories of KEP-4639 as people live them: artifacts, registries that ask who comes, images without a shell."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from agent.conftest import LOGIN, Runner
from agent.manifests import image_volume, mount, pod, pull_secret, shell

from support.artifacts import Artifact, artifact, file_part, seed, tar_part
from support.images import directory, file, layers_layout, tar
from support.registry import Registry

SETTINGS = "application/vnd.example.settings.v1+json"
SIGNATURES = "application/vnd.example.signatures.v1"
MODEL = "application/vnd.example.model.v1"
EMPTY_DIR = {"name": "work", "emptyDir": {}}


def settings(level: str) -> Artifact:
    """Return a configuration file as ``oras push`` packs one."""
    return artifact([file_part("settings.json", f'{{"level": "{level}"}}\n'.encode(), SETTINGS)])


def output(text: str, container: str) -> list[str]:
    """Return what one of several containers printed."""
    return [line.partition("] ")[2] for line in text.splitlines() if line.startswith(f"[{container}] ")]


@pytest.mark.requirement("V115", "V29", "V22", "V57")
def test_story_1_a_shared_configuration_file(
    private_runner: Runner, private: Registry, image: str, registry: Registry
) -> None:
    """All containers of a pod read one file from a private registry; a new pod with policy Always has a newer one."""
    reference = settings("info").push(private, "team/settings:stable", headers=LOGIN)
    script = "cat /etc/settings/settings.json; ls /etc/settings"
    where = [mount("/etc/settings")]
    containers = [shell(image, script, name, volumeMounts=where) for name in ("app", "proxy")]
    volumes = [image_volume(reference, pullPolicy="Always")]
    document = pod(*containers, volumes=volumes, imagePullSecrets=[{"name": "registry"}], hostUsers=False)
    secret = pull_secret("registry", private.host)
    for level in ("info", "debug"):
        if level == "debug":
            settings(level).push(private, "team/settings:stable", headers=LOGIN)
        done = private_runner.run(secret, document)
        assert done.returncode == 0, done.stderr
        for name in ("app", "proxy"):
            assert output(done.stdout, name) == [f'{{"level": "{level}"}}', "settings.json"]


@pytest.mark.requirement("V116", "V41")
def test_story_2_tools_beside_a_small_image(runner: Runner, registry: Registry, image: str) -> None:
    """A pipeline's programs come as an artifact. They are not run where they are mounted: they are copied first."""
    tool = "#!/bin/sh\necho built with $0\n"
    tools = artifact([tar_part(tar([directory("bin"), file("bin/build", tool, 0o755)]))])
    reference = tools.push(registry, "ci/tools:1")
    script = """
        /tools/bin/build 2>/dev/null || echo not from the volume: $?
        cp -r /tools/bin /work/bin && /work/bin/build
    """
    container = shell(image, script, volumeMounts=[mount("/tools", "tools"), mount("/work", "work")])
    done = runner.run(pod(container, volumes=[image_volume(reference, "tools"), EMPTY_DIR]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["not from the volume: 126", "built with /work/bin/build"]


@pytest.mark.requirement("V117", "V57", "V64")
def test_story_3_models_beside_their_server(runner: Runner, registry: Registry, image: str) -> None:
    """Weights of several models, each a volume; what is in them stays as it is.

    That files may be larger than 4 GiB is shown where they are sparse: here every byte is pushed, pulled and hashed.
    """
    block = random.Random(1).randbytes(1 << 20)
    shards = {"large": [block * 160 + b"the end"], "small": [block[:-1], b"", block * 32]}
    expected, volumes, mounts = [], [], []
    for name, contents in shards.items():
        parts = []
        for number, data in enumerate(contents):
            parts.append(file_part(f"weights-{number}.safetensors", data, f"{MODEL}.tensors"))
            expected += [str(len(data)), hashlib.sha256(data).hexdigest()]
        reference = artifact(parts, artifact_type=MODEL).push(registry, f"models/{name}:1")
        volumes.append(image_volume(reference, name))
        mounts.append(mount(f"/models/{name}", name))
    script = """
        for each in /models/*/*; do
            echo $(stat -c %s $each) $(sha256sum <$each | cut -c-64)
        done
    """
    done = runner.run(pod(shell(image, script, volumeMounts=mounts), volumes=volumes, hostUsers=False), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == expected


@pytest.mark.requirement("V118", "V29")
def test_story_4_a_scanner_with_signatures_of_its_own(private_runner: Runner, private: Registry, image: str) -> None:
    """The scanner's image is free for all; its data is in another registry, which asks who comes."""
    signatures = artifact([file_part("daily.list", b"EICAR\n", f"{SIGNATURES}.list")], artifact_type=SIGNATURES)
    reference = signatures.push(private, "scanner/signatures:daily", headers=LOGIN)
    script = "echo EICAR >/work/upload; grep -q -f /signatures/daily.list /work/upload && echo found"
    container = shell(image, script, volumeMounts=[mount("/signatures"), mount("/work", "work")])
    wanted = pod(container, volumes=[image_volume(reference), EMPTY_DIR], imagePullSecrets=[{"name": "data"}])
    done = private_runner.run(pull_secret("data", f"{private.host}/scanner"), wanted)
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


@pytest.mark.requirement("V119", "V66")
def test_an_image_without_a_shell_needs_no_container_that_copies(
    runner: Runner, registry: Registry, image: str, tmp_path: Path
) -> None:
    """What took an init container with a shell and ``cp`` before; the image could not even be run for that."""
    site = layers_layout(tmp_path / "site", [[directory("www"), file("www/index.html", "hello\n")]])
    reference = registry.push(site, "site:1")
    container = shell(image, "cat /srv/index.html", volumeMounts=[mount("/srv", subPath="www")])
    done = runner.run(pod(container, volumes=[image_volume(reference)]))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    copying = {"name": "main", "image": reference, "command": ["sh", "-c", "cp -r /www /work"]}
    assert runner.run(pod(copying)).returncode != 0


@pytest.mark.requirement("V59", "V10", "V109")
def test_the_artifact_of_the_seed(runner: Runner, registry: Registry, image: str) -> None:
    reference = seed().push(registry, "oras/seed:latest")

    def run(script: str, **more: str) -> str:
        container = shell(image, script, volumeMounts=[mount(**more)])
        done = runner.run(pod(container, volumes=[image_volume(reference)]))
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("cd /volume; find . -type f | sort; cat dir/file file") == "./dir/file\n./file\nlayer0\nlayer1\n"
    assert run("ls /volume; cat /volume/file", subPath="dir") == "file\nlayer0\n"


@pytest.mark.requirement("V19")
def test_fifty_volumes(runner: Runner, registry: Registry, image: str, tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(50)]
    volumes, mounts = [], []
    for name in names:
        layout = layers_layout(tmp_path / name, [[file("file", f"{name}\n")]])
        volumes.append(image_volume(registry.push(layout, f"fifty/{name}:1"), name))
        mounts.append(mount(f"/volumes/{name}", name))
    script = "for each in /volumes/*; do read line <$each/file; echo $line; done"
    done = runner.run(pod(shell(image, script, volumeMounts=mounts), volumes=volumes, hostUsers=False))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(names)
