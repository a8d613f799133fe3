"""Commands with bounded output and time, run for real, and what an OCI runtime's messages are turned into."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import (
    Cancelled,
    CommandFailed,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PodkeepError,
    ResourceExhausted,
)
from podkeep.base.ids import ContainerID, HandlerName
from podkeep.cri import transport
from podkeep.cri.v1 import api_pb2 as api
from podkeep.http.budget import Account
from podkeep.http.streams import Inbox
from podkeep.kernel.process import procfs
from podkeep.runtime.lifecycle.strays import kill_strays
from podkeep.runtime.oci import driver, sealed
from podkeep.runtime.oci import exec as exec_
from podkeep.runtime.oci.driver import (
    EXEC_OUTPUT_LIMIT,
    OWN_OUTPUT_BYTES,
    Allowance,
    Driver,
    ExecLimits,
    ExecResult,
    Handler,
    Output,
    Stdio,
    _pump,
    _run_limited,
    _said,
    share,
)
from podkeep.runtime.oci.exec import ExecProcess, ExecStdio
from podkeep.runtime.oci.null_device import open_null
from podkeep.runtime.streaming import exec as exec_session
from podkeep.runtime.streaming.command_streams import CommandStreams, Size
from support.descriptors import open_descriptors
from support.processes import write_script
from support.waiting import TIMEOUT_S, wait_for


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves a descriptor or a child behind."""
    # The first null device makes the file system of all of them, and the first call of crun its copy.
    os.close(open_null())
    sealed.command("/usr/bin/crun")
    descriptors = open_descriptors()
    yield
    assert open_descriptors() == descriptors
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def run(script: str, directory: Path, *, timeout: float | None = 60.0) -> ExecResult:
    """Run a shell script; ``$PID_FILE`` is where it writes the process ID of the command, as an OCI runtime does."""
    pid_file = directory / "exec.pid"
    return _run_limited(
        ["env", f"PID_FILE={pid_file}", "bash", "-c", script], pid_file, ExecLimits(timeout=timeout), None
    )


def test_code_and_outputs(tmp_path: Path) -> None:
    result = run("echo out; echo err >&2; exit 3", tmp_path)
    assert result == ExecResult(exit_code=3, stdout=b"out\n", stderr=b"err\n")
    assert run("kill -9 $$", tmp_path).exit_code == 128 + 9
    assert run("printf 'a\\0\\377'", tmp_path).stdout == b"a\0\xff"
    assert run("cat", tmp_path) == ExecResult(exit_code=0, stdout=b"", stderr=b"")


@pytest.mark.slow
def test_both_outputs_at_their_limit_fit_into_one_answer(tmp_path: Path) -> None:
    script = "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; echo end"
    result = run(script, tmp_path)
    assert result.exit_code == 0
    assert len(result.stdout) == len(result.stderr) == EXEC_OUTPUT_LIMIT // 2
    answer = api.ExecSyncResponse(stdout=result.stdout, stderr=result.stderr, exit_code=255)
    assert answer.ByteSize() < transport.MAX_MESSAGE_BYTES


@pytest.mark.slow
def test_output_that_ends_with_the_program_is_whole(tmp_path: Path) -> None:
    for _ in range(20):
        assert len(run("head -c 65536 /dev/zero", tmp_path).stdout) == 65536


@pytest.mark.slow
def test_outputs_that_are_closed_early(tmp_path: Path) -> None:
    result = run("echo said; exec >&- 2>&-; sleep 0.1; exit 4", tmp_path)
    assert result == ExecResult(exit_code=4, stdout=b"said\n", stderr=b"")


def still_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("background", ["sleep 3600", "while :; do echo more; done", "cat /dev/zero"])
@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_background_process_that_keeps_the_outputs_is_not_waited_for(
    tmp_path: Path, background: str, timeout: float | None
) -> None:
    result = run(f"{background} & echo $! > {tmp_path}/left; echo done >&2", tmp_path, timeout=timeout)
    assert result.exit_code == 0
    assert result.stderr == b"done\n"
    left = int((tmp_path / "left").read_text())
    if "sleep" in background:
        assert still_running(left)
        os.kill(left, signal.SIGKILL)
    # The others end by themselves: nobody reads what they write.


