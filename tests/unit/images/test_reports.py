"""What an unpack process says that was taken over by the layer it looked into."""

from __future__ import annotations

import json

import pytest

from podkeep.base.errors import Internal
from podkeep.base.ids import Digest
from podkeep.images.layers.forms import form_of
from podkeep.images.layers.messages import MadeTree, Refused, Unpacked
from podkeep.images.layers.programs import ended
from podkeep.images.worker.layers import decode_report

EROFS = form_of("erofs")
DIGEST = Digest(f"sha256:{'0' * 64}")
TREE = {"driver": "erofs", "path": "", "opaque": [], "implied": ["YQ=="]}


def line(change: dict[str, object]) -> bytes:
    """Return a report with changes to it or to its tree."""
    tree = TREE | {key: value for key, value in change.items() if key in TREE}
    whole = {"type": "Unpacked", "digest": DIGEST, "tree": tree}
    return json.dumps(whole | {key: value for key, value in change.items() if key not in TREE}).encode()


@pytest.mark.parametrize(
    ("kept", "path", "driver"),
    [("erofs", "", "erofs"), ("directories", "tree", "erofs"), ("directories", "", "directories")],
)
def test_what_processes_say(kept: str, path: str, driver: str) -> None:
    tree = MadeTree(driver=kept, path=path, opaque=(), implied=(b"a",))
    assert decode_report(line({"driver": kept, "path": path}), form_of(driver).makes) == Unpacked(
        digest=DIGEST, tree=tree
    )


def test_a_name_need_not_be_unicode() -> None:
    found = decode_report(line({"opaque": ["/w=="]}), EROFS.makes)
    assert isinstance(found, Unpacked)
    assert found.tree.opaque == (b"\xff",)


def test_a_layer_that_is_refused() -> None:
    said = b'{"type": "Refused", "error": "x", "full": true}\n'
    assert decode_report(said, EROFS.makes) == Refused(error="x", full=True)


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
        {"opaque": ["YQ"]},
        {"implied": {"a": 1}},
        {"implied": None},
        {"tree": {}},
        {"type": "File"},
    ],
)
def test_what_none_says(change: dict[str, object]) -> None:
    with pytest.raises(Internal, match="the unpack process said what it never says"):
        decode_report(line(change), EROFS.makes)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"{}",
        b'"error"',
        b"\xff",
        b'{"error": "x", "full": false}',
        b'{"type": "Refused", "error": "x"}',
        b'{"type": "Refused", "error": "\xff", "full": false}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_report(said: bytes) -> None:
    with pytest.raises(Internal, match="the unpack process said what it never says"):
        decode_report(said, EROFS.makes)


def test_a_layer_for_directories_is_in_no_directory_of_its_own() -> None:
    with pytest.raises(Internal):
        decode_report(line({"driver": "directories", "path": "tree"}), form_of("directories").makes)


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
    assert ended(status) == text
