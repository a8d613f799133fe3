"""Registries that lie, break off or fail: what the caller is told, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import OpenStore, leftovers

from podkeep.base.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodkeepError,
    Unavailable,
    Unimplemented,
)
from podkeep.images.image import RegistryAuth
from support.images import Layout, LayoutBuilder, busybox_layout, digest, file, tar
from support.registry import Answer, HostileRegistry


def _pull(open_store: OpenStore, registry: HostileRegistry, name: str = "app:v1") -> PodkeepError:
    """Pull, which must fail, and return the error."""
    store = open_store(registry.host)
    with pytest.raises(PodkeepError) as failure:
        asyncio.run(store.pull(f"{registry.host}/{name}"))
    assert store.images() == []
    assert store.usage().used_bytes == 0
    return failure.value


def _lie(layout: Layout, about: str, body: bytes) -> HostileRegistry:
    """Serve ``body`` in place of the blob or manifest whose path ends with ``about``."""
    return HostileRegistry(layout, lambda path, _headers: Answer(body=body) if path.endswith(about) else None)


def _both(error: PodkeepError, expected: str, found: bytes) -> bool:
    return isinstance(error, DataLoss) and expected in error.message and digest(found) in error.message


def test_a_lie_about_the_manifest(busybox: Layout, open_store: OpenStore) -> None:
    lie = busybox.blob(busybox.manifest_digest) + b" "
    with _lie(busybox, busybox.manifest_digest, lie) as registry:
        error = _pull(open_store, registry, f"app@{busybox.manifest_digest}")
    assert _both(error, busybox.manifest_digest, lie), error


def test_a_lie_about_the_configuration(busybox: Layout, open_store: OpenStore) -> None:
    lie = busybox.blob(busybox.image_id).replace(b"linux", b"xunil")
    with _lie(busybox, busybox.image_id, lie) as registry:
        error = _pull(open_store, registry)
    assert _both(error, busybox.image_id, lie), error


def test_a_lie_about_a_layer(tmp_path: Path, busybox: Layout, open_store: OpenStore) -> None:
    other = busybox_layout(tmp_path / "other", layers=[[file("evil")]])
    lie = other.blob(other.layer_digests[1])
    with _lie(busybox, busybox.layer_digests[0], lie) as registry:
        error = _pull(open_store, registry)
    assert _both(error, busybox.layer_digests[0], lie), error


def test_a_configuration_with_wrong_diff_ids(tmp_path: Path, open_store: OpenStore) -> None:
    builder = LayoutBuilder(tmp_path / "layout")
    plain = tar([file("a", "x")])
    manifest = json.loads((builder.path / "blobs" / builder.image([plain])["digest"].replace(":", "/")).read_bytes())
    config = {"os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(b"something else")]}}
    manifest["config"] = builder.json(config, manifest["config"]["mediaType"])
    layout = builder.finish(builder.json(manifest, manifest["mediaType"]))
    with HostileRegistry(layout) as registry:
        error = _pull(open_store, registry)
    assert _both(error, digest(b"something else"), plain), error


def test_more_than_the_manifest_says(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    with _lie(busybox, layer, busybox.blob(layer) + b"more") as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, DataLoss)
    assert f"more than the {len(busybox.blob(layer))} bytes its manifest says" in error.message


def test_less_than_the_manifest_says(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    with _lie(busybox, layer, short := busybox.blob(layer)[:5000]) as registry:
        error = _pull(open_store, registry)
    assert _both(error, layer, short), error
    assert f"(5000 of {len(busybox.blob(layer))} bytes)" in error.message


def test_a_broken_transfer_goes_on_where_it_was(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    data = busybox.blob(layer)

    def flaky(path: str, headers: Mapping[str, str]) -> Answer | None:
        if not path.endswith(layer):
            return None
        start = int(re.sub(r"\D", "", headers.get("Range", "0")))
        body = data[start:]
        return Answer(status=206 if start else 200, body=body, cut=500_000 if len(body) > 500_000 else None)

    with HostileRegistry(busybox, flaky) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
        asked = [headers.get("Range", "") for path, headers in registry.requests if path.endswith(layer)]
    assert asked[0] == ""
    assert all(re.fullmatch(r"bytes=\d+-", text) for text in asked[1:])
    assert len(asked) == -(-len(data) // 500_000)


def test_a_registry_that_ignores_ranges_is_read_from_the_start(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    cuts = iter([300_000, None])

    def flaky(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=busybox.blob(layer), cut=next(cuts)) if path.endswith(layer) else None

    with HostileRegistry(busybox, flaky) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id


def test_a_transfer_that_always_breaks_is_given_up(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]

    def broken(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=busybox.blob(layer), cut=300_000) if path.endswith(layer) else None

    with HostileRegistry(busybox, broken) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, Unavailable)
    assert re.match(rf"RegistryUnavailable: .*{layer} broke off after \d+ of {len(busybox.blob(layer))}", error.message)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (404, NotFound, "app:v1: not found: TESTED: said so"),
        (403, PermissionDenied, r"app:v1: the registry refuses access \(403\): TESTED: said so"),
        (400, FailedPrecondition, "app:v1: the registry answered 400: TESTED: said so"),
        (500, Unavailable, "^RegistryUnavailable: .* answered 500 for .*app:v1: TESTED: said so"),
        (429, Unavailable, "^RegistryUnavailable: .* answered 429"),
    ],
)
@pytest.mark.parametrize("where", ["manifests", "blobs"])
def test_error_answers(
    where: str, status: int, kind: type[PodkeepError], text: str, busybox: Layout, open_store: OpenStore
) -> None:
    said = b'{"errors":[{"code":"TESTED","message":"said so"}]}'
    answer = Answer(status=status, body=said)
    with HostileRegistry(busybox, lambda path, _headers: answer if f"/{where}/" in path else None) as registry:
        error = _pull(open_store, registry)
    assert type(error) is kind
    assert "said so" in error.message
    if where == "manifests":
        assert re.search(text, error.message), error.message


@pytest.mark.parametrize(
    ("document", "kind", "text"),
    [
        (b"<html>", InvalidArgument, "is not JSON"),
        (b"[" * 100_000, InvalidArgument, "is not JSON"),
        (b"[]", InvalidArgument, "is not a JSON object"),
        (b"{}", InvalidArgument, "config is missing"),
        (b'{"schemaVersion":1}', Unimplemented, "schema 1"),
        (b'{"config":{"mediaType":"text/x","size":1,"digest":"sha256:' + b"0" * 64 + b'"}}', Unimplemented, "artifact"),
        (b'{"config":{"size":1,"digest":"md5:1"}}', InvalidArgument, r"config\.digest: 'md5:1' is not a digest"),
        (b'{"config":{"size":-1}}', InvalidArgument, r"config\.size is not a number of bytes"),
        (b'{"manifests":{}}', InvalidArgument, "manifests is not a list"),
        (b'{"manifests":[]}', NotFound, "there is nothing"),
        (b" " * (5 << 20), DataLoss, "more than the 4194304 bytes allowed"),
    ],
)
def test_documents_that_are_no_manifest(
    document: bytes, kind: type[PodkeepError], text: str, open_store: OpenStore
) -> None:
    with HostileRegistry(None, lambda _path, _headers: Answer(body=document)) as registry:
        error = _pull(open_store, registry)
    assert type(error) is kind
    assert re.search(text, error.message), error.message


def test_a_bearer_token_is_fetched_and_sent(busybox: Layout, open_store: OpenStore) -> None:
    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/token"):
            basic = headers.get("Authorization") == "Basic bWU6c2VjcmV0"
            refresh = "refresh_token=again" in headers.get("X-Body", "")
            return Answer(body=b'{"token":"t0"}') if basic or refresh else Answer(status=401)
        if headers.get("Authorization") in ("Bearer t0", "Bearer mine"):
            return None
        challenge = f'Bearer realm="http://{headers["Host"]}/token",service="s",scope="repository:app:pull"'
        return Answer(status=401, headers={"WWW-Authenticate": challenge})

    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host)
        for auth in (
            RegistryAuth(username="me", password="secret"),
            RegistryAuth(identity_token="again"),
            RegistryAuth(registry_token="mine"),
        ):
            assert asyncio.run(store.pull(f"{registry.host}/app:v1", auth=auth)).id == busybox.image_id
            store.remove(f"{registry.host}/app:v1")
        with pytest.raises(PermissionDenied, match="refuses a token \\(401\\)"):
            asyncio.run(store.pull(f"{registry.host}/app:v1"))
        paths = [path for path, _ in registry.requests if path.startswith("/token?")]
    assert "service=s&scope=repository%3Aapp%3Apull" in paths[0]


def test_redirects_are_followed_without_the_credentials(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as storage:

        def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
            if "Authorization" not in headers:
                return Answer(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
            if "/blobs/" in path:
                return Answer(status=307, headers={"Location": f"http://{storage.host}{path}"})
            return None

        with HostileRegistry(busybox, decide) as registry:
            store = open_store(registry.host)
            auth = RegistryAuth(username="me", password="secret")
            assert asyncio.run(store.pull(f"{registry.host}/app:v1", auth=auth)).id == busybox.image_id
        assert len(storage.requests) == 2
        assert not any("Authorization" in headers for _, headers in storage.requests)


def test_a_redirect_loop_ends(open_store: OpenStore) -> None:
    with HostileRegistry(None, lambda path, _headers: Answer(status=302, headers={"Location": path})) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, Unavailable)
    assert "more than 5 redirects" in error.message


def test_a_mirror_that_lies_is_passed_over(busybox: Layout, root: Path, open_store: OpenStore) -> None:
    from podkeep.base.config import RegistryConfig

    layer = busybox.layer_digests[0]
    with _lie(busybox, layer, b"lie" * 1000) as mirror, HostileRegistry(busybox) as origin:
        config = RegistryConfig(insecure=True, mirrors=(f"http://{mirror.host}",))
        store = open_store(registries={origin.host: config})
        assert asyncio.run(store.pull(f"{origin.host}/app:v1")).id == busybox.image_id
        assert [path for path, _ in origin.requests] == [f"/v2/app/blobs/{layer}"]
        assert any(layer in path for path, _ in mirror.requests)
    assert leftovers(root) == []


def test_five_pulls_of_one_name_are_one(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as registry:
        store = open_store(registry.host)

        async def pull_five() -> list[object]:
            return list(await asyncio.gather(*(store.pull(f"{registry.host}/app:v1") for _ in range(5))))

        images = asyncio.run(pull_five())
        assert len(set(map(id, images))) == 1
        assert len([path for path, _ in registry.requests if "/manifests/" in path]) == 1
        assert len([path for path, _ in registry.requests if busybox.layer_digests[0] in path]) == 1
