"""Who owns a pod directory, and what counts as an orphan."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.base.errors import FailedPrecondition
from podkeep.base.ids import PodUID


@pytest.mark.requirement("U35")
def test_an_orphan_has_neither_an_owner_nor_a_sandbox(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path)
    with dirs.locked():
        for uid in ("dead", "kept", "dead-too"):
            os.close(dirs.own(PodUID(uid)))
        owned = dirs.own(PodUID("owned"))
        (dirs.pods / "a-file").touch()
        assert dirs.orphans({"kept"}) == ["dead", "dead-too"]
        with pytest.raises(FailedPrecondition, match="another process is working on pod owned"):
            dirs.own(PodUID("owned"))
        os.close(owned)
        assert dirs.orphans({"kept"}) == ["dead", "dead-too", "owned"]


def test_a_pod_is_found_by_its_name(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path)
    identity = PodIdentity(namespace="n", name="web")
    assert dirs.find(identity) == []
    os.close(dirs.own(PodUID("u1")))
    os.close(dirs.own(PodUID("u2")))
    dirs.identify(PodUID("u1"), identity)
    assert dirs.find(identity) == ["u1"]
    assert dirs.identity(PodUID("u2")) is None


def test_deletion_is_asked_for_in_the_directory(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path)
    os.close(dirs.own(PodUID("u1")))
    assert dirs.requested_deletion(PodUID("u1")) is None
    dirs.request_deletion(PodUID("u1"), 7)
    assert dirs.requested_deletion(PodUID("u1")) == 7
    dirs.remove(PodUID("u1"))
    dirs.request_deletion(PodUID("u1"), 7)
    assert dirs.requested_deletion(PodUID("u1")) is None


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with dirs.locked():
            os.close(dirs.own(PodUID("u1")))
            dirs.orphans(set())
    assert sorted(os.listdir("/proc/self/fd")) == before
