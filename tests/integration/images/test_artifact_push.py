"""``podkeep artifact push`` against docker-registry, and against a registry that fails in the middle."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from conftest import OpenStore
from msgspec import structs

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, RegistryUnavailable
from podkeep.base.registries.reference import parse
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.publish import packing, pushing
from podkeep.images.publish.packing import Blob
from podkeep.images.registry import endpoints
from podkeep.images.registry.registry import Registry as Pushed
from support.breaking import BreakingProxy
from support.images import OCI_INDEX, OCI_MANIFEST, Layout
from support.mounted import content_of
from support.oci_registry import OciRegistry
from support.podkeep import podkeep
from support.processes import write_script
from support.registry import Registry

SPDX = "application/spdx+json"
ACCEPT = {"Accept": "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"}
LOGIN = {"Authorization": "Basic bWU6c2VjcmV0"}
BCRYPT_OF_SECRET = "$2b$04$HaBX7kZuW/ID3OJNAR4XPeVTxebPbJZm59xYFPz22L0pQ7GgCNVYW"

PEAK_MEMORY = Path(__file__).with_name("programs") / "peak_memory.py"


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """A file of some size and a directory to be published."""
    top = tmp_path / "things"
    (top / "conf/sub").mkdir(parents=True)
    (top / "conf/app.yaml").write_text("a: 1\n")
    write_script(top / "conf/sub/script", "#!/bin/sh\n")
    (top / "conf/current").symlink_to("app.yaml")
    (top / "model.bin").write_bytes(os.urandom(6_000_000))
    return top


@pytest.fixture
def oci() -> Iterator[OciRegistry]:
    """A registry of OCI distribution-spec 1.1."""
    with OciRegistry() as running:
        yield running


@pytest.fixture
def app(oci: OciRegistry) -> Iterator[Pushed]:
    """The client of a repository there."""
    with closing(client_of(oci.host, "app")) as client:
        yield client


def client_of(host: str, repository: str) -> Pushed:
    """Return a client that may push."""
    config = {host: RegistryConfig(insecure=True)}
    (endpoint,) = endpoints.for_worker(parse(f"{host}/{repository}"), config, progress_timeout=20)
    return Pushed(endpoint, repository, actions="pull,push")


@pytest.fixture
def model(things: Path) -> Iterator[Blob]:
    """The large file as a blob."""
    source = packing.Source(path=things / "model.bin")
    blob = packing.pack(source, contents=False, compression="gzip", mtime=0, count=lambda _: None)
    yield blob
    blob.close()


def test_what_is_pushed_is_pulled_and_mounted_as_it_was(
    things: Path, registry: Registry, open_store: OpenStore, tmp_path: Path
) -> None:
    name = f"{registry.host}/push/all:v1"
    arguments = ["conf", "model.bin:application/x.model", "--artifact-type", "application/vnd.example.model"]
    out, err = podkeep(
        "artifact", "push", name, *arguments, "--annotation", "note=ä", "-o", "json", insecure=registry.host, cwd=things
    )
    said = json.loads(out)
    assert "model.bin: done (5.72 MiB)" in err
    assert (said["tag"], said["reference"]) == ("v1", f"{registry.host}/push/all@{said['digest']}")

    _, headers, data = registry.request("GET", "/v2/push/all/manifests/v1", headers=ACCEPT)
    assert headers["Docker-Content-Digest"] == said["digest"]
    manifest = json.loads(data)
    assert manifest["artifactType"] == "application/vnd.example.model"
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size": 2,
        "data": "e30=",
    }
    assert manifest["annotations"] == {"note": "ä"}
    assert [layer["mediaType"] for layer in manifest["layers"]] == [
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/x.model",
    ]

    store = open_store()
    image = asyncio.run(store.pull(name))
    assert (image.kind, image.artifact_type) == ("artifact", "application/vnd.example.model")
    assert image.repo_digests == (said["reference"],)
    contents = content_of(store, image, tmp_path / "mounted")
    assert contents.pop("model.bin") == (things / "model.bin").read_bytes()
    assert contents == {
        "conf": "drwxr-xr-x",
        "conf/app.yaml": b"a: 1\n",
        "conf/current": "-> app.yaml",
        "conf/sub": "drwxr-xr-x",
        "conf/sub/script": b"#!/bin/sh\n",
    }


def test_the_same_content_has_the_same_digest_and_is_not_sent_again(things: Path, registry: Registry) -> None:
    arguments = ("artifact", "push", f"{registry.host}/push/same:1", "conf", "model.bin")
    first, _ = podkeep(*arguments, insecure=registry.host, cwd=things)
    for path in things.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    second, err = podkeep(*arguments, insecure=registry.host, cwd=things)
    assert first == second
    assert "uploading" not in err
    assert "model.bin: exists" in err


def test_a_configuration_and_its_type(things: Path, registry: Registry) -> None:
    (things / "config.json").write_text('{"architecture":"amd64","os":"linux"}')
    image_config = "application/vnd.oci.image.config.v1+json"
    arguments = ["--config", f"config.json:{image_config}"]
    podkeep("artifact", "push", f"{registry.host}/push/config", "conf", *arguments, insecure=registry.host, cwd=things)
    manifest = json.loads(registry.request("GET", "/v2/push/config/manifests/latest", headers=ACCEPT)[2])
    assert (manifest["config"]["mediaType"], manifest["config"]["size"]) == (image_config, 37)
    assert "artifactType" not in manifest


@pytest.mark.requirement("V72")
def test_a_registry_without_the_api_gets_the_list_under_a_tag(
    things: Path, registry: Registry, busybox: Layout
) -> None:
    image = registry.push(busybox, "push/subject:1")
    for number, kind in enumerate((SPDX, "application/vnd.example.signature")):
        arguments = ["conf/app.yaml", "--artifact-type", kind, "--subject", image, "--annotation", f"n={number}"]
        podkeep("artifact", "push", f"{registry.host}/push/subject", *arguments, insecure=registry.host, cwd=things)
    tag = busybox.manifest_digest.replace(":", "-")
    index = json.loads(registry.request("GET", f"/v2/push/subject/manifests/{tag}", headers=ACCEPT)[2])
    assert [(entry["artifactType"], entry["annotations"]["n"]) for entry in index["manifests"]] == [
        (SPDX, "0"),
        ("application/vnd.example.signature", "1"),
    ]
    tags = json.loads(registry.request("GET", "/v2/push/subject/tags/list")[2])["tags"]
    assert sorted(tags) == ["1", tag]  # the artifacts themselves have none

    listed = json.loads(podkeep("artifact", "referrers", image, "-o", "json", insecure=registry.host)[0])
    assert {item["artifact_type"] for item in listed} == {SPDX, "application/vnd.example.signature"}
    filtered = podkeep("artifact", "referrers", image, "--artifact-type", SPDX, insecure=registry.host)[0]
    assert filtered.splitlines()[1].startswith(index["manifests"][0]["digest"])
    assert len(filtered.splitlines()) == 2


@pytest.mark.requirement("V72")
def test_a_registry_with_the_api_keeps_the_list_itself(things: Path, oci: OciRegistry) -> None:
    subject = oci.put("app", "1", {"mediaType": OCI_MANIFEST, "config": {}, "layers": []})
    arguments = ["conf/app.yaml", "--artifact-type", SPDX, "--subject", f"{oci.host}/app:1"]
    podkeep("artifact", "push", f"{oci.host}/app", *arguments, insecure=oci.host, cwd=things)
    (entry,) = oci.listed("app", subject)
    assert entry["artifactType"] == SPDX
    assert not [target for _, target in oci.manifests if target.startswith("sha256-")]


def test_private_registries_take_the_logins_of_docker(things: Path, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.mkdir()
    with Registry(tmp_path / "private", htpasswd=f"me:{BCRYPT_OF_SECRET}\n") as private:
        arguments = ("artifact", "push", f"{private.host}/team/app:1", "conf")
        _, err = podkeep(*arguments, insecure=private.host, cwd=things, status=1)
        assert "asks for credentials" in err
        auths = {"auths": {private.host: {"auth": base64.b64encode(b"me:secret").decode()}}}
        (docker / "config.json").write_text(json.dumps(auths))
        podkeep(*arguments, insecure=private.host, cwd=things, environment={"DOCKER_CONFIG": str(docker)})
        assert private.request("GET", "/v2/team/app/manifests/1", headers={**ACCEPT, **LOGIN})[0] == 200


def test_tokens_are_asked_for_with_the_right_to_push(things: Path, tmp_path: Path) -> None:
    logins = tmp_path / "auth.json"
    with OciRegistry(login="me:secret") as oci:
        logins.write_text(json.dumps({"auths": {oci.host: {"auth": base64.b64encode(b"me:secret").decode()}}}))
        podkeep(
            "artifact",
            "push",
            f"{oci.host}/team/app:1",
            "conf",
            insecure=oci.host,
            cwd=things,
            environment={"REGISTRY_AUTH_FILE": str(logins)},
        )
        assert set(oci.scopes) == {"repository:team/app:pull,push"}
        assert ("team/app", "1") in oci.manifests


@pytest.mark.parametrize("resumable", [True, False])
def test_a_broken_upload_goes_on(oci: OciRegistry, app: Pushed, model: Blob, resumable: bool) -> None:
    oci.resumable = resumable
    oci.breaks = [900_000, 1_000_000]
    pushing.upload(app, model, lambda *_: None)
    assert len(oci.blobs[model.digest]) == model.size
    assert oci.received == [1_000_000, 900_000, 4_100_000 if resumable else 6_000_000, 0]


@pytest.mark.parametrize(
    "location", ["{path}", "{path}?state=a%2Fb&x=", "http://{host}{path}?y#fragment", "{id}", "../uploads/{id}?z"]
)
def test_an_upload_goes_where_the_registry_says(oci: OciRegistry, app: Pushed, model: Blob, location: str) -> None:
    oci.location = location
    oci.breaks = [900_000]
    pushing.upload(app, model, lambda *_: None)
    assert len(oci.blobs[model.digest]) == model.size
    assert oci.received == [900_000, 5_100_000, 0]


@pytest.mark.parametrize("location", ["http://[::1/", "ftp://{host}{path}", "http://169.254.169.254{path}", ""])
def test_places_for_uploads_that_are_refused(oci: OciRegistry, app: Pushed, model: Blob, location: str) -> None:
    oci.location = location
    with pytest.raises(FailedPrecondition, match=r"no URL|is not an http or https URL|is refused|does not say where"):
        pushing.upload(app, model, lambda *_: None)
    assert oci.received == []


def test_the_storage_of_a_registry_sees_no_credentials(model: Blob) -> None:
    with OciRegistry(login="me:secret") as oci, OciRegistry() as storage:
        oci.storage, oci.location = storage, "http://{host}{path}"
        storage.blobs = oci.blobs
        endpoint = endpoints.for_worker(
            parse(f"{oci.host}/app"), {oci.host: RegistryConfig(insecure=True)}, progress_timeout=20
        )[-1]
        login = RegistryAuth(username="me", password="secret")
        equipped = structs.replace(endpoint, credentials=(login,))
        with closing(Pushed(equipped, "app", actions="pull,push")) as client:
            pushing.upload(client, model, lambda *_: None)
        assert len(oci.blobs[model.digest]) == model.size
        assert any(said.startswith("Bearer ") for said in oci.authorizations)
        assert set(storage.authorizations) == {""}
        assert storage.received == [model.size, 0]


def test_an_upload_to_docker_registry_gets_through_after_a_break(
    registry: Registry, model: Blob, tmp_path: Path
) -> None:
    """It refuses to say how much it got, so the upload begins anew."""
    with BreakingProxy(registry.port, after=[1_500_000]) as proxy:
        with closing(client_of(proxy.host, "push/broken")) as client:
            pushing.upload(client, model, lambda *_: None)
        assert proxy.broken == 1
    digest = model.digest
    assert registry.request("HEAD", f"/v2/push/broken/blobs/{digest}")[1]["Content-Length"] == str(model.size)


def test_an_upload_that_never_gets_through_is_given_up(
    oci: OciRegistry, app: Pushed, model: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "_PAUSE_S", 0.001)
    oci.breaks = [0] * 50
    with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: "):
        pushing.upload(app, model, lambda *_: None)
    assert len(oci.breaks) == 45
    assert oci.blobs == {}


@pytest.mark.parametrize("claims", [range(1, 60), [1, 5_000_000, 1, 5_000_000] * 15])
def test_a_registry_that_only_says_that_bytes_arrive_is_given_up(
    oci: OciRegistry, app: Pushed, model: Blob, monkeypatch: pytest.MonkeyPatch, claims: Sequence[int]
) -> None:
    monkeypatch.setattr(pushing, "_PAUSE_S", 0.001)
    oci.breaks, oci.claims = [0] * 60, list(reversed(claims))
    with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: "):
        pushing.upload(app, model, lambda *_: None)
    assert len(oci.breaks) >= 50
    assert oci.blobs == {}


def test_a_file_that_changes_is_not_published(oci: OciRegistry, app: Pushed, things: Path, model: Blob) -> None:
    artifact = pushing.Artifact(artifact_type="a/b", layers=[model])
    with (things / "model.bin").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(FailedPrecondition, match=r"model\.bin changed while it was being pushed"):
        pushing.push(app, "1", artifact, lambda *_: None)
    assert model.digest not in oci.blobs
    assert oci.manifests == {}


def test_a_registry_that_stores_something_else_is_found_out(oci: OciRegistry, app: Pushed, model: Blob) -> None:
    oci.stored_digest = f"sha256:{'0' * 64}"
    with pytest.raises(FailedPrecondition, match="the registry stored sha256:0000"):
        pushing.upload(app, model, lambda *_: None)


@pytest.mark.requirement("V72")
def test_an_entry_that_somebody_else_overwrites_is_added_again(things: Path) -> None:
    with OciRegistry(referrers=False) as oci:
        subject = oci.put("app", "1", {"mediaType": OCI_MANIFEST, "config": {}, "layers": []})
        other = {"mediaType": "a/b", "digest": f"sha256:{'0' * 64}", "size": 1, "artifactType": SPDX}
        oci.rivals = [{"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [other]}]
        arguments = ["conf/app.yaml", "--artifact-type", SPDX, "--subject", f"{oci.host}/app:1"]
        pushed, _ = podkeep("artifact", "push", f"{oci.host}/app", *arguments, insecure=oci.host, cwd=things)
        index = json.loads(oci.manifests["app", subject.replace(":", "-")][1])
        assert [entry["digest"] for entry in index["manifests"]] == [other["digest"], pushed.strip().partition("@")[2]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["conf", "conf/"], "would both be 'conf'"),
        (["none"], "there is no such file or directory"),
        (["conf", "--artifact-type", "model"], "'model' is not a media type"),
        (["conf", "--annotation", "x"], "'x' is not KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    oci: OciRegistry, things: Path, arguments: list[str], why: str
) -> None:
    _, err = podkeep("artifact", "push", f"{oci.host}/a:1", *arguments, insecure=oci.host, cwd=things, status=1)
    assert why in err
    assert oci.requests == []


def test_a_manifest_that_nobody_could_pull_is_not_pushed(oci: OciRegistry, app: Pushed, model: Blob) -> None:
    artifact = pushing.Artifact(artifact_type="a/b", layers=[model], annotations={"note": "x" * (4 << 20)})
    with pytest.raises(InvalidArgument, match="more than the 4194304 allowed"):
        pushing.push(app, "1", artifact, lambda *_: None)
    assert oci.requests == []


def test_only_a_tag_can_be_pushed_to(things: Path) -> None:
    for name in (f"x.example/a@sha256:{'0' * 64}", "x.example/a?artifactType=b/c"):
        assert "names something that exists" in podkeep("artifact", "push", name, "conf", cwd=things, status=1)[1]


def test_a_large_file_takes_little_memory(tmp_path: Path, registry: Registry) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(400 << 20)
    push = ["artifact", "push", f"{registry.host}/push/large:1", "large.bin"]
    command = [sys.executable, "-m", "podkeep", "--set", f'registries."{registry.host}".insecure=true', *push]
    # A process has at least the peak of who forked it: that of the tests would count, were there none between.
    between = [sys.executable, "-S", str(PEAK_MEMORY), *command]
    done = subprocess.run(between, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 200 << 10
