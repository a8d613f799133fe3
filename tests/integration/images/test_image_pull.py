"""Pulling from a real docker-registry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import OpenStore, layer_directory, layers_bytes, require_du

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import NotFound, PermissionDenied, RegistryUnavailable
from podkeep.images.formats.image import PullProgress, RegistryAuth
from podkeep.images.formats.manifest import node_architecture
from podkeep.images.store import database
from podkeep.kernel.namespace.idmap import block
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from support.images import BUSYBOX, Layout, LayoutBuilder, busybox_layout, directory, file, layers_layout, tar
from support.registry import Answer, HostileRegistry, Registry, free_port

BCRYPT_OF_SECRET = "$2b$04$HaBX7kZuW/ID3OJNAR4XPeVTxebPbJZm59xYFPz22L0pQ7GgCNVYW"


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_a_pulled_image_is_what_was_pushed(
    compression: str, tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    config: dict[str, Any] = {
        "User": "app",
        "Env": ["A=1", "B=2"],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["true"],
        "WorkingDir": "/home/app",
        "Volumes": {"/data": {}},
        "StopSignal": "SIGUSR1",
        "Labels": {"key": "value"},
        "ExposedPorts": {"80/tcp": {}},
    }
    layers = [[file("etc/motd", f"made with {compression}", uid=5, gid=70000)]]
    layout = busybox_layout(tmp_path / "layout", config=config, layers=layers, compression=compression)
    name = registry.push(layout, f"pull/{compression}:v1")
    store = open_store()

    image = asyncio.run(store.pull(name))

    assert image.id == layout.image_id
    assert image.repo_tags == (name,)
    assert image.repo_digests == (f"{name.rpartition(':')[0]}@{layout.manifest_digest}",)
    assert image.layers == layout.diff_ids
    assert (image.user, image.stop_signal) == ("app", "SIGUSR1")
    run = store.run_config(image)
    assert run.user == "app"
    assert run.env == ("A=1", "B=2")
    assert (run.entrypoint, run.cmd) == (("/bin/sh", "-c"), ("true",))
    assert (run.working_dir, run.stop_signal) == ("/home/app", "SIGUSR1")
    assert (run.volumes, run.exposed_ports) == (("/data",), ("80/tcp",))
    assert run.labels == {"key": "value"}
    base, top = (layer_directory(root, layer) for layer in image.layers)
    assert (base / "bin/busybox").read_bytes() == BUSYBOX.read_bytes()
    assert (base / "bin/sh").readlink() == Path("busybox")
    assert (base / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (base / "home/app").stat().st_uid == 1000
    motd = (top / "etc/motd").stat()
    assert (motd.st_uid, motd.st_gid, motd.st_mtime) == (5, 70000, 1_700_000_000)
    assert top.stat().st_mode & 0o7777 == 0o755
    assert image.size >= BUSYBOX.stat().st_size
    assert store.usage().mountpoint == str(root)
    require_du(store, root)


def test_pulls_for_a_neighbours_pods_push_out_no_name_of_a_loaded_image(
    registry: Registry, busybox: Layout, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_NAMES", 4)
    store = open_store()
    (loaded,) = asyncio.run(store.load(busybox_layout(tmp_path / "loaded", name="localhost/busybox:loaded").path))
    for number in range(6):
        pulled = asyncio.run(store.pull(registry.push(busybox, f"neighbour:{number}"), tenant="neighbour"))
        assert pulled.id == loaded.id
        assert pulled.repo_tags[0].endswith(f"neighbour:{number}")
    assert "localhost/busybox:loaded" in store.images()[0].repo_tags
    assert len((*store.images()[0].repo_tags, *store.images()[0].repo_digests)) == 4


def test_an_image_is_found_by_every_name_it_has(registry: Registry, busybox: Layout, open_store: OpenStore) -> None:
    name = registry.push(busybox, "names/busybox:v1")
    store = open_store()
    image = asyncio.run(store.pull(name))
    repository = name.rpartition(":")[0]
    for text in (
        name,
        f"{repository}@{busybox.manifest_digest}",
        image.id,
        image.id[7:],
        image.id[7:19],
        image.id[:20],
    ):
        assert store.find(text) == image, text
    assert store.find(f"{repository}:v2") is None
    assert store.find("no such image") is None


def test_pulling_by_digest_gives_no_tag(registry: Registry, busybox: Layout, open_store: OpenStore) -> None:
    repository = registry.push(busybox, "digest/busybox:v1").rpartition(":")[0]
    name = f"{repository}@{busybox.manifest_digest}"
    image = asyncio.run(open_store().pull(name))
    assert (image.repo_tags, image.repo_digests) == ((), (name,))


def test_a_docker_schema_2_image_is_pulled(tmp_path: Path, registry: Registry, open_store: OpenStore) -> None:
    layout = busybox_layout(tmp_path / "layout", docker=True)
    image = asyncio.run(open_store().pull(registry.push(layout, "docker/busybox:v1")))
    assert image.id == layout.image_id


@pytest.mark.parametrize("docker", [False, True], ids=["index", "manifest list"])
def test_the_index_entry_of_this_architecture_is_chosen(
    docker: bool, tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    wanted = builder.image([tar([file("here", "yes")])], docker=docker)
    other = builder.image([tar([file("here", "no")])], architecture="sparc", docker=docker)
    entries = [
        {**other, "platform": {"os": "linux", "architecture": "sparc"}},
        {**wanted, "platform": {"os": "windows", "architecture": node_architecture()}},
        {**wanted, "platform": {"os": "linux", "architecture": node_architecture()}},
    ]
    top = builder.index(entries, docker=docker)
    layout = builder.finish(top)
    name = registry.push(layout, f"index/{docker}:v1".lower())
    image = asyncio.run(open_store().pull(name))
    assert image.layers == (layout_diff(builder, wanted),)
    assert image.repo_digests == (f"{name.rpartition(':')[0]}@{top['digest']}",)


def layout_diff(builder: LayoutBuilder, entry: dict[str, Any]) -> str:
    """Return the first diff ID of an image."""
    return builder.finish(entry).diff_ids[0]


def test_an_index_without_this_architecture_says_what_there_is(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    entry = {**builder.image([tar([file("x")])]), "platform": {"os": "linux", "architecture": "sparc", "variant": "v9"}}
    name = registry.push(builder.finish(builder.index([entry])), "index/foreign:v1")
    with pytest.raises(NotFound, match=rf"no image for linux/{node_architecture()}; there is linux/sparc/v9"):
        asyncio.run(open_store().pull(name))


def test_shared_layers_are_unpacked_once_and_go_with_their_last_image(
    tmp_path: Path, root: Path, registry: Registry, open_store: OpenStore
) -> None:
    first = busybox_layout(tmp_path / "1", layers=[[file("etc/one")]])
    second = busybox_layout(tmp_path / "2", layers=[[file("etc/two")]])
    names = [registry.push(first, "shared/one:v1"), registry.push(second, "shared/two:v1")]
    store = open_store()
    steps: list[PullProgress] = []
    asyncio.run(store.pull(names[0]))
    asyncio.run(store.pull(names[1], progress=steps.append))
    phases = {step.digest: step.phase for step in steps}
    assert phases[second.layer_digests[0]] == "exists"
    assert phases[second.layer_digests[1]] == "done"
    assert steps[0].phase == "resolving"
    assert (steps[-1].digest, steps[-1].phase) == ("", "done")

    store.remove(names[0])
    assert {path.name[7:] for path in (root / "layers").iterdir()} == {layer[7:] for layer in second.diff_ids}
    store.remove(store.images()[0].id)
    assert list((root / "layers").iterdir()) == []
    assert store.images() == []
    assert layers_bytes(store) == 0
    store.remove(names[0])
    assert store.images() == []


def test_a_tag_goes_alone_while_the_image_has_another(
    registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    one, two = registry.push(busybox, "tags/a:1"), registry.push(busybox, "tags/b:2")
    store = open_store()
    asyncio.run(store.pull(one))
    asyncio.run(store.pull(two))
    store.remove(one)
    assert store.find(one) is None
    image = store.find(two)
    assert image is not None
    assert image.repo_tags == (two,)
    store.remove(two)
    assert store.images() == []


def test_a_moved_tag_leaves_the_old_image_without_it(
    tmp_path: Path, registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    other = layers_layout(tmp_path / "other", [[file("new")]])
    name = registry.push(busybox, "moving/tag:v1")
    store = open_store()
    old = asyncio.run(store.pull(name))
    registry.push(other, "moving/tag:v1")
    new = asyncio.run(store.pull(name))
    assert store.find(name) == new
    left = store.find(old.id)
    assert left is not None
    assert left.repo_tags == ()


def test_mirrors_come_first_and_the_registry_last(
    tmp_path: Path, registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    registry.push(busybox, "mirrored/prefix/app:v1")
    dead = f"127.0.0.1:{free_port()}"
    with HostileRegistry(busybox) as origin:
        mirrors = (f"http://{dead}", f"http://{registry.host}/mirrored/prefix")
        store = open_store(registries={origin.host: RegistryConfig(insecure=True, mirrors=mirrors)})
        image = asyncio.run(store.pull(f"{origin.host}/app:v1"))
        assert image.repo_tags == (f"{origin.host}/app:v1",)
        assert origin.requests == []

        only_dead = RegistryConfig(insecure=True, mirrors=(dead,))
        store.close()
        store = open_store(registries={origin.host: only_dead, dead: RegistryConfig(insecure=True)})
        store.remove(image.id)
        assert asyncio.run(store.pull(f"{origin.host}/app:v1")).id == busybox.image_id
        assert origin.requests != []


def test_credentials_go_to_the_registry_and_not_to_its_mirrors(busybox: Layout, open_store: OpenStore) -> None:
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}

    def deny(_path: str, headers: Mapping[str, str]) -> Answer | None:
        return None if "Authorization" in headers else Answer(status=401, headers=challenge)

    with HostileRegistry(busybox, deny) as mirror, HostileRegistry(busybox, deny) as origin:
        config = RegistryConfig(insecure=True, mirrors=(f"http://{mirror.host}",))
        store = open_store(registries={origin.host: config})
        asyncio.run(store.pull(f"{origin.host}/app:v1", auth=RegistryAuth(username="me", password="secret")))
        assert mirror.requests
        assert not any("Authorization" in headers for _, headers in mirror.requests)
        assert any("Authorization" in headers for _, headers in origin.requests)


def test_basic_credentials_open_a_private_registry(tmp_path: Path, busybox: Layout, open_store: OpenStore) -> None:
    with Registry(tmp_path / "private", htpasswd=f"me:{BCRYPT_OF_SECRET}\n") as private:
        name = private.push(busybox, "private/app:v1", headers={"Authorization": "Basic bWU6c2VjcmV0"})
        store = open_store(private.host)
        with pytest.raises(PermissionDenied, match="asks for credentials"):
            asyncio.run(store.pull(name))
        with pytest.raises(PermissionDenied, match="refuses access \\(401\\)"):
            asyncio.run(store.pull(name, auth=RegistryAuth(username="me", password="wrong")))
        for auth in (RegistryAuth(username="me", password="secret"), RegistryAuth(auth="bWU6c2VjcmV0")):
            assert asyncio.run(store.pull(name, auth=auth)).id == busybox.image_id


def test_tls_is_checked_unless_the_registry_is_insecure(
    tmp_path: Path, busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore
) -> None:
    with Registry(tmp_path / "tls", tls=certificate) as registry:
        name = registry.push(busybox, "tls/app:v1")
        store = open_store()
        with pytest.raises(
            RegistryUnavailable, match=r"(?s)^RegistryUnavailable: .*CERTIFICATE_VERIFY_FAILED"
        ) as failure:
            asyncio.run(store.pull(name))
        assert "ca_file" in failure.value.hint
        for config in (RegistryConfig(ca_file=str(certificate[0])), RegistryConfig(insecure=True)):
            store.close()
            store = open_store(registries={registry.host: config})
            assert asyncio.run(store.pull(name)).id == busybox.image_id
            store.remove(name)


def test_plain_http_needs_insecure(registry: Registry, busybox: Layout, open_store: OpenStore) -> None:
    name = registry.push(busybox, "plain/app:v1")
    store = open_store(registries={registry.host: RegistryConfig()})
    with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: ") as failure:
        asyncio.run(store.pull(name))
    assert f'insecure = true under [registries."{registry.host}"]' in failure.value.hint


def test_a_registry_that_is_down_and_an_image_that_is_missing(registry: Registry, open_store: OpenStore) -> None:
    store = open_store(f"127.0.0.1:{(port := free_port())}")
    with pytest.raises(RegistryUnavailable, match=rf"^RegistryUnavailable: 127\.0\.0\.1:{port}: .*refused"):
        asyncio.run(store.pull(f"127.0.0.1:{port}/app:v1"))
    with pytest.raises(NotFound, match=r"no/such:image: not found"):
        asyncio.run(store.pull(f"{registry.host}/no/such:image"))
    with pytest.raises(NotFound, match="not found"):
        asyncio.run(store.pull(f"{registry.host}/no/such@sha256:{'0' * 64}"))
    assert store.images() == []


@pytest.mark.requirement("U77")
def test_lowers_are_detached_idmapped_mounts_top_layer_first(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    base = [directory("d"), file("d/a", "base"), file("wide", uid=70000)]
    layout = layers_layout(tmp_path / "layout", [base, [file("d/a", "top", uid=5, gid=6)]])
    store = open_store()
    image = asyncio.run(store.pull(registry.push(layout, "lowers/app:v1")))
    before = Path("/proc/self/mountinfo").read_text()
    with NamespaceHelper() as helper:
        userns = helper.user_namespace(block(131072, 65536))
        try:
            plain, mapped = store.lowers(image, userns=None), store.lowers(image, userns=userns)
        finally:
            os.close(userns)
    try:
        assert Path("/proc/self/mountinfo").read_text() == before
        assert [_read(fd, "d/a") for fd in plain] == [b"top", b"base"]
        owners = [(stat.st_uid, stat.st_gid) for stat in (os.stat("d/a", dir_fd=fd) for fd in (plain[0], mapped[0]))]
        assert owners == [(5, 6), (131077, 131078)]
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        assert os.stat("wide", dir_fd=mapped[1]).st_uid == overflow
        assert os.stat("wide", dir_fd=plain[1]).st_uid == 70000
    finally:
        for fd in (*plain, *mapped):
            os.close(fd)


def _read(directory_fd: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY, dir_fd=directory_fd)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_an_image_without_layers_and_one_with_a_layer_twice_have_lowers(
    tmp_path: Path, registry: Registry, open_store: OpenStore
) -> None:
    store = open_store()
    for number, layers in enumerate(([], [[file("a")], [file("b")], [file("a")]])):
        layout = layers_layout(tmp_path / str(number), layers)
        image = asyncio.run(store.pull(registry.push(layout, f"odd/app:{number}")))
        fds = store.lowers(image, userns=None)
        assert len(fds) == max(1, len(set(image.layers)))
        for fd in fds:
            os.close(fd)
