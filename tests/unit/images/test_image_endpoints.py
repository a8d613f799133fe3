"""Which servers are asked, in which order, and how."""

from __future__ import annotations

import pytest

from podkeep.base.config import RegistryConfig
from podkeep.base.errors import InvalidArgument, PermissionDenied
from podkeep.base.registries.reference import parse
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.registry.endpoint import Tls
from podkeep.images.registry.endpoints import check, check_allowed, endpoints_of, for_worker, meant_for


def test_a_registry_nobody_configured_is_asked_over_tls_only() -> None:
    (own,) = endpoints_of(parse("busybox"), {})
    assert (own.host, own.schemes, own.tls.verify, own.own) == ("registry-1.docker.io", ("https",), True, True)


def test_mirrors_have_their_own_settings_and_no_credentials() -> None:
    registries = {
        "docker.io": RegistryConfig(mirrors=("cache.example:5000", "http://other.example/a/b/", "third.example/c")),
        "cache.example:5000": RegistryConfig(insecure=True),
        "third.example": RegistryConfig(ca_file="/ca.pem"),
    }
    first, second, third, own = endpoints_of(parse("busybox"), registries)
    assert (first.host, first.schemes, first.tls.verify) == ("cache.example:5000", ("https", "http"), False)
    assert (second.host, second.prefix, second.schemes) == ("other.example", "a/b", ("http",))
    assert (third.host, third.prefix, third.tls.ca_file) == ("third.example", "c", "/ca.pem")
    assert [endpoint.own for endpoint in (first, second, third, own)] == [False, False, False, True]


@pytest.mark.parametrize(
    "mirror", ["ftp://x", "", "https://", "https://user:secret@x", "me:secret@x", "https://x/y?a=b", "x/y#z"]
)
def test_a_wrong_mirror_is_named(mirror: str) -> None:
    with pytest.raises(InvalidArgument, match=r'registries\."docker\.io"\.mirrors: ') as refused:
        endpoints_of(parse("busybox"), {"docker.io": RegistryConfig(mirrors=(mirror,))})
    assert "secret" not in str(refused.value)


@pytest.mark.requirement("V18")
@pytest.mark.parametrize(
    ("pattern", "image", "allowed"),
    [
        ("registry.example", "registry.example/app", True),
        ("Registry.Example", "registry.example/app", True),
        ("registry.example", "registry.example:5000/app", False),
        ("registry.example:5000", "registry.example:5000/app", True),
        ("registry.example", "registry.example.evil/app", False),
        ("registry.example", "evil.registry.example/app", False),
        ("*.example.com", "a.example.com/app", True),
        ("*.example.com", "a.b.example.com/app", False),
        ("*.example.com", "example.com/app", False),
        ("registry.example/team", "registry.example/team/app", True),
        ("registry.example/team/", "registry.example/team/app", True),
        ("registry.example/team", "registry.example/team", True),
        ("registry.example/team", "registry.example/teammate/app", False),
        ("registry.example/team", "registry.example/other/team", False),
        ("docker.io/library", "busybox", True),
        ("docker.io/library", "evil/busybox", False),
        ("docker.io", "busybox", True),
        ("localhost:5000", "localhost:5000/app", True),
        ("[::1]:5000", "[::1]:5000/app", True),
    ],
)
def test_which_images_are_allowed(pattern: str, image: str, allowed: bool) -> None:
    check({}, [pattern])
    if allowed:
        check_allowed(parse(image), ("other.example", pattern))
    else:
        with pytest.raises(PermissionDenied, match="may not be pulled to this node"):
            check_allowed(parse(image), ("other.example", pattern))
    check_allowed(parse(image), ())


@pytest.mark.parametrize("pattern", ["", "https://r.example", "r.example//x", "r .example", "/team"])
def test_patterns_that_nothing_matches_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match=r"images\.allowed_registries: "):
        check({}, [pattern])


def test_a_key_needs_its_certificate() -> None:
    with pytest.raises(InvalidArgument, match="key_file without cert_file"):
        check({"r.example": RegistryConfig(key_file="/key.pem")})


@pytest.mark.parametrize(
    ("address", "image", "meant"),
    [
        ("", "r.example/app", True),
        ("r.example", "r.example/app", True),
        ("https://R.example/v2/", "r.example/app", True),
        ("other.example", "r.example/app", False),
        ("r.example:5000", "r.example/app", False),
        ("https://index.docker.io/v1/", "busybox", True),
        ("docker.io", "busybox", True),
        ("https://index.docker.io/v1/", "r.example/app", False),
    ],
)
def test_for_whom_credentials_are_meant(address: str, image: str, meant: bool) -> None:
    auth = RegistryAuth(username="u", password="p", server_address=address)
    assert meant_for(auth, parse(image)) == (auth if meant else None)


def test_credentials_for_what_is_no_address_are_refused_without_a_word_of_it() -> None:
    auth = RegistryAuth(username="u", password="p", server_address="http://u:hunter2@[r.example")
    with pytest.raises(InvalidArgument, match="server_address") as caught:
        meant_for(auth, parse("busybox"))
    assert "hunter2" not in str(caught.value)


def test_the_worker_learns_how_to_speak_to_what_a_registry_refers_to() -> None:
    registries = {
        "docker.io": RegistryConfig(ca_file="/ca.pem"),
        "auth.example": RegistryConfig(cert_file="/cert.pem", insecure=True),
    }
    (own,) = for_worker(parse("busybox"), registries, progress_timeout=5)
    assert own.progress_timeout == 5
    assert own.configured is True
    assert own.other_tls == {
        "registry-1.docker.io": Tls(ca_file="/ca.pem"),
        "auth.example": Tls(verify=False, cert_file="/cert.pem"),
    }


def test_credentials_of_a_request_are_for_the_registry_alone() -> None:
    registries = {"docker.io": RegistryConfig(mirrors=("cache.example",))}
    auth = RegistryAuth(username="u", password="hunter2", server_address="docker.io")
    mirror, own = for_worker(parse("busybox"), registries, progress_timeout=5, auth=auth)
    assert (mirror.credentials, own.credentials) == ((), (RegistryAuth(username="u", password="hunter2"),))
    assert "hunter2" not in repr(own)
    (own,) = for_worker(parse("busybox"), {}, progress_timeout=5, auth=RegistryAuth(server_address="docker.io"))
    assert own.credentials == ()
