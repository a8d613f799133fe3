"""The CRI as facts: reads and writes the listing of names, numbers and types in ``cri_v1_0.36.txt``.

``describe`` turns a descriptor into such lines, ``build`` turns lines into message classes of their own, so that the
tests can play a peer that was built against upstream and knows none of podkeep's additions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool

LISTING = Path(__file__).with_name("cri_v1_0.36.txt")

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_SCALAR_NAMES = {number: name for name, number in _SCALARS.items()}
_MAP = "map<string, string>"


def listed() -> set[str]:
    """Return the lines of the listing without its comments."""
    lines = LISTING.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def describe(file: descriptor_pb2.FileDescriptorProto) -> set[str]:
    """Return one line per message, field, enum value and RPC of ``file``."""
    lines: set[str] = set()
    for message in file.message_type:
        lines.update(_describe_message(file.package, message))
    for enum in file.enum_type:
        lines.update(_describe_enum("", enum))
    for service in file.service:
        for rpc in service.method:
            assert not rpc.client_streaming
            answer = "stream " * rpc.server_streaming + _local(file.package, rpc.output_type)
            lines.add(f"rpc {service.name}.{rpc.name}({_local(file.package, rpc.input_type)}) {answer}")
    return lines


def _describe_message(package: str, message: descriptor_pb2.DescriptorProto) -> Iterator[str]:
    yield f"message {message.name}"
    entries = set()
    for nested in message.nested_type:
        assert nested.options.map_entry, f"{message.name}.{nested.name}: the CRI nests no messages but map entries"
        assert [field.type for field in nested.field] == [_Field.TYPE_STRING, _Field.TYPE_STRING]
        entries.add(f"{message.name}.{nested.name}")
    for enum in message.enum_type:
        yield from _describe_enum(f"{message.name}.", enum)
    for field in message.field:
        assert not field.HasField("oneof_index"), f"{message.name}.{field.name}: the CRI has no oneof"
        kind = _SCALAR_NAMES.get(field.type) or _local(package, field.type_name)
        if kind in entries:
            kind = _MAP
        elif field.label == _Field.LABEL_REPEATED:
            kind = f"repeated {kind}"
        flags = " deprecated" * field.options.deprecated + " redacted" * field.options.debug_redact
        yield f"field {message.name}.{field.name} = {field.number} {kind}{flags}"


def _describe_enum(prefix: str, enum: descriptor_pb2.EnumDescriptorProto) -> Iterator[str]:
    for value in enum.value:
        yield f"enum {prefix}{enum.name}.{value.name} = {value.number}"


def _local(package: str, name: str) -> str:
    return name.removeprefix(f".{package}.")


def build(lines: Iterable[str]) -> descriptor_pool.DescriptorPool:
    """Return a pool of its own that holds the messages and enums of ``lines`` in package ``runtime.v1``."""
    file = descriptor_pb2.FileDescriptorProto(name="listing.proto", package="runtime.v1", syntax="proto3")
    parsed = sorted(lines)
    messages = {
        name: file.message_type.add(name=name) for line in parsed if (name := line.removeprefix("message ")) != line
    }
    enums = _add_enums(file, messages, parsed)
    for line in parsed:
        if match := re.fullmatch(r"field (\w+)\.(\w+) = (\d+) (.+?)( deprecated| redacted)?", line):
            message, name, number, kind, _ = match.groups()
            _add_field(messages[message], messages[message].field.add(name=name, number=int(number)), kind, enums)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_enums(
    file: descriptor_pb2.FileDescriptorProto, messages: dict[str, descriptor_pb2.DescriptorProto], lines: list[str]
) -> set[str]:
    values: dict[str, dict[int, str]] = {}
    for line in lines:
        if match := re.fullmatch(r"enum ([\w.]+)\.(\w+) = (\d+)", line):
            values.setdefault(match[1], {})[int(match[3])] = match[2]
    for path, by_number in values.items():
        parent, _, name = path.rpartition(".")
        enum = messages[parent].enum_type.add(name=name) if parent else file.enum_type.add(name=name)
        for number in sorted(by_number):
            enum.value.add(name=by_number[number], number=number)
    return set(values)


def _add_field(
    message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto, kind: str, enums: set[str]
) -> None:
    field.label = _Field.LABEL_OPTIONAL
    if kind == _MAP:
        entry_name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        for number, name in enumerate(("key", "value"), start=1):
            entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        kind = f"repeated {message.name}.{entry_name}"
    if (single := kind.removeprefix("repeated ")) != kind:
        field.label = _Field.LABEL_REPEATED
    if single in _SCALARS:
        field.type = _SCALARS[single]
    else:
        field.type = _Field.TYPE_ENUM if single in enums else _Field.TYPE_MESSAGE
        field.type_name = f".runtime.v1.{single}"
