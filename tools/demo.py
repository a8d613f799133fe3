"""The main job, shown from both sides: a pod in its own user namespace, then a machine as it was before.

``make demo`` runs it as root. It starts a runtime with the default configuration unless one answers already, loads an
image made here from busybox, runs ``examples/userns.yaml``, looks at the pod from inside and outside, and ends with an
error if what it sees is not what a user namespace promises, or if anything is left behind.

``tools/demo.py --archive FILE`` does none of this: it only writes the image to ``FILE``, for ``podkeep image load``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from podkeep.base import config  # noqa: E402 - the import path is set just above
from podkeep.kernel.mount import mountinfo  # noqa: E402
from support.images import busybox_layout  # noqa: E402

PODKEEP = str(Path(sys.executable).with_name("podkeep"))
IMAGE = "localhost/busybox:demo"
MANIFEST = ROOT / "examples" / "userns.yaml"
TIMEOUT_S = 60.0
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
FIRST_POD_ID = 65536
"""Host IDs below belong to the machine itself (KEP-127)."""

SETTINGS = config.load(None)

Found = TypeVar("Found")


class DemoFailed(Exception):
    """What was seen is not what was promised."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a pod might leave behind, as it is at one moment."""

    mounts: frozenset[str]
    network_namespaces: frozenset[str]
    links: frozenset[str]
    nftables: frozenset[str]
    settings: frozenset[str]
    cgroups: frozenset[str]
    run: frozenset[str]
    """Everything in the runtime's run directory."""
    pod_directories: frozenset[str]
    monitors: frozenset[str]
    """Process IDs of conmon."""

    @classmethod
    def look(cls) -> Machine:
        """Take stock."""
        return cls(
            mounts=frozenset(f"{entry.mount_point} ({entry.fs_type})" for entry in mountinfo.read()),
            network_namespaces=frozenset(output("ip", "netns", "list").splitlines()),
            links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            nftables=frozenset(output("nft", "list", "tables").splitlines()),
            settings=frozenset({f"net.ipv4.ip_forward = {FORWARDING.read_text().strip()}"}),
            cgroups=frozenset(path for path in below(Path("/sys/fs/cgroup")) if is_cgroup_of_pods(path)),
            run=frozenset(below(Path(SETTINGS.runtime.run))),
            pod_directories=frozenset(str(path) for path in Path(SETTINGS.agent.root, "pods").glob("*")),
            monitors=frozenset(str(pid) for pid in pids() if is_monitor(pid)),
        )

    def changes_to(self, other: Machine) -> list[str]:
        """Return a line for everything that is new or gone in ``other``."""
        lines = []
        for item in fields(self):
            before, after = getattr(self, item.name), getattr(other, item.name)
            name = item.name.replace("_", " ")
            lines += [f"{name}: left behind: {entry}" for entry in sorted(after - before)]
            lines += [f"{name}: gone: {entry}" for entry in sorted(before - after)]
        return lines


def below(top: Path) -> list[str]:
    """Return the paths of all directories under ``top`` and, except in /sys, of all files."""
    found = []
    for directory, _, files in os.walk(top):
        found.append(directory)
        if not directory.startswith("/sys/"):
            found += [os.path.join(directory, name) for name in files]
    return found


def is_cgroup_of_pods(path: str) -> bool:
    """Return whether a directory in /sys/fs/cgroup is below the configured parent, in whichever hierarchy.

    Others may have cgroups with podkeep in their name further down, of tests for example, and make and remove them now.
    """
    parent = SETTINGS.runtime.cgroup_parent.removesuffix(".slice")
    return re.match(rf"/sys/fs/cgroup(/[^/]+)?{re.escape(parent)}(\.slice)?(/|$)", path) is not None


def pids() -> list[int]:
    """Return the IDs of all processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def read(path: Path) -> str:
    """Return the content of a file in /proc; empty if the process is gone."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_monitor(pid: int) -> bool:
    """Return whether a process is a conmon that still runs: one that ended and waits for init has no command line."""
    proc = Path(f"/proc/{pid}")
    return read(proc / "comm").strip() == "conmon" and bool(read(proc / "cmdline"))


def output(*argv: str) -> str:
    """Run a command and return what it printed; its errors go to the terminal."""
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def podkeep(*arguments: str) -> str:
    """Run podkeep, show the command line, and return what it printed."""
    print(f"\n# podkeep {' '.join(arguments)}", flush=True)
    return output(PODKEEP, *arguments)


def wait_for(what: str, look: Callable[[], Found | None], process: subprocess.Popen[bytes]) -> Found:
    """Look again and again until there is something; not longer than ``process`` lives, nor than the timeout."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        if process.poll() is not None:
            raise DemoFailed(f"`{process.args!r}` ended with {process.returncode} before there was {what}")
        time.sleep(0.05)
    raise DemoFailed(f"no {what} within {TIMEOUT_S:g} s")


def require(truth: bool, claim: str) -> None:
    """Say ``claim``, and fail if it is not true."""
    print(f"  {'yes' if truth else 'NO '}  {claim}", flush=True)
    if not truth:
        raise DemoFailed(f"not true: {claim}")


def runtime_answers() -> bool:
    """Return whether a runtime listens on the configured socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(SETTINGS.runtime.socket) == 0


@contextmanager
def forwarding_put_back() -> Iterator[None]:
    """Undo what a runtime leaves on, because others may have come to need it; nobody has within a demo."""
    before = FORWARDING.read_text()
    try:
        yield
    finally:
        if FORWARDING.read_text() != before:
            FORWARDING.write_text(before)


