"""What becomes of an artifact's layers, and which names their files may have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from podkeep.base.config import ImagesConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError, Unimplemented
from podkeep.base.ids import Digest
from podkeep.images.formats import manifest, media_types
from podkeep.images.formats.media_types import ORAS_DIGEST, ORAS_UNPACK, TITLE, Policy
from podkeep.images.layers.decompress import DECOMPRESSORS
from podkeep.images.publish import packing
from podkeep.images.worker.layers import LayerJob, file_layer_id
from podkeep.images.worker.selection import Selection, select

DOCS = Path(__file__).resolve().parents[3] / "docs"
LAYER = "application/vnd.oci.image.layer.v1.tar"
D0 = Digest("sha256:" + "0" * 64)
D1 = Digest("sha256:" + "1" * 64)
ME = Digest("sha256:" + "e" * 64)
SEED = (
    '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":'
    '"application/vnd.oci.image.config.v1+json","digest":'
    '"sha256:4a2128b14c6c3699084cd60f24f80ae2c822f9bd799b24659f9691cbbfccae6b","size":47},"layers":[{"mediaType":'
    '"application/vnd.oci.image.layer.v1.tar+gzip","digest":'
    '"sha256:43ceae9994ffc73acbbd123a47172196a52f7d1d118314556bac6c5622ea1304","size":166,"annotations":'
    '{"org.opencontainers.image.title":"layer0.tar"}},{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":'
    '"sha256:0c26e9128651086bd9a417c7f0f3892e3542000e1f1fe509e8fcfb92caec96d5","size":129,"annotations":'
    '{"org.opencontainers.image.title":"layer1.tar"}}],"annotations":{"org.opencontainers.image.created":'
    '"2024-06-14T07:49:06Z"}}'
)


def _select(
    *layers: tuple[str, dict[str, str]],
    artifact_type: str = "application/vnd.example.thing",
    config_type: str = media_types.EMPTY,
    config: object = None,
    policy: Policy | None = None,
) -> Selection:
    described = [
        manifest.Descriptor(
            media_type=kind, digest=Digest(f"sha256:{number:064x}"), size=number, annotations=annotations
        )
        for number, (kind, annotations) in enumerate(layers)
    ]
    config_descriptor = manifest.Descriptor(media_type=config_type, digest=D1, size=2)
    parsed = manifest.Manifest(
        config=config_descriptor, layers=tuple(described), artifact_type=artifact_type or config_type
    )
    return select(parsed, ME, json.dumps(config or {}).encode(), policy or Policy(), "x")


def _shown(job: LayerJob) -> str:
    return f"{job.kind} {job.compression} {job.title}".rstrip()


@pytest.mark.requirement("V59", "V68")
def test_the_manifest_of_the_kep_is_two_archives_without_diff_ids() -> None:
    digest = manifest.digest_of(SEED.encode())
    assert digest == "sha256:7728cb2fa5dc31ad8a1d05d4e4259d37c3fc72e1fbdc0e1555901687e34324e9"
    parsed = manifest.parse_manifest(json.loads(SEED), "x")
    selected = select(parsed, digest, b'{\n  "architecture": "amd64",\n  "os": "linux"\n}\n', Policy(), "x")
    assert (selected.id, selected.kind) == (digest, "artifact")
    assert selected.artifact_type == "application/vnd.oci.image.config.v1+json"
    assert [(_shown(job), job.layer, job.size) for job in selected.jobs] == [
        ("tar gzip", None, 166),
        ("tar gzip", None, 129),
    ]


@pytest.mark.requirement("V56", "V57", "V58")
@pytest.mark.parametrize(
    ("media_type", "annotations", "shown"),
    [
        (LAYER, {TITLE: "hi.txt"}, "auto none hi.txt"),
        (LAYER, {}, "tar none"),
        (f"{LAYER}+gzip", {TITLE: "layer0.tar"}, "tar gzip"),
        (f"{LAYER}+gzip", {TITLE: "../dir", ORAS_UNPACK: "true"}, "tar gzip"),
        ("application/vnd.me.dir", {TITLE: "dir", ORAS_UNPACK: "true"}, "tar gzip"),
        (f"{LAYER}+zstd", {}, "tar zstd"),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", {}, "tar gzip"),
        ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", {}, "tar gzip"),
        ("application/vnd.cncf.flux.content.v1.tar+gzip", {}, "tar gzip"),
        ("application/vnd.cncf.model.weight.v1.tar", {TITLE: "weights"}, "tar none"),
        ("application/vnd.qemu.qcow2", {TITLE: "disk.qcow2"}, "file none disk.qcow2"),
        ("application/gzip", {TITLE: "a.gz"}, "file none a.gz"),
        ("application/x-tar", {TITLE: "a.tar"}, "file none a.tar"),
        ("", {TITLE: "Å b\\c"}, "file none Å b\\c"),
    ],
)
def test_what_becomes_of_a_layer(media_type: str, annotations: dict[str, str], shown: str) -> None:
    (job,) = _select((media_type, annotations)).jobs
    assert _shown(job) == shown
    assert job.layer == (file_layer_id(D0, job.title) if job.kind == "file" else None)


def test_the_empty_layer_is_none() -> None:
    assert _select((media_types.EMPTY, {})).jobs == ()
    assert _shown(_select((media_types.EMPTY, {TITLE: "a.json"})).jobs[0]) == "file none a.json"


def test_the_digest_that_oras_gives_a_directory_is_its_diff_id() -> None:
    annotations = {TITLE: "d", ORAS_UNPACK: "true", ORAS_DIGEST: D1}
    assert _select((f"{LAYER}+gzip", annotations)).jobs[0].layer == D1
    with pytest.raises(InvalidArgument, match=r"x: layers\[0\]: 'sha256:0' is not a digest"):
        _select((f"{LAYER}+gzip", annotations | {ORAS_DIGEST: "sha256:0"}))


@pytest.mark.requirement("V68")
@pytest.mark.parametrize(
    ("artifact_type", "config_type", "diff_ids", "kind", "shown"),
    [
        ("", manifest.OCI_CONFIG, [D0], "image", ""),
        ("", manifest.DOCKER_CONFIG, [D0], "image", ""),
        (manifest.OCI_CONFIG, manifest.OCI_CONFIG, [D0], "image", ""),
        ("", manifest.OCI_CONFIG, [], "artifact", manifest.OCI_CONFIG),
        ("a/b", manifest.OCI_CONFIG, [D0], "artifact", "a/b"),
        ("a/b", media_types.EMPTY, [D0], "artifact", "a/b"),
        ("", media_types.EMPTY, [], "artifact", media_types.EMPTY),
        ("", "application/vnd.cncf.helm.config.v1+json", [], "artifact", "application/vnd.cncf.helm.config.v1+json"),
    ],
)
def test_images_are_told_from_artifacts(
    artifact_type: str, config_type: str, diff_ids: list[str], kind: str, shown: str
) -> None:
    config = {"rootfs": {"diff_ids": diff_ids}}
    selected = _select((LAYER, {}), artifact_type=artifact_type, config_type=config_type, config=config)
    assert (selected.kind, selected.artifact_type) == (kind, shown)
    assert selected.id == (D1 if kind == "image" else ME)
    assert selected.jobs[0].layer == (D0 if kind == "image" else None)


def test_an_image_without_layers_is_an_image() -> None:
    assert _select(artifact_type="", config_type=manifest.OCI_CONFIG).kind == "image"


def test_the_configuration_of_an_artifact_is_not_read() -> None:
    parsed = manifest.Manifest(
        config=manifest.Descriptor(media_type="text/plain", digest=D1, size=2), layers=(), artifact_type="text/plain"
    )
    assert select(parsed, ME, b"\xff not JSON", Policy(), "x").jobs == ()


@pytest.mark.requirement("V60", "V71")
@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("", "its title '' is empty"),
        (".", "its title '.' is a directory"),
        ("..", "its title '..' is a directory"),
        ("/etc/passwd", "its title '/etc/passwd' has a '/'"),
        ("../../etc/passwd", "has a '/'"),
        ("a/b", "has a '/'"),
        ("a\0b", r"its title 'a\\x00b' has a control character"),
        ("a\nb", "has a control character"),
        ("a\x9bb", "has a control character"),
        ("\udc80", "has a control character"),
        ("x" * 256, "is longer than 255 bytes"),
        ("é" * 128, "is longer than 255 bytes"),
        (".wh.a", "is that of a whiteout"),
        (".wh..wh..opq", "is that of a whiteout"),
    ],
)
@pytest.mark.parametrize("media_type", [LAYER, "application/octet-stream"])
def test_titles_that_are_no_name_of_a_file(media_type: str, title: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"x: layers\[0\]: .*{message}") as failure:
        _select((media_type, {TITLE: title}))
    assert len(failure.value.message) < 250


@pytest.mark.requirement("V60")
def test_titles_that_are_there_twice() -> None:
    twice = ("application/octet-stream", {TITLE: "a"})
    with pytest.raises(InvalidArgument, match="x: two of its layers have the title 'a'"):
        _select(twice, (LAYER, {TITLE: "b"}), twice)
    with pytest.raises(InvalidArgument, match="the title 'a'"):
        _select(twice, (LAYER, {TITLE: "a"}))
    archive = (f"{LAYER}+gzip", {TITLE: "layer.tar"})
    assert len(_select(archive, archive).jobs) == 2


@pytest.mark.requirement("V63")
def test_a_layer_that_is_nothing_known_is_refused() -> None:
    with pytest.raises(Unimplemented, match=r"x: layers\[1\]: its type 'a/b' is no archive that is known") as failure:
        _select((LAYER, {}), ("a/b", {}))
    assert '"a/b" = "tar"' in failure.value.hint
    assert "[images.media_types]" in failure.value.hint


@pytest.mark.requirement("V63", "V69")
@pytest.mark.parametrize(
    ("rules", "media_type", "title", "expected"),
    [
        ({"a/b": "tar+gzip"}, "a/b", "", "tar gzip"),
        ({"a/*": "tar+zstd"}, "a/b", "t", "tar zstd"),
        ({"a/*": "tar", "a/b": "file"}, "a/b", "t", "file none t"),
        ({"*": "file", "a/b": "auto"}, "a/b", "t", "auto none t"),
        ({"a/*": "file", "*": "deny"}, "a/b", "t", "file none t"),
        ({f"{LAYER}+gzip": "file"}, f"{LAYER}+gzip", "t", "file none t"),
        ({"a/b": "file"}, "a/b", "", InvalidArgument),
        ({"a/*": "file", "*": "deny"}, LAYER, "t", FailedPrecondition),
        ({"a/[bc]": "deny"}, "a/c", "t", FailedPrecondition),
    ],
)
def test_the_configuration_says_what_types_are(
    rules: dict[str, Any], media_type: str, title: str, expected: str | type[PodkeepError]
) -> None:
    layer = (media_type, {TITLE: title} if title else {})
    if isinstance(expected, str):
        assert _shown(_select(layer, policy=Policy(media_types=rules)).jobs[0]) == expected
        return
    with pytest.raises(expected, match=r"x: layers\[0\]: "):
        _select(layer, policy=Policy(media_types=rules))


@pytest.mark.requirement("V63")
def test_types_are_denied_to_images_as_well() -> None:
    config = {"rootfs": {"diff_ids": [D0]}}
    layer = (f"{LAYER}+zstd", {})
    policy = Policy(media_types={"*+zstd": "deny", "*": "file"}, artifact_types={"*": "deny"})
    with pytest.raises(FailedPrecondition, match=r"x: layers\[0\]: layers of type '.*zstd' are not allowed"):
        _select(layer, artifact_type="", config_type=manifest.OCI_CONFIG, config=config, policy=policy)
    gzip = (f"{LAYER}+gzip", {})
    selected = _select(gzip, artifact_type="", config_type=manifest.OCI_CONFIG, config=config, policy=policy)
    assert _shown(selected.jobs[0]) == "tar gzip"


@pytest.mark.requirement("V63", "V69")
def test_rules_for_types_of_artifacts() -> None:
    policy = Policy(artifact_types={"a/good": "allow", "a/raw": "files", "*": "deny"})
    layer = (f"{LAYER}+gzip", {TITLE: "l.tgz"})
    assert _shown(_select(layer, artifact_type="a/good", policy=policy).jobs[0]) == "tar gzip"
    assert _shown(_select(layer, artifact_type="a/raw", policy=policy).jobs[0]) == "file none l.tgz"
    with pytest.raises(FailedPrecondition, match="x: artifacts of type 'a/bad' are not allowed") as failure:
        _select(layer, artifact_type="a/bad", policy=policy)
    assert "[images.artifact_types]" in failure.value.hint


def test_the_id_of_a_file_depends_on_blob_and_name() -> None:
    assert len({file_layer_id(blob, title) for blob in (D0, D1) for title in "ab"}) == 4


@pytest.mark.parametrize(
    ("media_type", "compression"),
    [
        ("application/vnd.oci.image.layer.v1.tar", "none"),
        ("application/vnd.oci.image.layer.v1.tar+gzip", "gzip"),
        ("application/vnd.oci.image.layer.v1.tar+zstd", "zstd"),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar", "none"),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", "gzip"),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", "zstd"),
        ("application/vnd.docker.image.rootfs.diff.tar", "none"),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", "gzip"),
        ("application/vnd.docker.image.rootfs.diff.tar.zstd", "zstd"),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "gzip"),
    ],
)
def test_layers_of_images(media_type: str, compression: str) -> None:
    assert media_types.image_layer_compression(media_type) == compression


def test_layers_of_images_are_of_no_other_type() -> None:
    assert len(media_types._IMAGE_LAYERS) == 10
    for media_type in (f"{LAYER}+gzip+encrypted", f"{LAYER}.gzip", "application/vnd.acme.tar", ""):
        with pytest.raises(Unimplemented, match=re.escape(repr(media_type))):
            media_types.image_layer_compression(media_type)


def test_the_table_of_archives_is_what_everything_else_goes_by() -> None:
    archives = set(media_types._ARCHIVES.values())
    compressions = {media_types.compression_of(archive) for archive in archives}
    assert compressions == DECOMPRESSORS.keys()
    assert compressions == set(get_args(packing.Compression))
    settings = get_type_hints(ImagesConfig)
    assert settings["media_types"] == dict[str, media_types.Treatment]
    assert settings["artifact_types"] == dict[str, media_types.ArtifactRule]
    assert archives < set(get_args(media_types.Treatment))
    page = (DOCS / "configuration.md").read_text()
    assert [name for name in get_args(media_types.Treatment) if f'`"{name}"`' not in page] == []
