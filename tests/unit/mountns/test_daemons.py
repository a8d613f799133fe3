"""Finding the daemons of this machine, with real processes."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from podkeep.mountns import daemons
from podkeep.mountns.daemons import AGENT, KUBELET, RUNTIME
from support import setuid, unanswering
from support.processes import write_script
from unit.kernel.isolation import in_new_namespaces

_IN_OPEN = 0x20
"""``linux/inotify.h``."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's processes are daemons")


@pytest.fixture
def kubelet() -> Iterator[Path]:
    """A program named kubelet that does nothing: it stands in for the real one's name and namespaces, nothing else.

    Any user may run it; pytest's own directories are closed to others than root.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(shutil.copy("/bin/sleep", Path(name) / KUBELET))


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, *argv: str | Path) -> int:
    """Start a program and return its process ID once it is executed; it waits for input, and is killed in the end."""
    process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.PIPE)

    def end() -> None:
        process.kill()
        process.communicate()

    stack.callback(end)
    # Popen() returns a moment before the kernel has given the process its new name.
    names = {Path(word).name for word in argv}
    while process.poll() is None and Path(f"/proc/{process.pid}/comm").read_text().strip() not in names:
        os.sched_yield()
    return process.pid


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor that is readable once somebody has opened ``path`` (inotify(7))."""
    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    assert libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) > 0
    yield fd
    os.close(fd)


def found(pid: int) -> daemons.Daemon | None:
    return next((item for item in daemons.find() if item.pid == pid), None)


def test_finds_a_kubelet_and_its_namespace(kubelet: Path, processes: ExitStack) -> None:
    pid = started(processes, kubelet, "1000")
    assert found(pid) == daemons.Daemon(
        name=KUBELET, pid=pid, inode=os.stat("/proc/self/ns/mnt").st_ino, unit=daemons.itself(RUNTIME).unit
    )


@pytest.mark.parametrize("namespace", ["--net", "--user", "--pid"])
def test_what_runs_in_a_machine_of_its_own_is_not_ours(kubelet: Path, processes: ExitStack, namespace: str) -> None:
    argv: list[str | Path] = ["unshare", namespace, *(["--map-root-user"] if namespace == "--user" else [])]
    fork = ["--fork", "--kill-child"] if namespace == "--pid" else []
    pid = started(processes, *argv, *fork, "sh", "-c", 'exec "$0" 1000', kubelet)
    _wait_for(pid)
    assert not [item for item in daemons.find() if item.pid == pid or _parent(item.pid) == pid]


def _wait_for(pid: int) -> None:
    """Wait until the kubelet runs: as ``pid`` or as its child."""
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if any(Path(f"/proc/{item}/comm").read_text().strip() == KUBELET for item in (str(pid), *children)):
            return


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_another_users_kubelet_is_none(kubelet: Path, processes: ExitStack) -> None:
    pid = started(processes, "setpriv", "--reuid=65534", "--clear-groups", kubelet, "1000")
    _wait_for(pid)
    assert found(pid) is None


@pytest.mark.parametrize("changes_user", [False, True])
def test_a_set_user_id_program_is_none(changes_user: bool) -> None:
    """Any user starts su(1) by a link of this name, and it waits for a password with the rights of root."""
    with setuid.started(KUBELET, "--root-dir=/var/lib/podkeep/agent", changes_user=changes_user) as pid:
        assert Path(f"/proc/{pid}/comm").read_text() == "kubelet\n"
        assert found(pid) is None


def test_one_with_a_root_of_its_own_is_none(processes: ExitStack, tmp_path: Path) -> None:
    """A pod may have the host's network and process IDs, and a program of this name."""
    shutil.copy("/bin/busybox", tmp_path)
    script = tmp_path / "kubelet"
    write_script(script, "#!/busybox sh\nread line\n")
    pid = started(processes, "chroot", tmp_path, "/kubelet")
    _wait_for(pid)
    assert found(pid) is None
    assert Path(f"/proc/{pid}/root").readlink() == tmp_path, "it runs"


def test_a_configuration_that_is_no_file_keeps_nobody_waiting(tmp_path: Path, processes: ExitStack) -> None:
    shell = Path(shutil.copy("/bin/sh", tmp_path / "kubelet"))
    os.mkfifo(tmp_path / "config.yaml")
    pid = started(processes, shell, "-c", "read line", "kubelet", f"--config={tmp_path / 'config.yaml'}")
    with opened(tmp_path / "config.yaml") as events:
        daemon = found(pid)
        assert daemon is not None
        assert daemon.endpoint == ""
        # To open a device may do something: that of a watchdog restarts the machine.
        assert not select.select([events], [], [], 0)[0]
        os.close(os.open(tmp_path / "config.yaml", os.O_RDWR))
        assert select.select([events], [], [], 0)[0]


def test_a_large_configuration_takes_no_time(tmp_path: Path, processes: ExitStack) -> None:
    shell = Path(shutil.copy("/bin/sh", tmp_path / "kubelet"))
    config = tmp_path / "config.yaml"
    config.write_text(
        "\n" * 40_000 + " \tcontainerRuntimeEndpoint: unix:///run/some.sock\npodLogsDir:\n" + " \n" * 50_000
    )
    pid = started(processes, shell, "-c", "read line", "kubelet", f"--config={config}")
    before = time.thread_time()
    daemon = found(pid)
    assert time.thread_time() - before < 3, "it took 13 s, in which no other thread ran"
    assert daemon is not None
    assert (daemon.endpoint, daemon.pod_logs) == ("/run/some.sock", "")


