"""What is said when daemons are in different mount namespaces, and in which order it is fixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from podkeep.base.errors import FailedPrecondition
from podkeep.mountns import sync
from podkeep.mountns.daemons import KUBELET, RUNTIME, Daemon
from podkeep.mountns.namespace_ref import KUBENS_PIN, UNIT
from podkeep.mountns.sync import Situation

PIN = Path("/run/container-mount-namespace/mnt")
HOST, OLD, NEW = 1, 20, 30
RUNS = Daemon(name=RUNTIME, pid=5, inode=NEW, unit="podkeep.service")
KUBE = Daemon(name=KUBELET, pid=6, inode=NEW, unit="kubelet.service")
FINE = Situation(me=RUNS, pin=PIN, pinned=NEW, service=UNIT, kubelets=(KUBE,))
DRAIN = "remove the pods of this machine (drain the node)"


def test_nothing_is_wrong() -> None:
    assert sync.judge(FINE) == []
    assert sync.judge(structs.replace(FINE, kubelets=())) == []
    assert sync.judge(structs.replace(FINE, pin=None, pinned=None)) == []


def test_the_service_was_restarted_and_the_runtime_was_not() -> None:
    me = structs.replace(RUNS, inode=OLD)
    pin, kubelet = sync.judge(structs.replace(FINE, me=me))
    assert (pin.mine, pin.theirs, pin.who) == (OLD, NEW, str(PIN))
    assert pin.message.startswith(f"mnt:[{NEW}] is pinned at {PIN}, but podkeep runtime (pid 5) is in mnt:[{OLD}]")
    assert (kubelet.mine, kubelet.theirs, kubelet.who) == (OLD, NEW, "kubelet (pid 6)")
    assert pin.hint == kubelet.hint == f"{DRAIN}; then systemctl restart podkeep.service"


def test_the_service_was_restarted_and_nobody_else() -> None:
    stale = structs.replace(FINE, me=structs.replace(RUNS, inode=OLD), kubelets=(structs.replace(KUBE, inode=OLD),))
    (pin,) = sync.judge(stale)
    assert pin.hint == f"{DRAIN}; then systemctl restart podkeep.service kubelet.service"


def test_the_pin_is_gone() -> None:
    (pin,) = sync.judge(structs.replace(FINE, pinned=None))
    assert (pin.theirs, pin.who) == (0, str(PIN))
    assert pin.hint == f"{DRAIN}; then systemctl restart {UNIT} podkeep.service kubelet.service"
    by_hand = structs.replace(FINE, pinned=None, service="", me=structs.replace(RUNS, unit=""), kubelets=())
    assert sync.judge(by_hand)[0].hint == (
        f"{DRAIN}; then podkeep mountns start; then podkeep runtime stop, and start it again"
    )


def test_a_kubelet_of_the_host_has_to_be_wrapped_first() -> None:
    apart = structs.replace(FINE, kubelets=(structs.replace(KUBE, inode=HOST),), upstream=frozenset({KUBE.pid}))
    (found,) = sync.judge(apart)
    assert "Bidirectional" in found.message
    assert found.hint == f"{DRAIN}; then podkeep mountns install; then systemctl restart kubelet.service"
    by_hand = structs.replace(apart, kubelets=(structs.replace(KUBE, inode=HOST, unit=""),))
    assert f"start it again with `nsenter --mount={PIN}` before its command line" in sync.judge(by_hand)[0].hint


def test_a_kubelet_of_an_old_namespace_is_only_restarted() -> None:
    (found,) = sync.judge(structs.replace(FINE, kubelets=(structs.replace(KUBE, inode=OLD),)))
    assert "is an empty directory for containers" in found.message
    assert found.hint == f"{DRAIN}; then systemctl restart kubelet.service"


def test_a_namespace_joined_by_a_process_has_no_pin() -> None:
    by_pid = structs.replace(FINE, pin=None, pinned=None, kubelets=(structs.replace(KUBE, inode=HOST, unit=""),))
    (found,) = sync.judge(by_pid)
    assert "`nsenter --mount=/proc/5/ns/mnt`" in found.hint
    assert "runtime stop" not in found.hint


def test_which_service_pins(tmp_path: Path) -> None:
    assert sync.service_of(PIN, [tmp_path]) == ""
    (tmp_path / UNIT).touch()
    (tmp_path / "kubens.service").touch()
    assert sync.service_of(PIN, [tmp_path / "absent", tmp_path]) == UNIT
    assert sync.service_of(KUBENS_PIN, [tmp_path]) == "kubens.service"


def test_an_agent_elsewhere_is_refused() -> None:
    sync.require_same(NEW, NEW, hidden=True)
    for hidden, where in ((True, "hides its mounts in"), (False, "hides no mounts and is in"), (None, "is in")):
        with pytest.raises(FailedPrecondition, match=rf"is in mnt:\[{OLD}\], but the runtime {where} mnt:\[{NEW}\]"):
            sync.require_same(OLD, NEW, hidden=hidden)
