"""/run/netns, which a first ``ip netns add`` on the host would put over what is pinned there inside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.mountns import on_a_scratch_machine

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed"),
]

PINNED_INSIDE = """
netns = netns_directory.NETNS
body = '''
membership.enter(place)
netns_directory.NETNS.mkdir(exist_ok=True)
pod = netns_directory.NETNS / "pod"
pod.touch()
waiting = ["unshare", "--net", "sh", "-c", "echo up; read go"]
held = subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
held.stdout.readline()
mounts.mount(f"/proc/{held.pid}/ns/net", pod, flags=mounts.MountFlag.BIND)
held.communicate(b"")
'''

def usable():
    entered = ["nsenter", f"--mount={pin}", "nsenter", f"--net={netns}/pod", "true"]
    return subprocess.run(entered, capture_output=True, text=True)

def ip(*arguments):
    subprocess.run(["ip", "netns", *arguments], check=True)
"""


@pytest.mark.slow
@pytest.mark.requirement("M32")
@pytest.mark.parametrize("prepared", [True, False])
def test_what_is_pinned_inside_stays_usable(tmp_path: Path, prepared: bool) -> None:
    """OCPBUGS-83562: without the step, pods fail with ``setns: Invalid argument``."""
    on_a_scratch_machine(
        tmp_path,
        f"prepared = {prepared}\n"
        + PINNED_INSIDE
        + """
if not prepared:
    netns_directory.prepare = lambda: None
lifecycle.start(pin)
process(body)
assert usable().returncode == 0
ip("add", "host")
done = usable()
if prepared:
    assert done.returncode == 0, done.stderr
    # And the host's new one is seen inside, too.
    assert at_pin("ip", "netns", "list").split()[0] == "host"
else:
    assert "Invalid argument" in done.stderr, done
""",
    )


@pytest.mark.slow
def test_it_is_a_mount_point_as_ip_netns_makes_it(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        def shown():
            entry = [entry for entry in mounted("/run/netns") if entry.device == mounted("/run")[-1].device][-1]
            return entry.root, entry.fs_type, [field.partition(":")[0] for field in entry.propagation], entry.options

        lifecycle.start(pin)
        ours = shown()
        lifecycle.stop(pin)
        subprocess.run(["ip", "netns", "add", "host"], check=True)
        assert shown() == ours
        """,
    )


@pytest.mark.slow
def test_it_goes_with_the_namespace(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        """
        before = mountinfo.read()
        netns = netns_directory.NETNS
        lifecycle.start(pin)
        assert netns.is_dir()
        lifecycle.stop(pin)
        assert not netns.exists()
        # A directory that was there stays.
        netns.mkdir()
        lifecycle.start(pin)
        assert mountinfo.read() != before
        lifecycle.stop(pin)
        assert netns.is_dir()
        assert mountinfo.read() == before
        """,
    )


@pytest.mark.slow
def test_it_stays_with_a_namespace_in_it(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        PINNED_INSIDE
        + """
lifecycle.start(pin)
ip("add", "host")
table = mountinfo.under(netns)
assert lifecycle.stop(pin)
assert mountinfo.under(netns) == table
ip("exec", "host", "true")
ip("delete", "host")
# It is the administrator's now, as if `ip netns add` had come first.
lifecycle.start(pin)
assert lifecycle.stop(pin)
assert mountinfo.under(netns) == table[1:]
""",
    )


@pytest.mark.slow
def test_what_others_pinned_there_before_is_seen_on_the_mount(tmp_path: Path) -> None:
    """CNI plugins and other runtimes put namespaces there without making it a mount point."""
    on_a_scratch_machine(
        tmp_path,
        """
        from podkeep.kernel.namespace import namespaces

        netns = netns_directory.NETNS
        netns.mkdir()
        there = netns / "there"
        there.touch()
        mounts.mount("/proc/self/ns/net", there, flags=mounts.MountFlag.BIND)
        lifecycle.start(pin)
        assert namespaces.is_pinned(there)
        lifecycle.stop(pin)
        assert namespaces.is_pinned(there)
        """,
    )


@pytest.mark.slow
def test_it_goes_with_the_last_of_several(tmp_path: Path) -> None:
    """It is one for all that are pinned on the host, whoever made it."""
    on_a_scratch_machine(
        tmp_path,
        PINNED_INSIDE
        + """
other = Path("/run/other/mnt")
before, files = mountinfo.read(), sorted(Path("/run").rglob("*"))
for first, last in ((pin, other), (other, pin)):
    lifecycle.start(pin)
    table = mountinfo.under(netns)
    lifecycle.start(other)
    assert mountinfo.under(netns) == table != []
    lifecycle.stop(first)
    assert mountinfo.under(netns) == table
    lifecycle.stop(last)
    assert mountinfo.read() == before
    assert sorted(Path("/run").rglob("*")) == files
# What it is there for holds for the one that stays.
lifecycle.start(other)
lifecycle.start(pin)
process(body)
lifecycle.stop(other)
ip("add", "host")
assert usable().returncode == 0
ip("delete", "host")
""",
    )


@pytest.mark.slow
def test_it_is_what_it_is(tmp_path: Path) -> None:
    """A link leads to it; what is no directory is in the way."""
    on_a_scratch_machine(
        tmp_path,
        """
        netns = netns_directory.NETNS
        for target in (spare / "real", spare / "dangling"):
            if target.name == "real":
                target.mkdir()
            netns.symlink_to(target)
            before = mountinfo.read()
            for _ in range(2):
                lifecycle.start(pin)
                assert len(mounted(target)) == len(mountinfo.under(target)) > 0
                assert lifecycle.stop(pin)
                assert mountinfo.read() == before
                assert target.exists() == (target.name == "real")
            netns.unlink()
        netns.touch()
        assert f"{netns} is not a directory" in refused(FailedPrecondition, lifecycle.start, pin).message
        assert mountinfo.read() == before
        assert list(Path("/run").iterdir()) == [netns]
        """,
    )


@pytest.mark.slow
@pytest.mark.requirement("M9")
def test_it_is_shared_whoever_mounted_it(tmp_path: Path) -> None:
    on_a_scratch_machine(
        tmp_path,
        PINNED_INSIDE
        + """
netns.mkdir()
mounts.tmpfs(netns, "size=1m")
mounts.set_propagation(netns, mounts.Propagation.PRIVATE)
lifecycle.start(pin)
ip("add", "host")
at_pin("ip", "netns", "exec", "host", "true")
ip("delete", "host")
lifecycle.stop(pin)
assert mounted(netns)[-1].fs_type == "tmpfs"
""",
    )
