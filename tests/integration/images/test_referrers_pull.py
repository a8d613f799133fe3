"""Artifacts that are named by the image they refer to: listing, choosing, pulling, and that it is off by default."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import OpenStore

from podkeep.base.config import ReferrersConfig, RegistryConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, RegistryUnavailable
from podkeep.base.ids import Digest
from podkeep.base.registries.reference import parse
from podkeep.images.formats.image import Image
from podkeep.images.formats.manifest import node_architecture
from podkeep.images.registry import endpoints, referrers
from podkeep.images.registry.registry import Registry as Client
from podkeep.images.store.store import ImageStore
from support.artifacts import Artifact, artifact, file_part
from support.images import OCI_INDEX, OCI_MANIFEST, Layout, LayoutBuilder, file, tar
from support.mounted import content_of
from support.oci_registry import OciRegistry, digest_of
from support.podkeep import podkeep
from support.registry import Answer, HostileRegistry, Registry, free_port

SPDX = "application/spdx+json"
SIGNATURE = "application/vnd.example.signature"
ON = ReferrersConfig(enabled=True)
Attach = Callable[..., str]


@pytest.fixture
def oci() -> Iterator[OciRegistry]:
    """A registry with the API for referrers."""
    with OciRegistry() as running:
        yield running


def store_image(oci: OciRegistry, layout: Layout, repository: str, tag: str) -> str:
    """Store what a layout has in the registry and return the digest of its top document."""
    for path in (layout.path / "blobs/sha256").iterdir():
        data = path.read_bytes()
        oci.blobs[digest_of(data)] = data
        if data.startswith(b"{") and "schemaVersion" in (document := json.loads(data)):
            oci.put(repository, tag if digest_of(data) == layout.manifest_digest else "", document)
    return layout.manifest_digest


def attach(
    oci: OciRegistry,
    repository: str,
    subject: str,
    content: str,
    artifact_type: str = SPDX,
    created: str = "2024-01-01T00:00:00Z",
) -> str:
    """Store an artifact of one file, ``content``, that refers to ``subject``; return its digest."""
    made = referring(subject, content, artifact_type, created)
    oci.blobs.update(made.blobs)
    return oci.put(repository, "", json.loads(made.manifest))


def referring(subject: str, content: str, artifact_type: str, created: str) -> Artifact:
    """Return an artifact that refers to ``subject``."""
    part = file_part("content", content.encode(), "application/octet-stream")
    made = artifact([part], artifact_type=artifact_type)
    document = json.loads(made.manifest) | {
        "subject": {"mediaType": OCI_MANIFEST, "digest": subject, "size": 1},
        "annotations": {"org.opencontainers.image.created": created} if created else {},
    }
    return Artifact(manifest=json.dumps(document).encode(), blobs=made.blobs)


def pull(store: ImageStore, name: str, artifact_type: str = SPDX) -> Image:
    return asyncio.run(store.pull(f"{name}?artifactType={artifact_type}"))


@pytest.mark.requirement("V72", "V73")
def test_the_artifact_of_the_type_is_pulled_and_found_by_that_name(
    oci: OciRegistry, busybox: Layout, open_store: OpenStore, tmp_path: Path
) -> None:
    subject = store_image(oci, busybox, "app", "1")
    sbom = attach(oci, "app", subject, "sbom")
    signature = attach(oci, "app", subject, "signature", SIGNATURE)
    store = open_store(oci.host, referrers=ON)
    image = pull(store, f"{oci.host}/app:1")
    assert (image.id, image.kind, image.artifact_type) == (sbom, "artifact", SPDX)
    assert image.repo_tags == (f"{oci.host}/app:1?artifactType={SPDX}",)
    assert image.repo_digests == (f"{oci.host}/app@{sbom}",)
    assert store.find(f"{oci.host}/app:1?artifactType={SPDX}") == image
    assert store.find(f"{oci.host}/app:1") is None
    assert content_of(store, image, tmp_path / "m") == {"content": b"sbom"}
    assert pull(store, f"{oci.host}/app@{subject}", SIGNATURE).id == signature


@pytest.mark.requirement("V72")
def test_docker_registry_has_the_list_under_a_tag(
    registry: Registry, busybox: Layout, open_store: OpenStore, tmp_path: Path
) -> None:
    image = registry.push(busybox, "referrers/tagged:1")
    repository = image.rpartition(":")[0]
    store = open_store(referrers=ON)
    with pytest.raises(NotFound, match=f"nothing of this type in {repository} refers to {busybox.manifest_digest}"):
        pull(store, image)
    (tmp_path / "content").write_text("sbom")
    podkeep(
        "artifact", "push", repository, "content", "--artifact-type", SPDX, "--subject", image,
        insecure=registry.host, cwd=tmp_path,
    )  # fmt: skip
    assert content_of(store, pull(store, image), tmp_path / "m") == {"content": b"sbom"}


@pytest.mark.requirement("V73")
def test_the_newest_is_pulled_and_again_when_there_is_a_newer_one(
    oci: OciRegistry, busybox: Layout, open_store: OpenStore
) -> None:
    subject = store_image(oci, busybox, "app", "1")
    newest = attach(oci, "app", subject, "new", created="2024-03-01T00:00:00Z")
    attach(oci, "app", subject, "old", created="2024-02-29T23:59:59Z")
    store = open_store(oci.host, referrers=ON)
    assert pull(store, f"{oci.host}/app:1").id == newest
    newer = attach(oci, "app", subject, "newer", created="2024-03-01T00:00:01Z")
    assert pull(store, f"{oci.host}/app:1").id == newer
    found = store.find(f"{oci.host}/app:1?artifactType={SPDX}")
    assert found is not None
    assert found.id == newer
    attach(oci, "app", subject, "unknown", created="")
    with pytest.raises(FailedPrecondition, match="4 artifacts match"):
        pull(store, f"{oci.host}/app:1")


@pytest.mark.requirement("V74")
@pytest.mark.parametrize("refers_to", ["index", "manifest"])
def test_the_subject_may_be_the_index_or_the_manifest(
    oci: OciRegistry, open_store: OpenStore, tmp_path: Path, refers_to: str
) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    own = builder.image([tar([file("x")])])
    other = builder.image([tar([file("y")])], architecture="sparc")
    entries = [
        {**other, "platform": {"os": "linux", "architecture": "sparc"}},
        {**own, "platform": {"os": "linux", "architecture": node_architecture()}},
    ]
    top = store_image(oci, builder.finish(builder.index(entries)), "app", "1")
    attach(oci, "app", other["digest"], "of another platform", created="2030-01-01T00:00:00Z")
    wanted = attach(oci, "app", top if refers_to == "index" else own["digest"], "wanted")
    assert pull(open_store(oci.host, referrers=ON), f"{oci.host}/app:1").id == wanted
    listed = json.loads(podkeep("artifact", "referrers", f"{oci.host}/app:1", "-o", "json", insecure=oci.host)[0])
    assert [item["digest"] for item in listed] == [wanted]


@pytest.mark.requirement("V74")
def test_the_artifact_may_be_in_another_registry(
    oci: OciRegistry, registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    image = registry.push(busybox, "referrers/elsewhere:1")
    repositories = {image.rpartition(":")[0]: f"{oci.host}/attached/app"}
    wanted = attach(oci, "attached/app", busybox.manifest_digest, "sbom")
    store = open_store(oci.host, referrers=ReferrersConfig(enabled=True, repositories=repositories))
    found = pull(store, image)
    assert (found.id, found.repo_digests) == (wanted, (f"{oci.host}/attached/app@{wanted}",))
    assert found.repo_tags == (f"{image}?artifactType={SPDX}",)


@pytest.mark.requirement("V18", "V74")
def test_the_other_registry_must_be_allowed_as_well(
    oci: OciRegistry, registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    image = registry.push(busybox, "referrers/forbidden:1")
    repositories = {image.rpartition(":")[0]: f"{oci.host}/attached/app"}
    config = ReferrersConfig(enabled=True, repositories=repositories)
    store = open_store(oci.host, referrers=config, allowed_registries=(registry.host,))
    with pytest.raises(PermissionDenied, match="attached/app may not be pulled"):
        pull(store, image)
    assert oci.requests == []


@pytest.mark.requirement("V72")
@pytest.mark.parametrize("filters", [True, False])
def test_a_list_of_several_pages_is_read_to_its_end(
    oci: OciRegistry, busybox: Layout, open_store: OpenStore, filters: bool
) -> None:
    oci.page, oci.filters = 2, filters
    subject = store_image(oci, busybox, "app", "1")
    for number in range(5):
        attach(oci, "app", subject, str(number), SIGNATURE, created=f"2025-01-0{number + 1}T00:00:00Z")
    wanted = attach(oci, "app", subject, "sbom")
    assert pull(open_store(oci.host, referrers=ON), f"{oci.host}/app:1").id == wanted
    pages = [line for line in oci.requests if "/referrers/" in line]
    assert len(pages) == (1 if filters else 3)
    assert pages[0].endswith("?artifactType=application%2Fspdx%2Bjson")


def test_a_list_without_end_is_refused(oci: OciRegistry, busybox: Layout, open_store: OpenStore) -> None:
    oci.page = 1
    subject = store_image(oci, busybox, "app", "1")
    for number in range(3):
        attach(oci, "app", subject, str(number))
    oci.circular = True
    with pytest.raises(InvalidArgument, match="the list does not end"):
        pull(open_store(oci.host, referrers=ON), f"{oci.host}/app:1")


def _listing(page: Callable[[int], Answer]) -> list[referrers.Referrer]:
    """Return what is listed by a registry whose answer to the nth request for a page is ``page(n)``."""
    numbers = count()

    with HostileRegistry(None, lambda _path, _headers: page(next(numbers))) as hostile:
        config = {hostile.host: RegistryConfig(insecure=True)}
        (endpoint,) = endpoints.for_worker(parse(f"{hostile.host}/app"), config, progress_timeout=20)
        with closing(Client(endpoint, "app")) as client:
            return referrers.list_referrers(client, Digest(f"sha256:{'0' * 64}"))


def _page(manifests: object, following: str = "") -> Answer:
    body = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}).encode()
    return Answer(body=body, headers={"Content-Type": OCI_INDEX} | ({"Link": following} if following else {}))


def _entry(number: int, **more: Any) -> dict[str, Any]:
    return {"mediaType": OCI_MANIFEST, "digest": f"sha256:{number:064x}", "size": 2, "artifactType": SPDX, **more}


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (lambda _: _page(5), "manifests is not a list"),
        (lambda _: _page({"a": 1}), "manifests is not a list"),
        (lambda _: _page(["x"]), r"manifests\[0\] is missing or not an object"),
        (lambda _: _page([_entry(1, artifactType=5)]), "artifactType is not a string"),
        (lambda _: _page([{}] * 1_000_000), "at most 10000 entries"),
        (lambda n: _page([_entry(n * 5000 + i) for i in range(5000)], f"</{n}>; rel=next"), "the list does not end"),
        (
            lambda n: _page(
                [_entry(n * 15 + i, annotations={"a": "x" * 200_000}) for i in range(15)], f"</{n}>; rel=next"
            ),
            "does not end",
        ),
        (lambda n: _page([], f"</v2/{n}>; rel=next"), "the list does not end"),
        (lambda _: _page([], "<http://[::1/>; rel=next"), "is not where a next page can be"),
        (lambda _: Answer(body=b"[" * 100_000, headers={"Content-Type": OCI_INDEX}), "is not JSON"),
    ],
    ids=["number", "object", "text", "type", "million", "pages", "bytes", "empty pages", "no link", "nested"],
)
def test_lists_that_are_refused(page: Callable[[int], Answer], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        _listing(page)


def test_the_next_page_is_asked_of_the_same_registry() -> None:
    places = ("https://evil.example/a", "//evil.example/b", "http:////evil.example/c")
    links = [f"<{place}>; rel=next" for place in places]
    found = _listing(lambda n: _page([_entry(n)], links[n] if n < len(links) else "<" * 30_000))
    assert [item.digest for item in found] == [f"sha256:{n:064x}" for n in range(4)]


@pytest.mark.parametrize("refers_to", ["", "1" * 64])
def test_what_is_listed_and_refers_to_something_else_is_refused(
    oci: OciRegistry, busybox: Layout, open_store: OpenStore, refers_to: str
) -> None:
    oci.referrers = False
    subject = store_image(oci, busybox, "app", "1")
    made = referring(f"sha256:{refers_to}", "x", SPDX, "")
    document = json.loads(made.manifest)
    if not refers_to:
        del document["subject"]
    digest = oci.put("app", "", document)
    entry = {"mediaType": OCI_MANIFEST, "digest": digest, "size": 2, "artifactType": SPDX}
    oci.put("app", subject.replace(":", "-"), {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})
    itself = f"'sha256:{refers_to}'" if refers_to else "nothing"
    with pytest.raises(FailedPrecondition, match=f"says itself that it refers to {itself}"):
        pull(open_store(oci.host, referrers=ON), f"{oci.host}/app:1")


def test_a_tag_that_is_no_list_is_refused(oci: OciRegistry, busybox: Layout, open_store: OpenStore) -> None:
    oci.referrers = False
    subject = store_image(oci, busybox, "app", "1")
    oci.put("app", subject.replace(":", "-"), {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": {}})
    with pytest.raises(InvalidArgument, match="is no index, although the name is one of a list of referrers"):
        pull(open_store(oci.host, referrers=ON), f"{oci.host}/app:1")


def test_a_referrer_that_is_not_what_the_list_says_is_refused(
    oci: OciRegistry, busybox: Layout, open_store: OpenStore
) -> None:
    oci.referrers = False
    subject = store_image(oci, busybox, "app", "1")
    entry: dict[str, Any] = {"mediaType": OCI_MANIFEST, "digest": f"sha256:{'1' * 64}", "size": 2, "artifactType": SPDX}
    oci.put("app", subject.replace(":", "-"), {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})
    store = open_store(oci.host, referrers=ON)
    with pytest.raises(NotFound):
        pull(store, f"{oci.host}/app:1")
    oci.manifests["app", f"sha256:{'1' * 64}"] = OCI_MANIFEST, b"{}"
    with pytest.raises(Exception, match=f"expected digest sha256:{'1' * 64}"):
        pull(store, f"{oci.host}/app:1")
    assert store.images() == []


@pytest.mark.requirement("V72")
def test_a_mirror_without_the_artifact_does_not_hide_it(
    oci: OciRegistry, registry: Registry, busybox: Layout, open_store: OpenStore
) -> None:
    subject = store_image(oci, busybox, "app", "1")
    wanted = attach(oci, "app", subject, "sbom")
    registry.push(busybox, "app:1")
    dead = f"127.0.0.1:{free_port()}"
    config = RegistryConfig(insecure=True, mirrors=(f"http://{dead}", f"http://{registry.host}"))
    store = open_store(registries={oci.host: config}, referrers=ON)
    assert pull(store, f"{oci.host}/app:1").id == wanted


def test_a_registry_that_is_away_is_named(open_store: OpenStore) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with pytest.raises(RegistryUnavailable, match=rf"^RegistryUnavailable: {dead}"):
        pull(open_store(dead, referrers=ON), f"{dead}/app:1")


@pytest.mark.requirement("V75")
def test_such_names_are_refused_by_default(registry: Registry, busybox: Layout, open_store: OpenStore) -> None:
    image = registry.push(busybox, "referrers/off:1")
    store = open_store()
    for ask in (lambda: pull(store, image), lambda: store.find(f"{image}?artifactType={SPDX}")):
        with pytest.raises(
            FailedPrecondition, match="naming an artifact by the image it refers to is turned off"
        ) as no:
            ask()
        assert "[images.referrers]" in no.value.hint
    with pytest.raises(InvalidArgument, match="is no condition"):
        store.find(f"{image}?type=x")
