"""``podkeep exec -it``, ``attach`` and ``port-forward`` against a daemon, from a terminal and from pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from support import forked
from support.cri import Pods, pod
from support.daemon import Daemon
from support.streams import LINES
from support.waiting import TIMEOUT_S, wait_for


class Terminal:
    """A process of podkeep with a terminal, played by the test."""

    def __init__(self, daemon: Daemon, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(100, 40)
        self.process = forked.Popen(
            daemon.command(*arguments), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def write(self, text: bytes) -> None:
        os.write(self._master, text)

    def read_until(self, wanted: bytes) -> bytes:
        found, deadline = b"", time.monotonic() + TIMEOUT_S
        while wanted not in found:
            ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
            assert ready, found
            try:
                found += os.read(self._master, 65536)
            except OSError:
                raise AssertionError(f"ended with {found!r}") from None
        return found

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._master)[3] & termios.ICANON

    def close(self) -> int:
        try:
            return self.process.wait(TIMEOUT_S)
        finally:
            os.close(self._master)


@pytest.fixture
def container(daemon: Daemon, image: str) -> Iterator[str]:
    """A container of pod web that says what it hears."""
    with Pods(daemon.socket, image) as pods:
        pods.pull()
        sandbox = pods.run(pod("web"))
        yield pods.launch(sandbox, "sh", "-c", "while read -r line; do echo got $line; done", stdin=True)


def web(*words: str) -> tuple[str, ...]:
    return (words[0], "-n", "tests", *words[1:])


def test_exec_from_a_terminal(daemon: Daemon, container: str) -> None:
    terminal = Terminal(daemon, *web("exec", "-it", "web/main", "--", "sh", "-c", LINES))
    terminal.read_until(b"ready\r\n")
    terminal.write(b"while ! stty size | grep '40 100'; do :; done\n")
    terminal.read_until(b"40 100\r\n")
    terminal.resize(66, 22)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.write(b"while ! stty size | grep '22 66'; do :; done; echo re''sized\n")
    terminal.read_until(b"resized\r\n")
    terminal.write(b"exit 9\n")
    assert terminal.close() == 9


def test_a_key_that_interrupts_goes_to_the_command(daemon: Daemon, container: str) -> None:
    script = "trap 'echo caught; exit 8' INT; echo waiting; while :; do sleep 0.1; done"
    terminal = Terminal(daemon, *web("exec", "-it", "web", "--", "sh", "-c", script))
    terminal.read_until(b"waiting\r\n")
    terminal.write(b"\x03")
    terminal.read_until(b"caught\r\n")
    assert terminal.close() == 8


def test_exec_passes_pipes_on(daemon: Daemon, container: str) -> None:
    data = os.urandom(1 << 20)
    done = forked.run(
        daemon.command(*web("exec", "-i", "web", "--", "sh", "-c", "cat; echo err >&2; exit 3")),
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (data, b"err\n", 3)


@pytest.mark.parametrize("path", ["/dev/null", "/etc/hostname"])
def test_exec_reads_from_files(daemon: Daemon, container: str, path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123 - a device, too
        argv = daemon.command(*web("exec", "-i", "web", "--", "cat"))
        done = forked.run(argv, stdin=file, capture_output=True, timeout=60, check=True)
        file.seek(0)
        assert done.stdout == file.read()


def test_exec_that_is_interrupted_kills_its_command(daemon: Daemon, container: str) -> None:
    argv = daemon.command(*web("exec", "web", "--", "sh", "-c", "echo ready; sleep 987"))
    with forked.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130

    def left() -> str:
        return daemon.run(*web("exec", "web", "--", "sh", "-c", "ps | grep -c '[s]leep 987'")).stdout.strip()

    wait_for(lambda: left() == "0", "the command's end")


def test_exec_says_what_is_not_there(daemon: Daemon, container: str) -> None:
    done = daemon.run(*web("exec", "web", "--", "/no/such"))
    assert done.returncode == 127
    assert "/no/such" in done.stderr
    assert daemon.run(*web("exec", "web/other", "--", "true")).stderr.startswith("podkeep: pod web has no container")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("web", "sh", "-c", "echo $0 $1", "-c", "x"), "-c x\n"),
        (("web", "ls", "-d", "/bin", "-l"), None),
        (("-c", "main", "web", "echo", "-n", "hi"), "hi"),
        (("web", "-c", "main", "--", "echo", "-c", "other"), "-c other\n"),
        (("web", "-c", "main", "echo", "--", "x"), "-- x\n"),
        (("--", "web", "echo", "--timeout"), "--timeout\n"),
        (("web/main", "--timeout", "60", "echo", "--timeout"), "--timeout\n"),
    ],
)
def test_options_after_the_command_are_the_commands(
    daemon: Daemon, container: str, words: tuple[str, ...], output: str | None
) -> None:
    done = daemon.run(*web("exec", *words))
    assert (done.returncode, done.stderr) == (0, "")
    assert output is None or done.stdout == output


@pytest.mark.parametrize("words", [("web",), ("web", "--"), ("web", "-c", "main"), ()])
def test_exec_without_a_command_is_wrong_usage(daemon: Daemon, words: tuple[str, ...]) -> None:
    done = daemon.run("exec", *words)
    assert done.returncode == 2
    assert "Error: Missing argument" in done.stderr


def test_a_terminal_that_is_asked_for_and_not_there(daemon: Daemon, container: str) -> None:
    argv = daemon.command(*web("exec", "-it", "web", "sh"))
    done = forked.run(argv, input="echo $((1+1)); tty\n", capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "2\nnot a tty\n"
    assert done.stderr == "Unable to use a TTY - input is not a terminal or the right kind of file\n"


def test_a_terminal_that_nothing_is_typed_into(daemon: Daemon, container: str) -> None:
    """As kubectl has it: without -i there is no terminal. A shell would wait in one for what cannot come."""
    terminal = Terminal(daemon, *web("exec", "-t", "web", "sh", "-c", "tty; sh; echo ended"))
    said = terminal.read_until(b"ended\r\n")
    assert said == b"Unable to use a TTY - without -i nothing is typed into it\r\nnot a tty\r\nended\r\n"
    assert terminal.close() == 0


@pytest.mark.parametrize("option", [(), ("--timeout", "60")], ids=["stream", "sync"])
def test_exec_in_a_container_that_has_ended(daemon: Daemon, image: str, option: tuple[str, ...]) -> None:
    with Pods(daemon.socket, image) as pods:
        pods.pull()
        container = pods.launch(pods.run(pod("web")), "true")
        pods.exited(container)
        done = daemon.run(*web("exec", *option, "web", "true"))
    said = f"podkeep: container main of pod tests/web is exited, not running ({container[:12]})"
    assert (done.returncode, done.stderr.splitlines()[:1]) == (1, [said])


@pytest.mark.parametrize("option", [(), ("--timeout", "60")], ids=["stream", "sync"])
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("/no/such", 127),
        ("nothing-like-this", 127),
        ("/etc/passwd", 126),
        ("/etc", 126),
        ("", 126),
        ("/bin/busybox/x", 126),
    ],
)
def test_a_program_that_cannot_be_run(
    daemon: Daemon, container: str, option: tuple[str, ...], program: str, status: int
) -> None:
    done = daemon.run(*web("exec", *option, "web", program))
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1), done.stderr
    assert "executable" in done.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("podkeep exec -n tests w", ["web", "web/main"]),
        ("podkeep logs -n tests web/", ["web/main"]),
        ("podkeep attach -n tests x", []),
        ("podkeep rm -n tests ", ["web"]),
        ("podkeep port-forward -n tests ", ["web"]),
        ("podkeep cp -n tests w", ["w", "web:"]),
        ("podkeep cp -n tests x", ["x"]),
        ("podkeep cp -n tests ./here ", ["", "web:"]),
        ("podkeep exec -n tests web -c ", ["main"]),
        ("podkeep --set runtime.pids_limit=77 rm -n tests ", ["web"]),
    ],
)
def test_names_are_completed(daemon: Daemon, container: str, words: str, completed: list[str]) -> None:
    line = words.replace("podkeep", f"podkeep --config {daemon.config}", 1)
    environment = {
        **os.environ,
        "_PODKEEP_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = forked.run(
        [sys.executable, "-m", "podkeep"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert sorted(item.split(",")[1] for item in done.stdout.split()) == completed
    assert done.stderr == ""


def test_attach_with_a_terminal_to_a_container_without_one_is_interrupted_by_its_key(
    daemon: Daemon, container: str
) -> None:
    terminal = Terminal(daemon, *web("attach", "-it", "web"))
    assert b"container main did not allocate one" in terminal.read_until(b"one\r\n")
    assert not terminal.is_raw()
    terminal.write(b"hello\n")
    terminal.read_until(b"got hello")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130


def test_attach(daemon: Daemon, container: str) -> None:
    argv = daemon.command(*web("attach", "-i", "web"))
    for word in (b"one", b"two"):
        with forked.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"got " + word + b"\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
    assert daemon.run(*web("exec", "web", "--", "true")).returncode == 0


def test_port_forward(daemon: Daemon, container: str) -> None:
    argv = daemon.command(*web("port-forward", "web", ":7000", ":81"))
    server = daemon.command(*web("exec", "web", "--", "nc", "-l", "-p", "7000", "-e", "cat"))
    with (
        forked.Popen(server) as listening,
        forked.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            local, closed = (_local_port(process.stdout.readline()) for _ in range(2))
            check = ("exec", "-n", "tests", "web", "--", "sh", "-c", "netstat -ltn | grep ':7000 '")
            wait_for(lambda: daemon.run(*check).returncode == 0, "the server", timeout=TIMEOUT_S)
            data = os.urandom(500_000)
            with socket.create_connection(("127.0.0.1", local)) as sock:
                sending = threading.Thread(target=_send, args=(sock, data))
                sending.start()
                assert _receive(sock) == data
                sending.join()
            assert listening.wait(TIMEOUT_S) == 0
            with socket.create_connection(("127.0.0.1", closed)) as sock:
                assert _receive(sock) == b""
            assert "port 81" in process.stderr.readline()
        finally:
            process.send_signal(signal.SIGINT)
            listening.terminate()
        assert process.wait(TIMEOUT_S) == 130


def test_port_forward_passes_on_that_the_pod_has_closed(daemon: Daemon, container: str) -> None:
    server = daemon.command(*web("exec", "web", "--", "nc", "-l", "-p", "7001", "-e", "echo", "bye"))
    argv = daemon.command(*web("port-forward", "web", ":7001"))
    with forked.Popen(server) as listening, forked.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            local = _local_port(process.stdout.readline())
            check = ("exec", "-n", "tests", "web", "--", "sh", "-c", "netstat -ltn | grep ':7001 '")
            wait_for(lambda: daemon.run(*check).returncode == 0, "the server", timeout=TIMEOUT_S)
            with socket.create_connection(("127.0.0.1", local)) as sock:
                assert _receive(sock) == b"bye\n"
            assert listening.wait(TIMEOUT_S) == 0
        finally:
            process.send_signal(signal.SIGINT)
            listening.terminate()
        assert process.wait(TIMEOUT_S) == 130


def test_port_forward_leads_into_a_pod_that_was_made_again(daemon: Daemon, image: str) -> None:
    serve = ("sh", "-c", "while true; do nc -l -p 7002 -e hostname; done")
    argv = daemon.command(*web("port-forward", "web", ":7002"))
    with Pods(daemon.socket, image) as pods:
        pods.pull()
        first = pods.run(pod("web", hostname="first"))
        pods.launch(first, *serve)
        with forked.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                said = process.stderr
                assert said is not None
                local = _local_port(process.stdout.readline())
                wait_for(lambda: _said_by(local) == b"first\n", "the first pod serves", timeout=TIMEOUT_S)
                pods.remove(first)
                assert _said_by(local) == b""
                wait_for(
                    lambda: "no pod web in namespace tests" in said.readline(),
                    "it says that there is no pod",
                    timeout=TIMEOUT_S,
                )
                pods.launch(pods.run(pod("web", hostname="second")), *serve)
                wait_for(lambda: _said_by(local) == b"second\n", "the second pod serves", timeout=TIMEOUT_S)
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130


def test_port_forward_says_that_a_pod_does_not_run(daemon: Daemon, container: str, image: str) -> None:
    with Pods(daemon.socket, image) as pods:
        pods.stop_pod(pods.containers(id=container)[0].pod_sandbox_id)
        done = daemon.run(*web("port-forward", "web", ":7003"))
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "podkeep: pod web does not run")


def test_port_forward_names_a_port_that_is_taken(daemon: Daemon, container: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = daemon.run(*web("port-forward", "web", f"{port}:80"))
    assert done.stderr == f"podkeep: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_a_terminal_is_given_back_by_a_client_that_is_told_to_end(daemon: Daemon, container: str) -> None:
    terminal = Terminal(daemon, *web("exec", "-it", "web", "--", "sh", "-c", "echo ready; sleep 976"))
    before = terminal.is_raw()
    terminal.read_until(b"ready\r\n")
    assert terminal.is_raw()
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(TIMEOUT_S) == 130
    assert (before, terminal.is_raw()) == (False, False)
    terminal.close()


@pytest.mark.parametrize(
    "words", [("exec", "web", "--", "echo", "hi"), ("exec", "-i", "web", "--", "sh", "-c", "cat; echo hi")]
)
def test_exec_without_a_standard_input(daemon: Daemon, container: str, words: tuple[str, ...]) -> None:
    argv = ["sh", "-c", 'exec "$@" <&-', "sh", *daemon.command(*web(*words))]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"hi\n", b"", 0)


def _local_port(line: str) -> int:
    match = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+\n", line)
    assert match is not None, line
    return int(match[1])


def _said_by(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        return _receive(sock)


def _send(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


def _receive(sock: socket.socket) -> bytes:
    sock.settimeout(TIMEOUT_S)
    found = b""
    try:
        while part := sock.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize("text", ["X", "x:80", "1:2:3", "0", "80:", "70000", ":0"])
def test_port_forward_refuses_what_is_no_pair(daemon: Daemon, text: str) -> None:
    done = daemon.run("port-forward", "web", text)
    assert done.returncode == 1
    assert "no pair of ports" in done.stderr
