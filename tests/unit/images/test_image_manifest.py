"""Decoding of manifests, indexes and configurations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError, Unimplemented
from podkeep.images.formats import manifest

D0 = "sha256:" + "0" * 64
D1 = "sha256:" + "1" * 64


def _entry(digest: str, **platform: str) -> dict[str, Any]:
    return {"mediaType": manifest.OCI_MANIFEST, "digest": digest, "size": 1, "platform": platform}


def test_the_highest_variant_of_an_architecture_is_chosen() -> None:
    entries = [_entry(D0, os="linux", architecture="arm", variant="v6")]
    entries.append(_entry(D1, os="linux", architecture="arm", variant="v7"))
    assert manifest.choose({"manifests": entries}, "arm", "x").digest == D1
    with pytest.raises(NotFound, match="no image for linux/amd64; there is linux/arm/v6, linux/arm/v7"):
        manifest.choose({"manifests": entries}, "amd64", "x")


def test_an_entry_without_an_architecture_is_for_every_one_that_has_none_of_its_own() -> None:
    anything, exact = _entry(D0), _entry(D1, os="linux", architecture="amd64")
    for entries in ([anything, exact], [exact, anything]):
        assert manifest.choose({"manifests": entries}, "amd64", "x").digest == D1
        assert manifest.choose({"manifests": entries}, "arm64", "x").digest == D0


def test_what_a_document_embeds_is_verified() -> None:
    def described(data: bytes | None, of: bytes = b"{}") -> manifest.Descriptor:
        return manifest.Descriptor(media_type="x", digest=manifest.digest_of(of), size=len(of), data=data)

    assert manifest.embedded(described(None), "x") == b"{}"
    assert manifest.embedded(described(None, b"{ }"), "x") is None
    assert manifest.embedded(described(b"{ }", b"{ }"), "x") == b"{ }"
    with pytest.raises(FailedPrecondition, match="x: expected 3 bytes, its data has 2"):
        manifest.embedded(described(b"{}", b"{ }"), "x")
    with pytest.raises(FailedPrecondition, match="x: expected digest"):
        manifest.embedded(described(b"{.}", b"{ }"), "x")


def test_an_index_is_told_by_its_type_or_its_content() -> None:
    assert manifest.is_index({"mediaType": manifest.OCI_INDEX}, "")
    assert manifest.is_index({}, manifest.DOCKER_LIST)
    assert manifest.is_index({"manifests": []}, "application/json")
    assert not manifest.is_index({"mediaType": manifest.OCI_MANIFEST, "manifests": []}, "")


def test_verification_names_both_digests() -> None:
    found = manifest.digest_of(b"data")
    manifest.verify(b"data", found, "x")
    with pytest.raises(FailedPrecondition, match=f"x: expected digest {D0}, the content has {found}"):
        manifest.verify(b"data", manifest.Digest(D0), "x")


def test_sha512_is_a_digest_too() -> None:
    digest = manifest.digest_of(b"data", "sha512")
    manifest.verify(b"data", digest, "x")
    assert digest.startswith("sha512:")


def test_a_configuration_with_nulls_is_an_empty_one() -> None:
    fields = ("Env", "Entrypoint", "Cmd", "Volumes", "Labels", "ExposedPorts", "User")
    document = {"config": dict.fromkeys(fields), "rootfs": {"diff_ids": [D0]}}
    parsed = manifest.parse_configuration(json.dumps(document).encode(), "x")
    assert parsed.run == manifest.ImageRunConfig()
    assert parsed.diff_ids == (D0,)
    assert manifest.parse_configuration(b"{}", "x").diff_ids == ()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"config": []}, "x: config is not an object"),
        ({"config": {"Env": "A=1"}}, "x: Env is not a list"),
        ({"config": {"Env": [1]}}, "x: Env holds something that is not a string"),
        ({"config": {"User": 0}}, "x: User is not a string"),
        ({"config": {"Labels": {"a": 1}}}, "x: Labels holds something that is not a string"),
        ({"config": {"Volumes": ["/a"]}}, "x: Volumes is not an object"),
        ({"rootfs": {"diff_ids": ["sha256:x"]}}, "'sha256:x' is not a digest"),
    ],
)
def test_wrong_fields_of_a_configuration_are_named(document: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        manifest.parse_configuration(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"config": None}, InvalidArgument, "x: config is missing or not an object"),
        ({"layers": [3]}, InvalidArgument, r"x: layers\[0\] is missing or not an object"),
        ({"layers": {}}, InvalidArgument, "x: layers is not a list"),
        ({"layers": [_entry(D0)] * 501}, InvalidArgument, "x has 501 layers, more than 500"),
        (
            {"layers": [{"mediaType": manifest.OCI_MANIFEST, "digest": D0, "size": 1 << 63}]},
            InvalidArgument,
            r"layers\[0\].size is not a number of bytes",
        ),
        (
            {"config": {"mediaType": manifest.OCI_CONFIG, "digest": D0, "size": 1 << 30}},
            InvalidArgument,
            "configuration has 1073741824 bytes",
        ),
        ({"layers": [_entry(D0) | {"data": "?"}]}, InvalidArgument, r"x: layers\[0\].data is not base64"),
        ({"layers": [_entry(D0) | {"annotations": {"a": 1}}]}, InvalidArgument, r"x: layers\[0\]: annotations holds"),
        ({"artifactType": 1}, InvalidArgument, "x: artifactType is not a string"),
        ({"mediaType": manifest.OCI_ARTIFACT_MANIFEST}, Unimplemented, "x is an artifact manifest as image-spec 1.1"),
    ],
)
def test_wrong_fields_of_a_manifest_are_named(change: dict[str, Any], kind: type[PodkeepError], message: str) -> None:
    document = {"config": {"mediaType": manifest.OCI_CONFIG, "digest": D0, "size": 2}, "layers": []} | change
    with pytest.raises(kind, match=message):
        manifest.parse_manifest(document, "x")


@pytest.mark.requirement("V71")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_documents_are_utf_8(encoding: str) -> None:
    assert manifest.parse_document(b'{"schemaVersion": 2}', "x") == {"schemaVersion": 2}
    with pytest.raises(InvalidArgument, match="x is not JSON in UTF-8"):
        manifest.parse_document('{"schemaVersion": 2}'.encode(encoding), "x")


@pytest.mark.requirement("V71")
@pytest.mark.parametrize(
    "text", ["application/\x1b]0;owned\x07", "application", "a/b\n", "/b", "a/" + "b" * 128, "a/b; c\x1b", "ä/b"]
)
def test_types_have_the_form_of_media_types(text: str) -> None:
    config = {"mediaType": manifest.OCI_CONFIG, "digest": D0, "size": 2}
    with pytest.raises(InvalidArgument, match=r"x: artifactType '.* is not a media type"):
        manifest.parse_manifest({"config": config, "layers": [], "artifactType": text}, "x")
    with pytest.raises(InvalidArgument, match=r"x: mediaType '.* is not a media type"):
        manifest.descriptor(config | {"mediaType": text}, "x")
    usual = manifest.descriptor(config | {"mediaType": "application/vnd.x-y_z+json; charset=utf-8"}, "x")
    assert usual.media_type == "application/vnd.x-y_z+json; charset=utf-8"


def test_numbers_that_no_json_can_say_again_are_refused() -> None:
    assert manifest.parse_document(b'{"a": 1e300}', "x") == {"a": 1e300}
    with pytest.raises(InvalidArgument, match="1e999' is larger than numbers are"):
        manifest.parse_document(b'{"a": 1e999}', "x")
    with pytest.raises(InvalidArgument, match="x is not JSON in UTF-8: a number of 5000 digits"):
        manifest.parse_document(b'{"a": -' + b"9" * 5000 + b"}", "x")
