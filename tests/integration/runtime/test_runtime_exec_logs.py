"""ExecSync, and the log files that containers write: form, partial lines, a log moved away and opened anew."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.waiting import wait_for

LINE = re.compile(r"(\S+) (stdout|stderr) ([FP]) (.*)")


def entries(path: Path) -> list[tuple[str, str, str]]:
    """Return stream, tag and text of every line of a log in CRI's form."""
    found = []
    for line in path.read_text().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        stamp = datetime.fromisoformat(match[1][:26] + match[1][29:])
        assert abs((datetime.now(UTC) - stamp).total_seconds()) < 600
        found.append((match[2], match[3], match[4]))
    return found


@pytest.mark.parametrize("user", [None, BLOCK])
def test_exec_returns_outputs_and_exit_code(pods: Pods, user: tuple[int, int, int] | None) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=user))))
    answer = pods.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"out\n", b"err\n", 3)
    assert pods.exec(container, "true").exit_code == 0
    assert pods.exec(container, "sh", "-c", "kill -9 $$").exit_code == 137


def test_exec_reads_nothing_from_stdin(pods: Pods) -> None:
    answer = pods.exec(pods.launch(pods.run()), "cat")
    assert (answer.stdout, answer.exit_code) == (b"", 0)


def test_exec_runs_as_the_container_does(pods: Pods) -> None:
    security = {"run_as_user": api.Int64Value(value=1000), "run_as_group": api.Int64Value(value=50)}
    container = pods.launch(pods.run(), security=security, working_dir="/tmp", envs=[api.KeyValue(key="A", value=b"1")])
    assert pods.read(container, "id -u; id -g; pwd; echo $A") == "1000\n50\n/tmp\n1"


def test_exec_in_a_container_that_is_going_finds_none(daemon: Daemon, pods: Pods) -> None:
    """What its removal has taken away when the command's turn comes."""
    container = pods.launch(pods.run())
    config = daemon.layout.bundle(container) / "config.json"
    kept = config.rename(config.with_name("kept"))
    try:
        assert "was removed meanwhile" in error_of(lambda: pods.exec(container, "true"), NotFound)
    finally:
        kept.rename(config)


def test_exec_of_much_output_is_limited(pods: Pods) -> None:
    container = pods.launch(pods.run())
    answer = pods.exec(container, "sh", "-c", "yes | head -c 8000000; echo end >&2")
    assert (len(answer.stdout), answer.stderr) == (8_000_000, b"end\n")


def test_exec_that_answers_more_than_a_message_holds(pods: Pods) -> None:
    """Two streams of 16 MiB do not fit into one message of 16 MiB; the answer must come all the same."""
    container = pods.launch(pods.run())
    answer = pods.exec(container, "sh", "-c", "yes | head -c 20000000; yes | head -c 20000000 >&2; exit 4")
    assert answer.exit_code == 4
    assert answer.stdout.startswith(b"y\ny\n")
    assert answer.stderr.startswith(b"y\ny\n")
    assert (16 << 20) - 1024 < len(answer.stdout) + len(answer.stderr) < 16 << 20


def test_exec_returns_16_mib_of_one_stream(pods: Pods) -> None:
    container = pods.launch(pods.run())
    answer = pods.exec(container, "sh", "-c", "yes | head -c 20000000; echo said >&2")
    assert len(answer.stdout) > (16 << 20) - 1024
    assert answer.stderr == b"said\n"


def test_exec_that_takes_too_long_is_killed_with_its_children(pods: Pods) -> None:
    container = pods.launch(pods.run())
    message = error_of(
        lambda: pods.exec(container, "sh", "-c", "sleep 997 & sleep 998; true", timeout=1), DeadlineExceeded
    )
    assert "did not finish within 1 s" in message
    wait_for(
        lambda: pods.exec(container, "sh", "-c", "ps | grep -q 'sleep 99[78]'").exit_code == 1, "the end of the command"
    )


