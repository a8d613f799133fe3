"""Publishing an artifact: its blobs, its manifest, and the list of referrers where the registry keeps none.

OCI distribution-spec ("Pushing Blobs", "Pushing Manifests", "Pushing Manifests with Subject") and image-spec
(manifest.md, "Guidelines for Artifact Usage"). Owns the order of things (a manifest comes after everything it names)
and going on after a connection broke. Does not own: making blobs (``packing.py``), HTTP and logging in
(``registry.py``). Called by ``podkeep artifact push``, in its own process; no runtime is needed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urldefrag, urlencode, urljoin

import msgspec

from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    RegistryUnavailable,
    Unavailable,
)
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest
from podkeep.images.formats import manifest
from podkeep.images.formats.media_types import EMPTY
from podkeep.images.publish.packing import Blob, bytes_blob
from podkeep.images.registry import referrers
from podkeep.images.registry.calls import Call, Reply, ask
from podkeep.images.registry.client import Body
from podkeep.images.registry.registry import Registry

UNKNOWN_ARTIFACT = "application/vnd.unknown.artifact.v1"
"""Type of an artifact whose author gave none; the same as with ORAS."""
EMPTY_DATA = b"{}"
_ATTEMPTS = 5
"""Tries that may fail before a blob is given up; what gets through in between makes up for them."""
_FORGIVEN = 1 << 20
"""Bytes after which failures are forgotten."""
_PAUSE_S = 0.5
_AT_ONCE = 4 << 20
"""Bytes of a blob up to which it is one request. Of larger ones the bytes come before the request that ends the upload,
so that an upload that broke is still one (docker-registry knows no other way on than to begin anew, though)."""
_LOST = (400, 404, 416)
_UPLOADS = "blobs/uploads/"
_SIZE = re.compile("[0-9]{1,18}")

Tell = Callable[[Blob, str, int], None]
"""Is told of a blob, what happens to it (``exists``, ``uploading``, ``done``) and how many bytes are there."""


class Subject(FrozenStruct, kw_only=True):
    """The image an artifact refers to; ``size`` of its manifest in bytes."""

    media_type: str
    digest: Digest
    size: int


class Artifact(FrozenStruct, kw_only=True):
    """What is to be published. An empty ``config`` is one that says nothing; ``layers`` base first."""

    artifact_type: str
    layers: Sequence[Blob]
    config: Blob | None = None
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    subject: Subject | None = None


def manifest_of(artifact: Artifact) -> bytes:
    """Return the manifest of an artifact; the same for the same content."""
    if artifact.config:
        config = _descriptor(artifact.config)
    else:
        config = {"mediaType": EMPTY, "digest": manifest.digest_of(EMPTY_DATA), "size": len(EMPTY_DATA), "data": "e30="}
    document: dict[str, Any] = {"schemaVersion": 2, "mediaType": manifest.OCI_MANIFEST}
    if artifact.artifact_type:
        document["artifactType"] = artifact.artifact_type
    document |= {"config": config, "layers": [_descriptor(blob) for blob in artifact.layers]}
    if subject := artifact.subject:
        document["subject"] = {"mediaType": subject.media_type, "digest": subject.digest, "size": subject.size}
    if artifact.annotations:
        document["annotations"] = dict(sorted(artifact.annotations.items()))
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def _descriptor(blob: Blob) -> dict[str, Any]:
    described = {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}
    return described | ({"annotations": dict(blob.annotations)} if blob.annotations else {})


def subject_of(registry: Registry, target: str, digest: Digest | None) -> Subject:
    """Return what a new artifact is to refer to: an index, if ``target`` (tag or digest) leads to one.

    :raises NotFound: if the registry does not have it.
    """
    data, media_type = registry.fetch_manifest(target)
    if digest is not None:
        manifest.verify(data, digest, f"{registry}: subject")
    document = manifest.parse_document(data, f"{registry}: {target}")
    kind = document.get("mediaType") or media_type
    return Subject(media_type=str(kind), digest=digest or manifest.digest_of(data), size=len(data))


def push(registry: Registry, tag: str, artifact: Artifact, tell: Tell) -> Digest:
    """Publish an artifact and return its digest. Blobs that the registry has are not sent again.

    :param tag: empty: it has no tag, and is found by its digest or its subject.
    :raises RegistryUnavailable: if the registry does not answer, or a blob does not get through.
    :raises PermissionDenied: if it refuses the credentials.
    :raises InvalidArgument: if nobody could pull it, because its manifest is too large.
    :raises FailedPrecondition: if a file changes while it is sent, or the registry refuses the artifact.
    """
    data = manifest_of(artifact)
    if len(data) > manifest.MAX_MANIFEST_BYTES:
        raise InvalidArgument(
            f"{registry}: a manifest of {len(data)} bytes, more than the {manifest.MAX_MANIFEST_BYTES} allowed",
            hint="shorten its annotations",
        )
    digest = manifest.digest_of(data)
    config = artifact.config or bytes_blob("config", EMPTY_DATA, EMPTY)
    try:
        # The same content under two names is one blob.
        for blob in {blob.digest: blob for blob in (config, *artifact.layers)}.values():
            # Nobody asked for the empty one, and it is no news.
            upload(registry, blob, tell if blob is not config or artifact.config else lambda *_: None)
    finally:
        if config is not artifact.config:
            config.close()
    headers = _put_manifest(registry, tag or digest, data, manifest.OCI_MANIFEST)
    # A registry that lists referrers says in this header that it took note.
    if artifact.subject and "oci-subject" not in headers:
        _list_by_tag(registry, artifact, digest, len(data))
    return digest


def _put_manifest(registry: Registry, target: str, data: bytes, media_type: str) -> Mapping[str, str]:
    """Store a manifest, and return the headers of the answer, names in lower case."""
    reply = ask(
        registry,
        Call(
            method="PUT",
            path=f"manifests/{target}",
            what=f"{registry}: manifest {target}",
            headers={"Content-Type": media_type, "Content-Length": str(len(data))},
            body=lambda: data,
            accept=(200, 201, 202),
        ),
    )
    _cross_check(registry, reply, manifest.digest_of(data), "the manifest")
    return reply.headers


def _list_by_tag(registry: Registry, artifact: Artifact, digest: Digest, size: int) -> None:
    """Add the artifact to the list that its subject's tag leads to (distribution-spec, "Referrers Tag Schema")."""
    if artifact.subject is None:
        return
    subject = artifact.subject.digest
    entry: dict[str, Any] = {
        "mediaType": manifest.OCI_MANIFEST,
        "digest": digest,
        "size": size,
        "artifactType": artifact.artifact_type or (artifact.config.media_type if artifact.config else EMPTY),
    }
    if artifact.annotations:
        entry["annotations"] = dict(sorted(artifact.annotations.items()))
    for _ in range(_ATTEMPTS):
        index = referrers.tagged_index(registry, subject) or {"schemaVersion": 2, "mediaType": manifest.OCI_INDEX}
        what = f"{registry}:{referrers.tag_of(subject)}"
        # The list as it is now: of the one that was written here, another client's may have taken the place.
        if any(item.digest == digest for item in referrers.referrers_in(index, what)):
            return
        index["manifests"] = [*(index.get("manifests") or ()), entry]
        _put_manifest(registry, referrers.tag_of(subject), json.dumps(index, indent=2).encode(), manifest.OCI_INDEX)
        # Read again: whoever attaches something at the same time may have written its own list over this one.
    raise Unavailable(
        f"{registry}: the list of what refers to {subject} keeps changing; {digest} is there, but not in the list",
        hint="push it again",
    )


