"""Docker's way to keep credentials: reading it, and finding those for an image."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.base.registries.docker_config import Credentials, Keyring, parse

SECRET = "pass:word"
AUTH = base64.b64encode(f"user:{SECRET}".encode()).decode()


def config(**auths: Any) -> bytes:
    return json.dumps({"auths": auths, "HttpHeaders": {"User-Agent": "x"}}).encode()


def user(name: str) -> Credentials:
    return Credentials(username=name, password="p")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": AUTH}, Credentials(username="user", password=SECRET)),
        ({"auth": AUTH.rstrip("=")}, Credentials(username="user", password=SECRET)),
        ({"auth": AUTH, "username": "other"}, Credentials(username="user", password=SECRET)),
        ({"username": "u", "password": "p", "email": "u@example"}, user("u")),
        ({"identitytoken": "t"}, Credentials(identity_token="t")),
        ({"registrytoken": "t"}, Credentials(registry_token="t")),
    ],
)
def test_forms_of_an_entry(entry: dict[str, str], expected: Credentials) -> None:
    assert parse(config(**{"r.example": entry})) == (("r.example", expected),)
    assert parse(json.dumps({"r.example": entry}).encode(), legacy=True) == (("r.example", expected),)


@pytest.mark.parametrize("text", [b"{}", b'{"auths": {}}', b'{"auths": {"r.example": {}}}', b'{"credsStore": "x"}'])
def test_configuration_without_credentials(text: bytes) -> None:
    assert parse(text) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (
            rb'{"auths": {"r.example": {"username": "u", "password": "s\ud800cret"}}}',
            "it has half of a surrogate pair",
        ),
        (rb'{"auths": {"r\udc00.example": {"username": "u"}}}', "it has half of a surrogate pair"),
        (b'{"auths": {"r.example": {"identitytoken": "\xed\xa0\x80"}}}', "it has half of a surrogate pair"),
        (b"[" * 100_000, "its JSON nests too deeply"),
        (b"[]", "expected an object"),
        (b'{"auths": []}', "auths: expected an object"),
        (config(r="x"), "r: expected an object"),
        (config(r={"auth": 5}), "r: auth: expected text"),
        (config(r={"auth": "???"}), "r: auth: must be base64(username:password)"),
        (config(r={"auth": base64.b64encode(SECRET.replace(":", "").encode()).decode()}), "r: auth: must be base64"),
    ],
)
def test_what_is_no_configuration(text: bytes, why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(text)
    assert caught.value.message.startswith(why)


def test_secrets_do_not_show_in_messages() -> None:
    assert SECRET not in repr(parse(config(r={"auth": AUTH})))


@pytest.mark.parametrize(
    ("where", "name", "matches"),
    [
        ("r.example", "r.example/app", True),
        ("https://r.example", "r.example/app", True),
        ("http://r.example/v1/", "r.example/app", True),
        ("https://r.example/v2/", "r.example/app", True),
        ("r.example/", "r.example/app", True),
        ("r.example/team", "r.example/team/app", True),
        ("r.example/v2/team", "r.example/team/app", True),
        ("r.example/team", "r.example/other/app", False),
        ("r.example:5000", "r.example:5000/app", True),
        ("r.example", "r.example:5000/app", False),
        ("r.example:5000", "r.example/app", False),
        ("*.example", "r.example/app", True),
        ("*.example", "a.r.example/app", False),
        ("r?.example", "r1.example/app", True),
        ("r[^2].example", "r1.example/app", True),
        ("r[^1].example", "r1.example/app", False),
        ("[::1]:5000", "[::1]:5000/app", True),
        ("example", "r.example/app", False),
        ("https://index.docker.io/v1/", "docker.io/library/busybox", True),
        ("docker.io", "docker.io/library/busybox", True),
        ("https://index.docker.io/v1/", "quay.io/busybox", False),
    ],
)
def test_which_images_an_entry_is_for(where: str, name: str, matches: bool) -> None:
    assert Keyring([(where, user("u"))]).lookup(name) == ((user("u"),) if matches else ())


@pytest.mark.requirement("V29")
def test_every_match_is_tried_the_longest_first() -> None:
    ring = Keyring(
        [
            ("r.example", user("first")),
            ("r.example/team", user("team")),
            ("https://r.example/v2/", user("second")),
            ("r.example", user("first")),
            ("*.example", user("pattern")),
        ]
    )
    assert [item.username for item in ring.lookup("r.example/team/app")] == ["team", "first", "second", "pattern"]
    assert ring.lookup("other/app") == ()
