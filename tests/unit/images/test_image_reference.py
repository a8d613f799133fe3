"""Image names."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.errors import InvalidArgument
from podkeep.base.registries.reference import parse

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "whole", "familiar"),
    [
        ("busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36", "busybox:1.36"),
        ("docker.io/busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("team/app:v1", "docker.io/team/app:v1", "team/app:v1"),
        ("localhost/app", "localhost/app:latest", "localhost/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest", "localhost:5000/app:latest"),
        ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9"),
        ("[::1]:5000/a/b__c/d.e-f:T_1.x-y", "[::1]:5000/a/b__c/d.e-f:T_1.x-y", "[::1]:5000/a/b__c/d.e-f:T_1.x-y"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}", f"busybox@{DIGEST}"),
        (f"busybox:1@{DIGEST}", f"docker.io/library/busybox@{DIGEST}", f"busybox@{DIGEST}"),
    ],
)
def test_names_are_filled_in(text: str, whole: str, familiar: str) -> None:
    reference = parse(text)
    assert (str(reference), reference.familiar()) == (whole, familiar)
    assert parse(str(reference)) == parse(str(parse(familiar)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'library/' is not a repository|'' is not a repository"),
        ("Busybox", "repositories are lower case"),
        ("a//b", "is not a repository"),
        ("a/../b", "is not a repository"),
        ("../b", "is not a host|is not a repository"),
        ("busybox:", "'' is not a tag"),
        ("busybox:-x", "'-x' is not a tag"),
        (f"busybox:{'x' * 129}", "is not a tag"),
        ("busybox@sha256:1", "is not a digest"),
        ("busy box", "is not a repository"),
        ("host:port/app", "'host:port' is not a host"),
        ("a" * 64, "64 hex digits"),
        ("x.y/" + "a" * 255, "longer than 255"),
        ("bad\n", "is not a repository"),
        ("user:pass@host/app", "is not a digest"),
    ],
)
def test_wrong_names_say_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        parse(text)


@pytest.mark.slow
@given(st.text(alphabet="aA0.:/@-_[]\n sha256", max_size=40))
def test_a_name_that_parses_reads_the_same_again(text: str) -> None:
    try:
        reference = parse(text)
    except InvalidArgument:
        return
    again = parse(str(reference))
    assert (again.host, again.repository, again.digest) == (reference.host, reference.repository, reference.digest)
    assert ".." not in reference.repository.split("/")


@pytest.mark.parametrize("text", ["{}", "{}:v1", "a:{}", "a?{}", "[{}]/a", "r.example/{}/_", "r.example/a@{}"])
def test_a_wrong_name_of_any_length_gives_a_short_error(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(text.format("X" * 100_000))
    assert len(str(caught.value)) < 1100


@pytest.mark.parametrize("text", ["a" + "/a" * (1 << 20), "a" + "-" * (1 << 20), "a.b" * (1 << 20) + "/a"])
def test_a_wrong_name_of_any_length_takes_little_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="longer than 1024"):
            parse(text)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_longest_name_is_one() -> None:
    host = f"{'h' * 122}.example:65535"
    media_type = f"{'a' * 127}/{'b' * 127}"
    text = f"{host}/{'r' * (254 - len(host))}:{'t' * 128}@sha512:{'ab' * 64}?artifactType={media_type}"
    assert len(text) == 255 + 129 + 136 + 14 + 255
    assert parse(text).artifact_type == media_type
    with pytest.raises(InvalidArgument, match="longer than 255"):
        parse(f"{host}/{'r' * 255}")
