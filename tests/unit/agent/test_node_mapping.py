"""One mapping for all pods of a node: what is refused, what an fsGroup makes of it, and the record that pods keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.agent.user_namespaces import blocks, mapping
from podkeep.agent.user_namespaces.blocks import Block, default_range
from podkeep.agent.user_namespaces.model import of, of_block
from podkeep.agent.user_namespaces.subordinate_ids import Granted
from podkeep.base.errors import DataLoss, InvalidArgument
from podkeep.kernel.namespace.idmap import IdMap, IdMapping

BASE = "0:1000:65536"


def extents(*triples: tuple[int, int, int]) -> tuple[IdMapping, ...]:
    """Return extents of (container ID, host ID, length)."""
    return tuple(IdMapping(container_id=c, host_id=h, length=n) for c, h, n in triples)


def read(uids: str, gids: str = "") -> IdMap:
    found = mapping.read(uids, gids or uids)
    assert found is not None
    return found


@pytest.mark.requirement("U47", "U48")
def test_every_extent_is_read() -> None:
    assert read("0:1000:10").uids == extents((0, 1000, 10))
    assert read("0:1000:10,10:5000:10").gids == extents((0, 1000, 10), (10, 5000, 10))
    found = read("0:1000:10", "0:2000:20")
    assert (found.uids, found.gids) == (extents((0, 1000, 10)), extents((0, 2000, 20)))
    assert read("0:1:4294967294").uids == extents((0, 1, 4294967294))
    assert mapping.read("", "") is None


BAD = [
    ("0:1000", "'0:1000' is not container_id:host_id:length"),
    ("0:1000:10:10:5000:10", "'0:1000:10:10:5000:10' is not container_id:host_id:length"),
    ("0:1000:10,", "'' is not container_id:host_id:length"),
    ("0:1000:-1", "'0:1000:-1' is not"),
    ("0: 1000:10", "'0: 1000:10' is not"),
    ("٠:1000:10", "is not container_id:host_id:length"),
    ("0:1000:0", "UID mapping 0:1000:0 has no length"),
    ("0:4294967290:10", "leaves the range 0 to 4294967294"),
    ("0:99999999999:10", "is not container_id:host_id:length"),
    ("0:1000:10,5:5000:10", "overlap on the container side"),
    ("0:1000:10,10:1005:10", "overlap on the host side"),
    ("1:1000:10", "UID 0 of the container is not mapped"),
    (",".join(f"{n}:{n + 1000000}:1" for n in range(320)), "320 UID mappings (4370 bytes) are more than the kernel"),
    (",".join(f"{n}:{n + 1}:1" for n in range(341)), "341 UID mappings"),
    ("0:0:65536", "0:0:65536 maps ID 0 of the node: pods would be its root"),
    ("0:1000:10,10:0:1", "10:0:1 maps ID 0 of the node"),
]


@pytest.mark.requirement("U49")
@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_is_refused_names_its_flag(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mapping.read(text, BASE)
    assert "--uid-mapping" in caught.value.message
    assert "--gid-mapping" not in caught.value.message
    assert message in caught.value.message
    with pytest.raises(InvalidArgument) as caught:
        mapping.read(BASE, text)
    assert "--gid-mapping" in caught.value.message
    assert "--uid-mapping" not in caught.value.message
    assert message.replace("UID", "GID") in caught.value.message


@pytest.mark.requirement("U49")
@pytest.mark.parametrize(("uids", "gids", "missing"), [(BASE, "", "--gid-mapping"), ("", BASE, "--uid-mapping")])
def test_one_flag_alone_is_refused(uids: str, gids: str, missing: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mapping.read(uids, gids)
    assert f"is given without {'agent.gid_mapping' if 'gid' in missing else 'agent.uid_mapping'} ({missing})" in str(
        caught.value
    )


@given(st.text(alphabet="0123456789:,- x", max_size=60))
def test_any_text_is_a_mapping_that_may_be_or_is_refused(text: str) -> None:
    try:
        found = mapping.read(text, text)
    except InvalidArgument:
        return
    if found is None:
        assert text == ""
        return
    found.validate()
    assert all(item.host_id > 0 for item in found.uids)


def test_what_is_unwise_is_said() -> None:
    granted = [Granted(file="/etc/subuid", user="alice", first=100000, count=65536)]
    assert list(mapping.warnings(read("0:200000:65536"), granted)) == []
    said = list(mapping.warnings(read("0:1000:10", "0:100000:65536"), granted))
    below = "has host IDs below 65536, which the node's own users and files have"
    assert said == [
        f"agent.uid_mapping (--uid-mapping): 0:1000:10 {below}",
        "agent.gid_mapping (--gid-mapping): 0:100000:65536 has host IDs of others: /etc/subuid gives IDs to alice",
    ]


@pytest.mark.requirement("U56", "U57")
def test_an_fs_group_inside_of_the_mapping_leaves_a_hole() -> None:
    found = mapping.with_fs_group(read(BASE), 2000)
    assert found.uids == extents((0, 1000, 65536))
    assert found.gids == extents((0, 1000, 1000), (1001, 2001, 999), (2000, 2000, 1), (2001, 3001, 63535))
    with pytest.raises(InvalidArgument, match="GID 1000 of the container is not mapped"):
        found.host_gid(1000)
    assert found.host_gid(2000) == 2000
    assert mapping.with_fs_group(found, 2000) == found


@pytest.mark.requirement("U56", "U57")
@pytest.mark.parametrize(
    ("base", "group", "expected"),
    [
        ("0:100000:10", 2000, [(0, 100000, 10), (2000, 2000, 1)]),
        # Only the pod's side is inside, only the node's, at the ends, and in two extents.
        ("0:100000:65536", 2000, [(0, 100000, 2000), (2000, 2000, 1), (2001, 102001, 63535)]),
        ("0:1999:2", 2000, [(0, 1999, 1), (2000, 2000, 1)]),
        ("0:1000:2001", 2000, [(0, 1000, 1000), (1001, 2001, 999), (2000, 2000, 1)]),
        ("0:1001:1000", 2000, [(0, 1001, 999), (2000, 2000, 1)]),
        (
            "0:5000:3000,3000:1500:1000",
            2000,
            [(0, 5000, 2000), (2000, 2000, 1), (2001, 7001, 999), (3000, 1500, 500), (3501, 2001, 499)],
        ),
        ("0:5:1,1:1000:1000", 1, [(0, 5, 1), (1, 1, 1), (2, 1001, 999)]),
        ("0:100000:10,2000:2000:5", 2003, [(0, 100000, 10), (2000, 2000, 5)]),
    ],
)
def test_an_fs_group_in_other_mappings(base: str, group: int, expected: list[tuple[int, int, int]]) -> None:
    found = mapping.with_fs_group(read(base), group)
    assert found.gids == extents(*expected)
    assert found.uids == read(base).uids


@pytest.mark.parametrize(
    ("base", "group", "message"),
    [
        (BASE, 0, "fsGroup 0 is the root group of the node"),
        (BASE, 1000, "fsGroup 1000 is the group of the node that the pod's GID 0 is mapped to"),
        (",".join(f"{2 * n}:{2 * n + 5000}:1" for n in range(340)), 70000, "fsGroup 70000: 341 GID mappings"),
    ],
)
def test_an_fs_group_that_cannot_be(base: str, group: int, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mapping.with_fs_group(read(base), group)
    assert caught.value.message.startswith(message)


IDS = st.integers(1, 300)


@pytest.mark.slow
@given(st.lists(st.tuples(IDS, IDS, st.integers(1, 40)), max_size=5), st.integers(1, 400))
def test_an_fs_group_breaks_no_rule_and_moves_nobody(rest: list[tuple[int, int, int]], group: int) -> None:
    base = IdMap(uids=extents((0, 1000, 1)), gids=extents((0, 1000, 1), *rest))
    try:
        base.validate()
    except InvalidArgument:
        return
    found = mapping.with_fs_group(base, group)
    found.validate()
    assert found.host_gid(group) == group

    def ids(mapped: IdMap) -> set[tuple[int, int]]:
        return {(item.container_id + n, item.host_id + n) for item in mapped.gids for n in range(item.length)}

    assert ids(found) == {pair for pair in ids(base) if group not in pair} | {(group, group)}


@pytest.mark.requirement("U58")
def test_whose_files_are() -> None:
    node = of(IdMap(uids=extents((0, 1000, 10)), gids=extents((0, 2000, 10))))
    assert (node.idmapped_volumes, node.volume_owner()) == (False, (1000, 2000))
    own = of(Block(first=131072))
    assert own == of_block(Block(first=131072))
    assert (own.idmapped_volumes, own.volume_owner()) == (True, (0, 0))


def test_the_record_is_a_kubelets_but_for_its_mark() -> None:
    id_map = mapping.with_fs_group(read("0:100000:10"), 7000)
    written = json.loads(blocks.render(id_map))
    assert written == {
        "uidMappings": [{"hostId": 100000, "containerId": 0, "length": 10}],
        "gidMappings": [
            {"hostId": 100000, "containerId": 0, "length": 10},
            {"hostId": 7000, "containerId": 7000, "length": 1},
        ],
        "nodeMapping": True,
    }
    assert blocks.parse(blocks.render(id_map)) == id_map


def test_what_is_no_record_of_the_nodes_mapping() -> None:
    good = json.loads(blocks.render(read("0:100000:10")))
    for change, message in (
        ({"uidMappings": []}, "user namespace without UID mappings"),
        ({"uidMappings": [{"hostId": 0, "containerId": 0, "length": 1}]}, "it maps ID 0 of the node"),
        ({"gidMappings": [{"hostId": 5, "containerId": 1, "length": 1}]}, "GID 0 of the container is not mapped"),
        ({"gidMappings": "x"}, "Expected `array`"),
        ({"nodeMapping": 1}, "Expected `bool`"),
        ({"other": 1}, "unknown field `other`"),
    ):
        with pytest.raises(DataLoss, match=message):
            blocks.parse(json.dumps(good | change).encode())


def test_no_block_has_an_id_of_a_pod_with_the_nodes_mapping(tmp_path: Path) -> None:
    """Such a pod holds no block, and goes on after the node has changed to blocks."""
    ours, others = tmp_path / "ours", tmp_path / "others"
    for pods, uid, text in ((ours, "a", "0:65536:10,10:200000:1"), (others, "b", "0:1000:10,10:262144:1")):
        (pods / uid).mkdir(parents=True)
        blocks.write(pods, uid, read(text))
    (ours / "c").mkdir()
    block = blocks.allocate(ours, "c", default_range(9), [others])
    assert block.first == 131072
    (ours / "d").mkdir()
    assert blocks.allocate(ours, "d", default_range(9), [others]).first == 327680
    assert blocks.recorded(ours, "a") is None
    assert blocks.record(ours, "a") == read("0:65536:10,10:200000:1")
    assert blocks.read_all(ours, default_range(9)).held() == {"c": block, "d": Block(first=327680)}