@pytest.fixture
def short_kill_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OCI runtime that does not end with its command is killed after a tenth of a second, not after 2 s."""
    monkeypatch.setattr(exec_, "KILL_TIMEOUT_S", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sleep 3600", "exec cat /dev/zero", "while :; do echo a; echo b >&2; done"])
def test_a_command_that_takes_too_long_is_killed(tmp_path: Path, command: str) -> None:
    begun = time.monotonic()
    script = f"setsid bash -c 'echo $$ > $PID_FILE; {command}' & wait"
    with pytest.raises(DeadlineExceeded, match=r"within 0\.5 s"):
        run(script, tmp_path, timeout=0.5)
    assert time.monotonic() - begun >= 0.5
    assert not still_running(int((tmp_path / "exec.pid").read_text()))


@pytest.mark.slow
@pytest.mark.usefixtures("short_kill_timeout")
def test_a_runtime_that_never_noted_a_pid_is_killed(tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded):
        run("sleep 60", tmp_path, timeout=0.2)
    assert not (tmp_path / "exec.pid").exists()


@pytest.mark.slow
def test_a_daemon_with_thousands_of_descriptors_runs_commands(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows fewer than 4096 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert run("echo many", tmp_path).stdout == b"many\n"
        with pytest.raises(DeadlineExceeded):
            run("setsid bash -c 'echo $$ > $PID_FILE; sleep 60' & wait", tmp_path, timeout=0.2)
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="/no/such/crun"):
        _run_limited(["/no/such/crun"], tmp_path / "pid", ExecLimits(timeout=1.0), None)


@pytest.mark.parametrize(
    ("written", "kept"),
    [((3, 4), (3, 4)), ((10, 0), (10, 0)), ((99, 2), (8, 2)), ((2, 99), (2, 8)), ((99, 99), (5, 5)), ((6, 5), (5, 5))],
)
def test_two_outputs_share_one_answer(written: tuple[int, int], kept: tuple[int, int]) -> None:
    assert share(*written, limit=10) == kept


def handler(path: str, root: Path) -> Driver:
    return Driver(handler=Handler(name=HandlerName("h"), path=path, root=root), conmon="/usr/bin/conmon")


def test_a_command_does_not_run_where_another_container_came_in_sight_meanwhile(tmp_path: Path) -> None:
    """It is asked again when the OCI runtime is there, for who sets up that container looks for it from then on."""
    script = tmp_path / "runtime"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o700)
    answers = [False, True]
    with pytest.raises(FailedPrecondition, match="another container is made beside c"):
        handler(str(script), tmp_path).exec_sync(
            ContainerID("c"), tmp_path, {"cwd": "/x"}, ExecLimits(timeout=10.0), checked=lambda: answers.pop(0)
        )
    assert (answers, [path.name for path in tmp_path.iterdir()]) == ([], ["runtime"])


def test_exec_leaves_no_file(tmp_path: Path) -> None:
    result = handler("/bin/echo", tmp_path).exec_sync(
        ContainerID("c"), tmp_path, {"args": ["x"]}, ExecLimits(timeout=10.0)
    )
    assert result.exit_code == 0
    assert b"exec --process" in result.stdout
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotFound):
        handler("/no/such/crun", tmp_path).exec_sync(
            ContainerID("c"), tmp_path, {"args": ["x"]}, ExecLimits(timeout=10.0)
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", "streams"])
def test_the_environment_of_a_command_is_never_in_a_file_for_all(tmp_path: Path, how: str) -> None:
    program = Path(__file__).with_name("programs") / "exec_opens.py"
    done = subprocess.run([sys.executable, program, tmp_path, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # Made by this call, with its mode, and not given one afterwards.
    assert done.stdout.split("\n") == ["open new", ""]


@pytest.mark.slow
@pytest.mark.usefixtures("short_kill_timeout")
def test_a_terminal_that_does_not_come_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_, "START_TIMEOUT_S", 0.1)
    program, files, sockets = tmp_path / "runtime", tmp_path / "files", tmp_path / "sockets"
    write_script(program, "#!/bin/sh\nexec sleep 3600\n")
    files.mkdir()
    sockets.mkdir()
    with pytest.raises(DeadlineExceeded, match="no terminal came"):
        handler(str(program), tmp_path).exec(
            ContainerID("c"), files, {"args": ["x"]}, stdio=ExecStdio(tty=True), sockets=sockets
        )
    assert [*files.iterdir(), *sockets.iterdir()] == []


def test_a_runtime_that_refuses(tmp_path: Path) -> None:
    program = tmp_path / "runtime"
    write_script(program, "#!/bin/sh\necho '2026-01-01T00:00:00.5Z: no such thing' >&2\nexit 1\n")
    with pytest.raises(Internal, match="OCI runtime start failed: no such thing"):
        handler(str(program), tmp_path).start(ContainerID("c"), procfs.identify(os.getpid()))
    # Without state of its own there is nothing to delete, and the runtime is not asked.
    handler(str(program), tmp_path / "empty").delete(ContainerID("c"))


@pytest.mark.parametrize("before", [True, False], ids=["killed before", "killed meanwhile"])
@pytest.mark.slow
def test_a_start_of_a_process_that_was_killed_is_not_waited_for(tmp_path: Path, before: bool) -> None:
    """crun opens a FIFO that the first process is to read: for ever, if that is killed right then."""
    program, called = tmp_path / "runtime", tmp_path / "called"
    os.mkfifo(called)
    write_script(program, f"#!/bin/sh\necho started >{called}\nexec sleep 3600\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/exec.fifo").touch()  # nobody has read it
    first = subprocess.Popen(["sleep", "3600"])
    process = procfs.identify(first.pid)
    if before:
        first.kill()
        first.wait()

    def kill_when_called() -> None:
        called.read_text()
        first.kill()
        first.wait()

    killing = threading.Thread(target=kill_when_called)
    killing.start()
    with pytest.raises(DeadlineExceeded, match="waits for a process that is gone"):
        handler(str(program), tmp_path).start(ContainerID("c"), process)
    killing.join()


@pytest.mark.slow
def test_a_start_of_a_short_program_may_take_its_time(tmp_path: Path) -> None:
    """The OCI runtime runs hooks after the program was started (poststart), which may have ended by then."""
    program = tmp_path / "runtime"
    write_script(program, "#!/bin/sh\nsleep 3\n")
    short = subprocess.Popen(["true"])
    process = procfs.identify(short.pid)
    short.wait()
    handler(str(program), tmp_path).start(ContainerID("c"), process)


SAID = {
    "": "it said nothing",
    "\n \n": "it said nothing",
    "no such thing\n": "no such thing",
    "2026-11-21T14:00:00.123456Z: no such thing": "no such thing",
    "2026-11-21T14:00:00Z: one\n2026-11-21T14:00:00Z: two\n": "one; two",
    "the same\nthe same\n": "the same",
    "cannot open /data/XYZ: No such file": "cannot open /data/XYZ: No such file",
    "2026-11-21T14:00:00.1Z: cannot open /data/XYZ: No such file": "cannot open /data/XYZ: No such file",
    "  indented": "indented",
}


@pytest.mark.parametrize("text", SAID)
def test_a_runtimes_words_on_one_line(text: str) -> None:
    assert _said(text.encode()) == SAID[text]


def test_words_that_are_no_utf8() -> None:
    assert _said(b"bad \xff byte") == "bad \N{REPLACEMENT CHARACTER} byte"
    assert driver.EXEC_OUTPUT_LIMIT > 4 << 20


def test_conmon_works_in_the_bundle(tmp_path: Path) -> None:
    """It notes that memory ran out in its working directory as well; the daemon's may be anybody's."""
    bundle, program = tmp_path / "bundle", tmp_path / "conmon"
    bundle.mkdir()
    write_script(program, f"#!/bin/sh\npwd > {tmp_path}/where\necho refused >&2\nexit 3\n")
    made = Driver(handler=Handler(name=HandlerName("h"), path="/usr/bin/crun", root=tmp_path), conmon=str(program))
    with pytest.raises(CommandFailed, match="refused"):
        made.launch(ContainerID("c"), bundle, tmp_path, Stdio(log=None)).create(threading.Event())
    assert (tmp_path / "where").read_text() == f"{bundle}\n"


@pytest.mark.slow
def test_a_refused_container_is_told_of_when_its_conmon_has_ended(tmp_path: Path) -> None:
    """It was there a moment longer than CreateContainer took, and was taken for one that is left."""
    program, ended = tmp_path / "conmon", tmp_path / "ended"
    says = """printf '{"pid": -1, "message": "refused"}\\n' >&"$_OCI_SYNCPIPE"; sleep 0.3; touch"""
    write_script(program, f"#!/bin/bash\n( {says} {ended} ) >/dev/null 2>&1 </dev/null &\n")
    made = Driver(handler=Handler(name=HandlerName("h"), path="/usr/bin/crun", root=tmp_path), conmon=str(program))
    with pytest.raises(Internal, match="refused"):
        made.launch(ContainerID("c"), tmp_path, tmp_path, Stdio(log=None)).create(threading.Event())
    assert ended.exists()


@pytest.mark.slow
def test_a_creation_that_was_given_up_is_not_waited_for_and_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other containers of a pod with ``shareProcessNamespace`` may stop the process that sets up a new one."""
    monkeypatch.setattr(driver, "CALL_TIMEOUT_S", 10.0)
    program, called = tmp_path / "runtime", tmp_path / "called"
    os.mkfifo(called)
    write_script(program, f"#!/bin/sh\nsetsid sleep 3600 &\nkill -STOP $!\necho $$ $! >{called}\nwait\n")
    made = handler(str(program), tmp_path)
    launch = made.launch(ContainerID("c"), tmp_path, tmp_path, Stdio(log=None))
    given_up, began = threading.Event(), []

    def give_up_when_called() -> None:
        began.extend(procfs.identify(int(pid)) for pid in called.read_text().split())
        given_up.set()

    giving_up = threading.Thread(target=give_up_when_called)
    giving_up.start()
    try:
        with pytest.raises(Cancelled, match="container c was given up"):
            launch.create(given_up)
    finally:
        giving_up.join()
        began.append(procfs.identify(int((tmp_path / "conmon.pid").read_text())))
        kill_strays(made, "c")
    assert [process for process in began if procfs.alive(process)] == []


