"""What the store and its workers say to each other: it arrives as it was, and nothing else is taken."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from podkeep.base.errors import Internal
from podkeep.base.ids import Digest, ImageID
from podkeep.base.registries import reference
from podkeep.images import messages
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.formats.media_types import Policy
from podkeep.images.formats.openfile import OpenFile
from podkeep.images.registry.endpoint import Endpoint, Tls

DIGEST = Digest(f"sha256:{'0' * 64}")
FILE = OpenFile(pid=1, descriptor=2, device=3, inode=4, name="ä")
SETTINGS = messages.LayerSettings(
    staging="/s",
    driver="erofs",
    policy=Policy(media_types={"a": "file"}, artifact_types={"b": "deny"}),
    architecture="amd64",
    parallel=3,
    max_bytes=1,
    max_inodes=2,
    max_ratio=3,
)
SERVER = Endpoint(
    host="r.example",
    prefix="",
    schemes=("https", "http"),
    tls=Tls(verify=False),
    own=True,
    other_tls={"cdn.example": Tls(ca_file="/ca.pem")},
    credentials=(RegistryAuth(username="u", password="hunter2"),),
)
REPOSITORY = messages.Repository(name=reference.parse(f"r.example/app:1@{DIGEST}"), endpoints=(SERVER,))
PULL = messages.Pull(source=REPOSITORY, known=(DIGEST,), referrers=REPOSITORY, settings=SETTINGS)
LAYER = messages.StoredLayer(id=DIGEST, driver="erofs", digest=DIGEST, metadata="", implied="", bytes=1 << 40, inodes=3)
IMAGE = messages.StoredImage(
    id=ImageID(DIGEST), kind="image", config=b"{}", manifest=b"", layers=(LAYER,), tags=("a",), digests=()
)
STAGED = messages.StagedLayer(driver="erofs", path="/s/1", bytes=1, inodes=2, data_bytes=3, metadata="", implied="")
NEW = messages.NewLayer(layer=DIGEST, kind="file", title="ä", digest=None, compression="auto", staged=STAGED)
FETCHED = messages.FetchedImage(
    id=ImageID(DIGEST),
    kind="artifact",
    artifact_type="a/b",
    config=b"\xff\0",
    run=b"{}",
    manifests=((DIGEST, b"{}"),),
    layers=(DIGEST,),
    new=(NEW, structs.replace(NEW, staged=None)),
    tags=("r.example/app:1",),
    digests=(),
)
WANTED = messages.Wanted(
    layers=(messages.WantedLayer(layer=None, kind="auto", title="ä", digest=DIGEST, compression="auto"),)
)


@pytest.mark.parametrize(
    "request_",
    [
        PULL,
        messages.Load(path="/a", file=FILE, settings=SETTINGS),
        messages.Load(path="/a", file=None, settings=SETTINGS),
        messages.Save(root="/r", target=FILE, directory=True, images=(IMAGE,)),
        messages.Verify(root="/r", layers=(LAYER,)),
    ],
)
def test_requests_arrive_as_they_were(request_: messages.Request) -> None:
    line = messages.encode(request_)
    assert line.index(b"\n") == len(line) - 1
    assert messages.decode_request(line) == request_


@pytest.mark.parametrize(
    "event",
    [
        WANTED,
        messages.Progress(digest="", phase="saving", done=0, total=1 << 40),
        FETCHED,
        messages.Unchanged(name="a"),
        messages.Saved(bytes=1),
        messages.Checked(layer=DIGEST, bytes=1),
        messages.Unchecked(layer=DIGEST, why="a"),
        messages.Damaged(layer=DIGEST, problem="a\nb"),
        messages.Done(),
        messages.Failed(error="Internal", message="a", hint=""),
    ],
)
def test_events_arrive_as_they_were(event: messages.Event) -> None:
    line = messages.encode(event)
    assert line.index(b"\n") == len(line) - 1
    assert messages.decode_event(line) == event


def test_answers_arrive_as_they_were() -> None:
    found = (
        messages.AvailableLayer(layer=DIGEST),
        messages.AvailableLayer(same_file=DIGEST),
        messages.AvailableLayer(),
    )
    answer = messages.Available(layers=found)
    assert messages.decode_answer(messages.encode(answer)) == answer


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Pull"},
        {"type": "fetched"},
        {"more": 1},
        {"kind": "tar"},
        {"config": "not base64"},
        {"layers": [1]},
        {"new": [{}]},
        {"tags": None},
    ],
)
def test_what_no_worker_says_is_refused(change: dict[str, object]) -> None:
    said = json.loads(messages.encode(FETCHED)) | change
    with pytest.raises(Internal, match="the image worker said what it never says"):
        messages.decode_event(json.dumps(said).encode())


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[]", b"\xff", b"Traceback", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(Internal, match="the image worker said what it never says"):
        messages.decode_event(line)


def test_a_secret_shows_in_no_text() -> None:
    assert "hunter2" not in repr(PULL)
    broken = structs.replace(SERVER, credentials=(RegistryAuth(password="hunter2\ud800"),))
    request = structs.replace(PULL, source=structs.replace(REPOSITORY, endpoints=(broken,)))
    with pytest.raises(Internal, match="no Unicode") as failure:
        messages.encode(request)
    assert "hunter2" not in str(failure.value)
