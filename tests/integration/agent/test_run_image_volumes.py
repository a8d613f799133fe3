"""``podkeep run`` and pods with image volumes (KEP-4639): the cases of its e2e tests, and when images are pulled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import Runner, interrupt, until
from agent.manifests import image_volume, mount, pod, shell

from support.images import directory, file, layers_layout
from support.registry import Registry

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push(registry: Registry, path: Path, name: str, text: str) -> str:
    """Push an image that is nothing but data, and return its reference."""
    layers = [[directory("dir"), file("dir/file", f"{text} in dir\n")], [file("file", f"{text}\n")]]
    return registry.push(layers_layout(path, layers), name)


def forget(registry: Registry, reference: str) -> None:
    """Remove a manifest from the registry: nobody can pull the image any more."""
    name = reference.partition("/")[2].rpartition(":")[0]
    tag = reference.rpartition(":")[2]
    _, headers, _ = registry.request("HEAD", f"/v2/{name}/manifests/{tag}", headers={"Accept": MANIFEST})
    registry.request("DELETE", f"/v2/{name}/manifests/{headers['Docker-Content-Digest']}")


@pytest.fixture
def data(runner: Runner, registry: Registry, tmp_path: Path) -> str:
    """Reference of an image with two files, of the test's own."""
    return push(registry, tmp_path / "data", f"volume-{tmp_path.name.replace('_', '-')}:1", "data")


@pytest.mark.requirement("V1", "V20", "V34", "V39", "V51")
@pytest.mark.parametrize("spec", [{}, {"hostUsers": False}])
def test_content_of_an_image_volume(runner: Runner, image: str, data: str, spec: dict[str, Any]) -> None:
    script = "cat /volume/file /volume/dir/file; stat -c '%u %g' /volume/file; touch /volume/new 2>/dev/null || echo ro"
    document = pod(shell(image, script, volumeMounts=[mount()]), volumes=[image_volume(data)], **spec)
    done = runner.run(document)
    assert (done.returncode, done.stdout) == (0, "data\ndata in dir\n0 0\nro\n"), done.stderr


@pytest.mark.requirement("V27", "V104")
def test_should_fail_if_image_volume_is_not_existing(runner: Runner, image: str) -> None:
    """[sig-node] ImageVolume [NodeFeature:ImageVolume] should fail if image volume is not existing"""
    missing = image.rpartition("/")[0] + "/nothing:1"
    document = pod(shell(image, "true", volumeMounts=[mount()]), volumes=[image_volume(missing)])
    with runner.start(document, options=("--retry", "-o", "json")) as process:
        (row,) = until(lambda: [row for row in runner.rows() if row["status"] == "ImagePullBackOff"], "back-off")
        code, out, err = interrupt(process)
    (waiting,) = row["waiting"]
    assert waiting["name"] == "main"
    assert waiting["message"].startswith(f'Back-off pulling image "{missing}": ErrImagePull: ')
    assert row["containers"] == []
    assert code == 130
    # The last status of a pod has no container that waits (kubelet, TerminatePod).
    status = json.loads(out)["status"]
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    seen = [line.partition(": ")[2] for line in err.splitlines() if line.startswith("podkeep: main: ")]
    assert [line.split(": ")[1] for line in seen] == ["ErrImagePull", "ImagePullBackOff"]
    assert f"main: ImagePullBackOff: {waiting['message']}" in seen


