"""How often is looked, what is logged, and what verbose Status says."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.mountns import daemons
from podkeep.mountns.membership import Membership
from podkeep.mountns.namespace_ref import NamespaceRef
from podkeep.mountns.pin import HostRoot, own
from podkeep.runtime.rpc import namespace_watch
from podkeep.runtime.rpc.namespace_watch import SCAN_PERIOD_S, Description, NamespaceWatch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's processes are daemons")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def kubelet() -> Iterator[int]:
    """A copy of sleep(1) in a mount namespace of its own: where it is, is all that is asked of it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        program = shutil.copy("/bin/sleep", Path(directory) / "kubelet")
        with subprocess.Popen(["unshare", "--mount", program, "100000"]) as process:
            while Path(f"/proc/{process.pid}/comm").read_text() != "kubelet\n":
                assert process.poll() is None
            try:
                yield process.pid
            finally:
                process.kill()


@pytest.fixture
def elsewhere() -> Iterator[Membership]:
    """A runtime that says it was put into the namespace of this very process."""
    with HostRoot.own() as host:
        place = NamespaceRef(pid=os.getpid(), source="--mount-namespace-pid")
        yield Membership(inode=own(), place=place, host=host)


def look(watch: NamespaceWatch) -> list[str]:
    return [item.who for item in asyncio.run(watch.mismatches())]


@pytest.mark.requirement("M35")
def test_it_is_logged_when_it_begins_and_when_it_is_over(
    elsewhere: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    watch = NamespaceWatch(elsewhere, "", clock=clock)
    before = set(look(watch))
    caplog.clear()
    with caplog.at_level(logging.INFO, namespace_watch.__name__), kubelet() as pid:
        who = f"kubelet (pid {pid})"
        clock.now += SCAN_PERIOD_S - 1
        assert who not in look(watch), "it is not looked for all the time"
        clock.now += 1
        for _ in range(3):
            assert who in look(watch)
        assert [who in record.getMessage() for record in caplog.records] == [True]
        assert f"mnt:[{own()}]" in caplog.records[0].getMessage()
    caplog.clear()
    with caplog.at_level(logging.INFO, namespace_watch.__name__):
        assert set(look(watch)) <= before, "one that has ended is noticed at once"
    assert any("again, as they should be" in record.getMessage() for record in caplog.records) == (not before)


def test_nothing_is_read_where_nothing_is_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(daemons, "PROC", tmp_path / "absent")
    with HostRoot.own() as host:
        watch = NamespaceWatch(Membership(inode=7, place=None, host=host), "")
        assert look(watch) == []
        assert not watch.hides
        assert watch.describe([]) == Description(inode=7, pin="", hidden=False, inSync=True)


def test_the_pin_is_told(tmp_path: Path) -> None:
    pin = tmp_path / "mnt"
    with HostRoot.own() as host:
        watch = NamespaceWatch(Membership(inode=7, place=NamespaceRef(pin=pin, source="mountns.pin"), host=host), "")
        found = asyncio.run(watch.mismatches())
        assert watch.describe(found) == Description(inode=7, pin=str(pin), hidden=True, inSync=False)


def test_what_cannot_be_looked_at_leaves_what_was_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pin = tmp_path / "mnt"
    with HostRoot.own() as host:
        watch = NamespaceWatch(Membership(inode=7, place=NamespaceRef(pin=pin, source="mountns.pin"), host=host), "")
        assert look(watch)[:1] == [str(pin)]
        pin.symlink_to(pin)
        assert look(watch)[:1] == [str(pin)], "the status is answered nevertheless"
    assert "cannot compare mount namespaces: open(" in caplog.text