def test_a_refused_container_leaves_the_socket_of_its_terminal_in_the_bundle(tmp_path: Path) -> None:
    """conmon removes that socket only when the terminal comes; in /tmp it would stay, and a pod may be given /tmp."""
    bundle, program = tmp_path / "bundle", tmp_path / "runtime"
    bundle.mkdir()
    script = '#!/bin/sh\nwhile [ "$1" != --console-socket ]; do shift; done\n'
    write_script(program, f'{script}echo "$(realpath "$2") $TMPDIR" > {tmp_path}/where\necho refused >&2\nexit 1\n')
    launch = handler(str(program), tmp_path).launch(ContainerID("c"), bundle, tmp_path, Stdio(log=None, tty=True))
    with pytest.raises(Internal, match="refused"):
        launch.create(threading.Event())
    (left,) = bundle.glob("conmon-term.*")
    assert (tmp_path / "where").read_text() == f"{left} \n"


@pytest.mark.slow
@pytest.mark.parametrize("tty", [False, True])
def test_conmon_creates_nothing_before_it_is_told(tmp_path: Path, tty: bool) -> None:
    """Nor if nobody ever tells it."""
    program, created = tmp_path / "conmon", tmp_path / "created"
    write_script(program, f'#!/bin/bash\nread -u "$_OCI_STARTPIPE" || true\ntouch {created}\necho done >&2\nexit 3\n')
    made = Driver(handler=Handler(name=HandlerName("h"), path="/usr/bin/crun", root=tmp_path), conmon=str(program))
    stdio = Stdio(log=None, tty=tty)
    for _ in range(20):
        launch = made.launch(ContainerID("c"), tmp_path, tmp_path, stdio)
        launch.close()
        launch.close()
        assert not created.exists()
    launch = made.launch(ContainerID("c"), tmp_path, tmp_path, stdio)
    with pytest.raises(CommandFailed, match="done"):
        launch.create(threading.Event())
    assert created.exists()
    launch.close()