@pytest.mark.requirement("V27")
def test_an_image_volume_that_is_not_existing_ends_a_run_that_does_not_retry(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    done = runner.run(pod(shell(image, "true", volumeMounts=[mount()]), volumes=[image_volume(missing)]))
    assert done.returncode == 1
    assert f'Failed to pull image "{missing}": ' in done.stderr


@pytest.mark.requirement("V26", "V105")
def test_should_succeed_if_image_volume_is_not_existing_but_unused(runner: Runner, image: str) -> None:
    missing = image.rpartition("/")[0] + "/nothing:1"
    done = runner.run(pod(shell(image, "ls /volume 2>/dev/null || echo none"), volumes=[image_volume(missing)]))
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


@pytest.mark.requirement("V106")
def test_should_succeed_with_multiple_pods_and_same_image_on_the_same_node(
    runner: Runner, image: str, data: str
) -> None:
    wait = "cat /volume/file; touch /peer/$ME; until [ -e /peer/$OTHER ]; do sleep 0.05; done; cat /volume/dir/file"
    peer = runner.file().parent
    peer.chmod(0o777)

    def one(me: str, other: str) -> dict[str, Any]:
        mounts = [mount(), mount("/peer", "peer")]
        env = [{"name": "ME", "value": me}, {"name": "OTHER", "value": other}]
        volumes = [image_volume(data), {"name": "peer", "hostPath": {"path": str(peer)}}]
        return pod(shell(image, wait, volumeMounts=mounts, env=env), volumes=volumes, name=me)

    with runner.start(one("one", "other")) as first:
        second = runner.run(one("other", "one"))
        out, err = first.communicate(timeout=60)
    assert (second.returncode, second.stdout) == (0, "data\ndata in dir\n"), second.stderr
    assert (first.returncode, out) == (0, "data\ndata in dir\n"), err


@pytest.mark.requirement("V7", "V107")
def test_should_succeed_with_pod_and_multiple_volumes(
    runner: Runner, registry: Registry, image: str, data: str, tmp_path: Path
) -> None:
    other = push(registry, tmp_path / "other", f"other-{tmp_path.name.replace('_', '-')}:1", "other")
    mounts = [mount("/one", "one"), mount("/two", "two"), mount("/again", "one", subPath="dir")]
    script = "cat /one/file /two/file /again/file"
    containers = [shell(image, script, name, volumeMounts=mounts) for name in ("a", "b")]
    sidecar = shell(image, f"{script}; sleep 1000", "sidecar", volumeMounts=mounts, restartPolicy="Always")
    init = shell(image, script, "init", volumeMounts=mounts)
    volumes = [image_volume(data, "one"), image_volume(other, "two")]
    done = runner.run(pod(*containers, initContainers=[sidecar, init], volumes=volumes))
    assert done.returncode == 0, done.stderr
    for name in ("sidecar", "init", "a", "b"):
        lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith(f"[{name}]")]
        assert lines == ["data", "other", "data in dir"]


@pytest.mark.requirement("V22", "V24", "V108")
def test_should_succeed_with_pod_and_pull_policy_of_always(
    runner: Runner, registry: Registry, image: str, data: str, tmp_path: Path
) -> None:
    container = shell(image, "cat /volume/file", volumeMounts=[mount()])
    document = pod(container, volumes=[image_volume(data, pullPolicy="Always")])
    assert runner.run(document).stdout == "data\n"
    push(registry, tmp_path / "newer", data.partition("/")[2], "newer")
    assert runner.run(document).stdout == "newer\n"


@pytest.mark.requirement("V22")
@pytest.mark.parametrize("policy", ["Always", "IfNotPresent"])
def test_a_container_that_starts_again_has_the_content_its_pod_began_with(
    runner: Runner, registry: Registry, image: str, data: str, tmp_path: Path, policy: str
) -> None:
    """The tag moves while the pod runs; its container ends and is started again. A new pod with policy Always moves."""
    script = """
        cat /volume/file
        [ -e /peer/again ] && exit 0
        touch /peer/again
        until [ -e /peer/moved ]; do sleep 0.05; done
        exit 1
    """
    peer = tmp_path / "peer"
    peer.mkdir(mode=0o777)
    peer.chmod(0o777)
    volumes = [image_volume(data, pullPolicy=policy), {"name": "peer", "hostPath": {"path": str(peer)}}]
    container = shell(image, script, volumeMounts=[mount(), mount("/peer", "peer")])
    document = pod(container, volumes=volumes, restartPolicy="OnFailure")
    with runner.start(document) as process:
        until(lambda: (peer / "again").exists(), "the container has read its file")
        push(registry, tmp_path / "newer", data.partition("/")[2], "newer")
        (peer / "moved").touch()
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out.split()) == (0, ["data", "data"]), err
    assert runner.run(document).stdout.split() == (["newer"] if policy == "Always" else ["data"])


