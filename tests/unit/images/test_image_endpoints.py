"""Which servers are asked, in which order, and how."""

from __future__ import annotations

import pytest

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import InvalidArgument
from podkeep.images.endpoints import endpoints_of
from podkeep.images.reference import parse


def test_a_registry_nobody_configured_is_asked_over_tls_only() -> None:
    (own,) = endpoints_of(parse("busybox"), {})
    assert (own.host, own.schemes, own.verify, own.own) == ("registry-1.docker.io", ("https",), True, True)


def test_mirrors_have_their_own_settings_and_no_credentials() -> None:
    registries = {
        "docker.io": RegistryConfig(mirrors=("cache.example:5000", "http://other.example/a/b/", "third.example/c")),
        "cache.example:5000": RegistryConfig(insecure=True),
        "third.example": RegistryConfig(ca_file="/ca.pem"),
    }
    first, second, third, own = endpoints_of(parse("busybox"), registries)
    assert (first.host, first.schemes, first.verify) == ("cache.example:5000", ("https", "http"), False)
    assert (second.host, second.prefix, second.schemes) == ("other.example", "a/b", ("http",))
    assert (third.host, third.prefix, third.ca_file) == ("third.example", "c", "/ca.pem")
    assert [endpoint.own for endpoint in (first, second, third, own)] == [False, False, False, True]


@pytest.mark.parametrize("mirror", ["ftp://x", "", "https://", "https://user:secret@x"])
def test_a_wrong_mirror_is_named(mirror: str) -> None:
    with pytest.raises(InvalidArgument, match=r'registries\."docker\.io"\.mirrors: '):
        endpoints_of(parse("busybox"), {"docker.io": RegistryConfig(mirrors=(mirror,))})
