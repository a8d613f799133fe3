"""What a killed daemon or a failed creation left is found by its arguments and ended; others are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.base.ids import HandlerName
from podkeep.kernel.process import process_tree, procfs
from podkeep.runtime.lifecycle.strays import await_commands, kill_strays
from podkeep.runtime.oci.driver import Driver, Handler
from support import processes

ID = "f" * 64
DRIVER = Driver(handler=Handler(name=HandlerName("crun"), path="crun", root=Path("/nowhere/handlers/crun")), conmon="")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sh", "-c", "echo; read _", "sh", *arguments], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_what_names_both_the_id_and_the_state_directory_is_killed() -> None:
    root = f"--root={DRIVER.handler.root}"
    # The program behind /proc/<pid>/exe is a shell, as it is nothing known in crun's case.
    strays = [start(root, "create", ID), start("--runtime-arg", root, "--cid", ID)]
    others = [start(root, "create", "e" * 64), start("tail", ID), start(f"{root}x", ID), start(root, f"/x/{ID}")]
    strays[0].send_signal(signal.SIGSTOP)
    kill_strays(DRIVER, ID)
    assert [process.wait(timeout=10) for process in strays] == [-signal.SIGKILL] * 2
    assert [process.poll() for process in others] == [None] * 4
    kill_strays(DRIVER, ID)
    for process in (*strays, *others):
        process.communicate()


def test_a_stopped_first_process_is_killed_with_the_runtime_that_sets_it_up() -> None:
    """It has none of the arguments when other containers of its pod stop it, and does not end by itself."""
    root = f"--root={DRIVER.handler.root}"
    script = "setsid sh -c 'echo $$; exec sleep 3600' & wait"
    runtime = subprocess.Popen(["sh", "-c", script, "sh", root, "create", ID], stdout=subprocess.PIPE, text=True)
    assert runtime.stdout is not None
    first = procfs.identify(int(runtime.stdout.readline()))
    try:
        os.kill(first.pid, signal.SIGSTOP)
        kill_strays(DRIVER, ID)
        assert not procfs.alive(first)
    finally:
        procfs.kill(first, signal.SIGKILL)
        runtime.kill()
        runtime.communicate()


STARTING = 'read _; setsid nsenter --pid="$1" sleep 1000; :'
"""A stand-in for an OCI runtime: told to go on it starts a program in a process namespace, and waits for it."""


@pytest.mark.slow
def test_a_command_is_waited_for_until_its_program_is_there() -> None:
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "cat"], stdin=-1, stdout=-1) as made:
        assert made.stdin is not None
        assert made.stdout is not None
        made.stdin.write(b"there\n")
        made.stdin.flush()
        assert made.stdout.readline() == b"there\n"
        (inside,) = processes.children(made.pid)
        first = procfs.identify(inside)
        await_commands(DRIVER, ID, first)
        words = ["sh", f"/proc/{inside}/ns/pid", f"--root={DRIVER.handler.root}", "exec", ID]
        with subprocess.Popen(["sh", "-c", STARTING, *words], stdin=-1) as runtime:
            with pytest.raises(FailedPrecondition, match="did not start"):
                await_commands(DRIVER, ID, first)
            await_commands(DRIVER, "e" * 64, first)
            assert runtime.stdin is not None
            runtime.stdin.write(b"\n")
            runtime.stdin.flush()
            await_commands(DRIVER, ID, first)
            process_tree.kill_session(runtime.pid)
        made.stdin.close()