@pytest.mark.parametrize("mode", [api.CONTAINER, api.POD])
def test_exec_that_takes_too_long_is_killed_with_children_in_sessions_of_their_own(pods: Pods, mode: int) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=mode)))
    container = pods.launch(sandbox)
    script = "setsid sh -c 'sleep 991 & sleep 992; true' & setsid sleep 993 & sleep 994; true"
    error_of(lambda: pods.exec(container, "sh", "-c", script, timeout=1), DeadlineExceeded)
    wait_for(
        lambda: pods.exec(container, "sh", "-c", "ps -o args | grep -q 'sleep 99[1-4]'").exit_code == 1,
        "the end of the command",
    )
    assert pods.status(container).state == api.CONTAINER_RUNNING


def test_exec_that_takes_too_long_leaves_the_container_alone(pods: Pods) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(pid=api.POD))))
    error_of(lambda: pods.exec(container, "sleep", "998", timeout=1), DeadlineExceeded)
    assert pods.status(container).state == api.CONTAINER_RUNNING
    assert pods.read(container, "ps -o args | grep -c '[s]leep'") == "1"


def test_exec_whose_caller_gives_up_is_killed(pods: Pods) -> None:
    container = pods.launch(pods.run())
    wanted = api.ExecSyncRequest(container_id=container, cmd=["sh", "-c", "setsid sleep 989; true"])

    async def give_up() -> None:
        calling = asyncio.ensure_future(pods._client.runtime.ExecSync(wanted))
        look = api.ExecSyncRequest(container_id=container, cmd=["sh", "-c", "ps -o args | grep '[s]leep 989'"])
        while (await pods._client.runtime.ExecSync(look)).exit_code != 0:
            pass
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

    pods.wait(give_up())
    wait_for(
        lambda: pods.exec(container, "sh", "-c", "ps -o args | grep -q '[s]leep 989'").exit_code == 1,
        "the end of the command",
    )


@pytest.mark.parametrize("user", [None, BLOCK])
def test_exec_does_not_read_files_of_the_container_that_never_end(
    pods: Pods, user: tuple[int, int, int] | None
) -> None:
    """An OCI runtime that looks for a home directory opens the container's list of users."""
    container = pods.launch(pods.run(pod(options=namespaces(user=user))))
    pods.read(container, "mkdir -p /etc && rm -f /etc/passwd /etc/group && mkfifo /etc/passwd /etc/group")
    answer = pods.exec(container, "echo", "hello", timeout=20)
    assert (answer.stdout, answer.exit_code) == (b"hello\n", 0)


def test_exec_does_not_wait_for_what_it_left_behind(pods: Pods) -> None:
    container = pods.launch(pods.run())
    answer = pods.exec(container, "sh", "-c", "sleep 1000 & echo started")
    assert (answer.stdout, answer.exit_code) == (b"started\n", 0)
    assert pods.read(container, "ps -o args | grep -c '[s]leep 1000'") == "2", "its own and the first process"


def test_exec_of_a_program_that_is_not_there(pods: Pods) -> None:
    answer = pods.exec(pods.launch(pods.run()), "/no/such")
    assert answer.exit_code != 0
    assert b"/no/such" in answer.stderr


def test_exec_needs_a_running_container_and_a_command(pods: Pods) -> None:
    sandbox = pods.run()
    container = pods.create(sandbox)
    assert "created, not running" in error_of(lambda: pods.exec(container, "true"), FailedPrecondition)
    pods.start(container)
    assert "no command" in error_of(lambda: pods.exec(container), InvalidArgument)
    pods.stop(container)
    assert "exited, not running" in error_of(lambda: pods.exec(container, "true"), FailedPrecondition)


def test_many_execs_at_once(pods: Pods) -> None:
    container = pods.launch(pods.run())
    requests = [
        ("ExecSync", api.ExecSyncRequest(container_id=container, cmd=["sh", "-c", f"echo {number}"]))
        for number in range(30)
    ]
    assert [answer.stdout for answer in pods.call_all(requests)] == [b"%d\n" % number for number in range(30)]


