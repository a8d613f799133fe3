"""When writable layers are walked, and that nothing waits for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from runtime_values import container

from podkeep.base.ids import ContainerID
from podkeep.kernel.files import openat
from podkeep.runtime.model.records import Container
from podkeep.runtime.stats.layers import TURN_S, Layers
from podkeep.runtime.stats.targets import ContainerTarget
from support.descriptors import open_descriptors

FIRST, SECOND = ContainerID("c1"), ContainerID("c2")


def target(container_id: str, layer: Path, *, ended: bool = False) -> ContainerTarget:
    record: Container = container(container_id)
    written = (str(layer), f"{layer}-volumes", f"{layer}-pod")
    return ContainerTarget(container=record, cgroup=None if ended else "/c", written=written)


def test_a_layer_has_a_size_once_it_was_walked(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path)])
    assert layers.size(FIRST) is None
    layers.walk_due()
    found = layers.size(FIRST)
    assert found is not None
    assert found.size.inodes == 1
    assert found.at > 0


def test_volumes_of_the_image_and_files_of_the_pod_count_with_the_layer(tmp_path: Path) -> None:
    for name in ("layer", "layer-volumes/0", "layer-pod"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * 100_000)
    layers = Layers()
    layers.follow([target("c1", tmp_path / "layer")])
    layers.walk_due()
    found = layers.size(FIRST)
    assert found is not None
    assert 300_000 <= found.size.used_bytes < 400_000
    assert found.size.inodes == 7


def test_a_layer_that_hides_files_from_the_count_takes_all_that_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say how much it is; what could keep it within a limit must not be believed."""
    monkeypatch.setattr(openat, "MAX_DEPTH", 5)
    (tmp_path / "layer" / "/".join("dddddddd")).mkdir(parents=True)
    layers = Layers()
    layers.follow([target("c1", tmp_path / "layer")])
    layers.walk_due()
    found = layers.size(FIRST)
    space = os.statvfs(tmp_path)
    assert found is not None
    assert found.size.used_bytes == pytest.approx((space.f_blocks - space.f_bfree) * space.f_frsize, rel=0.1)


def test_a_layer_is_not_walked_again_at_once(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path)])
    layers.walk_due()
    before = layers.size(FIRST)
    (tmp_path / "file").touch()
    layers.follow([target("c1", tmp_path)])
    layers.walk_due()
    assert layers.size(FIRST) is before


def test_a_container_that_ended_is_walked_once_more(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path)])
    layers.walk_due()
    (tmp_path / "file").touch()
    layers.follow([target("c1", tmp_path, ended=True)])
    layers.walk_due()
    after = layers.size(FIRST)
    assert after is not None
    assert after.size.inodes == 2
    layers.follow([target("c1", tmp_path, ended=True)])
    layers.walk_due()
    assert layers.size(FIRST) is after


def test_removed_containers_are_forgotten(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path), target("c2", tmp_path)])
    layers.walk_due()
    layers.follow([target("c2", tmp_path)])
    assert layers.size(FIRST) is None
    assert layers.size(SECOND) is not None


def test_a_layer_that_is_gone_has_no_size(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path / "missing"), target("c2", tmp_path)])
    layers.walk_due()
    assert layers.size(FIRST) is None
    assert layers.size(SECOND) is not None


@pytest.mark.slow
def test_a_walk_ends_when_the_daemon_stops(tmp_path: Path) -> None:
    descriptors = len(open_descriptors())
    layers = Layers()
    layers.follow([target("c1", tmp_path)])
    layers.stop()
    layers.walk_due()
    assert layers.size(FIRST) is None
    assert len(open_descriptors()) == descriptors


def test_a_layer_that_takes_longer_than_a_turn_is_walked_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with very many files does not make the sizes of the others old."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    layers = Layers()
    layers.follow([target("c1", tmp_path / "first")])
    monkeypatch.setattr("podkeep.runtime.stats.layers.TURN_S", -1.0)
    layers.walk_due()
    assert layers.size(FIRST) is None
    monkeypatch.undo()
    layers.follow([target("c1", tmp_path / "first"), target("c2", tmp_path / "second")])
    layers.walk_due()
    assert layers.size(FIRST) is None
    assert layers.size(SECOND) is not None
    layers.walk_due(large=True)
    assert layers.size(FIRST) is not None


