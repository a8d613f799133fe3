"""Owners of copies of an image's files: every mapping, and what is not in it."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from podkeep.kernel.namespace.idmap import MAX_ID, IdMap, IdMapping, block
from podkeep.runtime.bundle.owners import Owners, unmapped

V2 = struct.pack("<IIIII", 0x02000001, 0x400, 0, 0, 0)
"""cap_net_bind_service+ep (struct vfs_cap_data)."""


def mapping(*triples: tuple[int, int, int]) -> tuple[IdMapping, ...]:
    return tuple(IdMapping(container_id=inside, host_id=host, length=length) for inside, host, length in triples)


SPLIT = IdMap(
    uids=mapping((0, 1000, 10), (10, 5000, 90)), gids=mapping((0, 70000, 2000), (2000, 2000, 1), (2001, 72001, 100))
)


def test_every_extent_counts_and_users_are_not_groups() -> None:
    owners = Owners(SPLIT)
    assert [owners.uid(number) for number in (0, 9, 10, 99)] == [1000, 1009, 5000, 5089]
    assert [owners.gid(number) for number in (0, 1999, 2000, 2001)] == [70000, 71999, 2000, 72001]


def test_what_is_not_mapped_belongs_to_an_id_that_the_mapping_does_not_have() -> None:
    owners = Owners(SPLIT)
    # Host ID 1000 is the pod's root: the image's user 1000, whom the mapping lacks, must not become it.
    assert {owners.uid(number) for number in (100, 1000, 65534, MAX_ID)} == {MAX_ID}
    assert owners.gid(65534) == MAX_ID


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ([(0, 65536, 65536)], MAX_ID),
        ([(0, MAX_ID, 1)], MAX_ID - 1),
        ([(0, MAX_ID - 9, 10), (10, MAX_ID - 19, 10)], MAX_ID - 20),
        ([(10, MAX_ID - 19, 10), (0, MAX_ID - 9, 10)], MAX_ID - 20),
        ([(0, MAX_ID - 9, 5)], MAX_ID),
    ],
)
def test_nobody_is_the_largest_host_id_that_is_free(extents: list[tuple[int, int, int]], expected: int) -> None:
    assert unmapped(mapping(*extents)) == expected


def test_file_capabilities_hold_for_root_of_the_pod() -> None:
    found = Owners(block(65536, 65536)).attribute("security.capability", V2)
    assert found == struct.pack("<IIIIII", 0x03000001, 0x400, 0, 0, 0, 65536)


def test_file_capabilities_for_another_root_are_for_that_user_of_the_pod() -> None:
    owners = Owners(block(65536, 1000))
    of_seven = struct.pack("<IIIIII", 0x03000001, 0x400, 0, 0, 0, 7)
    assert owners.attribute("security.capability", of_seven) == of_seven[:20] + struct.pack("<I", 65543)
    assert owners.attribute("security.capability", of_seven[:20] + struct.pack("<I", 1000)) is None


@pytest.mark.parametrize("value", [b"", b"\1", V2[:-1], V2 + b"\0", struct.pack("<IIII", 0x01000000, 0, 0, 0)])
def test_capabilities_that_are_none_are_left_out(value: bytes) -> None:
    assert Owners(block(65536, 65536)).attribute("security.capability", value) is None


def test_access_control_lists_name_the_pods_users_and_groups() -> None:
    def acl(user: int, group: int) -> bytes:
        nobody = 2**32 - 1
        entries = [(1, 7, nobody), (2, 6, user), (4, 5, nobody), (8, 4, group), (16, 7, nobody), (32, 5, nobody)]
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)

    owners = Owners(SPLIT)
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        assert owners.attribute(name, acl(12, 2000)) == acl(5002, 2000)
        assert owners.attribute(name, acl(1000, 5)) == acl(MAX_ID, 70005)


def test_other_attributes_are_kept() -> None:
    assert Owners(SPLIT).attribute("user.comment", V2) == V2


@pytest.mark.slow
def test_ids_of_access_lists_are_not_remembered() -> None:
    owners = Owners(block(65536, 65536))
    lists = [
        struct.pack("<I", 2) + b"".join(struct.pack("<HHI", 2, 7, first + number) for number in range(500))
        for first in range(0, 50_000, 500)
    ]
    tracemalloc.start()
    try:
        for value in lists:
            owners.attribute("system.posix_acl_access", value)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 2 << 20