@contextmanager
def running_runtime() -> Iterator[None]:
    """Start a runtime unless one answers already, and end the one that was started."""
    if runtime_answers():
        print("a runtime answers already; it is used and left running")
        yield
        return
    print("# podkeep runtime &", flush=True)
    with forwarding_put_back(), subprocess.Popen([PODKEEP, "runtime", "--log-level", "warning"]) as process:
        try:
            wait_for("a runtime that answers", lambda: runtime_answers() or None, process)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=TIMEOUT_S)


def write_archive(archive: Path) -> None:
    """Make the busybox image and write it to ``archive``."""
    with tempfile.TemporaryDirectory() as name:
        busybox_layout(Path(name, "layout"), name=IMAGE).tar(archive)


@contextmanager
def loaded_image() -> Iterator[None]:
    """Load the busybox image, and remove it again."""
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name, "busybox.tar")
        write_archive(archive)
        print(podkeep("image", "load", str(archive)), end="")
    try:
        yield
    finally:
        print(podkeep("image", "rm", IMAGE), end="")


def inside_process(mapping: list[str]) -> int | None:
    """Return the ID, on the machine, of the pod's shell: the process that has the mapping that the pod reports."""
    for pid in pids():
        if read(Path(f"/proc/{pid}/uid_map")).split() == mapping and read(Path(f"/proc/{pid}/comm")).strip() == "sh":
            return pid
    return None


def look_from_outside(process: subprocess.Popen[bytes]) -> None:
    """Compare what the pod sees with what the machine sees."""
    mapping = podkeep("exec", "userns", "--", "cat", "/proc/self/uid_map").split()
    print(f"uid_map inside:  {' '.join(mapping)}")
    print(f"uid_map outside: {' '.join(read(Path('/proc/self/uid_map')).split())}")
    pid = wait_for("process with that mapping", lambda: inside_process(mapping), process)
    status = dict(line.split(":\t", 1) for line in read(Path(f"/proc/{pid}/status")).splitlines() if ":\t" in line)
    host_uid = int(status["Uid"].split()[0])
    owner_inside = podkeep("exec", "userns", "--", "stat", "-Lc", "%u", "/config/greeting.txt").strip()
    [greeting] = on_disk("*/volumes/kubernetes.io~configmap/config/greeting.txt")
    [hello] = on_disk("*/volumes/kubernetes.io~empty-dir/scratch/hello")
    print("\nseen from the machine:")
    require(int(mapping[1]) >= FIRST_POD_ID, f"the pod's IDs 0 to {int(mapping[2]) - 1} are {mapping[1]} and up here")
    require(host_uid >= FIRST_POD_ID, f"the pod's root, process {pid}, is user {host_uid} here")
    require(owner_inside == "0", "the ConfigMap file belongs to root inside")
    require(greeting.stat().st_uid == 0, f"and to 0 on disk: {greeting}")
    require(hello.read_text() == "written from inside\n", f"the emptyDir holds what the pod wrote: {hello}")
    require(hello.stat().st_uid == 0, "and on disk that file belongs to 0: mapped, not chowned")
    if SETTINGS.mountns.enabled:
        look_at_mounts()


def look_at_mounts() -> None:
    """Compare the machine's table of mounts with that of the container mount namespace."""
    findmnt = ("findmnt", "--list", "--noheadings", "--output", "TARGET")
    inside = set(podkeep("mountns", "exec", "--", *findmnt).split())
    hidden = inside - {entry.mount_point for entry in mountinfo.read()}
    print()
    require(
        any(path.startswith(f"{SETTINGS.runtime.run}/containers/") for path in hidden), "the pod's mounts are there"
    )
    require(not mountinfo.under(SETTINGS.runtime.run), f"and none of these {len(hidden)} is in the machine's own table")


def on_disk(pattern: str) -> list[Path]:
    """Return the files of pods that match; a pod's directory is visible to the whole machine."""
    found = sorted(Path(SETTINGS.agent.root, "pods").glob(pattern))
    if not found:
        raise DemoFailed(f"no file {SETTINGS.agent.root}/pods/{pattern}")
    return found[-1:]


def run_pod() -> None:
    """Run the example, look at it, end it, and check its status."""
    print(f"\n# podkeep run {MANIFEST.relative_to(ROOT)}", flush=True)
    with subprocess.Popen([PODKEEP, "run", str(MANIFEST)]) as process:
        try:
            pattern = "*/volumes/kubernetes.io~empty-dir/scratch/hello"
            pods = Path(SETTINGS.agent.root, "pods")
            wait_for("word from inside", lambda: next(pods.glob(pattern), None), process)
            print(podkeep("ps"), end="")
            look_from_outside(process)
            podkeep("exec", "userns", "--", "touch", "/scratch/done")
            process.wait(timeout=TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
    require(process.returncode == 0, "`podkeep run` ended with the pod's status, 0")


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(description="Run a pod in its own user namespace and look at it from both sides.")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="only write the image of the example to FILE")
    archive = parser.parse_args().archive
    if archive is not None:
        write_archive(archive)
        return 0
    if os.geteuid() != 0:
        print("make demo: pods are run by root", file=sys.stderr)
        print("hint: sudo make demo", file=sys.stderr)
        return 1
    before = Machine.look()
    try:
        with running_runtime(), loaded_image():
            run_pod()
        left = before.changes_to(Machine.look())
        print("\n".join(["\nafter cleaning up:", *left]))
        require(not left, "mounts, network, cgroups, processes and directories are as before")
    except (DemoFailed, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
