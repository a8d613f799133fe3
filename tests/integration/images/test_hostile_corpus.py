"""The hostile corpus through the real unpack process, for every driver: the verdict, the tree, bounded memory, and
nothing outside."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from support import erofs
from support.hostile import CORPUS
from support.tarmaker import END, base256, header
from support.unpacking import census, mounted_layer, outline, unpack

MOST_MEMORY = 150_000_000


DRIVERS = ("directories", "erofs")


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """The name of a snapshot driver."""
    return str(request.param)


@contextmanager
def beside_others(place: Path) -> Iterator[Path]:
    """Yield where a layer may be made, beside others that it may not touch, nor anything around it."""
    layer = place / "layer"
    (place / "beside").mkdir(parents=True)
    (place / "beside" / "secret").write_text("secret")
    (place / "escaped").write_text("not yet")
    before = census(place, without=layer)
    mounts = Path("/proc/self/mountinfo").read_text()
    yield layer
    after = census(place, without=layer)
    # The directory that the root is in has got the root, and its record beside it.
    made = {".": None, "layer": None, "layer.headers": None}
    assert {**after, **made} == {**before, **made}
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.fixture
def canary(driver: str, tmp_path: Path) -> Iterator[Path]:
    """Where the layer of a test may be made."""
    with beside_others(tmp_path / driver) as layer:
        yield layer


@pytest.mark.requirement("V61", "V62", "V71")
@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus(name: str, tmp_path: Path) -> None:
    """Every driver refuses it, or all make the same tree of it."""
    erofs.needed()
    case = CORPUS[name]
    trees = []
    for driver in DRIVERS:
        with beside_others(tmp_path / driver) as layer:
            done = unpack(layer, case.pieces(), driver=driver)
            if case.refused:
                assert re.search(case.refused, done.error), done.error or "it was not refused"
                assert len(done.error) < 1000
                assert "\n" not in done.error
            else:
                assert done.error == ""
                with mounted_layer(layer, done) as top:
                    assert outline(top) == case.tree
                    trees.append(census(top))
            assert done.peak < MOST_MEMORY
    for tree in trees:
        # A layer without an entry for its root says nothing of its times.
        tree["."] = tree["."][:4] + tree["."][5:]
        assert tree == trees[0]


def _gzip_bomb() -> Iterator[bytes]:
    zeros = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield zeros.compress(header(b"x", size=base256(1 << 36, 12)))
    for _ in range(1 << 16):
        yield zeros.compress(bytes(1 << 20))


def _zstd_bomb() -> Iterator[bytes]:
    zeros = zstandard.ZstdCompressor(level=1).compressobj()
    yield zeros.compress(header(b"x", size=base256(1 << 36, 12)))
    for _ in range(1 << 16):
        yield zeros.compress(bytes(1 << 20))


def _wide_window() -> Iterator[bytes]:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27, enable_ldm=True)
    noise = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    yield noise.compress(header(b"x", size=300 << 20))
    for _ in range(300):
        yield noise.compress(os.urandom(1 << 20))
    yield noise.compress(END) + noise.flush()


@pytest.mark.requirement("V62")
@pytest.mark.parametrize(("compression", "bomb"), [("gzip", _gzip_bomb), ("zstd", _zstd_bomb)])
def test_a_bomb_is_given_up_early(compression: str, bomb: Callable[[], Iterator[bytes]], canary: Path) -> None:
    done = unpack(canary, bomb(), compression=compression, max_ratio=500)
    assert re.fullmatch(r"grows more than 500-fold: \d+ bytes to \d+ \(images.max_unpack_ratio\)", done.error)
    assert int(done.error.split()[-2]) <= (64 << 20) + (1 << 18)
    assert done.peak < MOST_MEMORY


@pytest.mark.requirement("V62")
def test_the_widest_window_fits_into_the_memory(canary: Path) -> None:
    done = unpack(canary, _wide_window(), compression="zstd", max_ratio=500)
    assert done.error == ""
    assert done.peak < MOST_MEMORY + (20 << 20)
