"""Peers built against upstream and podkeep understand each other's bytes, and lose nothing on the way.

The peer is played by message classes made from the listing of upstream's interface: it knows no addition.
"""

from __future__ import annotations

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from podkeep.cri.v1 import api_pb2
from support import cri_v1

PEER = cri_v1.build(cri_v1.listed())
SHARED = sorted(line.removeprefix("message ") for line in cri_v1.listed() if line.startswith("message "))


def peer_class(name: str) -> type[Message]:
    return message_factory.GetMessageClass(PEER.FindMessageTypeByName(f"runtime.v1.{name}"))


def fill(message: Message, depth: int = 3) -> Message:
    """Set every field of ``message`` down to ``depth`` levels to a value that its number decides."""
    for field in message.DESCRIPTOR.fields:
        if _is_map(field):
            getattr(message, field.name)[f"key{field.number}"] = f"value{field.number}"
        elif field.message_type is not None and depth == 0:
            continue
        elif field.message_type is not None and field.is_repeated:
            fill(getattr(message, field.name).add(), depth - 1)
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            fill(child, depth - 1)
        elif field.is_repeated:
            getattr(message, field.name).extend([_value(field), _value(field)])
        else:
            setattr(message, field.name, _value(field))
    return message


def _is_map(field: FieldDescriptor) -> bool:
    kind: Descriptor | None = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _value(field: FieldDescriptor) -> object:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = f"text {field.number} é"
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return True
    return field.number + (0.5 if kind == FieldDescriptor.CPPTYPE_DOUBLE else 0)


@pytest.mark.requirement("U20")
@pytest.mark.parametrize("name", SHARED)
def test_a_peers_message_passes_through_us_byte_for_byte(name: str) -> None:
    sent = fill(peer_class(name)()).SerializeToString(deterministic=True)
    received = getattr(api_pb2, name).FromString(sent)
    assert received.SerializeToString(deterministic=True) == sent
    assert str(received) == str(peer_class(name).FromString(sent))


@pytest.mark.parametrize("name", SHARED)
def test_our_message_passes_through_a_peer_with_its_additions(name: str) -> None:
    ours = fill(getattr(api_pb2, name)())
    relayed = peer_class(name).FromString(ours.SerializeToString()).SerializeToString()
    assert getattr(api_pb2, name).FromString(relayed) == ours


def test_a_peer_reads_no_addition_as_something_else() -> None:
    config = api_pb2.ContainerConfig(working_dir="/srv")
    config.class_resources.classes["rdt"] = "gold"
    seen = peer_class("ContainerConfig").FromString(config.SerializeToString())
    assert {field.name for field, _ in seen.ListFields()} == {"working_dir"}


def test_a_field_of_a_newer_interface_survives_us() -> None:
    # Mount.mount_options = 11, which comes after 0.36: a repeated string.
    newer = api_pb2.Mount(container_path="/data").SerializeToString() + bytes.fromhex("5a 06") + b"noexec"
    mount = api_pb2.Mount.FromString(newer)
    assert mount.container_path == "/data"
    assert mount.SerializeToString() == newer


def test_id_mappings_are_not_swapped() -> None:
    """KEP-127's first draft numbered container_id before host_id; read that way, host root would be mapped."""
    sent = peer_class("IDMapping")(host_id=65536, container_id=0, length=65536).SerializeToString()
    assert api_pb2.IDMapping.FromString(sent) == api_pb2.IDMapping(host_id=65536, container_id=0, length=65536)


def test_the_field_named_like_a_keyword_is_reachable() -> None:
    classes = api_pb2.PodClassResources()
    getattr(classes, "class")["blockio"] = "slow"
    again = api_pb2.PodClassResources.FromString(classes.SerializeToString())
    assert dict(getattr(again, "class")) == {"blockio": "slow"}
