"""Pods of one manifest come and go each for itself: what one does keeps no other from its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import Any

import pytest
from agent.conftest import Runner, interrupt, until
from agent.manifests import pod, shell

from support import forked
from support.waiting import TIMEOUT_S

MORE_THAN_A_PIPE_HOLDS = 1 << 20
UNTIL_TOLD = "trap 'exit 0' TERM; echo up; until [ -e /tmp/end ]; do sleep 0.05; done; echo end"


def names(runner: Runner) -> list[str]:
    """Return the pods that are there, running or not."""
    return re.findall(r"^(\S+) +default ", runner.daemon.run("ps", "--all", check=True).stdout, re.MULTILINE)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next lines of its standard output, sorted: pods write in any order."""
    assert process.stdout is not None
    return sorted(process.stdout.readline() for _ in range(count))


def test_a_removed_pod_is_gone_while_others_of_its_run_go_on(runner: Runner, image: str) -> None:
    with runner.start(*(pod(shell(image, UNTIL_TOLD), name=name) for name in ("one", "two"))) as process:
        assert lines(process, 2) == ["[one/main] up\n", "[two/main] up\n"]
        removed = runner.daemon.run("rm", "one")
        assert (removed.returncode, removed.stdout) == (0, "removed default/one\n"), removed.stderr
        assert process.poll() is None
        assert names(runner) == ["two"]
        assert runner.daemon.run("exec", "two", "touch", "/tmp/end").returncode == 0
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out) == (0, "[two/main] end\n"), err


def test_an_ended_pod_is_gone_while_others_of_its_run_go_on(runner: Runner, image: str) -> None:
    ends = pod(shell(image, "i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo $i; done"), name="ends")
    with runner.start(ends, pod(shell(image, UNTIL_TOLD), name="stays")) as process:
        # All that it wrote is shown before its log goes.
        shown = lines(process, 501)
        assert sorted(int(line.split()[1]) for line in shown if "ends" in line) == list(range(1, 501))
        until(lambda: names(runner) == ["stays"], "the end of the other")
        # The agent's directory goes after the sandbox.
        until(lambda: len(runner.pods()) == 1, "its directory gone")
        assert interrupt(process)[0] == 130


def test_the_failure_of_a_pod_is_told_when_it_ends(runner: Runner, image: str) -> None:
    fails = pod(shell(image, "echo why >/dev/termination-log; exit 3"), name="fails")
    with runner.start(fails, pod(shell(image, UNTIL_TOLD), name="stays")) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "podkeep: fails: container main ended with exit status 3: why\n"
        assert process.poll() is None
        until(lambda: names(runner) == ["stays"], "the other alone")
        assert interrupt(process)[0] == 130


def test_an_ended_pod_that_is_kept_can_be_removed_while_others_go_on(runner: Runner, image: str) -> None:
    documents = (pod(shell(image, "exit 3"), name="ended"), pod(shell(image, UNTIL_TOLD), name="stays"))
    with runner.start(*documents, options=("--keep",)) as process:
        lines(process, 1)
        until(lambda: [row["name"] for row in runner.rows() if row["status"] == "Error"] == ["ended"], "its end")
        assert runner.daemon.run("rm", "ended").returncode == 0
        assert names(runner) == ["stays"]
        assert interrupt(process)[0] == 130
    assert runner.daemon.run("rm", "stays").returncode == 0


def _logged(runner: Runner, name: str) -> int:
    """Return how many bytes the logs of pod ``name`` have."""
    return sum(log.stat().st_size for log in (runner.daemon.base / "logs").glob(f"default_{name}_*/*/*.log"))


def test_a_pod_whose_output_nobody_reads_is_removed(runner: Runner, present: str) -> None:
    """A pager that is not scrolled must not keep what another terminal removes."""
    read, write = os.pipe()
    documents = (pod(shell(present, "yes"), name="fast"), pod(shell(present, UNTIL_TOLD), name="stays"))
    command = runner.daemon.command("run", str(runner.file(*documents)))
    with forked.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        try:
            until(lambda: _logged(runner, "fast") > MORE_THAN_A_PIPE_HOLDS, "more output than is read")
            until(lambda: len(runner.rows()) == 2, "both pods")
            removed = runner.daemon.run("rm", "--grace-period", "0", "fast")
            assert (removed.returncode, removed.stdout) == (0, "removed default/fast\n"), removed.stderr
            assert process.stderr is not None
            assert process.stderr.readline() == "podkeep: fast: removed: the last output is left out\n"
            assert names(runner) == ["stays"]
            assert interrupt(process)[0] == 130
        finally:
            process.kill()
            os.close(read)


def test_all_pods_are_removed_side_by_side(runner: Runner, image: str) -> None:
    """None of them ends before all have been told to."""
    directory = runner.daemon.base / "shared"
    all_told = "until [ $(ls /shared | wc -l) = 6 ]; do sleep 0.05; done"
    script = f"trap 'touch /shared/$NAME' TERM; touch /shared/up-$NAME; {all_told}"
    source = {"path": str(directory), "type": "DirectoryOrCreate"}
    shared: dict[str, Any] = {"volumes": [{"name": "shared", "hostPath": source}]}
    mounts = [{"name": "shared", "mountPath": "/shared"}]

    def one(name: str) -> dict[str, Any]:
        environment = [{"name": "NAME", "value": name}]
        return pod(shell(image, script, volumeMounts=mounts, env=environment), name=name, **shared)

    processes = [runner.start(one(name)) for name in ("one", "two", "three")]
    until(lambda: directory.exists() and len(list(directory.iterdir())) == 3, "all pods")
    removed = runner.daemon.run("rm", "--all", "--grace-period", "60")
    assert sorted(removed.stdout.splitlines()) == [f"removed default/{name}" for name in ("one", "three", "two")]
    for process in processes:
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_after_one_pod_was_removed_ends_the_others(runner: Runner, image: str, number: signal.Signals) -> None:
    with runner.start(*(pod(shell(image, UNTIL_TOLD), name=name) for name in ("one", "two"))) as process:
        lines(process, 2)
        assert runner.daemon.run("rm", "one").returncode == 0
        assert interrupt(process, number)[0] == 128 + number
        assert runner.rows() == []


@pytest.mark.parametrize("policy", ["Never", "Always"], ids=["its end", "its back-off"])
def test_errors_that_nobody_reads_leave_no_pod(runner: Runner, image: str, policy: str) -> None:
    """Why a container ended, or waits, cannot be told: that is the end of the run, and of all of its pods."""
    fails = pod(shell(image, "echo why >/dev/termination-log; exit 3"), name="fails", restartPolicy=policy)
    manifest = runner.file(fails, pod(shell(image, UNTIL_TOLD), name="stays"))
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nowhere:
        done = forked.run(
            runner.daemon.command("run", str(manifest)),
            stdout=subprocess.DEVNULL,
            stderr=nowhere,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode != 0
    assert names(runner) == []
