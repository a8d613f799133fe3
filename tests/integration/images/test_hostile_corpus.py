"""The hostile corpus through the real unpack process: the verdict, the tree, bounded memory, and nothing outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hostile import CORPUS
from support.unpacking import census, outline, unpack

MOST_MEMORY = 150_000_000


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the root that no layer may touch, nor anything else around it."""
    place = tmp_path / "beside"
    place.mkdir()
    (place / "secret").write_text("secret")
    (tmp_path / "escaped").write_text("not yet")
    before = census(tmp_path, without=tmp_path / "layer")
    mounts = Path("/proc/self/mountinfo").read_text()
    yield tmp_path / "layer"
    after = census(tmp_path, without=tmp_path / "layer")
    # The directory that the root is in has got the root.
    assert {**after, ".": None, "layer": None} == {**before, ".": None, "layer": None}
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.requirement("V61", "V62", "V71")
@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus(name: str, canary: Path) -> None:
    case = CORPUS[name]
    done = unpack(canary, case.pieces(), max_bytes=1 << 40)
    if case.refused:
        assert re.search(case.refused, done.error), done.error or outline(canary)
        assert len(done.error) < 1000
        assert "\n" not in done.error
    else:
        assert done.error == ""
        assert outline(canary) == case.tree
    assert done.peak < MOST_MEMORY
