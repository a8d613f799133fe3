"""What an unpack process says that was taken over by the layer it looked into."""

from __future__ import annotations

import json

import pytest

from podkeep.base.errors import Internal
from podkeep.images.layers import reports

DIGEST = f"sha256:{'0' * 64}"
GOOD = {"kind": "tar", "digest": DIGEST, "opaque": [], "implied": ["a"], "data_bytes": 0, "driver": "erofs", "path": ""}


@pytest.mark.parametrize(
    ("change", "driver"),
    [({}, "erofs"), ({"driver": "directories", "path": "tree"}, "erofs"), ({"driver": "directories"}, "directories")],
)
def test_what_processes_say(change: dict[str, object], driver: str) -> None:
    assert reports.parse(json.dumps(GOOD | change).encode(), driver) == GOOD | change


@pytest.mark.requirement("V61")
@pytest.mark.parametrize(
    "change",
    [
        {"path": "/etc"},
        {"path": "../1"},
        {"path": "tree"},
        {"path": "."},
        {"path": ["tree"]},
        {"driver": "directories"},
        {"driver": "directories", "path": "tree/a"},
        {"driver": "../../etc"},
        {"digest": "sha256:../../../etc"},
        {"digest": DIGEST + "/.."},
        {"digest": 1},
        {"kind": "file"},
        {"data_bytes": -5},
        {"opaque": "abc"},
        {"opaque": [1]},
        {"implied": {"a": 1}},
        {"implied": None},
    ],
)
def test_what_none_says(change: dict[str, object]) -> None:
    with pytest.raises(Internal, match="the unpack process said what it never says"):
        reports.parse(json.dumps(GOOD | change).encode(), "erofs")


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"1", b"{}", b'"error"', b"\xff", b'{"error": "x"}'])
def test_what_is_no_report(line: bytes) -> None:
    with pytest.raises(Internal, match="the unpack process said what it never says"):
        reports.parse(line, "erofs")


def test_a_layer_for_directories_is_in_no_directory_of_its_own() -> None:
    with pytest.raises(Internal):
        reports.parse(json.dumps(GOOD | {"driver": "directories", "path": "tree"}).encode(), "directories")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (1, "ended with status 1 and no result"),
        (-11, "was killed by SIGSEGV"),
        (-31, "was killed by SIGSYS: it made a system call that its filter does not know what to do with (seccomp)"),
        (-9, "was killed by SIGKILL: the machine may have run out of memory, or its pull was given up"),
        (-1000, "was killed by signal 1000"),
    ],
)
def test_how_a_process_ended(status: int, text: str) -> None:
    assert reports.ended(status) == text
