"""``podkeep run`` and registries: how often they are asked, what happens while they are away, and pull secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import LOGIN, Runner, interrupt, until
from agent.manifests import basic, image_volume, mount, pod, pull_secret, shell

from support.images import Layout, busybox_layout, directory, file, layers_layout
from support.processes import write_script
from support.registry import Answer, HostileRegistry, Registry

RETRY = ("--retry",)
STATE = {"name": "state", "emptyDir": {}}


def waits(runner: Runner, reason: str) -> dict[str, Any]:
    """Wait until a pod waits for this reason, and return its row."""
    rows = until(lambda: [row for row in runner.rows() if row["status"] == reason], reason)
    row: dict[str, Any] = rows[0]
    return row


@pytest.fixture
def data(tmp_path: Path) -> Layout:
    """An image of nothing but data."""
    return layers_layout(tmp_path / "data", [[directory("dir"), file("dir/file", "in dir\n"), file("file", "data\n")]])


class Counted(HostileRegistry):
    """A registry that is honest and counts."""

    def manifests(self) -> int:
        """Return how often a manifest was asked for, by tag or by digest."""
        return sum(1 for path, _ in self.requests if "/manifests/" in path)


@pytest.fixture
def counted(data: Layout) -> Iterator[Counted]:
    with Counted(data) as running:
        yield running


# ---------------------------------------------------------------------------------------------------------- how often


@pytest.mark.requirement("V21")
def test_a_volume_is_pulled_once_per_pod(own_runner: Runner, image: str, counted: Counted) -> None:
    """Two volumes and two containers name it, and one of them is started again."""
    own_runner.trust(counted.host)
    own_runner.daemon.start()
    volume = f"{counted.host}/data:latest"
    mounts = [mount("/one", "one"), mount("/two", "two"), mount("/state", "state")]
    again = "cat /one/file /two/file; test -e /state/again && exit 0; touch /state/again; exit 1"
    volumes = [
        image_volume(volume, "one", pullPolicy="Always"),
        image_volume(volume, "two", pullPolicy="Always"),
        STATE,
    ]
    containers = [
        shell(image, again, "a", volumeMounts=mounts),
        shell(image, "cat /one/file", "b", volumeMounts=mounts),
    ]
    document = pod(*containers, volumes=volumes, restartPolicy="OnFailure")
    done = own_runner.run(document)
    assert (done.returncode, done.stdout.count("data")) == (0, 5), done.stderr
    once = counted.manifests()
    assert [path for path, _ in counted.requests if path.endswith("/manifests/latest")] == ["/v2/data/manifests/latest"]
    assert own_runner.run(document).returncode == 0
    assert counted.manifests() == 2 * once


@pytest.mark.requirement("V23", "V24")
def test_which_policy_asks_the_registry_for_another_pod(own_runner: Runner, image: str, counted: Counted) -> None:
    own_runner.trust(counted.host)
    own_runner.daemon.start()

    def run(policy: str) -> str:
        container = shell(image, "cat /volume/file", volumeMounts=[mount()])
        done = own_runner.run(pod(container, volumes=[image_volume(f"{counted.host}/data:1", pullPolicy=policy)]))
        assert done.returncode == 0, done.stderr
        return done.stdout

    seen = []
    for policy in ("IfNotPresent", "IfNotPresent", "Always", "Always", "Never"):
        assert run(policy) == "data\n"
        seen.append(counted.manifests())
    first = seen[0]
    assert seen == [first, first, 2 * first, 3 * first, 3 * first]
    counted.close()
    assert run("IfNotPresent") == "data\n"


@pytest.mark.requirement("V20", "V34")
def test_volumes_are_pulled_before_the_first_container_is_created(own_runner: Runner, image: str, data: Layout) -> None:
    """Also those that only a later container mounts. The volume that is no image goes the usual way."""
    gate = threading.Event()
    held = data.layer_digests[0]
    with HostileRegistry(
        data, lambda path, _: Answer(body=data.blob(held), gate=gate) if path.endswith(held) else None
    ) as slow:
        own_runner.trust(slow.host)
        own_runner.daemon.start()
        init = shell(image, "true", "init")
        late = shell(image, "cat /volume/file", volumeMounts=[mount(), mount("/state", "state")])
        document = pod(late, initContainers=[init], volumes=[image_volume(f"{slow.host}/data:1"), STATE])
        with own_runner.start(document) as process:
            assert slow.paused.wait(60)
            (row,) = own_runner.rows()
            (directory,) = own_runner.pods()
            made = sorted(path.name for path in directory.glob("volumes/*"))
            gate.set()
            out, err = process.communicate(timeout=60)
    assert (row["status"], row["containers"]) == ("Init:0/1", [])
    assert made == ["kubernetes.io~empty-dir"]
    assert (process.returncode, out) == (0, "[main] data\n"), err


# ------------------------------------------------------------------------------------------------- while it is away


@pytest.mark.requirement("V28", "V101")
def test_a_pod_starts_when_its_registry_returns(own_runner: Runner, image: str, data: Layout, tmp_path: Path) -> None:
    with Registry(tmp_path / "away") as away:
        volume = away.push(data, "data:1")
    own_runner.trust(away.host)
    own_runner.daemon.start()
    document = pod(shell(image, "cat /volume/file", volumeMounts=[mount()]), volumes=[image_volume(volume)])
    with own_runner.start(document, options=RETRY) as process:
        row = waits(own_runner, "ImagePullBackOff")
        with Registry(tmp_path / "away", port=away.port):
            # On a machine that is busy the registry may come too late for the first tries, which are 10 and 30 s away.
            out, err = process.communicate(timeout=180)
    why = f"RegistryUnavailable: image pull failed for {volume} because the registry is unavailable: "
    assert row["waiting"][0]["message"].startswith(f'Back-off pulling image "{volume}": {why}')
    assert (process.returncode, out) == (0, "data\n"), err
    assert f"podkeep: main: {why}" in err


@pytest.mark.requirement("V26", "V27")
def test_containers_that_need_nothing_of_it_go_on(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    containers = [
        shell(missing, "true", "image"),
        shell(image, "true", "volume", volumeMounts=[mount()]),
        shell(image, "echo here; sleep 1000", "free"),
    ]
    document = pod(*containers, volumes=[image_volume(missing)])
    with runner.start(document, options=RETRY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[free] here\n"
        both = until(lambda: [row for row in runner.rows() if len(row["waiting"]) == 2], "both wait")
        code, _, _ = interrupt(process)
    assert code == 130
    assert {item["name"] for item in both[0]["waiting"]} == {"image", "volume"}
    assert [item["state"] for item in both[0]["containers"]] == ["running"]


@pytest.mark.requirement("V25")
@pytest.mark.parametrize(
    ("reference", "policy", "reason"),
    [
        ("nothing:1", "Never", "ErrImageNeverPull"),
        ("Nothing:1", "IfNotPresent", "InvalidImageName"),
    ],
)
def test_images_that_no_pull_would_bring(runner: Runner, image: str, reference: str, policy: str, reason: str) -> None:
    name = f"{image.rpartition('/')[0]}/{reference}"
    volumes = [image_volume(name, pullPolicy=policy)]
    with runner.start(pod(shell(image, "true", volumeMounts=[mount()]), volumes=volumes), options=RETRY) as process:
        row = waits(runner, reason)
        code, _, err = interrupt(process)
    assert code == 130
    assert f"podkeep: main: {reason}: {row['waiting'][0]['message']}" in err.splitlines()
    assert name in row["waiting"][0]["message"]


def test_a_pod_that_waits_for_its_image_is_removed(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    with runner.start(pod(shell(missing, "true")), options=RETRY) as process:
        waits(runner, "ImagePullBackOff")
        removed = runner.daemon.run("rm", "web")
        out, _ = process.communicate(timeout=60)
    assert removed.returncode == 0, removed.stderr
    assert (out, runner.rows()) == ("", [])


def test_a_pod_whose_image_is_being_pulled_is_removed(own_runner: Runner, image: str, data: Layout) -> None:
    gate = threading.Event()
    held = data.layer_digests[0]
    with HostileRegistry(
        data, lambda path, _: Answer(body=data.blob(held), gate=gate) if path.endswith(held) else None
    ) as slow:
        own_runner.trust(slow.host)
        own_runner.daemon.start()
        volumes = [image_volume(f"{slow.host}/data:1")]
        with own_runner.start(pod(shell(image, "true", volumeMounts=[mount()]), volumes=volumes)) as process:
            try:
                assert slow.paused.wait(60)
                removed = own_runner.daemon.run("rm", "web")
                process.communicate(timeout=60)
            finally:
                gate.set()
    assert removed.returncode == 0, removed.stderr
    assert own_runner.rows() == []


def test_nothing_is_said_of_a_pod_whose_run_was_killed(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    with runner.start(pod(shell(missing, "true")), options=RETRY) as process:
        waits(runner, "ImagePullBackOff")
        process.kill()
        process.communicate(timeout=60)
    (row,) = runner.rows()
    assert (row["status"], row["waiting"]) == ("ContainerCreating", [])
    assert runner.daemon.run("rm", "web").returncode == 0


# ------------------------------------------------------------------------------------------------------- pull secrets


@pytest.mark.requirement("V29")
def test_an_image_and_a_volume_from_a_private_registry(
    private_runner: Runner, private: Registry, data: Layout, tmp_path: Path
) -> None:
    program = private.push(busybox_layout(tmp_path / "busybox"), "team/busybox:1", headers=LOGIN)
    volume = private.push(data, "team/data:1", headers=LOGIN)
    container = shell(program, "cat /volume/file", volumeMounts=[mount()])
    document = pod(container, volumes=[image_volume(volume)])

    refused = private_runner.run(document)
    assert refused.returncode == 1
    assert f'podkeep: Failed to pull image "{volume}": ' in refused.stderr

    def run(*secrets: dict[str, Any], names: tuple[str, ...]) -> tuple[int, str, str]:
        document["spec"]["imagePullSecrets"] = [{"name": name} for name in names]
        done = private_runner.run(*secrets, document)
        return done.returncode, done.stdout, done.stderr

    elsewhere = pull_secret("elsewhere", "other.example", f"{private.host}/other")
    assert run(elsewhere, names=("elsewhere",))[0] == 1
    wrong = pull_secret("wrong", private.host, auth=basic(password="hunter2"))
    code, _, err = run(wrong, names=("wrong",))
    assert code == 1
    assert "hunter2" not in err
    right = pull_secret("right", f"{private.host}/team")
    code, out, err = run(wrong, right, names=("missing", "wrong", "right"))
    assert (code, out) == (0, "data\n"), err
    assert (
        "podkeep: Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed.\n"
    ) in err


@pytest.fixture
def volume_pod(private: Registry, data: Layout, image: str) -> dict[str, Any]:
    """A pod with a volume from the private registry."""
    volume = private.push(data, "team/data:1", headers=LOGIN)
    return pod(shell(image, "cat /volume/file", volumeMounts=[mount()]), volumes=[image_volume(volume)])


@pytest.mark.parametrize("preloaded", [False, True])
def test_who_has_what_was_pulled_with_a_secret(
    private_runner: Runner, private: Registry, data: Layout, image: str, preloaded: bool
) -> None:
    """Nobody else, by its ID neither; but for an image that was here before, which a copy from elsewhere is, too."""
    volume, copy = (private.push(data, f"{name}:1", headers=LOGIN) for name in ("team/data", "other/copy"))
    if preloaded:
        private_runner.daemon.run("image", "pull", "--creds", "user:secret", volume, check=True)

    def run(name: str, policy: str, *secrets: dict[str, Any]) -> tuple[int, str]:
        volumes = [image_volume(name, pullPolicy=policy)]
        document = pod(shell(image, "cat /volume/file", volumeMounts=[mount()]), volumes=volumes)
        document["spec"]["imagePullSecrets"] = [{"name": "mine"} for _ in secrets]
        done = private_runner.run(*secrets, document)
        return done.returncode, done.stdout

    found = (0, "data\n")
    assert run(copy, "IfNotPresent", pull_secret("mine", private.host)) == found
    (described,) = json.loads(private_runner.daemon.run("image", "inspect", copy, "-o", "json", check=True).stdout)
    assert run(copy, "Never", pull_secret("mine", private.host)) == found
    others = [run(name, "Never") for name in (copy, described["id"])] + ([run(volume, "Never")] if preloaded else [])
    assert others == [found] * 3 if preloaded else [(1, "")] * 2


@pytest.mark.requirement("V29")
def test_what_the_node_has_is_tried_after_the_pull_secrets(
    own_runner: Runner, private: Registry, volume_pod: dict[str, Any], tmp_path: Path
) -> None:
    auths = {private.host: {"auth": basic()}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    own_runner.daemon.extra += f'[images]\ndocker_config = "{tmp_path / "config.json"}"\n'
    own_runner.trust(private.host)
    own_runner.daemon.start()
    wrong = pull_secret("wrong", private.host, auth=basic(password="hunter2"))
    volume_pod["spec"]["imagePullSecrets"] = [{"name": "wrong"}]
    done = own_runner.run(wrong, volume_pod)
    assert (done.returncode, done.stdout) == (0, "data\n"), done.stderr


@pytest.mark.requirement("V30")
def test_a_plugin_of_the_node_is_asked_for_volumes_as_well(
    own_runner: Runner, private: Registry, volume_pod: dict[str, Any], tmp_path: Path
) -> None:
    answer = {
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry",
        "auth": {private.host: {"username": "user", "password": "secret"}},
    }
    plugin = tmp_path / "plugins" / "cloud"
    plugin.parent.mkdir()
    write_script(plugin, f"#!/bin/sh\ncat >{tmp_path}/asked\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    provider = {
        "name": "cloud",
        "matchImages": [private.host],
        "defaultCacheDuration": "0s",
        "apiVersion": answer["apiVersion"],
    }
    document = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider]}
    (tmp_path / "providers.json").write_text(json.dumps(document))
    own_runner.daemon.extra += (
        f'[images]\ncredential_providers = "{tmp_path}/providers.json"\n'
        f'credential_provider_dir = "{tmp_path}/plugins"\n'
    )
    own_runner.trust(private.host)
    own_runner.daemon.start()
    done = own_runner.run(volume_pod)
    assert (done.returncode, done.stdout) == (0, "data\n"), done.stderr
    assert json.loads((tmp_path / "asked").read_text())["image"].startswith(f"{private.host}/team/data")


@pytest.mark.requirement("V18")
def test_a_volume_from_a_registry_that_is_not_allowed(
    own_runner: Runner, private: Registry, registry: Registry, volume_pod: dict[str, Any]
) -> None:
    own_runner.daemon.extra += f'[images]\nallowed_registries = ["{registry.host}"]\n'
    own_runner.trust(private.host)
    own_runner.daemon.start()
    done = own_runner.run(volume_pod)
    assert (done.returncode, done.stdout) == (1, "")
    assert f'podkeep: Failed to pull image "{private.host}/team/data:1": ' in done.stderr
    assert "images.allowed_registries" in done.stderr
