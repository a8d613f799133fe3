"""Blocks of IDs: the record's format, that blocks never overlap, and that every failure says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.agent.user_namespaces import blocks as userns
from podkeep.agent.user_namespaces.blocks import UNIT, Block, Blocks, IdRange, Records, default_range
from podkeep.base import atomicfile
from podkeep.base.config import AgentConfig
from podkeep.base.errors import DataLoss, InvalidArgument, ResourceExhausted
from podkeep.kernel.namespace.idmap import IdMap


def record(*uids: tuple[int, int, int], gids: list[tuple[int, int, int]] | None = None) -> bytes:
    """Return a record with (hostId, containerId, length) triples."""

    def entries(triples: object) -> list[dict[str, int]]:
        return [{"hostId": h, "containerId": c, "length": n} for h, c, n in triples]  # type: ignore[attr-defined]

    return json.dumps({"uidMappings": entries(uids), "gidMappings": entries(uids if gids is None else gids)}).encode()


def add_pod(pods: Path, uid: str, content: bytes | None = None) -> None:
    (pods / uid).mkdir(parents=True)
    if content is not None:
        (pods / uid / userns.FILE_NAME).write_bytes(content)


@pytest.mark.requirement("U33")
def test_the_record_is_the_kubelets() -> None:
    mapping = [{"hostId": 131072, "containerId": 0, "length": 65536}]
    block = Block(first=131072)
    assert json.loads(userns.render(block)) == {"uidMappings": mapping, "gidMappings": mapping}
    assert userns.parse(userns.render(block)) == block
    longer = Block(first=196608, length=196608)
    assert userns.parse(userns.render(longer)) == longer


@pytest.mark.requirement("U45")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "invalid user namespace mappings file"),
        (b"{", "invalid user namespace mappings file"),
        (b"\xff\xfe", "invalid user namespace mappings file"),
        (b"[]", "invalid user namespace mappings file"),
        (b'{"uidMappings": []}', "invalid user namespace mappings file: it maps nothing"),
        (b'{"uidMappings": "x", "gidMappings": []}', "invalid user namespace mappings file"),
        (b'{"uidMapping": []}', "invalid user namespace mappings file"),
        (record((65536, 0, 65536), (131072, 65536, 65536)), "no more than one mapping allowed."),
        (record((65536, 0, 65536), gids=[(131072, 0, 65536)]), "GID and UID mappings should be identical."),
        (record((65536, 1, 65536)), "UID 0 must be mapped"),
        (record((65536, 0, 65535)), "wrong user namespace length 65535"),
        (record((65536, 0, 65537)), "wrong user namespace length 65537"),
        (record((65536, 0, 0)), "wrong user namespace length 0"),
        (record((65536, 0, -65536)), "wrong user namespace length -65536"),
        (record((65536, 0, 131072)), "wrong user namespace offset specified 65536"),
        (record((0, 0, 131072)), "id 0 is out of range"),
        (record((1 << 31, 0, 1 << 31)), f"id {1 << 31} is out of range"),
        (record((65536, 0, 1 << 70)), "wrong user namespace offset specified 65536"),
        (b" " * 70000, "invalid user namespace mappings file"),
        (record((65537, 0, 65536)), "wrong user namespace offset specified 65537"),
        (record((0, 0, 65536)), "id 0 is out of range"),
        (record((2**32 - 65536, 0, 65536)), f"id {2**32 - 65536} is out of range"),
        (record((-65536, 0, 65536)), "id -65536 is out of range"),
    ],
)
def test_what_is_no_record(data: bytes, message: str) -> None:
    with pytest.raises(DataLoss) as caught:
        userns.parse(data)
    assert message in caught.value.message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_data_loss(data: bytes) -> None:
    try:
        found = userns.parse(data)
    except DataLoss:
        return
    if isinstance(found, IdMap):
        found.validate()
    else:
        assert found.first % UNIT == found.length % UNIT == 0


@pytest.mark.requirement("U45")
def test_a_block_belongs_to_one_pod_and_a_pod_has_one_block() -> None:
    blocks = Blocks(default_range(3))
    blocks.record("a", Block(first=65536))
    blocks.record("a", Block(first=65536))
    with pytest.raises(DataLoss, match='range picked for pod "b" already taken'):
        blocks.record("b", Block(first=65536))
    with pytest.raises(DataLoss, match='different user namespace range already used by pod "a"'):
        blocks.record("a", Block(first=131072))


@pytest.mark.requirement("U31", "U36")
def test_three_pods_get_the_first_three_blocks_above_the_hosts_ids() -> None:
    blocks = Blocks(default_range(3))
    assert [blocks.allocate(uid).first for uid in "abc"] == [65536, 131072, 196608]
    assert blocks.allocate("a") == Block(first=65536, length=65536)


@pytest.mark.requirement("U42")
def test_no_free_block() -> None:
    blocks = Blocks(default_range(1))
    blocks.allocate("a")
    with pytest.raises(ResourceExhausted) as caught:
        blocks.allocate("b")
    assert caught.value.message == (
        "can't allocate user namespace: could not find an empty slot to allocate a user namespace"
    )


@pytest.mark.requirement("U37")
def test_more_blocks_than_the_id_space_has_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        default_range(70000)
    assert caught.value.hint == "set agent.max_pods to at most 65534"
    starts = list(default_range(65534).starts())
    assert starts[-1] + UNIT - 1 < 2**32 - 1
    with pytest.raises(InvalidArgument):
        default_range(65535)


@pytest.mark.requirement("U37")
def test_without_configuration_there_are_blocks_for_110_pods() -> None:
    blocks = Blocks(default_range(AgentConfig().max_pods))
    starts = [blocks.allocate(str(number)).first for number in range(110)]
    assert starts == [UNIT * number for number in range(1, 111)]
    with pytest.raises(ResourceExhausted):
        blocks.allocate("one more")


@pytest.mark.parametrize(("first", "message"), [(65537, "is not a multiple of"), (0, "must be greater or equal to")])
def test_a_range_starts_at_a_block_of_its_own(first: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        IdRange(first=first, blocks=1, wanted=1)


@pytest.mark.slow
@pytest.mark.requirement("U32", "U35", "U41")
@given(
    st.integers(1, 2000),
    st.integers(1, 12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 15)), max_size=80),
)
def test_live_blocks_never_overlap_and_stay_inside(first: int, size: int, steps: list[tuple[bool, int]]) -> None:
    id_range = IdRange(first=first * UNIT, blocks=size, wanted=size)
    blocks = Blocks(id_range)
    for allocate, pod in steps:
        if allocate:
            try:
                blocks.allocate(str(pod))
            except ResourceExhausted:
                assert len(blocks.held()) == size
        else:
            blocks.release(str(pod))
        held = list(blocks.held().values())
        assert len(set(held)) == len(held) <= size
        assert all(block in id_range for block in held)


@pytest.mark.requirement("U34")
def test_recorded_blocks_are_reserved_by_the_next_process(tmp_path: Path) -> None:
    add_pod(tmp_path, "a", userns.render(Block(first=65536)))
    add_pod(tmp_path, "b")
    assert userns.allocate(tmp_path, "b", default_range(3)).first == 131072
    assert userns.recorded(tmp_path, "b") == Block(first=131072)
    assert userns.allocate(tmp_path, "a", default_range(3)).first == 65536


@pytest.mark.requirement("U35")
def test_a_released_block_is_used_again(tmp_path: Path) -> None:
    for number in range(20):
        uid = f"pod{number}"
        add_pod(tmp_path, uid)
        assert userns.allocate(tmp_path, uid, default_range(1)).first == 65536
        userns.release(tmp_path, uid)
        assert not (tmp_path / uid / "userns").exists()


def test_a_block_outside_of_the_range_does_not_stop_other_pods(tmp_path: Path) -> None:
    add_pod(tmp_path, "old", userns.render(Block(first=9 * 65536)))
    add_pod(tmp_path, "new")
    assert userns.allocate(tmp_path, "new", default_range(2)).first == 65536
    assert userns.allocate(tmp_path, "old", default_range(2)).first == 9 * 65536


@pytest.mark.requirement("U34")
def test_blocks_of_other_lengths_keep_what_they_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The setting was another one when their pods were made: no new block has one of their IDs."""
    add_pod(tmp_path, "short", userns.render(Block(first=3 * UNIT)))
    add_pod(tmp_path, "long", userns.render(Block(first=8 * UNIT, length=4 * UNIT)))
    found = []
    for uid in ("a", "b", "c"):
        add_pod(tmp_path, uid)
        found.append(userns.allocate(tmp_path, uid, default_range(9, 2 * UNIT)))
    assert [(block.first // UNIT, block.length // UNIT) for block in found] == [(4, 2), (6, 2), (12, 2)]
    assert userns.allocate(tmp_path, "short", default_range(9, 2 * UNIT)) == Block(first=3 * UNIT)
    assert userns.allocate(tmp_path, "long", default_range(9)) == Block(first=8 * UNIT, length=4 * UNIT)
    assert "pod short keeps the IDs 196608-262143, which are outside of the configured range" in caplog.text


@pytest.mark.requirement("U45")
def test_overlapping_blocks_of_other_lengths_are_no_records(tmp_path: Path) -> None:
    add_pod(tmp_path, "a", userns.render(Block(first=4 * UNIT, length=4 * UNIT)))
    add_pod(tmp_path, "b", userns.render(Block(first=7 * UNIT)))
    with pytest.raises(DataLoss, match='range picked for pod "b" already taken by pod "a"'):
        userns.read_all(tmp_path, default_range(3))


@pytest.mark.requirement("U37")
def test_longer_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        default_range(32767, 2 * UNIT)
    assert caught.value.hint == "set agent.max_pods to at most 32766"
    assert list(default_range(32766, 2 * UNIT).starts())[-1] == (1 << 32) - 4 * UNIT


@pytest.mark.requirement("U43")
@pytest.mark.parametrize("kind", ["directory", "pipe", "huge", "loop"])
def test_a_record_that_is_no_small_file_is_read_no_further(tmp_path: Path, kind: str) -> None:
    add_pod(tmp_path, "bad")
    file = tmp_path / "bad" / "userns"
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "loop":
        file.symlink_to(file)
    else:
        with file.open("wb") as opened:
            opened.truncate(1 << 40)
    with pytest.raises(DataLoss, match="user namespace of pod bad"):
        userns.read_all(tmp_path, default_range(3))


@pytest.mark.requirement("U43")
def test_a_corrupt_record_names_pod_and_file(tmp_path: Path) -> None:
    add_pod(tmp_path, "bad", b"garbage")
    add_pod(tmp_path, "new")
    with pytest.raises(DataLoss) as caught:
        userns.allocate(tmp_path, "new", default_range(2))
    file = tmp_path / "bad" / "userns"
    assert caught.value.message.startswith(f"user namespace of pod bad: {file}: invalid user namespace mappings file")
    assert str(file) in caught.value.hint
    assert not (tmp_path / "new" / "userns").exists()


@pytest.mark.requirement("U44")
def test_a_record_that_cannot_be_written_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with pytest.raises(OSError):
        userns.allocate(tmp_path, "missing", default_range(1))
    assert userns.allocate(tmp_path, "gone", default_range(1)).first == 65536


PROGRAM = Path(__file__).with_name("programs") / "allocate.py"


@pytest.mark.requirement("U32")
@pytest.mark.slow
def test_processes_that_allocate_at_the_same_time_get_different_blocks(tmp_path: Path) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, PROGRAM, tmp_path, *(f"pod{number}" for number in range(first, 110, 4))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(4)
    ]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    starts = [int(line) for program in programs for line in program.communicate(timeout=60)[0].split()]
    assert [program.returncode for program in programs] == [0] * 4
    assert len(starts) == len(set(starts)) == 110
    assert all(start % UNIT == 0 for start in starts)


def kept(pods: Path, uid: str, first: int) -> Path:
    """Make the record of a pod, old enough that what was read of it is kept."""
    add_pod(pods, uid, userns.render(Block(first=first)))
    file = pods / uid / userns.FILE_NAME
    while time.time_ns() <= file.stat().st_ctime_ns + userns.TICK_NS:
        pass
    return file


@pytest.mark.requirement("U34")
@pytest.mark.parametrize("how", ["in place", "by another file", "with its times put back"])
def test_a_record_that_another_process_changed_is_read_again(tmp_path: Path, how: str) -> None:
    """Its size stays the same."""
    file, known = kept(tmp_path, "theirs", 65536 * 2), Records()
    add_pod(tmp_path, "a")
    assert userns.allocate(tmp_path, "a", default_range(9), known=known).first == 65536
    before, data = file.stat(), userns.render(Block(first=65536 * 3))
    if how == "by another file":
        atomicfile.write(file, data)
    else:
        file.write_bytes(data)
    if how == "with its times put back":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    for uid, first in (("b", 65536 * 2), ("c", 65536 * 4)):
        add_pod(tmp_path, uid)
        assert userns.allocate(tmp_path, uid, default_range(9), known=known).first == first


@pytest.mark.slow
@pytest.mark.requirement("U34")
def test_a_record_that_is_so_new_that_a_change_does_not_show_is_not_kept(tmp_path: Path) -> None:
    add_pod(tmp_path, "theirs")
    known, file = Records(), tmp_path / "theirs" / userns.FILE_NAME
    for number in range(2, 200):
        file.write_bytes(userns.render(Block(first=65536 * (10_000 + number))))
        found = userns.read_all(tmp_path, default_range(9), known).held()["theirs"]
        assert found.first == 65536 * (10_000 + number)


@pytest.mark.requirement("U35")
@pytest.mark.parametrize("what", ["record", "directory"])
def test_a_record_that_disappeared_is_forgotten(tmp_path: Path, what: str) -> None:
    file, known = kept(tmp_path, "theirs", 65536), Records()
    add_pod(tmp_path, "a")
    assert userns.allocate(tmp_path, "a", default_range(9), known=known).first == 65536 * 2
    file.unlink()
    if what == "directory":
        file.parent.rmdir()
    add_pod(tmp_path, "b")
    assert userns.allocate(tmp_path, "b", default_range(9), known=known).first == 65536


@pytest.mark.requirement("U45")
def test_a_kept_record_that_became_unreadable_is_an_error(tmp_path: Path) -> None:
    file, known = kept(tmp_path, "theirs", 65536), Records()
    assert userns.read_all(tmp_path, default_range(9), known).held() == {"theirs": Block(first=65536)}
    file.write_bytes(b"{" * file.stat().st_size)
    for _ in range(2):
        with pytest.raises(DataLoss, match="theirs"):
            userns.read_all(tmp_path, default_range(9), known)


@pytest.mark.requirement("U34")
def test_blocks_of_another_agent_are_kept_beside_ones_own(tmp_path: Path) -> None:
    """A pod of the same UID in the other directory is another one."""
    ours, theirs, known = tmp_path / "ours", tmp_path / "theirs", Records()
    kept(theirs, "a", 65536)
    for uid, first in (("a", 65536 * 2), ("b", 65536 * 3)):
        add_pod(ours, uid)
        assert userns.allocate(ours, uid, default_range(9), [theirs], known).first == first


def test_what_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    kept(tmp_path, "theirs", 65536)
    known = Records()
    found = known.read(tmp_path, "theirs")
    assert found == Block(first=65536)
    assert known.read(tmp_path, "theirs") is found
