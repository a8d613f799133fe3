"""The texts of images: what their documents may hold, and how a refusal reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.images.formats import manifest, texts
from podkeep.images.registry import referrers

DIGEST = "sha256:" + "0" * 64
LONG = "x" * (5 << 20)


def _parse(**fields: Any) -> manifest.ImageConfiguration:
    return manifest.parse_configuration(json.dumps(fields).encode(), "image")


def _run(**fields: Any) -> manifest.ImageConfiguration:
    return _parse(config=fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"User": "1" * 5000}, "image: User has 5000 bytes, more than 511"),
        ({"User": "é" * 256}, "image: User has 512 bytes, more than 511"),
        ({"User": "a\0b"}, r"image: User has the character '\\x00'"),
        ({"User": "a\nroot:x:0:0"}, r"image: User has the character '\\n'"),
        ({"WorkingDir": "/" + "a" * 4095}, "image: WorkingDir has 4096 bytes, more than 4095"),
        ({"WorkingDir": "/a\0b"}, "image: WorkingDir has the character"),
        ({"StopSignal": "S" * 256}, "image: StopSignal has 256 bytes, more than 255"),
        ({"Env": ["A=" + "x" * 131_070]}, r"image: Env\[0\] has 131072 bytes, more than 131071"),
        ({"Env": ["A=1", "B=\0"]}, r"image: Env\[1\] has the character"),
        ({"Env": ["A=1"] * 8193}, "image: Env has 8193 entries, more than 8192"),
        ({"Entrypoint": ["a\0b"]}, r"image: Entrypoint\[0\] has the character"),
        ({"Cmd": ["x" * (1 << 18)]}, r"image: Cmd\[0\] has 262144 bytes"),
        ({"Volumes": {"/a\0": {}}}, r"image: Volumes\[0\] has the character"),
        ({"Volumes": {f"/{number}": {} for number in range(1025)}}, "image: Volumes has 1025 entries, more than 1024"),
        ({"ExposedPorts": {"1" * 256: {}}}, r"image: ExposedPorts\[0\] has 256 bytes"),
        ({"Labels": {"a" * 4097: ""}}, "a key of image: Labels has 4097 bytes, more than 4096"),
        ({"Labels": {"a": "x" * (1 << 19)}}, r"Labels\['a'\] has 524288 bytes, more than 262144"),
        ({"Labels": {f"{number}": "" for number in range(4097)}}, "image: Labels has 4097 entries, more than 4096"),
        ({"Env": ["x" * 131_071] * 9}, "image: config: its texts have 1179639 bytes together, more than 1048576"),
    ],
)
def test_how_an_image_wants_to_be_run_has_limits(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        _run(**fields)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "a" * 256}, "image: architecture has 256 bytes"),
        ({"os": "\x1b]0;owned\x07"}, "image: os has the character"),
        ({"os.version": LONG}, "image: os.version has 5242880 bytes"),
        ({"os.features": ["a"] * 65}, "image: os.features has 65 entries"),
        ({"variant": "v\0"}, "image: variant has the character"),
        ({"created": "2" * 256}, "image: created has 256 bytes"),
        ({"author": "a" * (1 << 19)}, "image: author has 524288 bytes, more than 262144"),
        ({"author": 1}, "image: author is not a string"),
        ({"history": [{}] * 4097}, "image: history has 4097 entries, more than 4096"),
        ({"history": [{"created_by": "a" * (1 << 19)}]}, r"image: history\[0\]: created_by has 524288 bytes"),
        ({"history": [{"comment": "\0"}]}, r"image: history\[0\]: comment has the character"),
        ({"history": ["a"]}, r"image: history\[0\] is not an object"),
        ({"rootfs": {"diff_ids": [DIGEST] * 501}}, "image: diff_ids has 501 entries, more than 500"),
        ({"rootfs": {"diff_ids": ["x" * 5000]}}, r"image: diff_ids\[0\] has 5000 bytes"),
    ],
)
def test_what_an_image_says_of_itself_has_limits(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        _parse(**fields)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        '{"config": {"User": "\\ud800"}}',
        '{"config": {"Labels": {"\\udfff": "a"}}}',
        '{"a": [{"b": "\\ud83d x"}]}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * 100_000 + "}",
    ],
)
def test_no_document_has_what_json_or_unicode_has_not(text: str) -> None:
    with pytest.raises(InvalidArgument, match="image is not JSON in UTF-8") as caught:
        manifest.parse_document(text.encode(), "image")
    str(caught.value).encode()
    assert len(str(caught.value)) < 400


@pytest.mark.slow
def test_what_images_really_hold_is_taken() -> None:
    """Scripts of several lines, emoji in labels, ports by the ten thousand, a user by name and group."""
    fields = {
        "User": "büro:staff",
        "Env": ["MOTD=one\ntwo\t\x1b[1mthree", "EMPTY="],
        "Cmd": ["sh", "-c", "set -e\nexec sleep 1\n" + "#" * 100_000],
        "Labels": {"maintainer": "😀\u200d <a@example>", "io.example.metadata": "{" * 200_000},
        "ExposedPorts": {f"{port}/{kind}": {} for port in range(10_000, 40_000) for kind in ("udp", "tcp")},
        "Volumes": {"/var/lib/ünïcode data": {}},
    }
    found = _run(**fields).run
    assert (found.user, found.env, found.labels) == ("büro:staff", tuple(fields["Env"]), fields["Labels"])
    assert len(found.exposed_ports) == 60_000
    assert manifest.parse_document(b'{"a": "\\ud83d\\ude00"}', "x") == {"a": "😀"}


def _described(**more: Any) -> dict[str, Any]:
    return {"mediaType": manifest.OCI_CONFIG, "digest": DIGEST, "size": 2} | more


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": {"a": "x" * (1 << 19)}}, r"x: annotations\['a'\] has 524288 bytes"),
        ({"annotations": {"a": 1}}, "x: annotations holds something that is not a string"),
        ({"artifactType": "a/" + "b" * 600}, "x: artifactType has 602 bytes, more than 512"),
        ({"config": _described(mediaType="a" * 600)}, "x: config: mediaType has 600 bytes"),
        ({"config": _described(digest="a" * (1 << 20))}, "x: config.digest: x: config: digest has 1048576 bytes"),
        ({"config": _described(urls=["u"] * 65)}, "x: config: urls has 65 entries, more than 64"),
        ({"config": _described(urls=["u" * 20_000])}, r"x: config: urls\[0\] has 20000 bytes"),
        ({"layers": [_described(annotations={"k\0": ""})]}, r"a key of x: layers\[0\]: annotations has the character"),
        ({"layers": [_described(annotations={"k": "\0"})]}, r"x: layers\[0\]: annotations\['k'\] has the character"),
    ],
)
def test_texts_of_a_manifest_have_limits(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        manifest.parse_manifest({"config": _described(), "layers": []} | change, "x")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("platform", "message"),
    [
        ({"os": {"a": LONG}}, "os is not a string"),
        ({"architecture": LONG}, "architecture has 5242880 bytes"),
        ({"variant": "\x1b[2J"}, "variant has the character"),
    ],
)
def test_entries_of_an_index_have_limits(platform: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"x: manifests\[0\].platform: {message}"):
        manifest.choose({"manifests": [_described(platform=platform)]}, "amd64", "x")
    with pytest.raises(InvalidArgument, match="x: manifests has 10001 entries, more than 10000"):
        manifest.choose({"manifests": [_described()] * 10_001}, "amd64", "x")


def test_an_index_without_this_platform_names_some_of_those_it_has() -> None:
    entries = [_described(platform={"os": "linux", "architecture": f"cpu{number}"}) for number in range(5000)]
    with pytest.raises(manifest.NotFound, match=r"there is linux/cpu0, .*linux/cpu9 and 4990 more"):
        manifest.choose({"manifests": entries}, "amd64", "x")


def test_entries_of_a_list_of_referrers_have_limits() -> None:
    for change in ({"artifactType": "x\x1b[2J"}, {"artifactType": LONG}, {"annotations": {"a": LONG}}):
        with pytest.raises(InvalidArgument) as caught:
            referrers.referrers_in({"manifests": [_described(**change)]}, "x")
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["a", "é", "😀", "\u200b"])
def test_limits_are_of_bytes(text: str) -> None:
    limit = texts.Text(most=len(text.encode()))
    assert texts.check(text, limit, "it") == text
    with pytest.raises(InvalidArgument, match="it has"):
        texts.check(text + "a", limit, "it")
