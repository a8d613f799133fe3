"""Image volumes that are named by the image they refer to, through CRI."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods
from support.daemon import Daemon
from support.images import Layout
from support.podkeep import podkeep
from support.registry import Registry

SPDX = "application/spdx+json"
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: scanned}}
spec:
  restartPolicy: Never
  volumes: [{{name: sbom, image: {{reference: "{named}"}}}}]
  containers:
    - name: main
      image: {image}
      command: [sh, -c, "cat /sbom/sbom.json; echo"]
      volumeMounts: [{{name: sbom, mountPath: /sbom}}]
"""


@pytest.fixture(scope="module")
def named(registry: Registry, busybox: Layout, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an artifact that refers to the busybox image in the registry."""
    here = tmp_path_factory.mktemp("sbom")
    (here / "sbom.json").write_text("{}")
    image = registry.push(busybox, "attached/busybox:1")
    arguments = ["sbom.json", "--artifact-type", SPDX, "--subject", image]
    podkeep("artifact", "push", f"{registry.host}/attached/busybox", *arguments, insecure=registry.host, cwd=here)
    return f"{image}?artifactType={SPDX}"


@pytest.mark.requirement("V73")
def test_a_volume_is_named_by_its_subject(open_directory: Path, registry: Registry, image: str, named: str) -> None:
    base = open_directory / "referrers"
    base.mkdir()
    extra = f'[registries."{registry.host}"]\ninsecure = true\n[images.referrers]\nenabled = true\n'
    with Daemon(base, extra=extra) as daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        assert pods.image_status(named) is None
        reference = pods.pull(named)
        found = pods.image_status(named)
        assert found is not None
        assert (found.id, list(found.repo_tags)) == (reference, [named])
        mounts = [
            api.Mount(image=api.ImageSpec(image=name), container_path=f"/volume{number}", readonly=True)
            for number, name in enumerate((reference, named))
        ]
        container = pods.launch(pods.run(), mounts=mounts)
        assert pods.read(container, "ls /volume0 /volume1; cat /volume1/sbom.json") == (
            "/volume0:\nsbom.json\n\n/volume1:\nsbom.json\n{}"
        )
        assert [mount.image.image for mount in pods.status(container).mounts] == [reference, reference]


@pytest.mark.requirement("V73")
def test_a_pod_of_podkeep_run_names_it(open_directory: Path, registry: Registry, image: str, named: str) -> None:
    base = open_directory / "referrers-run"
    base.mkdir()
    manifest = base / "pod.yaml"
    manifest.write_text(POD.format(image=image, named=named))
    extra = f'[registries."{registry.host}"]\ninsecure = true\n[images.referrers]\nenabled = true\n'
    with Daemon(base, extra=extra) as daemon:
        done = daemon.run("run", str(manifest))
        assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr


@pytest.mark.requirement("V75")
def test_every_call_says_that_it_is_turned_off(pods: Pods, named: str) -> None:
    mount = api.Mount(image=api.ImageSpec(image=named), container_path="/volume", readonly=True)
    sandbox = pods.run()
    for ask in (
        lambda: pods.pull(named),
        lambda: pods.image_status(named),
        lambda: pods.launch(sandbox, mounts=[mount]),
    ):
        with pytest.raises(FailedPrecondition, match="turned off") as failure:
            ask()
        assert "[images.referrers]" in f"{failure.value.message} {failure.value.hint}"
