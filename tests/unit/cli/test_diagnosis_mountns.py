"""What ``podkeep doctor`` says of container mounts, from what was found."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from podkeep.cli.diagnosis import mountns
from podkeep.cli.diagnosis.finding import Level
from podkeep.cli.mountns.status import Report
from podkeep.mountns.daemons import AGENT, RUNTIME, Daemon
from podkeep.mountns.installation import Finding
from podkeep.mountns.lifecycle import Status
from podkeep.mountns.sync import Mismatch

PIN = Path("/run/container-mount-namespace/mnt")
OUTSIDE = Daemon(name="crio", pid=9, inode=1, unit="crio.service")


def report(
    *, inode: int | None = 7, inside: str = "shared,slave", host: str = "shared", mismatches: tuple[Mismatch, ...] = ()
) -> Report:
    state = Status(pin=PIN, inode=inode, propagation=inside if inode else "", container_mounts=3)
    return Report(
        enabled=True, source="default", may_make=True, state=state, host=host, daemons=(), mismatches=mismatches
    )


def test_a_namespace_that_is_not_there_is_made_or_missed() -> None:
    assert mountns.hidden(report(), may_make=True).level is Level.OK
    absent = report(inode=None)
    assert mountns.hidden(absent, may_make=True).level is Level.OK
    assert mountns.hidden(absent, may_make=False).level is Level.MISSING
    gone = Mismatch(mine=7, theirs=0, who=str(PIN), message="it is gone", hint="make it anew")
    assert mountns.hidden(report(inode=None, mismatches=(gone,)), may_make=True).fix == "make it anew"


def test_both_guarantees_need_propagation() -> None:
    assert [item.level for item in mountns.propagation(report())] == [Level.OK]
    private = mountns.propagation(report(host="private", inside="shared"))
    assert [item.level for item in private] == [Level.WARNING]
    assert private[0].fix.startswith("mount --make-rshared /; remove the pods")
    late = mountns.propagation(report(inside="shared"))
    assert "was not shared when the namespace was made" in late[0].why
    literal = mountns.propagation(report(inside="private,slave"))
    assert [item.level for item in literal] == [Level.OK, Level.MISSING]
    assert literal[1].fix == f"nsenter --mount={PIN} mount --make-rshared /"


def test_a_namespace_that_is_not_shared_is_not_good() -> None:
    assert report().good
    literal = report(inside="private,slave")
    assert (literal.in_sync, literal.good) == (True, False)
    (line,) = (line for line in literal.lines() if line.startswith("propagation"))
    assert f"`nsenter --mount={PIN} mount --make-rshared /`" in line


def test_netns_is_a_mount_point_before_somebody_makes_it_one() -> None:
    assert mountns.netns({"/run/netns"}, report().state) == []
    assert mountns.netns(set(), report(inode=None).state) == []
    assert [item.level for item in mountns.netns({"/"}, report().state)] == [Level.WARNING]


def test_a_drop_in_that_is_stale_is_shown_with_its_command() -> None:
    stale = Finding(unit="kubelet.service", message="it has another command now", hint="podkeep mountns install")
    (found,) = mountns.drop_ins([stale])
    assert (found.level, found.name, found.fix) == (Level.WARNING, "kubelet.service", "podkeep mountns install")


def test_other_runtimes_are_named_and_no_fault() -> None:
    ours = Daemon(name=RUNTIME, pid=5, inode=7)
    second = Daemon(name=RUNTIME, pid=6, inode=8)
    found = mountns.daemons(report(), [ours, second, OUTSIDE], hides=True)
    assert [item.level for item in found] == [Level.OK, Level.WARNING, Level.OK]
    assert "do not see each other's mounts" in found[2].detail
    assert "`podkeep mountns install crio.service`" in found[2].detail
    assert [item.level for item in mountns.daemons(report(), [ours, second, OUTSIDE], hides=False)] == [Level.OK] * 3


def test_the_runtime_whose_pin_is_gone_is_still_the_one_that_is_configured() -> None:
    gone = report(inode=None, mismatches=(Mismatch(mine=7, theirs=0, who=str(PIN), message="gone", hint="fix"),))
    inside = [Daemon(name=name, pid=pid, inode=7) for pid, name in enumerate((RUNTIME, AGENT), 5)]
    pin, *found = mountns.daemons(gone, inside, hides=True)
    assert (pin.level, pin.fix) == (Level.WARNING, "fix")
    assert [(item.level, item.detail) for item in found] == [(Level.OK, "in mnt:[7]")] * 2


def test_where_there_is_none_status_says_who_makes_it() -> None:
    absent = report(inode=None)
    assert any("`podkeep mountns start` makes one" in line for line in absent.lines())
    assert any("`systemctl start kubens`" in line for line in structs.replace(absent, may_make=False).lines())
    gone = Mismatch(mine=7, theirs=0, who=str(PIN), message="it is gone", hint="make it anew")
    assert structs.replace(absent, enabled=False).lines()[-1] == "namespace   none"
    assert structs.replace(absent, mismatches=(gone,)).lines()[-3:] == [
        "namespace   none",
        "it is gone",
        "fix: make it anew",
    ]
