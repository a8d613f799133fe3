"""What the store and an image worker say to each other: one JSON line for each message.

On a floor of its own: below the two, which do not know each other, and above what messages are made of, which are
servers to ask (``registry``), references, policies and open files (``formats``). What a worker and its unpack processes
say to each other is in ``layers.messages``: those processes import nothing but layers.

The states of a worker, and the messages that lead from each to the next::

    started
      │
      ├─ Pull, Load ──▶ fetching ── Wanted ──▶ waiting ─┐
      │                  │  ▲                           │  for each image
      │                  │  └───────── Available ───────┘
      │                  │
      │                  └── FetchedImage for each image, or Unchanged ──▶ ending
      │
      ├─ Save ────────▶ saving ── Saved ──▶ ending
      │
      └─ Verify ──────▶ verifying ── Checked, Unchecked or Damaged for each layer ──▶ ending

    ending ── Done ──▶ ended
    any state ── Progress or Retrying ──▶ the same state
    any state ── Failed ──▶ ended

Requests and ``Available`` go to the worker, all others to the store. A worker whose standard input ends has lost its
store, and kills itself; one that ends without ``Done`` or ``Failed`` was killed or is broken. Both sides refuse a
message with an unknown field or a value of another type.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from podkeep.base.errors import Internal
from podkeep.base.ids import Digest, ImageID
from podkeep.base.registries.reference import Reference
from podkeep.images.formats.image import ImageKind, LayerKind
from podkeep.images.formats.media_types import Policy
from podkeep.images.formats.openfile import OpenFile
from podkeep.images.registry.endpoint import Endpoint


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of messages."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A message; its ``type`` on the wire is the name of its class."""


class LayerSettings(_Part, frozen=True, kw_only=True):
    """What is the same for each layer that a worker makes.

    ``staging`` is the directory to write below, ``driver`` keeps what is made. ``parallel`` layers are unpacked at a
    time; each may have ``max_bytes`` and ``max_inodes``, and ``max_ratio`` times the bytes of its blob.
    """

    staging: str
    driver: str
    policy: Policy
    architecture: str
    parallel: int
    max_bytes: int
    max_inodes: int
    max_ratio: int


class Repository(_Part, frozen=True, kw_only=True):
    """A repository and what is wanted of it, by its whole ``name``, and the servers to ask, first to be tried first."""

    name: Reference
    endpoints: tuple[Endpoint, ...]


class Pull(_Message, frozen=True, kw_only=True):
    """Get an image from a registry.

    ``known`` are digests of what is here under this name: if the registry has one of them, there is nothing to get.
    ``referrers`` is another repository to look into for what refers to the image, if an artifact is named by that.
    """

    source: Repository
    known: tuple[Digest, ...] = ()
    referrers: Repository | None = None
    settings: LayerSettings


class Load(_Message, frozen=True, kw_only=True):
    """Read the images of an archive: ``file`` if there is one, else what is at ``path``, which then is just a name."""

    path: str
    file: OpenFile | None
    settings: LayerSettings


class StoredLayer(_Part, frozen=True, kw_only=True):
    """A layer to be read again.

    ``driver`` keeps it. ``digest`` is of its plain tar, or of its file. ``metadata`` and ``implied`` are the recorded
    digests of what is beside its content (``LayerRecord``), ``bytes`` and ``inodes`` what it takes on disk.
    """

    id: Digest
    driver: str
    digest: Digest
    metadata: str
    implied: str
    bytes: int
    inodes: int


class StoredImage(_Part, frozen=True, kw_only=True):
    """An image to be saved; ``manifest`` is the one its layers came with, empty if there was none."""

    id: ImageID
    kind: ImageKind
    config: bytes
    manifest: bytes
    layers: tuple[StoredLayer, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]


class Save(_Message, frozen=True, kw_only=True):
    """Write images of the store at ``root`` to ``target``, which is open on a directory, or else a file or a pipe."""

    root: str
    target: OpenFile
    directory: bool
    images: tuple[StoredImage, ...]


class Verify(_Message, frozen=True, kw_only=True):
    """Compare layers of the store at ``root`` with their digests."""

    root: str
    layers: tuple[StoredLayer, ...]


Request = Pull | Load | Save | Verify


class WantedLayer(_Part, frozen=True, kw_only=True):
    """A layer that an image needs.

    ``layer`` is its ID where that is known before it is unpacked. ``auto`` is a ``tar`` if it starts like one, else a
    ``file``, which gets the name ``title``. ``digest`` is the blob's, if it is known. ``compression`` is ``auto`` if
    the content says whether it is a plain tar or a file.
    """

    layer: Digest | None
    kind: LayerKind | Literal["auto"]
    title: str
    digest: Digest | None
    compression: str