def test_layers_that_are_asked_for_are_walked_however_lately_they_were(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path)])
    layers.walk_due()
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    layers.walk_now([target("c1", tmp_path)])
    found = layers.size(FIRST)
    assert found is not None
    assert (found.size.inodes, found.size.used_bytes >= 100_000) == (2, True)


def test_a_layer_that_came_since_the_last_pass_is_walked_if_it_is_asked_for(tmp_path: Path) -> None:
    """A container that has just come can fill a disk before it is its turn, and no innocent pod must go for it."""
    layers, new = Layers(), target("c2", tmp_path)
    layers.walk_now([new])
    assert layers.size(SECOND) is not None
    layers.follow([new])
    assert layers.size(SECOND) is not None
    layers.follow([])
    assert layers.size(SECOND) is None


def test_a_layer_that_takes_longer_than_a_turn_is_walked_to_its_end_if_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next walk is far away, and on a full disk what was known before would have another pod go."""
    (tmp_path / "directory").mkdir()
    monkeypatch.setattr("podkeep.runtime.stats.layers.TURN_S", -1.0)
    layers = Layers()
    layers.follow([target("c1", tmp_path)])
    layers.walk_due()
    layers.walk_due(large=True)
    (tmp_path / "directory" / "file").write_bytes(b"x" * 100_000)
    layers.walk_now([target("c1", tmp_path)])
    found = layers.size(FIRST)
    assert found is not None
    assert found.size.used_bytes >= 100_000


def test_a_walk_that_is_asked_for_and_takes_too_long_leaves_what_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("large/directory", "new"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "large/directory/file").write_bytes(b"x" * 100_000)
    layers = Layers()
    layers.follow([target("c1", tmp_path / "large")])
    layers.walk_due()
    before = layers.size(FIRST)
    targets = [target("c1", tmp_path / "large"), target("c2", tmp_path / "new")]
    layers.follow(targets)
    monkeypatch.setattr("podkeep.runtime.stats.layers.NOW_S", -1.0)
    layers.walk_now(targets)
    large, new = layers.size(FIRST), layers.size(SECOND)
    assert before is not None
    assert large is not None
    assert new is not None
    assert large.size == before.size
    assert new.size.inodes == 1


@pytest.mark.slow
def test_a_layer_with_very_many_files_does_not_hide_another_of_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with a limit wrote as much as it liked, while one beside it had the whole turn for its files."""
    for number in range(5000):
        (tmp_path / "large" / str(number)).mkdir(parents=True)
    (tmp_path / "small/directory").mkdir(parents=True)
    both = [target("c1", tmp_path / "large"), target("c2", tmp_path / "small")]
    layers = Layers()
    layers.follow(both)
    monkeypatch.setattr("podkeep.runtime.stats.layers.time", Ticking(0))
    layers.walk_due()
    (tmp_path / "small/directory/file").write_bytes(b"x" * 100_000)
    monkeypatch.setattr("podkeep.runtime.stats.layers.time", Ticking(TURN_S / 100))
    layers.walk_now(both)
    large, small = layers.size(FIRST), layers.size(SECOND)
    assert large is not None
    assert small is not None
    assert large.size.inodes == 5001, "what was known is more than what was counted"
    assert small.size.used_bytes >= 100_000


class Ticking:
    """The module ``time`` of a machine that takes so many seconds from one look to the next."""

    time_ns = staticmethod(time.time_ns)

    def __init__(self, step: float) -> None:
        self._step, self._now = step, 0.0

    def monotonic(self) -> float:
        self._now += self._step
        return self._now


def test_a_layer_whose_container_has_ended_is_not_walked_however_often_it_is_asked_for(tmp_path: Path) -> None:
    layers = Layers()
    layers.follow([target("c1", tmp_path, ended=True)])
    layers.walk_due()
    before = layers.size(FIRST)
    layers.walk_now([target("c1", tmp_path, ended=True)])
    assert layers.size(FIRST) is before
