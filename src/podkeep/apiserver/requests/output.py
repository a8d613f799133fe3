"""Objects as answers: as they are, as rows of a Table, or their metadata alone; in JSON or YAML. Pure.

Stored objects are bytes of JSON and are not decoded for an answer that has them as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from podkeep.apiserver.kinds import cells
from podkeep.apiserver.kinds.resources import Column, Resource
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.requests.media_types import YAML, Form
from podkeep.base.frozen import FrozenStruct

PIECE_BYTES = 64 << 10
_MAX_BLOCK_BYTES = 32 << 10
"""Of a value, encoded, that is written in YAML's block style: that may take 2 ms for each KiB. A longer one is written
as JSON, which is YAML, too (upstream: always in block style)."""
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
"""Characters that JSON's strings may have, and YAML's not, or that end a line there."""
_TO_ESCAPE = re.compile(f"[{''.join(map(chr, _ESCAPED))}]")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+":?')
"""A string of JSON, from its start; with the colon, if it is a key. One after the other, they take linear time."""
_PLAIN_KEY = 1_000
"""Characters of a key, about: of more than 1,024, YAML needs an indicator before it."""
EVENT_END = b"}\n"
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
encode = msgspec.json.Encoder().encode
decode = msgspec.json.decode


class ListBody(FrozenStruct, kw_only=True):
    """A list in its parts: a whole one of many objects would keep every other request waiting.

    ``item`` writes a stored object; ``before`` comes before the first of them.
    """

    start: bytes
    before: bytes = b""
    item: Callable[[bytes], bytes]
    between: bytes = b""
    end: bytes
    end_of_empty: bytes


class Rendering(FrozenStruct):
    """How the objects of one resource are shown. ``include`` says what a Table's rows have of their objects."""

    resource: Resource
    form: Form
    include: str = "Metadata"

    @property
    def is_plain(self) -> bool:
        """Whether stored bytes are the answer."""
        return not self.form.as_

    @property
    def is_stored(self) -> bool:
        """Whether objects are shown as the bytes that are stored."""
        return self.is_plain and self.resource.view is None

    @property
    def is_copied(self) -> bool:
        """Whether nothing is made of stored bytes for an answer with them."""
        return self.is_stored and not self.form.pretty and self.form.media_type != YAML

    @property
    def meta_version(self) -> str:
        """The ``apiVersion`` of what is shown instead of objects."""
        return f"meta.k8s.io/{self.form.version}"

    def seen(self, value: bytes) -> bytes:
        """Return a stored object as the resource has it."""
        view = self.resource.view
        return value if view is None else encode(view.read(decode(value)))

    def one(self, value: bytes | Mapping[str, Any]) -> bytes:
        """Return the body of an answer with one object; bytes are as :meth:`seen` returns them."""
        if self.is_plain:
            return written(value, self.form)
        plain = decode(value) if isinstance(value, bytes) else value
        if self.form.as_ == "Table":
            version = metadata(plain).get("resourceVersion", "")
            return written(self.table([plain], {"resourceVersion": version}), self.form)
        return written(self.partial(plain), self.form)

    def table(self, values: Iterable[Mapping[str, Any]], list_meta: Mapping[str, Any], *, headers: bool = True) -> Any:
        now = datetime.now(UTC)
        return {
            "kind": "Table",
            "apiVersion": self.meta_version,
            "metadata": dict(list_meta),
            "columnDefinitions": self.headers() if headers else None,
            "rows": [self.row(value, now) for value in values],
        }

    def headers(self) -> list[dict[str, Any]]:
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in self._columns
        ]

    @property
    def _columns(self) -> tuple[Column, ...]:
        return self.resource.columns or (cells.NAME, cells.AGE)

    def row(self, value: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """Return an object's row of a Table."""
        row: dict[str, Any] = {"cells": [column.cell(value, now) for column in self._columns]}
        if self.include == "Object":
            row["object"] = value
        elif self.include == "Metadata":
            row["object"] = self.partial(value)
        return row

    def partial(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": "PartialObjectMetadata", "apiVersion": self.meta_version, "metadata": metadata(value)}

    def list_body(self, list_meta: Mapping[str, Any]) -> ListBody:
        """Return how the body of an answer with a list of stored objects is written."""
        head: dict[str, Any]
        item: Callable[[bytes], bytes]
        if self.form.as_ == "Table":
            now = datetime.now(UTC)
            head = {"kind": "Table", "apiVersion": self.meta_version, "metadata": list_meta}
            head["columnDefinitions"] = self.headers()
            name, item = "rows", lambda value: encode(self.row(decode(self.seen(value)), now))
        elif self.form.as_:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": self.meta_version, "metadata": list_meta}
            name, item = "items", lambda value: encode(self.partial(decode(self.seen(value))))
        else:
            kind = self.resource.kind
            head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": list_meta}
            name, item = "items", self.seen
        if self.form.media_type == YAML:
            return _yaml_list(head, name, item)
        return (_pretty_list if self.form.pretty else _json_list)(head, name, item)

    def event(self, kind: str, value: bytes, *, headers: bool) -> bytes:
        """Return a line of a watch.

        :param headers: whether a Table has its columns' definitions.
        """
        if self.form.as_ == "Table":
            plain = decode(value)
            list_meta = {"resourceVersion": metadata(plain).get("resourceVersion", "")}
            value = encode(self.table([plain], list_meta, headers=headers))
        elif self.form.as_:
            value = encode(self.partial(decode(value)))
        return event_start(kind) + value + EVENT_END

    def bookmark(self, revision: int, *, ends_initial: bool) -> bytes:
        """Return a watch's line that says up to which revision everything was told."""
        fields: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if ends_initial:
            fields["annotations"] = {INITIAL_EVENTS_END: "true"}
        kind = self.resource.kind
        value: dict[str, Any] = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": fields}
        if self.form.as_ == "Table":
            row = {"cells": [], "object": self.partial(value)}
            value = {
                "kind": "Table",
                "apiVersion": self.meta_version,
                "metadata": {"resourceVersion": str(revision)},
                "columnDefinitions": None,
                "rows": [row] if ends_initial else [],
            }
        elif self.form.as_:
            value = self.partial(value)
        return b'{"type":"BOOKMARK","object":' + encode(value) + b"}\n"


class Pieces:
    """What is sent of many parts: small ones joined to about ``PIECE_BYTES``, a larger one alone and not copied."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, *parts: bytes) -> Iterator[bytes]:
        """Add parts; yield the pieces that are complete with them."""
        for part in parts:
            is_large = len(part) >= PIECE_BYTES
            if not is_large:
                self._parts.append(part)
                self._size += len(part)
            if self._parts and (is_large or self._size >= PIECE_BYTES):
                yield self.rest()
            if is_large:
                yield part

    def rest(self) -> bytes:
        """Return what no piece has had yet."""
        piece = b"".join(self._parts)
        self._parts, self._size = [], 0
        return piece


def event_start(kind: str) -> bytes:
    """Return what comes before the object in a line of a watch; ``EVENT_END`` comes after it."""
    return b'{"type":"' + kind.encode() + b'","object":'


def written(value: bytes | Mapping[str, Any], form: Form) -> bytes:
    """Return an object in the media type of a form."""
    if form.media_type == YAML:
        return _yaml(value)
    data = value if isinstance(value, bytes) else encode(value)
    return msgspec.json.format(data, indent=2) + b"\n" if form.pretty else data


def _yaml(value: bytes | Mapping[str, Any], *, item: bool = False) -> bytes:
    """Return YAML with sorted keys; of an empty dictionary nothing.

    :param value: bytes are of JSON.
    :param item: as an item of a list.
    """
    data = value if isinstance(value, bytes) else encode(value)
    if len(data) > _MAX_BLOCK_BYTES:
        text = data.decode()
        if _TO_ESCAPE.search(text):
            text = text.translate(_ESCAPED)
        if _has_long_key(text):
            text = _STRING.sub(_with_indicator, text)
        return f"{'- ' if item else ''}{text}\n".encode()
    plain = decode(data) if isinstance(value, bytes) else value
    if plain == {} and not item:
        return b""
    from podkeep.base.text.yaml_text import to_yaml  # few clients ask for it

    shown = [plain] if item else plain
    return to_yaml(shown, sort_keys=True).encode()


def _has_long_key(text: str) -> bool:
    # Without what is escaped, each quotation mark begins or ends a string.
    pieces = text.replace(r"\\", "__").replace(r"\"", "__").split('"')
    return any(len(pieces[at]) > _PLAIN_KEY and pieces[at + 1].startswith(":") for at in range(1, len(pieces), 2))


def _with_indicator(string: re.Match[str]) -> str:
    text = string[0]
    return f"? {text[:-1]} :" if len(text) > _PLAIN_KEY and text.endswith(":") else text


def _json_list(head: Mapping[str, Any], name: str, item: Callable[[bytes], bytes]) -> ListBody:
    start = encode(head)[:-1] + b',"' + name.encode() + b'":['
    return ListBody(start=start, item=item, between=b",", end=b"]}\n", end_of_empty=b"]}\n")


def _pretty_list(head: Mapping[str, Any], name: str, item: Callable[[bytes], bytes]) -> ListBody:
    """Return the parts of an indented list; strings in JSON have no line ends to be indented."""

    def indented(value: bytes) -> bytes:
        return b"\n    " + msgspec.json.format(item(value), indent=2).replace(b"\n", b"\n    ")

    start = msgspec.json.format(encode(head), indent=2).removesuffix(b"\n}") + b',\n  "' + name.encode() + b'": ['
    return ListBody(start=start, item=indented, between=b",", end=b"\n  ]\n}\n", end_of_empty=b"]\n}\n")


def _yaml_list(head: Mapping[str, Any], name: str, item: Callable[[bytes], bytes]) -> ListBody:
    """Return the parts of a list whose keys are sorted."""
    end = _yaml({key: head[key] for key in head if key > name})
    return ListBody(
        start=_yaml({key: head[key] for key in head if key < name}),
        before=f"{name}:\n".encode(),
        item=lambda value: _yaml(item(value), item=True),
        end=end,
        end_of_empty=f"{name}: []\n".encode() + end,
    )
