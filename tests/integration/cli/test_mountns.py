"""`podkeep mountns` on a machine where no runtime runs: making, looking, entering, removing."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation
from support import forked

TIMEOUT_S = 60


@dataclass
class Host:
    """The scratch machine with a configuration of its own, and so a pin of its own."""

    base: Path

    def __post_init__(self) -> None:
        self.pin = self.base / "mountns" / "mnt"
        self.config = self.base / "config.toml"
        self.config.write_text(
            f'[runtime]\nrun = "{self.base}/run"\nsocket = "{self.base}/run/podkeep.sock"\n'
            f'[mountns]\npin = "{self.pin}"\n'
        )

    def command(self, *arguments: str, settings: Sequence[str] = ()) -> list[str]:
        given = [part for setting in settings for part in ("--set", setting)]
        return [sys.executable, "-m", "podkeep", "--config", str(self.config), *given, "mountns", *arguments]

    def run(self, *arguments: str, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        settings = options.pop("settings", ())
        done = forked.run(
            self.command(*arguments, settings=settings), capture_output=True, text=True, timeout=TIMEOUT_S, **options
        )
        assert done.returncode == status, done.stderr
        return done

    def status(self, *, status: int = 0) -> dict[str, Any]:
        return json.loads(self.run("status", "-o", "json", status=status).stdout)


def table() -> list[tuple[str, str, str]]:
    return sorted((entry.mount_point, entry.fs_type, entry.root) for entry in mountinfo.read())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Fails a test that leaves a mount or a file of the namespace behind."""
    before, host = table(), Host(tmp_path)
    yield host
    host.run("stop", "--force")
    assert table() == before
    assert not host.pin.parent.exists()


@pytest.fixture
def made(host: Host) -> Host:
    host.run("start")
    return host