@pytest.mark.parametrize("user", [None, BLOCK])
def test_log_has_the_form_of_cri(pods: Pods, tmp_path: Path, user: tuple[int, int, int] | None) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path / "logs"), options=namespaces(user=user)))
    script = "echo out; echo err >&2; printf 'no end'"
    container = pods.launch(sandbox, "sh", "-c", script, log_path="main/0.log")
    pods.exited(container)
    log = tmp_path / "logs/main/0.log"
    assert pods.status(container).log_path == str(log)
    found = entries(log)
    assert [item for item in found if item[0] == "stdout"] == [("stdout", "F", "out"), ("stdout", "P", "no end")]
    assert [item for item in found if item[0] == "stderr"] == [("stderr", "F", "err")]


def test_long_lines_are_cut_into_parts(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    pods.exited(pods.launch(sandbox, "sh", "-c", "yes | tr -d '\\n' | head -c 100000; echo", log_path="0.log"))
    found = entries(tmp_path / "0.log")
    assert "".join(text for _, _, text in found) == "y" * 100_000
    assert [tag for _, tag, _ in found] == ["P"] * (len(found) - 1) + ["F"]
    assert max(len(text) for _, _, text in found) <= 16 * 1024


def test_no_log_is_written_where_a_link_in_its_place_leads(pods: Pods, tmp_path: Path) -> None:
    """Who can write to the directory of logs, as a pod with a hostPath there, puts links where conmon will write."""
    precious, logs = tmp_path / "precious", tmp_path / "logs"
    precious.write_text("kept")
    logs.mkdir()
    for name in ("0.log", "1.log.tmp"):
        (logs / name).symlink_to(precious)
    sandbox = pods.run(pod(log_directory=str(logs)))
    script = "while :; do echo x; sleep 0.01; done"
    message = error_of(lambda: pods.create(sandbox, "sh", "-c", script, log_path="0.log"), InvalidArgument)
    assert "is not a regular file" in message
    container = pods.launch(sandbox, "sh", "-c", script, log_path="1.log", attempt=1)
    (logs / "1.log").rename(logs / "old.log")
    pods.call("ReopenContainerLog", api.ReopenContainerLogRequest(container_id=container))
    wait_for(lambda: len(entries(logs / "1.log")) > 1, "output in the new file")
    pods.stop(container)
    assert (precious.read_text(), (logs / "1.log").is_symlink()) == ("kept", False)


def test_log_is_opened_anew(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done"
    container = pods.launch(sandbox, "sh", "-c", script, log_path="0.log")
    log, old = tmp_path / "0.log", tmp_path / "old.log"
    wait_for(lambda: log.exists() and len(entries(log)) > 3, "some output")
    log.rename(old)
    pods.call("ReopenContainerLog", api.ReopenContainerLogRequest(container_id=container))
    assert log.exists()
    wait_for(lambda: len(entries(log)) > 3, "output in the new file")
    pods.stop(container)
    numbers = [int(text) for path in (old, log) for _, _, text in entries(path)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_log_is_opened_anew_only_of_running_containers(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    container = pods.create(sandbox, log_path="0.log")
    request = api.ReopenContainerLogRequest(container_id=container)
    assert "not running" in error_of(lambda: pods.call("ReopenContainerLog", request), FailedPrecondition)


def test_terminal(pods: Pods, tmp_path: Path) -> None:
    sandbox = pods.run(pod(log_directory=str(tmp_path)))
    container = pods.launch(sandbox, "sh", "-c", "test -t 0 && test -t 1 && echo terminal", tty=True, log_path="0.log")
    assert pods.exited(container).exit_code == 0
    logged = entries(tmp_path / "0.log")
    assert {stream for stream, _, _ in logged} == {"stdout"}
    # A terminal's line may come in pieces: what the program wrote, and what the terminal made of its end.
    assert "".join(text for _, _, text in logged).rstrip("\r") == "terminal"


def test_program_that_reads_stdin_without_one_sees_its_end(pods: Pods) -> None:
    assert pods.exited(pods.launch(pods.run(), "cat")).exit_code == 0
