"""Logs of containers that write without measure: followed, rotated, and never in the way of a signal."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from agent.conftest import Runner, interrupt, until
from agent.manifests import pod, shell

from podkeep.agent.logs.rotation import rotated
from support import forked
from support.waiting import TIMEOUT_S

FAST = "trap 'exit 0' TERM; yes & wait"
MORE = "more than fits in one file"
SMALL = ("--set", "agent.container_log_max_size=64Ki", "--set", "agent.container_log_max_files=3")


def current_log(runner: Runner) -> Path | None:
    """Return the log of the one container there is; for a moment of its rotation there is no such file."""
    return next((found / "0.log" for found in (runner.daemon.base / "logs").glob("*/main")), None)


def log_with_a_line(runner: Runner) -> Path | None:
    """Return that log once there is something in it: the file is there before the container has started."""
    log = current_log(runner)
    try:
        return log if log is not None and log.stat().st_size else None
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_pod_that_writes_fast(runner: Runner, image: str, number: signal.Signals) -> None:
    command = runner.daemon.command("run", str(runner.file(pod(shell(image, FAST)))))
    with forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: (log := current_log(runner)) is not None and rotated(log), MORE, process)
            status, _, err = interrupt(process, number)
        finally:
            process.kill()
    assert (status, "Traceback" in err) == (128 + number, False), err


def test_a_signal_stops_a_pod_whose_output_nobody_reads(runner: Runner, present: str) -> None:
    read, write = os.pipe()
    command = runner.daemon.command("run", str(runner.file(pod(shell(present, FAST)))))
    with forked.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        try:
            until(lambda: (log := current_log(runner)) is not None and rotated(log), MORE, process)
            status, _, err = interrupt(process)
        finally:
            process.kill()
            os.close(read)
    assert (status, err) == (130, "podkeep: interrupted: the last output is left out\n")


def test_a_signal_stops_a_pod_whose_errors_nobody_reads_either(runner: Runner, image: str) -> None:
    read, write = os.pipe()
    command = runner.daemon.command("run", str(runner.file(pod(shell(image, FAST)))))
    with forked.Popen(command, stdout=write, stderr=write) as process:
        os.close(write)
        try:
            until(lambda: (log := current_log(runner)) is not None and rotated(log), MORE)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
        finally:
            process.kill()
            os.close(read)


def test_the_log_of_a_pod_that_writes_fast_is_bounded(runner: Runner, image: str) -> None:
    command = runner.daemon.command("run", str(runner.file(pod(shell(image, FAST)))))
    with forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = until(lambda: (log := current_log(runner)) is not None and rotated(log), MORE, process)[0].stem
            log = current_log(runner)
            assert log is not None
            until(lambda: first not in {file.stem for file in rotated(log)}, "the removal of the oldest file", process)
            # With the one that is written there are five; one more while that is being rotated.
            assert len(rotated(log)) <= 5
            until(lambda: len(rotated(log)) <= 4, "the removal of all but five", process)
        finally:
            interrupt(process)


def test_every_line_is_shown_once_over_rotations(runner: Runner, image: str, tmp_path: Path) -> None:
    lines = 20_000
    script = f"i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo line $i; [ $((i % 1000)) != 0 ] || sleep 0.05; done"
    command = runner.daemon.command(*SMALL, "run", "--keep", str(runner.file(pod(shell(image, script)))))
    shown = tmp_path / "shown"
    with shown.open("wb") as file:
        done = forked.run(command, stdout=file, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    log = current_log(runner)
    assert log is not None
    files = rotated(log)
    assert runner.daemon.run("rm", "--all").returncode == 0
    assert done.returncode == 0, done.stderr
    assert len(files) == 2
    if "output is left out" in done.stderr:
        pytest.fail("the machine is so busy that files went before they were read")
    assert shown.read_text() == "".join(f"line {number}\n" for number in range(1, lines + 1))


def test_logs_goes_on_in_the_next_file(runner: Runner, image: str, tmp_path: Path) -> None:
    script = "trap 'exit 0' TERM; i=0; while true; do i=$((i+1)); echo line $i; sleep 0.0005; done"
    command = runner.daemon.command(*SMALL, "run", str(runner.file(pod(shell(image, script)))))
    shown = tmp_path / "shown"
    with forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            log = until(lambda: log_with_a_line(runner), "a line", process)
            with shown.open("wb") as file, forked.Popen(runner.daemon.command("logs", "-f", "web"), stdout=file):
                until(lambda: shown.stat().st_size, "the first lines")
                seen = {file.stem for file in rotated(log)}
                until(lambda: {file.stem for file in rotated(log)} - seen, "the next rotated file", process)
                interrupt(process)
        finally:
            process.kill()
    numbers = [int(line.split()[1]) for line in shown.read_text().splitlines()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) > 1


def test_the_log_of_a_pod_that_nobody_runs_any_more_is_bounded(own_runner: Runner, image: str) -> None:
    own_runner.daemon.settings = ("runtime.log_size_limit=64Ki",)
    own_runner.daemon.start()
    script = "while true; do head -c 4000 /dev/zero | tr '\\0' x; echo; sleep 0.01; done"
    process = own_runner.start(pod(shell(image, script)))
    assert process.stdout is not None
    assert process.stdout.readline() == "x" * 4000 + "\n"
    log = current_log(own_runner)
    assert log is not None
    process.kill()
    process.communicate()
    first = until(lambda: rotated(log), "a file that was moved aside")[0].stem
    until(lambda: first not in {file.stem for file in rotated(log)}, "its removal")
    assert len(rotated(log)) <= 1
    shown = own_runner.daemon.command("logs", "--tail", "1", "web")
    line = b"x" * 4000 + b"\n"
    until(lambda: forked.run(shown, capture_output=True, check=False).stdout == line, "more in the next file")
    assert own_runner.daemon.run("rm", "--grace-period", "0", "web").returncode == 0


def test_logs_of_a_pod_that_writes_fast_ends(runner: Runner, image: str) -> None:
    command = runner.daemon.command("run", str(runner.file(pod(shell(image, FAST)))))
    with forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: (log := current_log(runner)) is not None and rotated(log), MORE, process)
            logs = runner.daemon.command("logs", "web")
            forked.run(logs, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
            with forked.Popen([*logs, "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follow:
                assert follow.stdout is not None
                assert follow.stdout.readline() == "y\n"
                assert interrupt(follow)[0] == 130
        finally:
            interrupt(process)


def test_a_signal_stops_pods_whose_warnings_are_not_read(runner: Runner, image: str) -> None:
    """What is said of one pod does not keep the event loop: the pipe has no room, and another pod runs on."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while os.write(write, b"x" * 4096):
            pass
    os.set_blocking(write, True)
    fails = pod(shell(image, "exit 3"), name="fails", restartPolicy="Always")
    stays = pod(shell(image, "trap 'exit 0' TERM; echo runs; while :; do sleep 0.1; done"), name="stays")
    command = runner.daemon.command("run", str(runner.file(fails, stays)))
    with forked.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as process:
        os.close(write)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "[stays/main] runs\n"
            until(lambda: len(list((runner.daemon.base / "logs").glob("default_fails_*/main/*.log"))) > 1, "a restart")
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
        finally:
            process.kill()
            os.close(read)
