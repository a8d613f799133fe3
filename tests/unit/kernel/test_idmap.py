"""The rules of ID mappings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.errors import InvalidArgument
from podkeep.kernel.namespace.idmap import MAX_ID, IdMap, IdMapping, block, proc_text

GOOD = (IdMapping(container_id=0, host_id=65536, length=65536),)


def mappings(*triples: tuple[int, int, int]) -> tuple[IdMapping, ...]:
    return tuple(IdMapping(container_id=inside, host_id=outside, length=length) for inside, outside, length in triples)


@pytest.mark.requirement("U29")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([], "without UID mappings"),
        ([(0, 65536, 0)], "no length"),
        ([(0, 65536, -1)], "no length"),
        ([(1, 65536, 10)], "UID 0 of the container is not mapped"),
        ([(0, 100, 10), (9, 200, 10)], "0:100:10 and 9:200:10 overlap on the container side"),
        ([(0, 100, 10), (10, 109, 10)], "overlap on the host side"),
        ([(0, -1, 10)], "leaves the range"),
        ([(0, MAX_ID, 2)], "leaves the range"),
        ([(0, 0, MAX_ID + 2)], "leaves the range"),
        ([(2 * i, 2 * i, 1) for i in range(341)], "more than the kernel takes"),
        ([(0, 0, 1), *((4000000000 + 2 * i, 4000000000 + 2 * i, 1) for i in range(300))], "more than the kernel takes"),
    ],
)
def test_bad_mappings_are_refused_for_users_and_groups(bad: list[tuple[int, int, int]], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        IdMap(uids=mappings(*bad), gids=GOOD).validate()
    with pytest.raises(InvalidArgument, match=words.replace("UID", "GID")):
        IdMap(uids=GOOD, gids=mappings(*bad)).validate()


@pytest.mark.requirement("U27", "U57")
def test_group_mappings_may_have_an_entry_of_their_own() -> None:
    """fsGroup 2000 mapped 1:1 out of the block 0:1000:65536 leaves a hole at container GID 1000."""
    split = mappings((0, 1000, 1000), (1001, 2001, 999), (2000, 2000, 1), (2001, 3001, 63535))
    idmap = IdMap(uids=mappings((0, 1000, 65536)), gids=split)
    idmap.validate()
    assert idmap.host_gid(2000) == 2000
    assert idmap.host_uid(2000) == 3000
    with pytest.raises(InvalidArgument, match="GID 1000 of the container is not mapped by 0:1000:1000, "):
        idmap.host_gid(1000)


def test_the_last_id_can_be_mapped() -> None:
    idmap = IdMap(uids=mappings((0, MAX_ID, 1)), gids=mappings((0, 0, MAX_ID + 1)))
    idmap.validate()
    assert idmap.host_uid(0) == idmap.host_gid(MAX_ID) == MAX_ID


def test_text_for_the_kernel() -> None:
    assert proc_text(mappings((0, 65536, 65536), (70000, 1, 2))) == "0 65536 65536\n70000 1 2\n"
    assert block(65536, 65536) == IdMap(uids=GOOD, gids=GOOD)


@st.composite
def idmaps(draw: st.DrawFn) -> IdMap:
    """Valid maps: the gaps and lengths are drawn, so entries cannot overlap."""

    def entries() -> tuple[IdMapping, ...]:
        lengths = draw(st.lists(st.integers(1, 100_000), min_size=1, max_size=8))
        inside = outside = 0
        found = []
        for number, length in enumerate(lengths):
            inside += draw(st.integers(0, 1000)) if number else 0
            outside += draw(st.integers(0, 1000))
            found.append((inside, outside, length))
            inside, outside = inside + length, outside + length
        hosts = draw(st.permutations(range(len(found))))
        start = 0
        shuffled = []
        for number in hosts:
            shuffled.append((found[number][0], start + found[number][1], found[number][2]))
            start += 1_000_000
        return mappings(*shuffled)

    return IdMap(uids=entries(), gids=entries())


@pytest.mark.slow
@pytest.mark.requirement("U67")
@given(idmaps(), st.integers(0, 900_000))
def test_mapping_there_and_back_is_the_identity(idmap: IdMap, inside: int) -> None:
    idmap.validate()
    for there, back in ((idmap.host_uid, idmap.container_uid), (idmap.host_gid, idmap.container_gid)):
        try:
            outside = there(inside)
        except InvalidArgument:
            continue
        assert back(outside) == inside


@pytest.mark.slow
@given(idmaps())
def test_every_entry_maps_its_edges_and_nothing_beside_the_map(idmap: IdMap) -> None:
    for item in idmap.uids:
        assert idmap.host_uid(item.container_id) == item.host_id
        assert idmap.host_uid(item.container_id + item.length - 1) == item.host_id + item.length - 1
        assert idmap.container_uid(item.host_id) == item.container_id
    beyond = max(item.container_id + item.length for item in idmap.uids)
    with pytest.raises(InvalidArgument):
        idmap.host_uid(beyond)
