"""Which referrer is meant, and whether it may be named."""

from __future__ import annotations

import pytest
from msgspec import structs

from podkeep.base.config import ReferrersConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.ids import Digest
from podkeep.base.registries.reference import parse
from podkeep.images.formats import referrer_names
from podkeep.images.registry import referrers
from podkeep.images.registry.referrers import Referrer

SBOM = "application/spdx+json"


def referrer(number: int, created: str = "") -> Referrer:
    annotations = {"org.opencontainers.image.created": created} if created else {}
    digest = Digest(f"sha256:{number:064x}")
    return Referrer(digest=digest, media_type="x/y", size=1, artifact_type=SBOM, annotations=annotations)


@pytest.mark.requirement("V73")
def test_a_name_may_ask_for_an_artifact_by_its_type() -> None:
    name = parse(f"registry.example/app:1?artifactType={SBOM}")
    assert (name.name, name.tag, name.artifact_type) == ("registry.example/app", "1", SBOM)
    assert str(name) == f"registry.example/app:1?artifactType={SBOM}"
    by_digest = parse(f"registry.example/app@sha256:{'0' * 64}?artifactType={SBOM}")
    assert str(by_digest) == f"registry.example/app@sha256:{'0' * 64}?artifactType={SBOM}"
    assert parse(f"app?artifactType={SBOM}").familiar() == f"app:latest?artifactType={SBOM}"


@pytest.mark.parametrize(
    "condition",
    ["", "artifactType=", "artifactType", "type=a/b", "artifactType=a", "artifactType=a/b?c", "artifactType=a/b&x=y/"],
)
@pytest.mark.requirement("V73")
def test_other_conditions_are_refused(condition: str) -> None:
    with pytest.raises(InvalidArgument, match="is no condition") as failure:
        parse(f"app?{condition}")
    assert "artifactType= and a media type" in failure.value.hint


@pytest.mark.requirement("V75")
def test_such_names_are_refused_unless_turned_on() -> None:
    name = parse(f"app?artifactType={SBOM}")
    with pytest.raises(FailedPrecondition, match="is turned off") as failure:
        referrer_names.check_allowed(name, ReferrersConfig())
    assert "[images.referrers]" in failure.value.hint
    referrer_names.check_allowed(name, ReferrersConfig(enabled=True))
    referrer_names.check_allowed(parse("app"), ReferrersConfig())


@pytest.mark.requirement("V74")
def test_another_repository_may_be_configured() -> None:
    config = ReferrersConfig(enabled=True, repositories={"busybox": "registry.example/attached/busybox"})
    referrer_names.check(config)
    found = referrer_names.elsewhere(parse("docker.io/library/busybox:1"), config)
    assert found is not None
    assert found.name == "registry.example/attached/busybox"
    assert referrer_names.elsewhere(parse("other"), config) is None


@pytest.mark.parametrize("text", ["app:1", f"app@sha256:{'0' * 64}", "App", "a?artifactType=b/c"])
def test_what_is_no_repository_is_refused(text: str) -> None:
    for pair in ({text: "app"}, {"app": text}):
        with pytest.raises(InvalidArgument, match=r"^images\.referrers\.repositories: "):
            referrer_names.check(ReferrersConfig(repositories=pair))


@pytest.mark.requirement("V73")
def test_the_newest_of_several_is_meant() -> None:
    first = referrer(1, "2024-06-14T07:49:06Z")
    last = referrer(2, "2024-06-14T07:49:06.5+00:00")
    other_zone = referrer(3, "2024-06-14T09:00:00+02:00")
    assert referrers.newest([first], "x") == first
    assert referrers.newest([first, last, other_zone], "x") == last


@pytest.mark.parametrize("second", ["", "2024-06-14T07:49:06Z", "2024-06-14T07:49:06", "yesterday"])
@pytest.mark.requirement("V73")
def test_several_that_do_not_tell_which_is_newer_are_an_error(second: str) -> None:
    pair = [referrer(1, "2024-06-14T07:49:06Z"), referrer(2, second)]
    with pytest.raises(FailedPrecondition, match="2 artifacts match") as failure:
        referrers.newest(pair, "app")
    assert all(item.digest in failure.value.message for item in pair)


def test_the_tag_of_a_list_is_the_digest() -> None:
    assert referrers.tag_of(Digest(f"sha256:{'ab' * 32}")) == f"sha256-{'ab' * 32}"
    assert referrers.tag_of(Digest(f"sha512:{'ab' * 64}")) == f"sha512-{'ab' * 32}"


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {},
        {"digest": "x", "size": 1},
        {"size": -1},
        {"artifactType": 5},
        {"annotations": {"a": 1}},
        {"annotations": []},
    ],
)
def test_a_malformed_list_names_the_entry(entry: object) -> None:
    good = {"mediaType": "a/b", "digest": referrer(1).digest, "size": 1}
    assert referrers.referrers_in({"manifests": [good]}, "list") == [
        structs.replace(referrer(1), media_type="a/b", artifact_type="")
    ]
    bad = {**good, **entry} if isinstance(entry, dict) and entry else entry
    with pytest.raises(InvalidArgument, match=r"list: manifests\[1\]"):
        referrers.referrers_in({"manifests": [good, bad]}, "list")
