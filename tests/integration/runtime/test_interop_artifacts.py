"""What other tools made, mounted as a volume: images by umoci, copies by skopeo, in containers of a real daemon."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support.artifacts import artifact as oras_artifact
from support.artifacts import directory_part, file_part, seed
from support.cri import BLOCK, Pods, namespaces, pod
from support.images import directory, file, tar
from support.podkeep import podkeep
from support.registry import Registry

LIST = "cd /volume; find . -mindepth 1 -exec stat -c '%A %u:%g %n' {} + | sort -k3"


@pytest.fixture
def pulled(pods: Pods) -> Iterator[list[str]]:
    """References that a test pulled; they are removed at its end."""
    names: list[str] = []
    yield names
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    for name in names:
        pods.remove_image(name)


def tool(*command: str, cwd: Path) -> None:
    """Run a tool to its end."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def copy(source: str, target: str, *, cwd: Path, more: tuple[str, ...] = ()) -> None:
    """Copy with skopeo from and to registries without TLS."""
    insecure = [f"--{end}-tls-verify=false" for end, name in (("src", source), ("dest", target)) if name[0] == "d"]
    tool("skopeo", "copy", "--quiet", *insecure, *more, source, target, cwd=cwd)


def launched(pods: Pods, pulled: list[str], name: str, sandbox: str = "") -> str:
    """Pull an image and return a container that has it at ``/volume``."""
    reference = pods.pull(name)
    pulled.append(reference)
    mount = api.Mount(image=api.ImageSpec(image=reference), container_path="/volume", readonly=True)
    return pods.launch(sandbox or pods.run(), mounts=[mount])


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """A directory with a bit of everything."""
    top = tmp_path / "content"
    (top / "sub").mkdir(parents=True)
    (top / "app.conf").write_text("one = 1\n")
    (top / "sub/tool").write_text("#!/bin/sh\n")
    (top / "sub/tool").chmod(0o750)
    (top / "current").symlink_to("app.conf")
    (top / "gone").write_text("not for long")
    os.chown(top / "sub/tool", 1000, 1001)
    return top


@pytest.mark.requirement("V66")
@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        ("gzip", ()),
        ("zstd", ("--dest-compress", "--dest-compress-format", "zstd", "--dest-force-compress-format")),
        ("docker schema 2", ("--format", "v2s2")),
    ],
)
def test_an_image_by_umoci(
    pods: Pods, pulled: list[str], registry: Registry, content: Path, scheme: str, more: tuple[str, ...]
) -> None:
    base = content.parent
    tool("umoci", "init", "--layout", "layout", cwd=base)
    tool("umoci", "new", "--image", "layout:1", cwd=base)
    tool("umoci", "insert", "--image", "layout:1", "content", "/data", cwd=base)
    tool("umoci", "insert", "--image", "layout:1", "--whiteout", "/data/gone", cwd=base)
    (base / "later").write_text("one = 2\n")
    tool("umoci", "insert", "--image", "layout:1", "later", "/data/app.conf", cwd=base)
    # Older versions of skopeo know no option that forces a compression; they then copy what is there.
    name = f"{registry.host}/interop/umoci:{scheme.partition(' ')[0]}"
    copy("oci:layout:1", f"docker://{name}", cwd=base, more=tuple(item for item in more if "force" not in item))
    container = launched(pods, pulled, name)
    assert pods.read(container, LIST).split("\n") == [
        "drwxr-xr-x 0:0 ./data",
        "-rw-r--r-- 0:0 ./data/app.conf",
        "lrwxrwxrwx 0:0 ./data/current",
        "drwxr-xr-x 0:0 ./data/sub",
        "-rwxr-x--- 1000:1001 ./data/sub/tool",
    ]
    assert pods.read(container, "cat /volume/data/current") == "one = 2"


@pytest.mark.requirement("V53", "V54", "V59")
def test_the_seeds_artifact_copied_by_skopeo(pods: Pods, pulled: list[str], registry: Registry, tmp_path: Path) -> None:
    original = seed().push(registry, "interop/original:v1")
    copy(f"docker://{original}", "oci:layout:v1", cwd=tmp_path)
    copied = f"{registry.host}/interop/copied:v1"
    copy("oci:layout:v1", f"docker://{copied}", cwd=tmp_path)
    container = launched(pods, pulled, copied)
    assert (
        pods.read(container, "cd /volume; find . -type f | sort; cat dir/file file")
        == "./dir/file\n./file\nlayer0\nlayer1"
    )


@pytest.mark.requirement("V57", "V58")
def test_files_and_directories_as_oras_pushes_them_copied_by_skopeo(
    pods: Pods, pulled: list[str], registry: Registry, tmp_path: Path
) -> None:
    weights = os.urandom(3_000_000)
    parts = [
        file_part("weights.safetensors", weights),
        directory_part("conf", tar([directory("conf"), file("conf/a.json", "{}", uid=5, gid=6)])),
    ]
    original = oras_artifact(parts).push(registry, "interop/oras:v1")
    copied = f"{registry.host}/interop/oras-copied:v1"
    copy(f"docker://{original}", f"docker://{copied}", cwd=tmp_path)
    container = launched(pods, pulled, copied, pods.run(pod(options=namespaces(user=BLOCK))))
    assert pods.read(container, LIST).split("\n") == [
        "drwxr-xr-x 0:0 ./conf",
        "-rw-r--r-- 5:6 ./conf/a.json",
        "-rw-r--r-- 0:0 ./weights.safetensors",
    ]
    found = pods.read(container, "sha256sum /volume/weights.safetensors").split()[0]
    assert found == hashlib.sha256(weights).hexdigest()


@pytest.mark.requirement("V57", "V58")
def test_what_podkeep_pushes_is_copied_by_skopeo_and_mounted(
    pods: Pods, pulled: list[str], registry: Registry, content: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.bin").write_bytes(b"model")
    name = f"{registry.host}/interop/podkeep:v1"
    out, _ = podkeep(
        "artifact", "push", name, "content", "model.bin", "-o", "json", insecure=registry.host, cwd=tmp_path
    )
    copied = f"{registry.host}/interop/podkeep-copied:v1"
    copy(f"docker://{name}", f"docker://{copied}", cwd=tmp_path)
    container = launched(pods, pulled, copied)
    assert pods.read(container, LIST).split("\n") == [
        "drwxr-xr-x 0:0 ./content",
        "-rw-r--r-- 0:0 ./content/app.conf",
        "lrwxrwxrwx 0:0 ./content/current",
        "-rw-r--r-- 0:0 ./content/gone",
        "drwxr-xr-x 0:0 ./content/sub",
        "-rwxr-x--- 0:0 ./content/sub/tool",
        "-rw-r--r-- 0:0 ./model.bin",
    ]
    (image,) = pods.call("ListImages", _named(copied), service="images").images
    assert image.id == json.loads(out)["digest"]


def _named(name: str) -> api.ListImagesRequest:
    return api.ListImagesRequest(filter=api.ImageFilter(image=api.ImageSpec(image=name)))
