"""What registries ask for, in the forms they are known to use."""

from __future__ import annotations

import pytest

from podkeep.images.registry.challenges import parse, usable

HUB = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/busybox:pull"'


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        ([""], []),
        (
            [HUB],
            [
                (
                    "bearer",
                    {
                        "realm": "https://auth.docker.io/token",
                        "service": "registry.docker.io",
                        "scope": "repository:library/busybox:pull",
                    },
                )
            ],
        ),
        (["Basic realm=x"], [("basic", {"realm": "x"})]),
        (["BASIC"], [("basic", {})]),
        (['basic realm="a, b", charset="UTF-8"'], [("basic", {"realm": "a, b", "charset": "UTF-8"})]),
        (['Bearer realm="a",Basic realm="b"'], [("bearer", {"realm": "a"}), ("basic", {"realm": "b"})]),
        (['Bearer realm="a"', 'Basic realm="b"'], [("bearer", {"realm": "a"}), ("basic", {"realm": "b"})]),
        (["Negotiate, Basic realm=b"], [("negotiate", {}), ("basic", {"realm": "b"})]),
        (["Negotiate dG9rZW4=, Basic realm=b"], [("negotiate", {}), ("basic", {"realm": "b"})]),
        (['Bearer realm = "a" , service = s'], [("bearer", {"realm": "a", "service": "s"})]),
        (['Bearer realm="a\\"b\\\\c"'], [("bearer", {"realm": 'a"b\\c'})]),
        (['Bearer realm="a",realm="b"'], [("bearer", {"realm": "a"})]),
        (['Bearer realm="a'], [("bearer", {"realm": ""})]),
        (['realm="a"'], []),
        (["\x00\x01"], []),
        (["Bearer realm=a,,, service=b"], [("bearer", {"realm": "a", "service": "b"})]),
    ],
)
def test_challenges(headers: list[str], expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(item.scheme, dict(item.parameters)) for item in parse(headers)] == expected


def test_a_flood_of_challenges_is_cut() -> None:
    assert len(parse([", ".join(["Basic realm=x"] * 10_000)])) == 8
    assert len(parse(["Basic realm=x"] * 10_000)) == 8
    assert parse(["Bearer " + "a" * 10_000_000]) != []


def test_a_token_goes_before_a_password_and_what_is_unknown_is_left_out() -> None:
    found = usable(parse(['Digest realm="d"', 'Basic realm="b"', 'Bearer realm="t"']))
    assert [item.scheme for item in found] == ["bearer", "basic"]
