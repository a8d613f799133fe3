"""The hostile corpus through the real unpack process, for every driver: the verdict, the tree, bounded memory, and
nothing outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.images.snapshots import erofs
from support.hostile import CORPUS
from support.unpacking import census, mounted_layer, outline, unpack

MOST_MEMORY = 150_000_000


@pytest.fixture(params=["directories", "erofs"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a snapshot driver."""
    if request.param == "erofs" and (missing := erofs.probe(tmp_path)):
        pytest.skip(missing)
    return str(request.param)


@pytest.fixture
def canary(driver: str, tmp_path: Path) -> Iterator[Path]:
    """A directory beside others that no layer may touch, nor anything else around it."""
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
def test_the_corpus(name: str, driver: str, canary: Path) -> None:
    case = CORPUS[name]
    done = unpack(canary, case.pieces(), driver=driver)
    if case.refused:
        assert re.search(case.refused, done.error), done.error or "it was not refused"
        assert len(done.error) < 1000
        assert "\n" not in done.error
    else:
        assert done.error == ""
        with mounted_layer(canary, done) as top:
            assert outline(top) == case.tree
    assert done.peak < MOST_MEMORY


@pytest.mark.requirement("V61")
@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if not case.refused])
def test_all_drivers_make_the_same_tree(name: str, tmp_path: Path) -> None:
    if missing := erofs.probe(tmp_path):
        pytest.skip(missing)
    trees = []
    for driver in ("directories", "erofs"):
        done = unpack(tmp_path / driver, CORPUS[name].pieces(), driver=driver)
        with mounted_layer(tmp_path / driver, done) as top:
            about = census(top)
            # A layer without an entry for its root says nothing of it.
            about["."] = about["."][:4] + about["."][5:]
            trees.append(about)
    assert trees[0] == trees[1]