@pytest.mark.requirement("V23")
def test_image_that_is_here_needs_no_registry(runner: Runner, registry: Registry, image: str, data: str) -> None:
    container = shell(image, "cat /volume/file", volumeMounts=[mount()])
    for policy in ("IfNotPresent", "Never"):
        document = pod(container, volumes=[image_volume(data, pullPolicy=policy)])
        done = runner.run(document)
        assert (done.returncode, done.stdout) == (0, "data\n"), done.stderr
        if policy == "IfNotPresent":
            forget(registry, data)


@pytest.mark.requirement("V21")
def test_container_that_is_started_again_pulls_nothing(
    runner: Runner, registry: Registry, image: str, data: str, tmp_path: Path
) -> None:
    """The volume of a tag that moved meanwhile, or whose registry has nothing any more, is what it was."""
    script = """
        cat /volume/file; test -e /state/again && exit 0
        touch /state/again; until [ -e /state/go ]; do sleep 0.05; done; exit 1
    """
    mounts = [mount(), mount("/state", "state")]
    volumes = [image_volume(data, pullPolicy="Always"), {"name": "state", "emptyDir": {}}]
    document = pod(shell(image, script, volumeMounts=mounts), volumes=volumes, restartPolicy="OnFailure")
    with runner.start(document) as process:
        state = "volumes/*/state/again"
        (made,) = until(lambda: [path for item in runner.pods() for path in item.glob(state)], "the first start")
        forget(registry, data)
        (made.parent / "go").touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "data\ndata\n"), err


@pytest.mark.requirement("V25")
def test_image_that_may_not_be_pulled(runner: Runner, image: str, data: str) -> None:
    container = shell(image, "true", volumeMounts=[mount()])
    done = runner.run(pod(container, volumes=[image_volume(data, pullPolicy="Never")]))
    assert done.returncode == 1
    assert f'Container image "{data}" is not present with pull policy of Never' in done.stderr


@pytest.mark.requirement("V10", "V11", "V36", "V37", "V109")
def test_sub_paths(runner: Runner, image: str, data: str) -> None:
    def document(**path: str) -> dict[str, Any]:
        container = shell(
            image,
            "cat /volume/file",
            volumeMounts=[mount(**path)],
            env=[{"name": "WHERE", "value": "dir"}],
        )
        return pod(container, volumes=[image_volume(data)])

    for path in ({"subPath": "dir"}, {"subPathExpr": "$(WHERE)"}):
        done = runner.run(document(**path))
        assert (done.returncode, done.stdout) == (0, "data in dir\n"), done.stderr
    done = runner.run(document(subPath="not-existing"))
    assert done.returncode == 1
    assert "ImageVolumeMountFailed: sub path 'not-existing'" in done.stderr


@pytest.mark.requirement("V33", "V49")
def test_a_volume_by_digest_and_the_image_in_the_status(
    runner: Runner, registry: Registry, image: str, tmp_path: Path
) -> None:
    layout = layers_layout(tmp_path / "pinned", [[file("file", "pinned\n")]])
    name = registry.push(layout, "pinned:1").rpartition(":")[0]
    container = shell(image, "cat /volume/file", volumeMounts=[mount()])
    document = pod(container, volumes=[image_volume(f"{name}@{layout.manifest_digest}")])
    done = runner.run(document, options=("-o", "json"))
    assert done.returncode == 0, done.stderr
    assert "pinned\n" in done.stderr
    (status,) = json.loads(done.stdout)["status"]["containerStatuses"]
    (mounted,) = status["volumeMounts"]
    assert (mounted["name"], mounted["mountPath"]) == ("volume", "/volume")
    assert mounted["volumeStatus"] == {"image": {"imageRef": layout.image_id}}


def test_a_volume_without_a_reference(runner: Runner, image: str) -> None:
    done = runner.run(pod(shell(image, "true"), volumes=[{"name": "v", "image": {}}]))
    assert done.returncode == 1
    assert "spec.volumes[0].image.reference: Required value" in done.stderr
