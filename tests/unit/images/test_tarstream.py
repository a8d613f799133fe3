"""The tar reader, compared with Python's own on archives of every kind and on damaged ones."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeep.images.layers.tarstream import ByteSource, Entry, EntryKind, TarError, TarReader

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
KINDS = {
    tarfile.REGTYPE: EntryKind.FILE,
    tarfile.DIRTYPE: EntryKind.DIRECTORY,
    tarfile.SYMTYPE: EntryKind.SYMLINK,
    tarfile.LNKTYPE: EntryKind.HARDLINK,
    tarfile.CHRTYPE: EntryKind.CHARACTER,
    tarfile.FIFOTYPE: EntryKind.FIFO,
}


def source(data: bytes, piece: int = 1000) -> ByteSource:
    """Serve ``data`` in pieces of an awkward size."""
    pieces = iter([data[start : start + piece] for start in range(0, len(data), piece)])
    return ByteSource(lambda: next(pieces, b""))


def read(data: bytes, piece: int = 1000) -> list[tuple[Entry, bytes]]:
    """Return every entry with its content."""
    reader = TarReader(source(data, piece))
    return [(entry, b"".join(bytes(part) for part in reader.content())) for entry in reader]


names = st.text(alphabet="abc/ü.", min_size=1, max_size=150).filter(lambda text: text.strip("/."))


@st.composite
def members(draw: st.DrawFn) -> tarfile.TarInfo:
    """A member that every format can hold."""
    info = tarfile.TarInfo(draw(names).strip("/") or "x")
    info.type = draw(st.sampled_from(sorted(KINDS)))
    info.mode = draw(st.integers(0, 0o7777))
    info.uid, info.gid = draw(st.integers(0, 0o7777777)), draw(st.integers(0, 0o7777777))
    info.mtime = draw(st.integers(0, 0o77777777777))
    if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname = draw(names)
    if info.type == tarfile.CHRTYPE:
        info.devmajor, info.devminor = draw(st.integers(0, 255)), draw(st.integers(0, 255))
    if info.type == tarfile.REGTYPE:
        info.size = draw(st.integers(0, 3000))
    return info


@settings(max_examples=150)
@given(st.lists(members(), max_size=6), st.sampled_from(sorted(FORMATS)), st.integers(1, 2000))
@pytest.mark.slow
def test_it_reads_what_tarfile_reads(infos: list[tarfile.TarInfo], kind: str, piece: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[kind]) as archive:
        for info in infos:
            try:
                archive.addfile(info, io.BytesIO(b"d" * info.size))
            except ValueError:
                return  # a name that ustar cannot hold
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
        expected = [
            (
                KINDS[info.type],
                info.name.rstrip("/"),
                info.linkname,
                info.mode,
                info.uid,
                info.gid,
                info.mtime,
                info.size,
            )
            for info in archive
        ]
    found = [
        (
            entry.kind,
            entry.name.decode().rstrip("/"),
            entry.link.decode(),
            entry.mode,
            entry.uid,
            entry.gid,
            entry.mtime // 1_000_000_000,
            len(content),
        )
        for entry, content in read(buffer.getvalue(), piece)
    ]
    assert found == expected


def test_pax_keeps_large_ids_fractions_and_attributes() -> None:
    info = tarfile.TarInfo("f")
    info.uid, info.gid, info.mtime = 3_000_000_000, 70_000, 1.25  # type: ignore[assignment]
    info.pax_headers = {"SCHILY.xattr.user.a": "b=c", "comment": "nothing"}
    entry, _ = read(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))[0]
    assert (entry.uid, entry.gid, entry.mtime) == (3_000_000_000, 70_000, 1_250_000_000)
    assert entry.xattrs == {"user.a": b"b=c"}


def test_gnu_numbers_beyond_octal() -> None:
    info = tarfile.TarInfo("f")
    info.uid, info.mtime = 4_000_000_000, -5
    entry, _ = read(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))[0]
    assert (entry.uid, entry.mtime) == (4_000_000_000, -5_000_000_000)


@pytest.mark.parametrize(("uid", "mode"), [(2**31 - 1, 0o6755), (2**31, 0o2755), (0xFFFF0000, 0o2755)])
def test_no_file_makes_who_runs_it_the_owner_of_a_user_namespace(uid: int, mode: int) -> None:
    info = tarfile.TarInfo("f")
    info.uid, info.mode = uid, 0o6755
    entry, _ = read(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))[0]
    assert (entry.uid, entry.mode) == (uid, mode)


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax", "--sparse-version=0.1"], ["--format=pax"]])
@pytest.mark.slow
def test_sparse_files_of_gnu_tar(options: list[str], tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        for number in range(30):
            file.seek(number * 1_000_000)
            file.write(b"%04d" % number * 1024)
        file.truncate(50_000_000)
    command = ["tar", "-C", tmp_path, "--sparse", *options, "-cf", tmp_path / "a.tar", "sparse"]
    subprocess.run(command, check=True)
    ((entry, content),) = read((tmp_path / "a.tar").read_bytes(), 100_000)
    assert (entry.name, entry.size) == (b"sparse", 50_000_000)
    whole = bytearray(entry.size)
    position = 0
    for offset, length in entry.parts or ():
        whole[offset : offset + length] = content[position : position + length]
        position += length
    assert position == len(content)
    assert len(content) < 1_000_000
    assert whole == (tmp_path / "sparse").read_bytes()


def _archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a" * 120, "b"):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 700, {"SCHILY.xattr.user.x": "y"}
            archive.addfile(info, io.BytesIO(b"z" * 700))
    return buffer.getvalue()


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_damaged_archives_are_errors_or_entries_never_anything_else(data: st.DataObject) -> None:
    archive = bytearray(_archive())
    for _ in range(data.draw(st.integers(1, 8))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # make the first checksum right again, so that what is behind it is reached
        archive[148:156] = b" " * 8
        archive[148:156] = b"%06o\0 " % sum(archive[:512])
    cut = data.draw(st.integers(0, len(archive)))
    try:
        entries = read(bytes(archive[:cut]))
    except TarError:
        entries = []
    assert len(entries) <= cut // 512


def test_a_header_that_claims_much_memory_is_refused() -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    with pytest.raises(TarError, match="an extended header of 1099511627776 bytes is longer than"):
        read(info.tobuf(tarfile.GNU_FORMAT))
