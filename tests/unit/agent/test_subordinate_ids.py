"""What /etc/subuid and /etc/subgid give to users, and that no pod gets any of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.agent.user_namespaces import blocks as userns
from podkeep.agent.user_namespaces import subordinate_ids
from podkeep.agent.user_namespaces.blocks import UNIT, Block, Blocks, default_range
from podkeep.agent.user_namespaces.subordinate_ids import Granted, parse
from podkeep.base.errors import FailedPrecondition, ResourceExhausted
from podkeep.kernel.mount import mounts

STRANGE = """root:100000:65536
root:0x30000:65536
root:0200000:010
root:08:1
root: 300000:65536
root:+400000:65536
root:-1:65536
root:500000:65536\x20
root:500001:65536:x
root:600000:99999999999999999999999
root:900000:9999999999
root:0x:1
root::1
root:1100000
:1100000:5
root:1100000:65536\r

root:00000000000000000000000000000000000000000000000000000000000000000000001000000:7
root:1200000:5"""
FIRST_POD, SECOND_POD = UNIT, 2 * UNIT


def alice(first: int, count: int) -> Granted:
    return Granted(file="/etc/subuid", user="alice", first=first, count=count)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file over /etc/subuid")
def test_numbers_are_those_that_shadow_reads(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text(STRANGE)
    mounts.bind(file, Path("/etc/subuid"))
    try:
        said = subprocess.run(["getsubids", "root"], check=True, capture_output=True, text=True).stdout
        found = subordinate_ids.read(["/etc/subuid"])
    finally:
        mounts.unmount(Path("/etc/subuid"))
    assert [("root", str(item.first), str(item.count)) for item in found] == [
        tuple(line.split()[1:]) for line in said.splitlines()
    ]
    assert len(found) >= 9


def test_comments_empty_ranges_and_the_kubelets_own_are_nobody_elses() -> None:
    text = "#alice:1:2\nkubelet:65536:7208960\nalice:5:0\n1000:7:8\nroot:9:10\n"
    assert [(item.user, item.first, item.count) for item in parse(text, "f")] == [("1000", 7, 8), ("root", 9, 10)]


@pytest.mark.slow
@given(st.text(max_size=300))
def test_any_text_has_ranges_or_none(text: str) -> None:
    assert all(item.count > 0 and item.first >= 0 for item in parse(text, "f"))


@pytest.mark.requirement("U41")
@pytest.mark.parametrize(
    ("granted", "starts"),
    [
        ((), [1, 2, 3]),
        ([alice(100000, 65536)], [3, 4, 5]),
        ([alice(FIRST_POD - 1, 1)], [1, 2, 3]),
        ([alice(FIRST_POD - 1, 2)], [2, 3, 4]),
        ([alice(SECOND_POD, 1)], [1, 3, 4]),
        ([alice(SECOND_POD + UNIT - 1, 1)], [1, 3, 4]),
        ([alice(SECOND_POD + UNIT, 1)], [1, 2, 4]),
        ([alice(65536, 4294836224 - 65536)], [65534]),
        ([alice(0, 1 << 32)], []),
        ([alice(0, 1 << 64)], []),
        ([alice(1 << 32, 1 << 32), alice((1 << 64) - 1, 65536)], [1, 2, 3]),
    ],
)
def test_blocks_with_an_id_that_a_user_has_are_left_out(granted: list[Granted], starts: list[int]) -> None:
    assert list(default_range(3).without(granted).starts()) == [number * UNIT for number in starts]


@pytest.mark.slow
@pytest.mark.requirement("U32", "U37", "U41")
@given(
    st.integers(1, 400), st.lists(st.tuples(st.integers(0, 1 << 33), st.integers(1, 1 << 33)), max_size=6), st.data()
)
def test_no_block_overlaps_a_users_range_and_there_are_as_many_as_fit(
    pods: int, ranges: list[tuple[int, int]], data: st.DataObject
) -> None:
    ranges += data.draw(st.lists(st.tuples(st.integers(0, 1 << 25), st.integers(1, 1 << 18)), max_size=6))
    granted = [alice(first, count) for first, count in ranges]
    id_range = default_range(pods).without(granted)
    starts = list(id_range.starts())
    assert starts == sorted(set(starts))
    assert all(start >= UNIT and start + UNIT < 1 << 32 for start in starts)
    assert not any(item.overlaps(start, UNIT) for item in granted for start in starts)
    assert len(starts) == pods or id_range.shortage()
    if id_range.shortage():
        assert all(
            block in id_range or id_range.granted_in(block)
            for block in (Block(first=number * UNIT) for number in range(1, 65535, 97))
        )


@pytest.mark.slow
def test_many_large_ranges_are_no_work_for_each_block() -> None:
    text = "".join(f"user{number}:{number}:4294967295\n" for number in range(30_000))
    assert len(text) < subordinate_ids.MAX_BYTES
    assert list(default_range(3).without(parse(text, "f")).starts()) == []


@pytest.mark.requirement("U41", "U42")
def test_no_block_that_users_leave() -> None:
    blocks = Blocks(default_range(2).without([alice(0, 65534 * UNIT)]))
    assert blocks.allocate("a") == Block(first=65534 * UNIT)
    with pytest.raises(ResourceExhausted) as caught:
        blocks.allocate("b")
    assert caught.value.message.endswith("could not find an empty slot to allocate a user namespace")
    assert caught.value.hint.endswith(
        "or give users fewer IDs: 65533 blocks are left out, as /etc/subuid gives IDs to alice"
    )


@pytest.mark.requirement("U34", "U41")
def test_a_pod_keeps_a_block_that_a_user_was_given_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for uid in ("old", "new"):
        (tmp_path / uid).mkdir()
    assert userns.allocate(tmp_path, "old", default_range(3)).first == FIRST_POD
    granted = [alice(100000, 65536)]
    assert userns.allocate(tmp_path, "new", default_range(3).without(granted)).first == 3 * UNIT
    assert userns.allocate(tmp_path, "old", default_range(3).without(granted)).first == FIRST_POD
    assert "pod old keeps the IDs 65536-131071 until it is removed" in caplog.text
    assert "/etc/subuid gives IDs to alice" in caplog.text


def test_files(tmp_path: Path) -> None:
    uids, gids, missing = tmp_path / "subuid", tmp_path / "subgid", tmp_path / "missing"
    uids.write_text("alice:1:2\n")
    gids.write_bytes(b"bob\xff:3:4\n")
    found = subordinate_ids.read([str(uids), str(missing), str(gids)])
    assert [(item.file, item.first, item.count) for item in found] == [(str(uids), 1, 2), (str(gids), 3, 4)]
    assert subordinate_ids.holders(found) == f"{uids} and {gids} give IDs to alice, bob\ufffd"
    gids.write_bytes(b"#" * subordinate_ids.MAX_BYTES)
    assert len(subordinate_ids.read([str(uids), str(gids)])) == 1
    gids.write_bytes(b"#" * (subordinate_ids.MAX_BYTES + 1))
    with pytest.raises(FailedPrecondition, match=f"{gids} has more than 1048576 bytes"):
        subordinate_ids.read([str(uids), str(gids)])