def test_a_command_is_killed_when_the_runtime_stops(tmp_path: Path) -> None:
    stop = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        with pytest.raises(Cancelled, match="the runtime stops"):
            _run_limited(["sleep", "60"], tmp_path / "pid", ExecLimits(stops=(stop,)), None)
    finally:
        os.close(stop)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("executable file `/no/such` not found in $PATH: No such file or directory", InvalidArgument),
        ("executable file `9999: No such file or directory", InvalidArgument),  # cut off by conmon
        ('exec: "/no/such": stat /no/such: no such file or directory: unknown', InvalidArgument),
        ("OOM: the memory limit could be too low: read from sync socket", InvalidArgument),
        ("container init was OOM-killed (memory limit too low?): unknown", InvalidArgument),
        ("unable to set memory limit to 262144 (current usage: 2015232, peak usage: 2207744)", InvalidArgument),
        ("writing file `cpuset.cpus`: Numerical result out of range", InvalidArgument),
        ("chdir `/etc/passwd`: Not a directory", InvalidArgument),
        ('chdir to cwd ("/etc/passwd") set in config.json failed: not a directory: unknown', InvalidArgument),
        ("chdir `/root`: Permission denied", InvalidArgument),
        ("error during container init: mkdir /proc/self/fd/10: no such file or directory", InvalidArgument),
        ("mount `/etc` to `bin/busybox`: Not a directory", InvalidArgument),
        ('error mounting "/etc" to rootfs at "/bin/sh": mount /etc:/bin/sh: not a directory: unknown', InvalidArgument),
        ("mount `proc` to `proc`: Operation not permitted", Internal),
        ("mkdir `/sys/x`: Operation not permitted", InvalidArgument),
        ("mkdir `/sys/x`: Permission denied", InvalidArgument),
        ("mkdirat /run/podkeep/containers/1/rootfs/dev/mqueue/x: operation not permitted", InvalidArgument),
        ('exec: "sh": executable file not found in $PATH', InvalidArgument),
        ("unable to start container process: exec /usr/bin/sh: permission denied", InvalidArgument),
        ("error closing exec fds: open /proc/self/fd: no such file or directory", InvalidArgument),
        ("error closing exec fds: /proc/self/fd is not on procfs", InvalidArgument),
        ("mkdir `/dev/mqueue/x`: Operation not permitted", InvalidArgument),
        ("chdir `/data`: Input/output error", Internal),
        ("invalid seccomp action `SCMP_ACT_DANCE`", InvalidArgument),
        ("error adding seccomp filter: string SCMP_ACT_DANCE is not a valid action for seccomp", InvalidArgument),
        ("seccomp unknown architecture ABACUS", InvalidArgument),
        ("unknown seccomp option NOPE", InvalidArgument),
        ("get_seccomp_operator", InvalidArgument),
        ("invalid seccomp index 0", InvalidArgument),
        ("writing file `cpu.cfs_quota_us`: Numerical result out of range", InvalidArgument),
        ("writing file `memory.limit_in_bytes`: Invalid argument", InvalidArgument),
        ("mknod `/bin/sh/x`: Not a directory", InvalidArgument),
        ("openat `a`: Too many levels of symbolic links", InvalidArgument),
        ("mkdir `d`: File name too long", InvalidArgument),
        ("exec: argument list too long", InvalidArgument),
        ("setgroups: Invalid argument", InvalidArgument),
        ("mkdir `/way`: No space left on device", ResourceExhausted),
        ("error seccomp_init: Cannot allocate memory", ResourceExhausted),
        ("open `/run/podkeep/containers/1/rootfs/etc/hosts`: No such file or directory", FailedPrecondition),
        ("mount `/run/podkeep/containers/1/mounts/4` to `data`: No such file or directory", FailedPrecondition),
        (
            'error mounting "/data/a" to rootfs at "/data": mount /data/a:/data (via /proc/self/fd/7), flags: 0x5000: '
            "no such file or directory: unknown",
            FailedPrecondition,
        ),
        ("open `proc/self/fd/1`: Invalid cross-device link", InvalidArgument),
        ("mkdir `/image/none`: Read-only file system", FailedPrecondition),
        (
            'error mounting "/data" to rootfs at "/image/none": mkdirat /rootfs/image/none: read-only file system',
            FailedPrecondition,
        ),
        ("open `/run/podkeep/containers/1/rootfs`: No such file or directory", Internal),
        ("openat2 `way`: No such file or directory", Internal),
        ("it said nothing", Internal),
    ],
)
def test_whose_fault_it_is_that_a_container_cannot_be_created(said: str, kind: type[PodkeepError]) -> None:
    error = driver.create_error(said)
    assert type(error) is kind
    assert error.message == f"OCI runtime create failed: {said}"


