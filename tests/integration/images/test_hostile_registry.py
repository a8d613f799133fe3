"""Registries that lie, break off or fail: what the caller is told, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import OpenStore, layers_bytes, leftovers

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PodkeepError,
    RegistryUnavailable,
    Unimplemented,
)
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.store.workers import WORKERS_A_REGISTRY
from support.images import Layout, LayoutBuilder, busybox_layout, digest, file, layers_layout, tar
from support.registry import Answer, Decide, HostileRegistry, free_port


def _pull(open_store: OpenStore, registry: HostileRegistry, name: str = "app:v1") -> PodkeepError:
    """Pull, which must fail, and return the error."""
    store = open_store(registry.host)
    with pytest.raises(PodkeepError) as failure:
        asyncio.run(store.pull(f"{registry.host}/{name}"))
    assert store.images() == []
    assert layers_bytes(store) == 0
    return failure.value


def _lie(layout: Layout, about: str, body: bytes) -> HostileRegistry:
    """Serve ``body`` in place of the blob or manifest whose path ends with ``about``."""
    return HostileRegistry(layout, lambda path, _headers: Answer(body=body) if path.endswith(about) else None)


def _both(error: PodkeepError, expected: str, found: bytes) -> bool:
    return isinstance(error, FailedPrecondition) and expected in error.message and digest(found) in error.message


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
    assert isinstance(error, FailedPrecondition)
    assert f"more than the {len(busybox.blob(layer))} bytes its manifest says" in error.message


def test_less_than_the_manifest_says(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    with _lie(busybox, layer, short := busybox.blob(layer)[:5000]) as registry:
        error = _pull(open_store, registry)
    assert _both(error, layer, short), error
    assert f"(5000 of {len(busybox.blob(layer))} bytes)" in error.message


def _cut(layout: Layout, at: int, **how: Any) -> Decide:
    """Serve the first layer, whole or in the part that is asked for, and break off after ``at`` bytes."""
    layer = layout.layer_digests[0]

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=layout.blob(layer), cut=at, **how) if path.endswith(layer) else None

    return decide


def _ranges(registry: HostileRegistry, layout: Layout) -> list[str]:
    layer = layout.layer_digests[0]
    return [headers.get("Range", "") for path, headers in registry.requests if path.endswith(layer)]


def test_a_broken_transfer_goes_on_where_it_was(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, _cut(busybox, 500_000)) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
        assert _ranges(registry, busybox) == ["", "bytes=500000-", "bytes=1000000-"]


def test_a_layer_that_goes_on_after_its_connection_broke_is_logged(
    busybox: Layout, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "podkeep.images.store.fetching")
    layer = busybox.layer_digests[0]
    cuts = iter([500_000, None])

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=busybox.blob(layer), cut=next(cuts), part=False) if path.endswith(layer) else None

    with HostileRegistry(busybox, decide) as registry:
        name = f"{registry.host}/app:v1"
        assert asyncio.run(open_store(registry.host).pull(name)).id == busybox.image_id
    size = len(busybox.blob(layer))
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == f"the connection broke, a layer goes on after 500000 of {size} bytes: {layer}: image={name}"


def test_a_registry_that_ignores_ranges_is_read_from_the_start(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    cuts = iter([300_000, None])

    def flaky(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=busybox.blob(layer), cut=next(cuts), part=False) if path.endswith(layer) else None

    with HostileRegistry(busybox, flaky) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
        assert _ranges(registry, busybox) == ["", "bytes=300000-"]


@pytest.mark.parametrize(
    ("status", "content_range"),
    [
        (206, ""),
        (206, "bytes rubbish"),
        (206, "bytes 400000-1/*"),
        (206, "bytes 400000-1099212/*"),
        (416, "bytes */1099213"),
    ],
)
def test_a_part_that_was_not_asked_for_is_not_taken(
    status: int, content_range: str, busybox: Layout, open_store: OpenStore
) -> None:
    layer = busybox.layer_digests[0]

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if not path.endswith(layer):
            return None
        if "Range" in headers:
            return Answer(status=status, body=b"x" * 1000, headers={"Content-Range": content_range})
        return Answer(body=busybox.blob(layer), cut=300_000 if not asked else None)

    with HostileRegistry(busybox, lambda path, headers: decide(path, headers)) as registry:
        asked = _Seen(registry, layer)
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
        assert _ranges(registry, busybox) == ["", "bytes=300000-", ""]


class _Seen:
    """True once a blob was asked for twice."""

    def __init__(self, registry: HostileRegistry, layer: str) -> None:
        self._registry, self._layer = registry, layer

    def __bool__(self) -> bool:
        return len([path for path, _ in self._registry.requests if path.endswith(self._layer)]) > 1


def test_a_part_that_begins_earlier_is_cut_to_measure(busybox: Layout, open_store: OpenStore) -> None:
    layer, size = busybox.layer_digests[0], len(busybox.blob(busybox.layer_digests[0]))

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if not path.endswith(layer):
            return None
        if "Range" in headers:
            body = busybox.blob(layer)[1000:]
            return Answer(status=206, body=body, headers={"Content-Range": f"bytes 1000-{size - 1}/{size}"})
        return Answer(body=busybox.blob(layer), cut=300_000)

    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id


def test_a_part_of_a_blob_of_another_size_is_refused(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if not path.endswith(layer):
            return None
        if "Range" in headers:
            return Answer(status=206, body=b"x", headers={"Content-Range": "bytes 300000-300000/300001"})
        return Answer(body=busybox.blob(layer), cut=300_000)

    with HostileRegistry(busybox, decide) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, FailedPrecondition)
    assert "has 300001 bytes there, and its manifest says" in error.message


def test_a_transfer_that_always_breaks_is_given_up(busybox: Layout, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]

    def broken(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=busybox.blob(layer), cut=300_000, part=False) if path.endswith(layer) else None

    with HostileRegistry(busybox, broken) as registry:
        error = _pull(open_store, registry)
        assert len([path for path, _ in registry.requests if path.endswith(layer)]) == 4
    assert isinstance(error, RegistryUnavailable)
    assert re.match(rf"RegistryUnavailable: .*{layer} broke off after \d+ of {len(busybox.blob(layer))}", error.message)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (404, NotFound, "app:v1: not found: TESTED: said so"),
        (403, PermissionDenied, r"app:v1: the registry refuses access \(403\): TESTED: said so"),
        (400, FailedPrecondition, "app:v1: the registry answered 400: TESTED: said so"),
        (500, RegistryUnavailable, "^RegistryUnavailable: .* answered 500 for .*app:v1: TESTED: said so"),
        (429, RegistryUnavailable, "^RegistryUnavailable: .* answered 429"),
    ],
)
@pytest.mark.parametrize("where", ["manifests", "blobs"])
def test_error_answers(
    where: str, status: int, kind: type[PodkeepError], text: str, busybox: Layout, open_store: OpenStore
) -> None:
    said = b'{"errors":[{"code":"TESTED","message":"said so"}]}'
    answer = Answer(status=status, body=said, headers={"Retry-After": "0"})
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
        (
            b'{"config":{"mediaType":"text/x","size":1,"digest":"sha256:' + b"0" * 64 + b'"}}',
            FailedPrecondition,
            "more than the 1 bytes",
        ),
        (b'{"config":{"size":1,"digest":"md5:1"}}', InvalidArgument, r"config\.digest: 'md5:1' is not a digest"),
        (b'{"config":{"size":-1}}', InvalidArgument, r"config\.size is not a number of bytes"),
        (b'{"manifests":{}}', InvalidArgument, "manifests is not a list"),
        (b'{"manifests":[]}', NotFound, "there is nothing"),
        (b" " * (5 << 20), FailedPrecondition, "more than the 4194304 bytes allowed"),
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
    assert isinstance(error, RegistryUnavailable)
    assert "more than 5 redirects" in error.message


def test_a_mirror_that_lies_is_passed_over(busybox: Layout, root: Path, open_store: OpenStore) -> None:
    layer = busybox.layer_digests[0]
    with _lie(busybox, layer, b"lie" * 1000) as mirror, HostileRegistry(busybox) as origin:
        config = RegistryConfig(insecure=True, mirrors=(f"http://{mirror.host}",))
        store = open_store(registries={origin.host: config})
        assert asyncio.run(store.pull(f"{origin.host}/app:v1")).id == busybox.image_id
        assert [path for path, _ in origin.requests] == [f"/v2/app/blobs/{layer}"]
        assert any(layer in path for path, _ in mirror.requests)
    assert leftovers(root) == []


@pytest.mark.parametrize("page", [b"<html>Log in to the network</html>", b"[]", b"{}\xff"])
def test_a_mirror_that_answers_rubbish_is_passed_over(page: bytes, busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(None, lambda _path, _headers: Answer(body=page)) as mirror, HostileRegistry(busybox) as origin:
        config = RegistryConfig(insecure=True, mirrors=(f"http://{mirror.host}",))
        store = open_store(registries={origin.host: config})
        assert asyncio.run(store.pull(f"{origin.host}/app:v1")).id == busybox.image_id
        assert mirror.requests


def test_five_pulls_of_one_name_are_one(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as registry:
        store = open_store(registry.host)

        async def pull_five() -> list[object]:
            return list(await asyncio.gather(*(store.pull(f"{registry.host}/app:v1") for _ in range(5))))

        images = asyncio.run(pull_five())
        assert len(set(map(id, images))) == 1
        assert len([path for path, _ in registry.requests if "/manifests/" in path]) == 1
        assert len([path for path, _ in registry.requests if busybox.layer_digests[0] in path]) == 1


def test_a_registry_that_is_slow_has_a_share_of_the_workers(busybox: Layout, open_store: OpenStore) -> None:
    """Each pull has a process: a registry that makes them last would have as many as somebody asks for."""
    gate = threading.Event()

    def wait_at_manifests(path: str, headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=b"{}", gate=gate) if "/manifests/" in path else None

    with HostileRegistry(busybox, wait_at_manifests) as slow, HostileRegistry(busybox) as other:
        store = open_store(slow.host, other.host)

        def asked() -> set[str]:
            return {path for path, _ in slow.requests}

        async def pull() -> None:
            names = [f"{slow.host}/app{number}:v1" for number in range(WORKERS_A_REGISTRY + 4)]
            pulls = [asyncio.ensure_future(store.pull(name)) for name in names]
            while len(asked()) < WORKERS_A_REGISTRY:
                await asyncio.wait(pulls, timeout=0.01)
            assert (await store.pull(f"{other.host}/app:v1")).id == busybox.image_id
            assert len(asked()) == WORKERS_A_REGISTRY
            gate.set()
            failed = await asyncio.gather(*pulls, return_exceptions=True)
            assert all(isinstance(error, PodkeepError) for error in failed)
            assert len(asked()) == len(names)

        asyncio.run(pull())


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("file:///etc/shadow", "'file:///etc/shadow' is not an http or https URL"),
        ("ftp://127.0.0.1/x", "is not an http or https URL"),
        ("data:application/json,{}", "is not an http or https URL"),
        ("http://169.254.169.254/latest/meta-data", "a link-local address or that of a metadata service"),
        ("http://0xa9fea9fe/latest", "169.254.169.254:80 is a link-local address"),
        ("http://2852039166/latest", "169.254.169.254:80 is a link-local address"),
        ("http://[::ffff:169.254.169.254]/latest", "link-local address"),
        ("http://[fe80::1]/latest", "link-local address"),
        ("http://[fd00:ec2::254]/latest", "metadata service"),
        ("http://100.100.100.200/latest", "metadata service"),
        ("http://me:secret@127.0.0.1/x", "has credentials in it"),
        ("http://[::1/x", "refused"),
    ],
)
@pytest.mark.parametrize("where", ["manifests", "blobs"])
def test_redirects_that_are_refused(
    where: str, location: str, text: str, busybox: Layout, open_store: OpenStore
) -> None:
    away = Answer(status=307, headers={"Location": location})
    with HostileRegistry(busybox, lambda path, _headers: away if f"/{where}/" in path else None) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, FailedPrecondition), error
    assert text in error.message
    assert "secret" not in str(error)


@pytest.mark.parametrize("place", ["manifest", "configuration", "layer"])
@pytest.mark.parametrize("how", ["silent", "stalls", "drips"])
def test_a_registry_that_stalls_is_given_up(how: str, place: str, busybox: Layout, open_store: OpenStore) -> None:
    target = {
        "manifest": "/manifests/v1",
        "configuration": busybox.image_id,
        "layer": busybox.layer_digests[0],
    }[place]
    digest_of = {"manifest": busybox.manifest_digest}.get(place, target)
    body, gate = busybox.blob(digest_of), threading.Event()
    answers = {
        "silent": Answer(body=body, gate=gate, cut=0, declared=len(body)),
        "stalls": Answer(body=body, gate=gate, cut=len(body) // 2, part=False),
        "drips": Answer(body=body, drip=0.05),
    }

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return answers[how] if path.endswith(target) else None

    start = time.monotonic()
    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host, progress_timeout=0.3)
        with pytest.raises(
            RegistryUnavailable, match=r"^RegistryUnavailable: .*it sent (nothing|\d+ bytes) in 0\.3 s"
        ) as failure:
            asyncio.run(store.pull(f"{registry.host}/app:v1"))
        gate.set()
    assert "images.progress_timeout" in failure.value.hint
    assert time.monotonic() - start < 20
    assert store.images() == []


def test_a_registry_that_takes_a_connection_and_says_nothing(open_store: OpenStore) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        registries = {host: RegistryConfig(insecure=True, mirrors=(f"http://{host}",))}
        store = open_store(registries=registries, progress_timeout=0.3)
        with pytest.raises(RegistryUnavailable, match="no handshake within") as failure:
            asyncio.run(store.pull(f"{host}/app:v1"))
    assert "it sent nothing in 0.3 s" in failure.value.message


def _times(*answers: Answer | None) -> Callable[[str], Answer | None]:
    left = list(answers)
    return lambda _path: left.pop(0) if left else None


def test_a_registry_that_is_busy_is_asked_again(
    busybox: Layout, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "podkeep.images.store.fetching")
    turn = _times(
        Answer(status=429, headers={"Retry-After": "1"}), Answer(status=503, headers={"Retry-After": "0"}), None
    )
    start = time.monotonic()
    with HostileRegistry(busybox, lambda path, _: turn(path) if "/manifests/" in path else None) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
        assert len([path for path, _ in registry.requests if "/manifests/" in path]) == 3
    assert time.monotonic() - start >= 1
    first, second = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(
        rf"the answer to {registry.host}/app:v1 was 429, asked again in 1\.\d s: image={registry.host}/app:v1", first
    )
    assert "was 503" in second


def test_a_registry_cannot_fill_the_log_by_being_busy(
    tmp_path: Path, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "podkeep.images.store.fetching")
    layout = layers_layout(tmp_path / "layout", [[file(f"f{number}")] for number in range(12)])
    seen: Counter[str] = Counter()

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        seen[path] += 1
        return Answer(status=503, headers={"Retry-After": "0"}) if seen[path] <= 3 else None

    with HostileRegistry(layout, decide) as registry:
        assert asyncio.run(open_store(registry.host).pull(f"{registry.host}/app:v1")).id == layout.image_id
    assert len(caplog.records) == 20
    assert "no more of this pull is logged" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("later", ["86400", "Fri, 31 Dec 9999 23:59:59 GMT", "-1", "999999999999999999"])
def test_a_registry_cannot_make_us_wait_for_ever(later: str, busybox: Layout, open_store: OpenStore) -> None:
    start = time.monotonic()
    answer = Answer(status=429, headers={"Retry-After": later})
    with HostileRegistry(busybox, lambda _path, _headers: answer) as registry:
        error = _pull(open_store, registry)
        assert len(registry.requests) <= 4
    assert isinstance(error, RegistryUnavailable)
    assert error.hint == f"it asks to try again after {later}"
    assert time.monotonic() - start < 10


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)


@pytest.mark.parametrize(
    "form",
    [
        lambda data: b"HTTP/1.0 200 OK\r\n\r\n" + data,
        lambda data: b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + data,
        lambda data: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunked(data),
        lambda data: b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + data,
    ],
    ids=["HTTP/1.0 without a length", "until the end", "chunked", "interim"],
)
def test_every_framing_of_http_is_understood(
    form: Callable[[bytes], bytes], busybox: Layout, open_store: OpenStore
) -> None:
    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        target = busybox.manifest_digest if "/manifests/" in path else path.rpartition("/")[2]
        return Answer(raw=form(busybox.blob(target)))

    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "does not speak HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1_000_000, "more than 32768 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: x\r\n" * 100_000, "more than 32768 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, "too many 1xx informational responses"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "illegal chunk header"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n{}", "in the middle of|early"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: x\r\n" * 100_000,
            "of more than 32768 bytes",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: br, chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
    ],
)
@pytest.mark.parametrize("where", ["manifests", "blobs"])
def test_answers_that_are_no_http(where: str, raw: bytes, text: str, busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox, lambda path, _: Answer(raw=raw) if f"/{where}/" in path else None) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, RegistryUnavailable), error
    assert re.search(text, error.message), error.message
    assert len(error.message) < 1000


def test_a_manifest_that_was_compressed_for_the_way_is_read(busybox: Layout, open_store: OpenStore) -> None:
    data = busybox.blob(busybox.manifest_digest)
    kind = json.loads(data)["mediaType"]

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
        return Answer(body=gzip.compress(data), headers=headers) if "/manifests/" in path else None

    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app@{busybox.manifest_digest}")).id == busybox.image_id


@pytest.mark.parametrize(
    ("body", "coding", "kind", "text"),
    [
        (gzip.compress(b" " * (64 << 20)), "gzip", FailedPrecondition, "more than the 4194304 bytes allowed"),
        (gzip.compress(b"{}")[:-4], "gzip", FailedPrecondition, "ends too early"),
        (b"{}", "gzip", FailedPrecondition, "is damaged"),
        (b"{}", "br", FailedPrecondition, "Content-Encoding 'br'"),
    ],
    ids=["bomb", "cut", "plain", "unknown"],
)
def test_content_encodings_that_are_refused(
    body: bytes, coding: str, kind: type[PodkeepError], text: str, open_store: OpenStore
) -> None:
    answer = Answer(body=body, headers={"Content-Encoding": coding})
    with HostileRegistry(None, lambda _path, _headers: answer) as registry:
        error = _pull(open_store, registry)
    assert type(error) is kind
    assert text in error.message


def test_a_manifest_with_ten_thousand_layers(busybox: Layout, open_store: OpenStore) -> None:
    manifest = json.loads(busybox.blob(busybox.manifest_digest))
    manifest["layers"] *= 10_000
    with _lie(busybox, "/manifests/v1", json.dumps(manifest).encode()) as registry:
        error = _pull(open_store, registry)
        assert not any("/blobs/" in path for path, _ in registry.requests)
    assert isinstance(error, InvalidArgument)
    assert "10000 layers, more than" in error.message


INDEX = "application/vnd.oci.image.index.v1+json"


def test_what_comes_behind_an_answer_is_not_taken_for_the_next_one(
    busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore
) -> None:
    """With TLS it has left the socket with the answer, and is not to be seen there."""

    def decide(path: str, _: Mapping[str, str]) -> Answer | None:
        if "/manifests/" not in path:
            return None
        data = busybox.blob(busybox.manifest_digest)
        headers = {"Content-Type": json.loads(data)["mediaType"]}
        return Answer(body=data + b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", declared=len(data), headers=headers)

    with HostileRegistry(busybox, decide, tls=(*certificate, None)) as registry:
        store = open_store(registries={registry.host: RegistryConfig(ca_file=str(certificate[0]))})
        asyncio.run(store.pull(f"{registry.host}/app:v1"))


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({}, INDEX, f"it came as {INDEX}, and calls itself application/vnd.oci.image.manifest"),
        ({"mediaType": INDEX}, "application/vnd.oci.image.manifest.v1+json", f"and calls itself {INDEX}"),
        ({"manifests": [{}]}, "", "is a manifest and an index at the same time"),
    ],
)
def test_a_document_that_can_be_read_in_two_ways(
    change: dict[str, Any], kind: str, text: str, busybox: Layout, open_store: OpenStore
) -> None:
    data = json.dumps(json.loads(busybox.blob(busybox.manifest_digest)) | change).encode()
    answer = Answer(body=data, headers={"Content-Type": kind})
    with HostileRegistry(busybox, lambda path, _: answer if "/manifests/" in path else None) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, InvalidArgument)
    assert text in error.message


def test_a_manifest_of_a_type_that_only_the_registry_knows(busybox: Layout, open_store: OpenStore) -> None:
    for kind in ("", "text/html; charset=utf-8", "application/json", "application/octet-stream"):
        answer = Answer(body=busybox.blob(busybox.manifest_digest), headers={"Content-Type": kind})
        with HostileRegistry(busybox, _answering("/manifests/", answer)) as registry:
            store = open_store(registry.host)
            assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
            store.close()


def test_an_index_that_leads_to_itself_ends(busybox: Layout, open_store: OpenStore) -> None:
    inner = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{}]}).encode()
    entry = {"mediaType": INDEX, "digest": digest(inner), "size": len(inner)}
    outer = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        return Answer(body=inner if digest(inner) in path else outer, headers={"Content-Type": INDEX})

    with HostileRegistry(busybox, decide) as registry:
        error = _pull(open_store, registry)
    assert isinstance(error, InvalidArgument)
    assert "is an index in an index" in error.message


def test_sha512_is_as_good(busybox: Layout, open_store: OpenStore) -> None:
    manifest = json.loads(busybox.blob(busybox.manifest_digest))
    layer = busybox.blob(busybox.layer_digests[0])
    manifest["layers"][0]["digest"] = f"sha512:{hashlib.sha512(layer).hexdigest()}"
    data = json.dumps(manifest).encode()
    name = f"sha512:{hashlib.sha512(data).hexdigest()}"

    def decide(path: str, _headers: Mapping[str, str]) -> Answer | None:
        if "/manifests/sha512:" in path:
            return Answer(body=data, headers={"Content-Type": manifest["mediaType"]})
        return Answer(body=layer) if "/blobs/sha512:" in path else None

    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host)
        image = asyncio.run(store.pull(f"{registry.host}/app@{name}"))
        assert (image.id, image.repo_digests) == (busybox.image_id, (f"{registry.host}/app@{name}",))
        with pytest.raises(FailedPrecondition):
            asyncio.run(store.pull(f"{registry.host}/app@sha512:{'0' * 128}"))


def test_the_error_names_every_server_that_was_tried(busybox: Layout, open_store: OpenStore) -> None:
    dead = f"127.0.0.1:{free_port()}"
    layer = busybox.layer_digests[0]
    gone = Answer(status=404)
    for where in ("/manifests/", layer):
        decide = _answering(where, gone)
        with HostileRegistry(busybox, decide) as empty, _lie(busybox, layer, b"lie") as lying:
            mirrors = (f"http://{dead}", f"http://{empty.host}")
            registries = {"registry.invalid": RegistryConfig(mirrors=mirrors)}
            if where == layer:
                registries = {lying.host: RegistryConfig(insecure=True, mirrors=mirrors)}
            store = open_store(registries=registries)
            with pytest.raises(PodkeepError) as failure:
                asyncio.run(store.pull(f"{next(iter(registries))}/app:v1"))
            store.close()
        message = failure.value.message
        assert re.search(rf"cannot connect to {dead}: connection refused", message), message
        assert f"{empty.host}/app" in message
        if where == layer:
            assert isinstance(failure.value, FailedPrecondition)
        else:
            assert isinstance(failure.value, RegistryUnavailable)
            assert message.startswith("RegistryUnavailable: registry.invalid: no address for 'registry.invalid'")
            assert "DNS" in failure.value.hint


def _answering(part: str, answer: Answer) -> Decide:
    return lambda path, _headers: answer if part in path else None


def test_what_is_unchanged_costs_one_question(busybox: Layout, open_store: OpenStore) -> None:
    with HostileRegistry(busybox) as registry:
        store = open_store(registry.host)
        for name in (f"{registry.host}/app:v1", f"{registry.host}/app@{busybox.manifest_digest}"):
            image = asyncio.run(store.pull(name))
            registry.requests.clear()
            again = asyncio.run(store.pull(name))
            assert [headers["X-Method"] for _, headers in registry.requests] == ["HEAD"]
            assert again.id == image.id


def test_the_question_whether_an_image_changed_is_asked_again_and_logged(
    busybox: Layout, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "podkeep.images.store.fetching")
    turn = _times(Answer(status=503, headers={"Retry-After": "0"}))
    with HostileRegistry(busybox, lambda path, sent: turn(path) if sent["X-Method"] == "HEAD" else None) as registry:
        store = open_store(registry.host)
        name = f"{registry.host}/app:v1"
        image = asyncio.run(store.pull(name))
        assert caplog.records == []
        assert asyncio.run(store.pull(name)).id == image.id
    (line,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(rf"the answer to {registry.host}/app:v1 was 503, asked again in 0\.\d s: image={name}", line)


def test_what_changed_is_pulled_and_a_registry_without_head_is_read(
    tmp_path: Path, busybox: Layout, open_store: OpenStore
) -> None:
    other = busybox_layout(tmp_path / "other", layers=[[file("new")]])
    serving = [busybox]
    refusals = iter((405, 404, 403, 400))

    def decide(path: str, headers: Mapping[str, str]) -> Answer | None:
        if headers["X-Method"] == "HEAD":
            return Answer(status=next(refusals))
        layout = serving[0]
        if "/manifests/" in path:
            data = layout.blob(layout.manifest_digest)
            return Answer(body=data, headers={"Content-Type": json.loads(data)["mediaType"]})
        return Answer(body=layout.blob(path.rpartition("/")[2]))

    with HostileRegistry(None, decide) as registry:
        store = open_store(registry.host)
        name = f"{registry.host}/app:v1"
        for _ in range(4):
            assert asyncio.run(store.pull(name)).id == busybox.image_id
        serving[0] = other
        assert asyncio.run(store.pull(name)).id == other.image_id


def test_a_registry_that_lies_in_an_answer_to_head_gets_nothing_new_in(busybox: Layout, open_store: OpenStore) -> None:
    lies = iter(["sha256:" + "0" * 64, "rubbish", "", busybox.manifest_digest])

    def decide(_path: str, headers: Mapping[str, str]) -> Answer | None:
        if headers["X-Method"] == "HEAD":
            return Answer(headers={"Docker-Content-Digest": next(lies)})
        return None

    with HostileRegistry(busybox, decide) as registry:
        store = open_store(registry.host)
        name = f"{registry.host}/app:v1"
        assert {asyncio.run(store.pull(name)).id for _ in range(5)} == {busybox.image_id}
