"""Parsing mount tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.isolation import in_new_namespaces
from kernel.tables import tables_read
from podkeep.base.errors import Internal, NotFound
from podkeep.kernel.cgroup import cgroups
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.process import lsm


def test_every_field_and_escapes() -> None:
    line = (
        rb"36 35 98:0 /mnt\0401 /mnt/a\040b\134c rw,noatime master:1 shared:2 - fuse.x /dev/ro\011ot rw,errors=continue"
    )
    (entry,) = mountinfo.parse(line + b"\n")
    assert entry == mountinfo.MountEntry(
        mount_id=36,
        parent_id=35,
        device="98:0",
        root="/mnt 1",
        mount_point="/mnt/a b\\c",
        options=("rw", "noatime"),
        propagation=("master:1", "shared:2"),
        fs_type="fuse.x",
        source="/dev/ro\tot",
        super_options=("rw", "errors=continue"),
    )


def test_an_empty_source_is_kept() -> None:
    (entry,) = mountinfo.parse(b"1 1 0:1 / / rw - tmpfs  rw")
    assert entry.source == ""
    assert entry.propagation == ()


@pytest.mark.parametrize(
    "line", [b"garbage", b"1 1 0:1 / / rw shared:1", b"1 1 0:1 / rw - tmpfs a rw", b"1 1 0:1 / / rw - a b"]
)
def test_an_unknown_shape_is_an_error(line: bytes) -> None:
    with pytest.raises(Internal, match="documented shape"):
        mountinfo.parse(line)


def test_own_table_has_the_root_and_a_missing_process_is_named() -> None:
    assert any(item.mount_point == "/" for item in mountinfo.read(os.getpid()))
    with pytest.raises(NotFound, match="/proc/99999999/mountinfo"):
        mountinfo.read(99999999)


@in_new_namespaces()
def test_under_gives_the_order_of_unmounting(tmp_path: Path) -> None:
    odd = tmp_path / "with space"
    odd.mkdir()
    (tmp_path / "with space2").mkdir()
    mounts.tmpfs(odd)
    (odd / "below").mkdir()
    mounts.tmpfs(odd / "below")
    mounts.tmpfs(tmp_path / "with space2")
    found = mountinfo.under(odd)
    assert [item.mount_point for item in found] == [str(odd / "below"), str(odd)]
    for item in found:
        mounts.unmount(item.mount_point, missing_ok=False)
    assert mountinfo.under(odd) == []


@in_new_namespaces()
def test_a_mount_point_is_told_without_the_table(tmp_path: Path) -> None:
    directory, file = tmp_path / "directory", tmp_path / "file"
    directory.mkdir()
    file.touch()
    (tmp_path / "link").symlink_to(directory)
    (tmp_path / "above").symlink_to(tmp_path)
    mounts.bind(file, file)
    mounts.bind(directory, directory)
    with tables_read() as read:
        for path in (directory, str(directory), file, tmp_path / "above/directory", "/", "/proc"):
            assert mountinfo.is_mount_point(path), path
        for path in (tmp_path, tmp_path / "link", tmp_path / "missing", file / "below"):
            assert not mountinfo.is_mount_point(path), path
    assert read == []
    mounts.unmount(file)
    mounts.unmount(directory)
    assert not mountinfo.is_mount_point(file)
    assert not mountinfo.is_mount_point(directory)


@in_new_namespaces()
def test_mounts_that_are_nested_in_others(tmp_path: Path) -> None:
    """Neither those elsewhere count, nor what is below in the same file system."""
    top = tmp_path / "top"
    top.mkdir()
    mounts.tmpfs(top)
    for name in ("plain", "one", "two"):
        (top / name / "inner").mkdir(parents=True)
    assert not mountinfo.has_nested(top)
    for name in ("one", "two"):
        mounts.tmpfs(top / name)
    (tmp_path / "elsewhere").mkdir()
    mounts.tmpfs(tmp_path / "elsewhere")
    assert not mountinfo.has_nested(top)
    mounts.tmpfs(top / "plain" / "inner")
    assert mountinfo.has_nested(top)
    mounts.unmount(top / "plain" / "inner")
    assert not mountinfo.has_nested(top)
    (top / "one" / "inner").mkdir()
    mounts.tmpfs(top / "one" / "inner")
    assert mountinfo.has_nested(top)


@in_new_namespaces()
def test_mounts_on_top_of_each_other_are_nested(tmp_path: Path) -> None:
    mounts.tmpfs(tmp_path)
    (tmp_path / "one").mkdir()
    for _ in range(2):
        mounts.tmpfs(tmp_path / "one")
    assert mountinfo.has_nested(tmp_path)


def test_only_a_newline_ends_a_line() -> None:
    """A sub path with a carriage return kept the runtime of a node from starting."""
    line = b"36 35 98:0 /a\rb\x0c\x1c\x85c /mnt rw - ext4 /dev/root rw\n"
    (entry, again) = mountinfo.parse(line + line)
    assert entry == again
    assert entry.root == "/a\rb\x0c\x1c\udc85c"
    assert mountinfo.parse(b"") == []


FIELDS = "36 35 98:0 / /mnt rw,noatime master:1 - fuse.x /dev/root rw,errors=continue".split()
NUMBERS = {0, 1}
SEPARATOR = FIELDS.index("-")


@pytest.mark.slow
@pytest.mark.parametrize("at", sorted({*range(len(FIELDS))} - {SEPARATOR, *NUMBERS}), ids=lambda at: FIELDS[at])
@given(name=st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name and name != b"-"))
def test_a_name_may_be_any_bytes(at: int, name: bytes) -> None:
    """Whoever may mount with FUSE names a type of file systems; one that was no UTF-8 kept a runtime from starting."""
    fields = [field.encode() for field in FIELDS]
    fields[at] = mountinfo._ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], name)
    (entry,) = mountinfo.parse(b" ".join(fields) + b"\n")
    values = [
        *(str(entry.mount_id), str(entry.parent_id), entry.device, entry.root, entry.mount_point),
        *(",".join(entry.options), *entry.propagation, "-"),
        *(entry.fs_type, entry.source, ",".join(entry.super_options)),
    ]
    assert [os.fsencode(value) for value in values] == [
        name if number == at else field.encode() for number, field in enumerate(FIELDS)
    ]


@in_new_namespaces()
def test_a_file_system_of_a_type_that_is_no_utf8(tmp_path: Path) -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={fuse},rootmode=40000,user_id=0,group_id=0"
    mounts.mount("neighbour", tmp_path, fstype=os.fsdecode(b"fuse.a\xffb"), data=data)
    assert [entry.fs_type for entry in mountinfo.under(tmp_path)] == [os.fsdecode(b"fuse.a\xffb")]
    assert cgroups.detect().hierarchies
    lsm.selinux_enabled()
    mounts.unmount(tmp_path, lazy=True)
    os.close(fuse)