@pytest.mark.parametrize("form", ["flag", "two words", "one slash", "no scheme", "file"])
def test_the_socket_that_a_kubelet_was_told_to_use(tmp_path: Path, processes: ExitStack, form: str) -> None:
    """The stand-in is a copy of a shell here, because sleep refuses the options."""
    shell = Path(shutil.copy("/bin/sh", tmp_path / "kubelet"))
    config = tmp_path / "config.yaml"
    config.write_text('kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "unix:///run/some.sock" # ours\n')
    options = {
        "flag": ["--container-runtime-endpoint=unix:///run/some.sock"],
        "two words": ["--container-runtime-endpoint", "unix:///run/some.sock"],
        "one slash": ["--container-runtime-endpoint=unix:/run/some.sock"],
        "no scheme": ["--container-runtime-endpoint=/run/some.sock"],
        "file": [f"--config={config}"],
    }
    daemon = found(started(processes, shell, "-c", "read line", "kubelet", *options[form]))
    assert daemon is not None
    assert daemon.endpoint == "/run/some.sock"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--root-dir", "root", "--config", "etc/config.yaml"], id="relative"),
        pytest.param(["--root-dir=root", "--config=etc/config.json"], id="JSON"),
        pytest.param(["--root-dir=./root", "--config=etc/other.yaml", "--config-dir=etc"], id="directory"),
    ],
)
def test_the_directories_that_a_kubelet_was_told_to_use(
    tmp_path: Path, processes: ExitStack, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    shell = Path(shutil.copy("/bin/sh", tmp_path / "kubelet"))
    (tmp_path / "etc/more").mkdir(parents=True)
    (tmp_path / "etc/config.yaml").write_text("podLogsDir: /some/logs\n")
    (tmp_path / "etc/config.json").write_text('{\n  "podLogsDir": "/some/logs"\n}\n')
    (tmp_path / "etc/other.yaml").write_text("podLogsDir: /first/logs\n")
    (tmp_path / "etc/10.conf").write_text("podLogsDir: /second/logs\n")
    (tmp_path / "etc/more/20.conf").write_text("podLogsDir: /third/logs\n")
    (tmp_path / "etc/zz.conf").write_text("podLogsDir : /some/logs\n")
    monkeypatch.chdir(tmp_path)
    pid = started(processes, shell, "-c", "read line", "kubelet", *options)
    monkeypatch.chdir("/")
    daemon = found(pid)
    assert daemon is not None
    assert os.path.normpath(daemon.root) == str(tmp_path / "root")
    assert daemon.pod_logs == "/some/logs"


def test_finds_podkeep_itself() -> None:
    assert (
        daemons.podkeep_daemon([sys.executable, "-m", "podkeep", "--set", "a=b", "--config", "x", "runtime"]) == RUNTIME
    )
    assert daemons.podkeep_daemon(["python3", "-P", "-m", "podkeep", "--debug", "runtime"]) == RUNTIME
    assert daemons.podkeep_daemon(["python3", "/usr/bin/podkeep", "--debug", "runtime", "--idle-exit", "60"]) == RUNTIME
    assert daemons.podkeep_daemon(["/usr/bin/podkeep", "run", "pod.yaml"]) == AGENT
    for other in (["podkeep", "runtime", "stop"], ["vi", "podkeep", "runtime"], ["podkeep", "ps"], ["podkeep"], []):
        assert daemons.podkeep_daemon(other) == ""


def test_the_service_that_a_process_is_in() -> None:
    assert daemons.unit_of("0::/system.slice/kubelet.service\n") == "kubelet.service"
    assert daemons.unit_of("4:memory:/x\n1:name=systemd:/system.slice/podkeep.service/inner\n") == "podkeep.service"
    assert daemons.unit_of("0::/user.slice/user-0.slice/session-1.scope\n") == ""
    assert daemons.unit_of("0::/system.slice/run-r1.scope\n") == ""


def test_what_a_namespace_reaches(processes: ExitStack) -> None:
    """A shared one reaches its slave and its peer; a slave and a private one reach nobody."""
    below_it = "unshare -m --propagation slave sh -c 'echo $$; exec sleep 1000'"
    script = f"mount --make-rshared /; echo $$; {below_it} & wait"
    process = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    processes.callback(process.wait)
    above, below = (int(process.stdout.readline()) for _ in range(2))
    for pid in (above, below):
        processes.callback(os.kill, pid, 9)
    processes.callback(process.stdout.close)
    assert daemons.reaches(above, below)
    assert daemons.reaches(above, above)
    assert not daemons.reaches(below, above)
    assert not daemons.reaches(above)
    assert not daemons.reaches(2**22 + 1), "there is no such process"


@in_new_namespaces()
def test_a_process_whose_root_does_not_answer_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A container with the machine's network and processes whose root is a FUSE, as fuse-overlayfs makes one."""
    (tmp_path / "root").mkdir()
    hanging = unanswering.Holding(tmp_path / "root", unanswering.GETATTR)
    program = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); input()"
    argv = [sys.executable, "-c", program, tmp_path / "root"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert process.pid not in {daemon.pid for daemon in hanging.unasked(daemons.find)}
        process.communicate(b"\n")
