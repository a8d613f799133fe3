"""One case of the campaign of requests: calls in their order, as values that can be written to a file and read again.

Texts of a request hold placeholders, so that a case means the same on any machine and in any run: ``@sandbox`` or
``@dir/data`` is what :class:`attack.node.Node` says it is at that moment, ``@repeat:1000:x`` is a long text. ``wire``
changes the bytes of the serialized request.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2 as node

NOT_CALLED = frozenset({"Shutdown"})
"""It does what it says."""
RPCS: dict[str, MethodDescriptor] = {
    method.name: method
    for service in [*api.DESCRIPTOR.services_by_name.values(), *node.DESCRIPTOR.services_by_name.values()]
    for method in service.methods
    if method.name not in NOT_CALLED
}
UNKNOWN_ID = "0123456789abcdef" * 4
_PLACEHOLDER = re.compile(r"@([a-z]+)")
_REPEAT = re.compile(r"@repeat:(\d+):(.*)", re.DOTALL)


@dataclass(frozen=True)
class WireChange:
    """One change of serialized bytes; ``at`` is taken modulo their length."""

    kind: str
    """``set``, ``insert``, ``cut`` (all from there), ``drop`` (as many bytes as ``data`` has), ``twice``."""
    at: int
    data: bytes = b""

    def apply(self, message: bytes) -> bytes:
        at = self.at % (len(message) + 1)
        head, tail = message[:at], message[at:]
        match self.kind:
            case "set":
                return head + self.data + tail[len(self.data) :]
            case "insert":
                return head + self.data + tail
            case "cut":
                return head
            case "drop":
                return head + tail[len(self.data) :]
            case _:
                return message + tail


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an RPC."""

    rpc: str
    request: Message
    wire: tuple[WireChange, ...] = ()

    @property
    def path(self) -> str:
        return f"/{RPCS[self.rpc].containing_service.full_name}/{self.rpc}"

    def data(self, names: Mapping[str, str]) -> bytes:
        """Return the bytes to send, where ``names`` is what placeholders stand for."""
        message = expanded(self.request, names).SerializeToString(deterministic=True)
        for change in self.wire:
            message = change.apply(message)
        return message

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "rpc": self.rpc,
            "request": json_format.MessageToDict(self.request, preserving_proto_field_name=True),
        }
        if self.wire:
            result["wire"] = [[change.kind, change.at, change.data.hex()] for change in self.wire]
        return result


Case = Sequence[Call]


def read_case(path: Path) -> Case:
    """Return a case of the corpus."""
    calls = []
    for item in json.loads(path.read_text())["calls"]:
        message = message_factory.GetMessageClass(RPCS[item["rpc"]].input_type)()
        json_format.ParseDict(item["request"], message)
        wire = tuple(WireChange(kind, at, bytes.fromhex(data)) for kind, at, data in item.get("wire", ()))
        calls.append(Call(rpc=item["rpc"], request=message, wire=wire))
    return calls


def case_text(case: Case, found: str) -> str:
    """Return a case as the text of a file of the corpus; ``found`` says what happened once."""
    calls = [call.as_json() for call in case]
    return json.dumps({"found": found, "calls": calls}, indent=1, sort_keys=True) + "\n"


def is_map(item: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return item.message_type is not None and item.message_type.GetOptions().map_entry


def expanded(request: Message, names: Mapping[str, str]) -> Message:
    """Return a request with what its placeholders stand for; one that is not known becomes an ID of nothing."""
    result = type(request)()
    result.CopyFrom(request)
    _expand(result, names)
    return result


def expanded_text(text: str, names: Mapping[str, str]) -> str:
    """Return a text with what its placeholder stands for, which is at its start."""
    if match := _REPEAT.fullmatch(text):
        return expanded_text(match[2], names) * int(match[1])
    if match := _PLACEHOLDER.match(text):
        return names.get(match[0], UNKNOWN_ID) + text[match.end() :]
    return text


def _expand(message: Message, names: Mapping[str, str]) -> None:
    for item, value in message.ListFields():
        if is_map(item):
            kinds = item.message_type.fields_by_name
            if {kinds["key"].type, kinds["value"].type} == {FieldDescriptor.TYPE_STRING}:
                pairs = {expanded_text(key, names): expanded_text(text, names) for key, text in value.items()}
                value.clear()
                value.update(pairs)
        elif item.message_type is not None:
            for below in value if item.is_repeated else [value]:
                _expand(below, names)
        elif item.type == FieldDescriptor.TYPE_STRING:
            if item.is_repeated:
                value[:] = [expanded_text(text, names) for text in value]
            else:
                setattr(message, item.name, expanded_text(value, names))


def generator(seed: int, campaign: str, number: int) -> random.Random:
    """Return the source of chance of one case: with the same seed it is the same, whatever was run before."""
    return random.Random(f"{seed}/{campaign}/{number}")
