"""The proxy that the environment names, as Go's programs read it."""

from __future__ import annotations

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.images.registry.proxies import proxy_for

PROXY = {"HTTPS_PROXY": "http://proxy.example:3128"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        (PROXY, ("proxy.example", 3128)),
        ({"https_proxy": "http://proxy.example:3128"}, ("proxy.example", 3128)),
        ({"HTTPS_PROXY": "proxy.example"}, ("proxy.example", 80)),
        ({"HTTPS_PROXY": "http://[fd00::1]:3128/"}, ("fd00::1", 3128)),
        ({"HTTP_PROXY": "http://proxy.example:3128"}, None),
        ({"HTTPS_PROXY": ""}, None),
    ],
)
def test_which_proxy(environ: dict[str, str], expected: tuple[str, int] | None) -> None:
    proxy = proxy_for("https", "registry.example", 443, environ)
    assert (None if proxy is None else (proxy.host, proxy.port)) == expected


def test_plain_http_has_a_proxy_of_its_own_except_in_a_web_server() -> None:
    environ = {"HTTP_PROXY": "http://proxy.example:3128"}
    assert proxy_for("http", "registry.example", 80, environ) is not None
    assert proxy_for("http", "registry.example", 80, environ | {"REQUEST_METHOD": "GET"}) is None


def test_credentials_of_a_proxy_are_decoded_and_do_not_show() -> None:
    proxy = proxy_for("https", "r.example", 443, {"HTTPS_PROXY": "http://me:s%40cret@proxy.example:1"})
    assert proxy is not None
    assert proxy.authorization == "Basic bWU6c0BjcmV0"
    assert "bWU6" not in repr(proxy)


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "direct"),
    [
        ("*", "r.example", 443, True),
        ("example", "r.example", 443, True),
        ("r.example", "r.example", 443, True),
        ("R.Example", "r.example", 443, True),
        (".example", "r.example", 443, True),
        ("*.example", "r.example", 443, True),
        (".r.example", "r.example", 443, False),
        ("ample", "r.example", 443, False),
        ("other, r.example", "r.example", 443, True),
        ("r.example:443", "r.example", 443, True),
        ("r.example:5000", "r.example", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.0.0.0/99", "10.1.2.3", 443, False),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("10.1.2.3:80", "10.1.2.3", 443, False),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::1]:443", "fd00::1", 443, True),
        ("fd00::1", "fd00::1", 443, True),
        ("", "localhost", 443, True),
        ("", "127.0.0.5", 443, True),
        ("", "::1", 443, True),
        ("", "r.example", 443, False),
    ],
)
def test_who_needs_no_proxy(no_proxy: str, host: str, port: int, direct: bool) -> None:
    assert (proxy_for("https", host, port, PROXY | {"NO_PROXY": no_proxy}) is None) == direct


@pytest.mark.parametrize("text", ["https://p.example", "socks5://p.example:1080", "http://:3128", "http://x:y"])
def test_what_is_no_proxy_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(FailedPrecondition, match="HTTPS_PROXY in the environment") as caught:
        proxy_for("https", "r.example", 443, {"HTTPS_PROXY": text})
    assert text not in str(caught.value)
