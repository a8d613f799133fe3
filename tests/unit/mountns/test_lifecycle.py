"""Making, keeping and removing the container mount namespace, for real, on a scratch machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.mountns import on_a_scratch_machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")


@pytest.mark.requirement("M2", "M7", "M9")
def test_it_is_pinned_and_needs_no_process(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        started = lifecycle.start(pin)
        assert started.made
        assert started.inode != own()
        assert pinned(pin) == started.inode == pin.stat().st_ino
        (entry,) = mounted(pin)
        assert (entry.fs_type, entry.root) == ("nsfs", f"mnt:[{started.inode}]")
        shown = subprocess.check_output(["findmnt", "-n", "-o", "SOURCE,FSTYPE", pin], text=True).split()
        assert shown == [f"nsfs[mnt:[{started.inode}]]", "nsfs"], shown
        assert occupants.processes(started.inode) == []
        assert at_pin("readlink", "/proc/self/ns/mnt").strip() == f"mnt:[{started.inode}]"
        """,
    )


@pytest.mark.requirement("M3", "M36")
def test_starting_twice_is_starting_once(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        first = lifecycle.start(pin)
        table = mountinfo.read()
        again = lifecycle.start(pin)
        assert again == replace(first, made=False)
        assert mountinfo.read() == table
        (itself,) = mounted(pin.parent)
        assert itself.propagation == ("unbindable",), itself
        """,
    )


@pytest.mark.requirement("M4", "M5")
def test_the_root_inside_is_shared_and_a_slave(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        lifecycle.start(pin)
        shown = at_pin("findmnt", "-n", "-o", "PROPAGATION", "/").strip()
        assert shown == "shared,slave" == lifecycle.status(pin).propagation
        assert lifecycle.status(pin).follows_host
        """,
    )


@pytest.mark.requirement("M6")
def test_stopping_leaves_nothing(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        before, files = mountinfo.read(), sorted(Path("/run").rglob("*"))
        for _ in range(2):
            lifecycle.start(pin)
            assert mountinfo.read() != before
            assert lifecycle.stop(pin)
            assert mountinfo.read() == before
            assert sorted(Path("/run").rglob("*")) == files
        assert not lifecycle.stop(pin)
        """,
    )
