"""Pulling through a proxy that the environment names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conftest import OpenStore

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import FailedPrecondition, RegistryUnavailable
from support.images import Layout
from support.proxy import Proxy
from support.registry import Answer, HostileRegistry, free_port

NAME = "registry.invalid/app:v1"
PLAIN = {"registry.invalid": RegistryConfig(mirrors=("http://registry.invalid",))}


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with an environment that names no proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_tls_goes_through_a_tunnel(
    busybox: Layout, certificate: tuple[Path, Path], open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostileRegistry(busybox, tls=(*certificate, None)) as registry, Proxy(registry.host) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@{proxy.host}")
        store = open_store(registries={"registry.invalid": RegistryConfig(insecure=True)})
        assert asyncio.run(store.pull(NAME)).id == busybox.image_id
        assert proxy.asked
        assert all(text.startswith("CONNECT registry.invalid:443 HTTP/1.1\r\n") for text in proxy.asked)
        assert all("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in text for text in proxy.asked)
        assert not any("Proxy-Authorization" in headers for _, headers in registry.requests)


def test_plain_http_is_forwarded(busybox: Layout, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileRegistry(busybox) as registry, Proxy(registry.host) as proxy:
        monkeypatch.setenv("http_proxy", proxy.host)
        store = open_store(registries=PLAIN)
        assert asyncio.run(store.pull(NAME)).id == busybox.image_id
        assert proxy.asked[0].startswith("GET http://registry.invalid/v2/app/manifests/v1 HTTP/1.1\r\n")
        assert registry.requests[0][1]["Host"] == "registry.invalid"


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest", "http://0xa9fea9fe/", "http://[::1]/x"])
def test_a_proxy_is_not_asked_for_what_is_refused(
    location: str, busybox: Layout, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Answer(status=307, headers={"Location": location})
    with (
        HostileRegistry(busybox, lambda path, _: away if "/blobs/" in path else None) as registry,
        Proxy(registry.host) as proxy,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.host)
        store = open_store(registries=PLAIN)
        with pytest.raises((FailedPrecondition, RegistryUnavailable), match="which is refused"):
            asyncio.run(store.pull(NAME))
        assert not any("169.254" in text or "0xa9" in text or "::1" in text for text in proxy.asked)


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("host", [".example", "a..b", "a" * 70])
def test_a_redirect_to_what_is_no_host_name(
    host: str, proxied: bool, busybox: Layout, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Answer(status=307, headers={"Location": f"https://{host}/x"})
    with (
        HostileRegistry(busybox, lambda path, _: away if "/manifests/" in path else None) as registry,
        Proxy(registry.host) as proxy,
    ):
        if proxied:
            monkeypatch.setenv("HTTPS_PROXY", proxy.host)
        store = open_store(registry.host)
        with pytest.raises(RegistryUnavailable, match=r"not a host name|no address for|TLS: "):
            asyncio.run(store.pull(f"{registry.host}/app:v1"))


def test_what_needs_no_proxy_goes_without(
    busybox: Layout, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostileRegistry(busybox) as registry:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{free_port()}")
        store = open_store(registry.host)
        assert asyncio.run(store.pull(f"{registry.host}/app:v1")).id == busybox.image_id
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{free_port()}")
        monkeypatch.setenv("NO_PROXY", "other.example,.invalid")
        store.close()
        store = open_store(registries={"registry.invalid": RegistryConfig()})
        with pytest.raises(RegistryUnavailable, match=r"no address for 'registry\.invalid'"):
            asyncio.run(store.pull(NAME))


def test_a_proxy_that_is_down_or_refuses_is_named(
    busybox: Layout, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@{dead}")
    store = open_store(registries={"registry.invalid": RegistryConfig()})
    with pytest.raises(
        RegistryUnavailable, match=rf"^RegistryUnavailable: registry\.invalid: proxy {dead}: "
    ) as failure:
        asyncio.run(store.pull(NAME))
    assert "HTTPS_PROXY" in failure.value.hint
    assert "secret" not in str(failure.value)
    with Proxy("127.0.0.1:9", refuse=407) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.host)
        with pytest.raises(RegistryUnavailable, match=r"the proxy refuses to connect \(407\)"):
            asyncio.run(store.pull(NAME))
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:secret@127.0.0.1:1080")
    with pytest.raises(FailedPrecondition, match="HTTPS_PROXY in the environment is not") as refused:
        asyncio.run(store.pull(NAME))
    assert "secret" not in str(refused.value)