def test_outputs_of_several_commands_share_what_they_may_keep() -> None:
    allowance = Allowance(100_000)
    first, second, third = Output(allowance), Output(allowance), Output(allowance)
    for _ in range(20):
        first.add(bytes(10_000))
    second.add(bytes(100_000))
    third.add(bytes(100_000))
    # Each has a little of its own; the rest is for who came first.
    assert len(first.kept) == OWN_OUTPUT_BYTES + 100_000
    assert len(second.kept) == len(third.kept) == OWN_OUTPUT_BYTES
    first.give_back()
    first.give_back()
    third.add(bytes(150_000))
    assert len(third.kept) == OWN_OUTPUT_BYTES + 100_000


def test_what_some_commands_share_is_counted_with_what_all_have() -> None:
    of_all = Allowance(100)
    one, other = Allowance(80, of_all), Allowance(80, of_all)
    assert [one.take(90), other.take(90)] == [80, 20]
    one.give_back(50)
    assert [other.take(90), one.take(1)] == [50, 0]
    other.give_back(70)
    assert [one.take(90), of_all.take(90)] == [50, 20]


def exec_sync_saying(script: str, directory: Path) -> ExecResult:
    """Run a command by an OCI runtime that is a shell script, and writes the command's ID to ``$PID_FILE``."""
    program, bundle = directory / "runtime", directory / "bundle"
    bundle.mkdir()
    program.write_text(f"#!/bin/bash\nPID_FILE=${{@: -2:1}}\n{script}\n")
    program.chmod(0o700)
    return handler(str(program), directory).exec_sync(ContainerID("c"), bundle, {"args": ["x"]}, ExecLimits(timeout=60))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("writing file `/run/exec.pid`: No space left on device", ResourceExhausted),
        ("fork: Resource temporarily unavailable", Internal),
        ("error loading seccomp filter: errno 524", Internal),
        ("the container `c` is not running", FailedPrecondition),
        ("cannot exec in a stopped container", FailedPrecondition),
    ],
)
def test_a_command_that_the_node_cannot_start_has_no_exit_code(
    tmp_path: Path, words: str, error: type[PodkeepError]
) -> None:
    """A probe that could not be asked says nothing of its container; as a failed one it would have it killed."""
    with pytest.raises(error, match="OCI runtime exec failed: "):
        exec_sync_saying(f"echo '{words}' >&2; exit 1", tmp_path)