def upload(registry: Registry, blob: Blob, tell: Tell) -> None:
    """Bring a blob to the registry unless it is there; after a broken connection go on with what is missing.

    :raises RegistryUnavailable: if several tries bring next to nothing.
    :raises FailedPrecondition: if the file changed.
    """
    way = _Upload(registry, blob, tell)
    failures = forgiven = 0
    while True:
        try:
            way.attempt()
        except (RegistryUnavailable, Unavailable):
            # Bytes that arrived make up for failures: a slow line may break often and still come to an end. How many
            # did is the registry's word: it counts by what was never there before, so that this ends, whatever it says.
            if way.arrived >= forgiven + _FORGIVEN:
                failures, forgiven = 0, way.arrived
            failures += 1
            if failures == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S * (1 << (failures - 1)))
        else:
            return


class _Upload:
    """One blob on its way. ``arrived``: bytes that the registry has confirmed."""

    def __init__(self, registry: Registry, blob: Blob, tell: Tell) -> None:
        self._registry = registry
        self._blob = blob
        self._tell = tell
        self._what = f"{registry}: upload of {blob.shown}"
        self._location = ""
        self._begun = False
        self.arrived = 0

    def attempt(self) -> None:
        """Send what is missing, as far as the connection bears."""
        blob = self._blob
        # Also after a failure: the registry may have got everything, and only its answer was lost.
        if self._exists():
            self._tell(blob, "done" if self._begun else "exists", blob.size)
            return
        start = self._resumed() if self._location else 0
        if not self._location:
            self._begin()
        self._begun = True
        if blob.size > _AT_ONCE and start < blob.size:
            self._send("PATCH", self._location, start, (202, 201, 204))
            start = blob.size
        # The location may have a query of its own, with the state of the upload (distribution-spec, "Pushing a blob").
        url = f"{self._location}{'&' if '?' in self._location else '?'}{urlencode({'digest': blob.digest})}"
        answer = self._send("PUT", url, start, (201, 200, 204))
        _cross_check(self._registry, answer, blob.digest, blob.shown)
        self._tell(blob, "done", blob.size)

    def _send(self, method: str, url: str, start: int, accept: Collection[int]) -> Reply:
        """Send the blob from ``start`` on, which may be its end."""
        size = self._blob.size
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size - start)}
        if 0 < start < size:
            headers["Content-Range"] = f"{start}-{size - 1}"
        begun = self.arrived > 0
        answer = self._ask(method, url, accept=(*accept, *_LOST), headers=headers, body=lambda: self._pieces(start))
        if answer.status in _LOST:
            self._location = ""
            # What it has of the blob may be something else than it said; the next try begins anew.
            # 400 of a first try is about the bytes, not about an upload that was lost.
            if begun or answer.status != 400:
                self.arrived = 0
                raise Unavailable(f"{self._what}: the registry lost what it had of it ({answer.status})")
            raise self._refused(answer)
        self._locate(url, answer)
        return answer

    def _refused(self, answer: Reply) -> PodkeepError:
        """Return the error for bytes that the registry did not find right: theirs, or those of the file."""
        try:
            for _ in self._blob.pieces():
                pass
        except FailedPrecondition as error:
            return error
        said = answer.data[:200].decode(errors="replace").strip()
        return FailedPrecondition(f"{self._what}: the registry refuses {self._blob.digest}: {said or answer.status}")

    def _exists(self) -> bool:
        answer = self._ask("HEAD", f"blobs/{self._blob.digest}", accept=(200, 404))
        return answer.status == 200

    def _begin(self) -> None:
        headers = {"Content-Length": "0"}
        answer = self._ask("POST", _UPLOADS, accept=(201, 202), headers=headers, body=lambda: b"")
        if not answer.headers.get("location"):
            raise FailedPrecondition(f"{self._what}: the registry does not say where to send it")
        self._locate(_UPLOADS, answer)

    def _resumed(self) -> int:
        """Ask how much arrived, and return it; without an answer to that, the upload starts anew."""
        try:
            answer = self._ask("GET", self._location, accept=(204, 202, 200))
        except (FailedPrecondition, NotFound):
            self._location = ""
            return 0
        self._locate(self._location, answer)
        first, dash, last = answer.headers.get("range", "").removeprefix("bytes=").partition("-")
        if first != "0" or not dash or not _SIZE.fullmatch(last) or not 0 < int(last) < self._blob.size:
            # "0-0" is one byte or none; nobody can tell, and the byte is soon sent again.
            self._location = ""
            return 0
        self.arrived = int(last) + 1
        return self.arrived

    def _locate(self, asked: str, answer: Reply) -> None:
        """Note where to go on; what the registry says is relative to what was ``asked`` (RFC 9110, 10.2.2)."""
        try:
            self._location = urldefrag(urljoin(asked, answer.headers.get("location", ""))).url
        except ValueError as error:
            raise FailedPrecondition(f"{self._what}: the registry sends it to something that is no URL") from error

    def _pieces(self, start: int) -> Iterator[bytes]:
        sent = start
        for piece in self._blob.pieces(start):
            yield piece
            sent += len(piece)
            self._tell(self._blob, "uploading", sent)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        accept: Collection[int],
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Reply:
        call = Call(method=method, path=path, what=self._what, headers=headers or {}, accept=accept, body=body)
        return ask(self._registry, call)


def _cross_check(registry: Registry, answer: Reply, digest: Digest, shown: str) -> None:
    """Compare what the registry says it stored with what was sent.

    :raises FailedPrecondition: if it stored something else.
    """
    stored = answer.headers.get("docker-content-digest", digest)
    if stored != digest:
        raise FailedPrecondition(f"{registry}: {shown} is {digest}, and the registry stored {stored}")
