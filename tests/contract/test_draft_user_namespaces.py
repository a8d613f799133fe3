"""The messages of KEP-127's early draft, as they were written, beside the final ones that alone go over the wire.

``IdMap`` is what both become: flags of a node with one mapping have the draft's order (container, host, length), CRI
has the other one (host, container, length). Read by its numbers, the draft's 0, 1000, 10 would be CRI's 1000, 0, 10.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor

from podkeep.cri import id_mappings
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.namespace.idmap import IdMap, IdMapping
from podkeep.runtime.model import records
from podkeep.runtime.rpc.convert.namespaces import namespace_message, namespace_options

UINT32, MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_UINT32, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
ENUM = descriptor_pb2.FieldDescriptorProto.TYPE_ENUM
DRAFT: dict[str, tuple[tuple[str, int, int, str], ...]] = {
    "LinuxIDMapping": (("container_id", 1, UINT32, ""), ("host_id", 2, UINT32, ""), ("length", 3, UINT32, "")),
    "LinuxUserNamespaceConfig": (
        ("uid_mappings", 1, MESSAGE, "LinuxIDMapping"),
        ("gid_mappings", 2, MESSAGE, "LinuxIDMapping"),
    ),
    "NamespaceOption": (("user", 5, ENUM, "NamespaceMode"), ("mappings", 6, MESSAGE, "LinuxUserNamespaceConfig")),
}
"""Message: name, number, type and name of the type of its fields (KEP-127, draft, "CRI API")."""


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="draft.proto", package="draft", syntax="proto3")
    modes = file.enum_type.add(name="NamespaceMode")
    for name, number in (("POD", 0), ("CONTAINER", 1), ("NODE", 2)):
        modes.value.add(name=name, number=number)
    for message, fields in DRAFT.items():
        made = file.message_type.add(name=message)
        for name, number, kind, type_name in fields:
            repeated = message == "LinuxUserNamespaceConfig"
            field = made.field.add(name=name, number=number, type=kind, label=3 if repeated else 1)
            if type_name:
                field.type_name = f".draft.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"draft.{name}")) for name in DRAFT}


MESSAGES = _messages()


def adapted(config: Any) -> IdMap:
    """Return the value of a draft's ``LinuxUserNamespaceConfig``."""
    uids, gids = (
        tuple(IdMapping(container_id=item.container_id, host_id=item.host_id, length=item.length) for item in items)
        for items in (config.uid_mappings, config.gid_mappings)
    )
    return IdMap(uids=uids, gids=gids)


def drafted(idmap: IdMap) -> Any:
    """Return the draft's message of a value."""
    mapping = MESSAGES["LinuxIDMapping"]
    uids, gids = (
        [mapping(container_id=item.container_id, host_id=item.host_id, length=item.length) for item in items]
        for items in (idmap.uids, idmap.gids)
    )
    return MESSAGES["LinuxUserNamespaceConfig"](uid_mappings=uids, gid_mappings=gids)


def triples(*given: tuple[int, int, int]) -> tuple[IdMapping, ...]:
    return tuple(IdMapping(container_id=inside, host_id=outside, length=length) for inside, outside, length in given)


@pytest.mark.requirement("U26")
@pytest.mark.parametrize(
    "idmap",
    [
        IdMap(uids=triples((0, 1000, 10)), gids=triples((0, 1000, 10))),
        IdMap(uids=triples((0, 1000, 10), (10, 5000, 10)), gids=triples((0, 7, 5), (2000, 2000, 1))),
        IdMap(uids=triples((0, 2**32 - 2, 1)), gids=triples((0, 65536, 2**32 - 65537))),
    ],
)
def test_a_drafts_mapping_comes_through_cri_and_back_unchanged(idmap: IdMap) -> None:
    """Over the bytes of both, with UIDs and GIDs of their own and at the ends of what the numbers can be."""
    draft = MESSAGES["LinuxUserNamespaceConfig"].FromString(drafted(idmap).SerializeToString())
    value = adapted(draft)
    assert value == idmap
    asked = namespace_message(records.NamespaceOptions(userns=value))
    received = namespace_options(api.NamespaceOption.FromString(asked.SerializeToString()))
    assert received.userns == idmap
    assert drafted(received.userns) == draft
    assert [str(item) for item in id_mappings.messages(idmap.uids)] == [
        str(api.IDMapping(host_id=item.host_id, container_id=item.container_id, length=item.length))
        for item in idmap.uids
    ]


@pytest.mark.requirement("U26")
@pytest.mark.parametrize("mode", ["POD", "NODE"])
def test_a_drafts_mode_is_cris(mode: str) -> None:
    """POD is a user namespace of the pod's own with these mappings, NODE the machine's."""
    idmap = IdMap(uids=triples((0, 1000, 10)), gids=triples((0, 1000, 10)))
    draft = MESSAGES["NamespaceOption"](mappings=drafted(idmap))
    draft.user = draft.DESCRIPTOR.fields_by_name["user"].enum_type.values_by_name[mode].number
    own = draft.user == draft.DESCRIPTOR.fields_by_name["user"].enum_type.values_by_name["POD"].number
    value = records.NamespaceOptions(userns=adapted(draft.mappings) if own else None)
    message = namespace_message(value)
    assert api.NamespaceMode.Name(message.userns_options.mode) == mode
    assert bool(message.userns_options.uids) is own


@pytest.mark.requirement("U26")
def test_nothing_of_the_draft_goes_over_the_wire() -> None:
    """CRI has neither the draft's messages nor its fields; the draft's bytes would be read as something else."""

    def every(messages: Any) -> list[Descriptor]:
        found = list(messages.values())
        return found + [nested for item in found for nested in every(item.nested_types_by_name)]

    names = {item.name for item in every(api.DESCRIPTOR.message_types_by_name)}
    assert names.isdisjoint({"LinuxIDMapping", "LinuxUserNamespaceConfig"})
    options = api.NamespaceOption.DESCRIPTOR
    assert options.fields_by_number[5].name == "userns_options"
    assert 6 not in options.fields_by_number
    assert {"user", "mappings"}.isdisjoint(options.fields_by_name)
    swapped = api.IDMapping.FromString(
        MESSAGES["LinuxIDMapping"](container_id=0, host_id=1000, length=10).SerializeToString()
    )
    assert (swapped.host_id, swapped.container_id) == (0, 1000), "why it must not"
    idmap = IdMap(uids=triples((0, 1000, 10)), gids=triples((0, 1000, 10)))
    sent = namespace_message(records.NamespaceOptions(userns=idmap)).SerializeToString()
    numbers = {item.field_number for item in _unknown(sent)}
    assert numbers <= set(options.fields_by_number)


def _unknown(data: bytes) -> Any:
    """Return the fields of a message as one that knows none of them sees them."""
    return unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(data))