def test_a_command_that_ran_or_is_not_there_has_an_exit_code(tmp_path: Path) -> None:
    ran = "echo 1 >$PID_FILE; echo 'No space left on device' >&2; exit 3"
    for number, script in enumerate((ran, "echo 'executable file `/x` not found in $PATH' >&2; exit 3")):
        directory = tmp_path / str(number)
        directory.mkdir()
        assert exec_sync_saying(script, directory).exit_code == 3


class _NoMemory(Allowance):
    def take(self, wanted: int) -> int:
        raise MemoryError(wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("short_kill_timeout")
def test_a_command_is_killed_also_if_reading_it_fails(tmp_path: Path) -> None:
    started, script = tmp_path / "started", tmp_path / "runtime"
    script.write_text(f"#!/bin/sh\necho $$ >{started}; head -c 200000 /dev/zero; exec sleep 1000\n")
    script.chmod(0o700)
    with pytest.raises(MemoryError):
        handler(str(script), tmp_path).exec_sync(ContainerID("c"), tmp_path, {}, ExecLimits(output=_NoMemory(0)))
    assert not Path(f"/proc/{int(started.read_text())}").exists()


def test_output_that_somebody_else_has_read_meanwhile_is_not_waited_for() -> None:
    """Who has one end of a pipe opens the other by /proc/self/fd/1, and may read between the look and the read.

    Here that is the pump itself: it has the same pipe twice, and finds what was written at both.
    """
    read_end, write_end = os.pipe()
    again = os.dup(read_end)
    os.write(write_end, b"once")
    outputs = {fd: Output(Allowance(0)) for fd in (read_end, again)}
    told, tell = os.pipe()
    thread = threading.Thread(target=_pump, args=(outputs, told, ExecLimits()))
    thread.start()
    try:
        wait_for(lambda: any(output.kept for output in outputs.values()), "what was written")
        os.write(tell, b"the program has ended")
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert sorted(bytes(output.kept) for output in outputs.values()) == [b"", b"once"]
    finally:
        os.close(write_end)
        thread.join()
        for fd in (read_end, again, told, tell):
            os.close(fd)


@pytest.fixture
def no_descriptor() -> Iterator[Callable[[int], None]]:
    """What has every later call for a descriptor fail with EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda _pid: resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def sleeping(tmp_path: Path, short_kill_timeout: None) -> Driver:
    script = tmp_path / "runtime"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o700)
    return handler(str(script), tmp_path)


ALL = ExecStdio(stdin=True, stdout=True, stderr=True)


@pytest.mark.slow
def test_a_command_whose_end_cannot_be_watched_is_not_left(
    tmp_path: Path, sleeping: Driver, no_descriptor: Callable[[int], None]
) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        sleeping.exec_sync(ContainerID("c"), tmp_path, {}, ExecLimits(), enter=no_descriptor)


@pytest.mark.slow
def test_a_command_whose_streams_cannot_be_had_is_not_left(
    tmp_path: Path, sleeping: Driver, no_descriptor: Callable[[int], None]
) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        sleeping.exec(ContainerID("c"), tmp_path, {}, stdio=ALL, sockets=tmp_path, enter=no_descriptor)


@pytest.mark.slow
def test_a_session_whose_command_cannot_be_watched_is_not_left(
    tmp_path: Path, sleeping: Driver, no_descriptor: Callable[[int], None]
) -> None:
    def start(_size: Size | None) -> ExecProcess:
        process = sleeping.exec(ContainerID("c"), tmp_path, {}, stdio=ALL, sockets=tmp_path)
        no_descriptor(process.runtime.pid)
        return process

    async def main() -> None:
        nowhere = exec_session._Nowhere()
        streams = CommandStreams(
            status=nowhere, gone=asyncio.Event(), stdin=Inbox(Account()), stdout=nowhere, stderr=nowhere
        )
        await exec_session.run(streams, start)

    with pytest.raises(OSError, match="Too many open files"):
        asyncio.run(main())