def inside(host: Host, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return host.run("exec", "--", *argv, **options)


def test_start_makes_one_that_stays_and_keeps_one_that_is_there(host: Host) -> None:
    first = json.loads(host.run("start", "-o", "json").stdout)
    assert first == {"pin": str(host.pin), "inode": host.pin.stat().st_ino, "made": True}
    again = json.loads(host.run("start", "-o", "json").stdout)
    assert again == {**first, "made": False}
    assert host.run("start").stdout == f"mnt:[{first['inode']}] at {host.pin} is there already\n"
    assert host.status()["on_demand"] is False


@pytest.mark.requirement("M7")
def test_stop_takes_everything_away_and_has_nothing_to_do_then(made: Host) -> None:
    assert made.run("stop").stdout == f"removed {made.pin}\n"
    assert not made.pin.exists()
    assert json.loads(made.run("stop", "-o", "json").stdout) == {"pin": str(made.pin), "removed": False}


def test_stop_is_refused_while_somebody_is_inside(made: Host) -> None:
    with forked.Popen(made.command("exec", "--", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"here\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"here\n"
        refused = made.run("stop", status=1)
        assert f"cat ({cat.pid})" in refused.stderr
        assert made.run("stop", "--if-unused").stdout == f"{made.pin} is in use and stays\n"
        assert made.status()["processes"] == [{"pid": cat.pid, "name": "cat"}]
        assert f"cat ({cat.pid})" in made.run("status").stdout


def test_two_options_of_stop_exclude_each_other(host: Host) -> None:
    assert "do not go together" in host.run("stop", "--force", "--if-unused", status=2).stderr


def test_status_of_none_is_1_and_says_how_to_have_one(host: Host) -> None:
    found = host.status(status=1)
    assert (found["inode"], found["in_sync"], found["mismatches"]) == (None, False, [])
    assert "`podkeep mountns start` makes one to stay" in host.run("status", status=1).stdout


def test_status_says_what_it_is(made: Host) -> None:
    assert made.status() == {
        "enabled": True,
        "pin": str(made.pin),
        "source": "mountns.pin",
        "inode": made.pin.stat().st_ino,
        "on_demand": False,
        "propagation": "shared,slave",
        "host_propagation": "shared",
        "follows_host": True,
        "container_mounts": 0,
        "processes": [],
        "daemons": [],
        "in_sync": True,
        "mismatches": [],
    }
    shown = made.run("status").stdout
    assert f"mnt:[{made.pin.stat().st_ino}], stays until it is stopped" in shown
    assert "shared: what the host mounts is seen inside" in shown


def test_status_counts_mounts_that_the_host_does_not_have(made: Host, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    inside(made, "mount", "-t", "tmpfs", "only-inside", str(place))
    assert made.status()["container_mounts"] == 1
    assert not mountinfo.is_mount_point(place)
    assert "1 container mount" in made.run("stop", status=1).stderr
    inside(made, "umount", str(place))
    assert made.status()["container_mounts"] == 0


def test_status_says_when_the_hosts_mounts_do_not_arrive(host: Host) -> None:
    # A host of the test's own, whose / is private.
    code = 'mount --make-rprivate / && "$@" start && "$@" status; "$@" stop'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", code, "sh", *host.command()],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert "private: what it mounts from now on is not seen inside; `mount --make-rshared /`" in done.stdout


@pytest.mark.requirement("M33")
def test_exec_passes_on_status_streams_and_arguments(made: Host) -> None:
    done = inside(
        made, "sh", "-c", 'read line; echo "$line $1"; echo err >&2; exit 7', "sh", "two words", input="in\n", status=7
    )
    assert (done.stdout, done.stderr) == ("in two words\n", "err\n")


def test_exec_is_in_the_pinned_namespace(made: Host) -> None:
    inode = made.pin.stat().st_ino
    assert inside(made, "readlink", "/proc/self/ns/mnt").stdout == f"mnt:[{inode}]\n"
    assert os.stat("/proc/self/ns/mnt").st_ino != inode


def test_options_need_no_dashes_before_the_command(made: Host) -> None:
    assert made.run("exec", "echo", "-n", "--help").stdout == "--help"


def test_exec_is_the_command_itself(made: Host) -> None:
    with forked.Popen(made.command("exec", "--", "sh", "-c", "echo $$"), stdout=subprocess.PIPE) as process:
        assert int(process.communicate(timeout=TIMEOUT_S)[0]) == process.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command(made: Host, number: signal.Signals) -> None:
    command = made.command("exec", "--", "sh", "-c", "echo ready; exec sleep 60")
    with forked.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT_S) == -number


def test_command_that_is_not_there_is_127_and_one_that_cannot_run_126(made: Host) -> None:
    assert "no-such-command" in inside(made, "no-such-command", status=127).stderr
    assert str(made.config) in inside(made, str(made.config), status=126).stderr


@pytest.mark.parametrize("verb", [("exec", "--", "true"), ("enter",)])
def test_none_to_enter_is_125_with_the_command_that_mends_it(host: Host, verb: Sequence[str]) -> None:
    said = host.run(*verb, status=125).stderr
    assert said.startswith(f"podkeep: no mount namespace is pinned at {host.pin}\nhint: ")
    assert "`podkeep mountns start`" in said
    assert not host.pin.parent.exists()


@pytest.mark.parametrize(("verb", "status"), [("start", 1), ("stop", 1), ("status", 1), ("enter", 125)])
def test_root_that_may_not_mount_is_told_what_is_missing(host: Host, verb: str, status: int) -> None:
    command = ["setpriv", "--bounding-set", "-sys_admin", "--", *host.command(verb)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == status
    assert done.stderr.splitlines() == [
        f"podkeep: `podkeep mountns {verb}` needs CAP_SYS_ADMIN, which this process cannot have",
        "hint: run it on the host, in no container and in no unit with CapabilityBoundingSet=",
    ]


def test_turned_off_there_is_nothing_to_enter(host: Host) -> None:
    off = ["mountns.enabled=false"]
    assert "mountns.enabled is false" in host.run("exec", "true", status=125, settings=off).stderr
    assert "mountns.enabled is false" in host.run("start", status=1, settings=off).stderr
    assert host.run("status", status=1, settings=off).stdout.startswith("hiding")


def test_one_that_is_left_can_be_entered_and_removed_after_hiding_was_turned_off(made: Host) -> None:
    off = ["mountns.enabled=false"]
    made.run("exec", "true", settings=off)
    made.run("stop", settings=off)
    assert not made.pin.exists()


@pytest.mark.parametrize("content", ["", "text"])
def test_file_that_is_no_namespace_is_none(host: Host, tmp_path: Path, content: str) -> None:
    other = tmp_path / "other" / "file"
    other.parent.mkdir()
    other.write_text(content)
    said = host.run("exec", "true", status=125, settings=[f"mountns.pin={other}"]).stderr
    expected = f"{other} exists and is not the empty file" if content else f"no mount namespace is pinned at {other}"
    assert expected in said


def test_namespace_of_another_kind_is_refused(host: Host, tmp_path: Path) -> None:
    other = tmp_path / "other" / "net"
    other.parent.mkdir()
    other.touch()
    mounts.bind("/proc/self/ns/net", other)
    try:
        for verb in (("exec", "true"), ("enter",)):
            said = host.run(*verb, status=125, settings=[f"mountns.pin={other}"]).stderr
            assert f"{other} is a net namespace and no mount namespace" in said
        assert "no mount namespace" in host.run("status", status=1, settings=[f"mountns.pin={other}"]).stderr
    finally:
        mounts.unmount(other)


def test_kubensmnt_names_one_that_is_not_podkeeps_to_remove(made: Host) -> None:
    environment = {**os.environ, "KUBENSMNT": str(made.pin)}
    inode = made.pin.stat().st_ino
    assert inside(made, "readlink", "/proc/self/ns/mnt", env=environment).stdout == f"mnt:[{inode}]\n"
    assert "not podkeep's" in made.run("stop", status=1, env=environment).stderr
    gone = {**os.environ, "KUBENSMNT": "/nonexistent/mnt"}
    fix = "start what makes it (`systemctl start kubens`), or unset KUBENSMNT"
    assert f"hint: {fix}\n" in inside(made, "true", status=125, env=gone).stderr
    assert f"none; {fix}\n" in made.run("status", status=1, env=gone).stdout
    assert "hint: unset KUBENSMNT" in made.run("start", status=1, env=gone).stderr


def test_something_else_where_the_pin_would_be_is_in_the_way_for_all(host: Host, tmp_path: Path) -> None:
    (tmp_path / "other" / "mnt").mkdir(parents=True)
    settings = [f"mountns.pin={tmp_path}/other/mnt"]
    said = f"podkeep: {tmp_path}/other/mnt exists and is not the empty file of a pin\nhint: remove it, or set "
    for verb, status in {"start": 1, "status": 1, "enter": 125}.items():
        assert host.run(verb, status=status, settings=settings).stderr.startswith(said)
    assert "nothing to remove" in host.run("stop", settings=settings).stdout
    off = [*settings, "mountns.enabled=false"]
    assert host.run("status", status=1, settings=off).stderr == "", "nobody wants to pin anything there"


def test_working_directory_stays(made: Host, tmp_path: Path) -> None:
    assert inside(made, "pwd", cwd=tmp_path).stdout == f"{tmp_path}\n"


def test_working_directory_that_is_not_there_inside_is_said_to_be(made: Host, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    mounts.bind(private, private)
    mounts.set_propagation(private, Propagation.PRIVATE)
    below = private / "below"
    below.mkdir()
    mounts.tmpfs(below, "mode=0755")
    try:
        (below / "here").mkdir()
        done = inside(made, "pwd", cwd=below / "here")
    finally:
        mounts.unmount(below)
        mounts.unmount(private)
    assert done.stdout == "/\n"
    assert done.stderr.startswith(f"podkeep: {below}/here is not there inside")


def test_working_directory_that_was_removed_does_not_keep_anybody_out(made: Host, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = 'rmdir "$0"; exec "$@"'
    command = ["sh", "-c", code, str(gone), *made.command("exec", "--", "pwd", "-P")]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout == "/\n"


def test_what_the_host_mounts_is_seen_inside_and_not_the_other_way(made: Host, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    mounts.tmpfs(ours, "mode=0755")
    try:
        inside(made, "mount", "-t", "tmpfs", "theirs", str(theirs))
        seen = inside(made, "findmnt", "--noheadings", "--output", "TARGET", "--list").stdout.split()
        assert {str(ours), str(theirs)} <= set(seen)
        assert mountinfo.is_mount_point(ours)
        assert not mountinfo.is_mount_point(theirs)
    finally:
        mounts.unmount(ours)
        inside(made, "umount", str(theirs))


def test_network_namespaces_made_on_the_host_are_seen_inside(made: Host) -> None:
    name = f"podkeep-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        assert name in inside(made, "ip", "netns").stdout.split()
        inside(made, "ip", "netns", "exec", name, "true")
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def test_who_is_not_root_is_told_so(host: Host) -> None:
    code = (
        "import os, signal, sys; from podkeep.cli import main; from podkeep.cli.mountns import command, namespace;"
        " import podkeep.base.config;"
        " os.setresuid(65534, 65534, 65534); main.main(sys.argv[1:])"
    )
    for verb, status in {"start": 1, "stop": 1, "status": 1, "enter": 125, "exec true": 125, "install": 1}.items():
        done = subprocess.run(
            [sys.executable, "-c", code, "mountns", *verb.split()], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == status
        assert done.stderr == f"podkeep: `podkeep mountns {verb.split()[0]}` needs root\nhint: run it as root\n"


def test_it_works_from_inside_too(host: Host) -> None:
    # PID 1 is the host's: it tells what is pinned there to those who are inside.
    machine = "unshare --mount --pid --fork --mount-proc --propagation private"
    script = """
        set -e
        mount --make-rshared /
        "$@" start
        inside=$("$@" exec -- readlink /proc/self/ns/mnt)
        test "$inside" != "$(readlink /proc/self/ns/mnt)"
        test "$("$@" exec -- "$@" exec -- readlink /proc/self/ns/mnt)" = "$inside"
        "$@" exec -- "$@" status >/dev/null
        test "$("$@" exec -- "$@" start | sed 's/.* at .* is/is/')" = "is there already"
        "$@" exec -- sh -c '"$@" stop; exit $?' sh "$@" && exit 1
        "$@" stop
    """
    done = subprocess.run(
        [*machine.split(), "sh", "-c", script, "sh", *host.command()],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def terminal(command: Sequence[str], **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command on a terminal of its own; yield it and the end that a person sees."""
    person, program = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command],
        stdin=program,
        stdout=program,
        stderr=program,
        env={**os.environ, **environment},
    ) as process:
        os.close(program)
        try:
            yield process, person
            process.wait(timeout=TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        finally:
            # What is still on the terminal gets SIGHUP.
            os.close(person)


def read_until(fd: int, wanted: str) -> str:
    """Read until the regular expression ``wanted`` is found; what follows it may have been read, too."""
    seen = ""
    deadline = time.monotonic() + TIMEOUT_S
    while not re.search(wanted, seen, re.DOTALL):
        assert time.monotonic() < deadline, seen
        if select.select([fd], [], [], 1)[0]:
            seen += os.read(fd, 4096).decode()
    return seen


@pytest.mark.requirement("M33")
def test_enter_is_an_interactive_shell_on_the_terminal(made: Host, tmp_path: Path) -> None:
    inode = made.pin.stat().st_ino
    # The shell has the terminal to itself, and takes an interruption for the line, once it asks for bracketed pastes.
    prompt = re.escape("ready:\x1b[?2004h")
    environment = {"SHELL": "/bin/bash", "PROMPT_COMMAND": "printf ready:", "ENV": "", "HOME": str(tmp_path)}
    with terminal(made.command("enter"), **environment) as (shell, person):
        read_until(person, prompt)
        os.write(person, b"echo $- at $(tty) in $(readlink /proc/self/ns/mnt) $((40 + 2)) done\n")
        seen = read_until(person, f"42 done.*{prompt}")
        assert f"in mnt:[{inode}]" in seen
        flags = re.findall(r"(\S+) at /dev/pts/", seen)
        assert "i" in flags[-1]
        assert "m" in flags[-1], "there is no job control"
        # An interruption is for the line that is typed, not for the shell. It takes along what was typed ahead.
        os.write(person, b"nonsense")
        read_until(person, "nonsense")
        os.write(person, b"\x03")
        # bash may note the signal and act on it at the next key only.
        read_until(person, re.escape("\x1b[?2004h"))
        os.write(person, b"\n")
        read_until(person, prompt)
        os.write(person, b"echo still $((1 + 1)) here\n")
        read_until(person, "still 2 here")
        os.write(person, b"exit 3\n")
    assert shell.returncode == 3


def test_enter_without_a_shell_of_ones_own_is_sh(made: Host) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SHELL"}
    done = made.run("enter", input='echo "$0"; exit 4\n', status=4, env=environment)
    assert done.stdout == "/bin/sh\n"


def test_enter_with_a_shell_that_is_not_there_says_so(made: Host) -> None:
    assert "/no/shell" in made.run("enter", status=127, env={**os.environ, "SHELL": "/no/shell"}).stderr