class Wanted(_Message, frozen=True, kw_only=True):
    """Which of these layers are here? The store answers with :class:`Available`."""

    layers: tuple[WantedLayer, ...]


class AvailableLayer(_Part, frozen=True, kw_only=True):
    """What the store has of a wanted layer: ``layer`` itself, or else ``same_file``, a layer that is one file with the
    wanted one's content under another title."""

    layer: Digest | None = None
    same_file: Digest | None = None


class Available(_Message, frozen=True, kw_only=True):
    """What the store has of the wanted layers, in their order. It stays until the worker has ended."""

    layers: tuple[AvailableLayer, ...]


class StagedLayer(_Part, frozen=True, kw_only=True):
    """What was made of a layer: ``path`` is where it is, in a form that ``driver`` keeps.

    ``bytes`` and ``inodes`` are what it takes on disk, ``data_bytes`` those of them that files with the same content
    have in common. ``metadata`` and ``implied`` are digests of what is beside its content (``LayerRecord``).
    """

    driver: str
    path: str
    bytes: int
    inodes: int
    data_bytes: int
    metadata: str
    implied: str


class NewLayer(_Part, frozen=True, kw_only=True):
    """A layer that the store did not have; without ``staged`` it is a file whose content the store has, or is given
    with the same message, under another title. ``digest`` and ``compression`` are the blob's (:class:`WantedLayer`)."""

    layer: Digest
    kind: LayerKind
    title: str
    digest: Digest | None
    compression: str
    staged: StagedLayer | None


class FetchedImage(_Message, frozen=True, kw_only=True):
    """An image that was pulled or loaded: its ``config`` and what podkeep reads in it (``encode_run``), ``manifests``
    that led to it by their digests, IDs of all ``layers``, base first, the ``new`` ones among them, and the names it is
    to have."""

    id: ImageID
    kind: ImageKind
    artifact_type: str
    config: bytes
    run: bytes
    manifests: tuple[tuple[Digest, bytes], ...]
    layers: tuple[Digest, ...]
    new: tuple[NewLayer, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]


class Unchanged(_Message, frozen=True, kw_only=True):
    """The registry has nothing new: ``name`` (``host/repository@digest``) is an image that was known to be here."""

    name: str


class Progress(_Message, frozen=True, kw_only=True):
    """A step of ``digest`` (empty: of the whole request), ``done`` of ``total`` bytes; phases: ``PullProgress``, and
    ``verifying``."""

    digest: str
    phase: str
    done: int
    total: int


class Retrying(_Message, frozen=True, kw_only=True):
    """A registry answered ``status`` to the request for ``what``, which is sent again in so many ``seconds``."""

    what: str
    status: int
    seconds: float


class Saved(_Message, frozen=True, kw_only=True):
    """All is written: ``bytes`` of all files together."""

    bytes: int


class Checked(_Message, frozen=True, kw_only=True):
    """A layer is what its digests say; ``bytes`` of its content."""

    layer: Digest
    bytes: int


class Unchecked(_Message, frozen=True, kw_only=True):
    """Of a layer it cannot be told whether it is what its digests say; ``why`` not."""

    layer: Digest
    why: str


class Damaged(_Message, frozen=True, kw_only=True):
    """A layer is not what its digests say."""

    layer: Digest
    problem: str


class Done(_Message, frozen=True, kw_only=True):
    """The request is served."""


class Failed(_Message, frozen=True, kw_only=True):
    """The request has failed with an error of the class ``error`` (``base.errors``)."""

    error: str
    message: str
    hint: str


Event = Wanted | Progress | Retrying | FetchedImage | Unchanged | Saved | Checked | Unchecked | Damaged | Done | Failed

_encode = msgspec.json.Encoder().encode


def encode(message: Request | Available | Event) -> bytes:
    """Return a message as its line.

    :raises Internal: if a text in it is no Unicode; the error does not quote it, as it may be a secret.
    """
    try:
        return _encode(message) + b"\n"
    except UnicodeEncodeError:
        raise Internal(f"a message of type {type(message).__name__} has a text that is no Unicode") from None


def decode_request(line: bytes) -> Request:
    request: Request = msgspec.json.decode(line, type=Request)
    return request


def decode_answer(line: bytes) -> Available:
    return msgspec.json.decode(line, type=Available)


def decode_event(line: bytes) -> Event:
    """Return what a worker says on a line.

    :raises Internal: if it is what no worker says.
    """
    try:
        event: Event = msgspec.json.decode(line, type=Event)
    except (ValueError, RecursionError) as error:
        raise Internal(f"the image worker said what it never says: {error}") from error
    return event


def unexpected(event: Event) -> Internal:
    """Return the error of a message that does not belong to the request."""
    return Internal(f"the image worker said what it never says: {type(event).__name__} to this request")
