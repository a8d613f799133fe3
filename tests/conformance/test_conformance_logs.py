"""Log files: CRI's format, parts of long lines, reopening after rotation."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import pod
from support.endpoint import Node
from support.waiting import wait_for

LINE = re.compile(rb"(\S+) (stdout|stderr) ([FP]) (.*)", re.DOTALL)


def entries(path: Path) -> list[tuple[str, str, bytes]]:
    """Return stream, tag and content of every line, whose times must be RFC 3339 and not go back in a stream.

    containerd takes the time of a line before it is that stream's turn to write.
    """
    found, last = [], {"stdout": "", "stderr": ""}
    for line in path.read_bytes().split(b"\n")[:-1]:
        match = LINE.fullmatch(line)
        assert match, line
        stamp = match[1].decode()
        date, fraction, zone = re.fullmatch(r"(.{19})(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", stamp).groups()  # type: ignore[union-attr]
        assert datetime.fromisoformat(f"{date}{(fraction or '.0')[:7].ljust(7, '0')}{zone.replace('Z', '+00:00')}")
        stream = match[2].decode()
        assert last[stream] <= stamp
        last[stream] = stamp
        found.append((stream, match[3].decode(), match[4]))
    return found


def text(path: Path) -> bytes:
    """Return what a container wrote, without what the format adds."""
    return b"".join(content + (b"\n" if tag == "F" else b"") for _, tag, content in entries(path))


def test_streams_and_lines(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    script = "echo out; echo; echo err >&2; echo ' spaces  kept '"
    container = node.launch(sandbox, "sh", "-c", script, log_path="main.log")
    node.exited(container)
    log = host_directory / "main.log"
    assert node.status(container).log_path == str(log)
    wait_for(lambda: log.read_bytes().count(b"\n") == 4, "the whole log")
    found = entries(log)
    assert [content for stream, _, content in found if stream == "stdout"] == [b"out", b"", b" spaces  kept "]
    assert [content for stream, _, content in found if stream == "stderr"] == [b"err"]
    assert {tag for _, tag, _ in found} == {"F"}


def test_log_path_with_a_directory(node: Node, host_directory: Path) -> None:
    """The kubelet makes ``<name>/`` itself and asks for ``<name>/<attempt>.log``."""
    (host_directory / "main").mkdir()
    sandbox = node.run(pod(log_directory=str(host_directory)))
    node.exited(node.launch(sandbox, "echo", "hello", log_path="main/0.log"))
    wait_for(lambda: (host_directory / "main/0.log").read_bytes().endswith(b" hello\n"), "the log")
    assert text(host_directory / "main/0.log") == b"hello\n"


def test_line_without_an_end_is_a_part(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    node.exited(node.launch(sandbox, "printf", "whole\\nno end", log_path="main.log"))
    log = host_directory / "main.log"
    wait_for(lambda: b"no end" in log.read_bytes(), "the whole log")
    assert text(log).removesuffix(b"\n") == b"whole\nno end"


def test_long_line_comes_in_parts(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    script = "head -c 50000 /dev/zero | tr '\\0' x; echo; echo end"
    node.exited(node.launch(sandbox, "sh", "-c", script, log_path="main.log"))
    log = host_directory / "main.log"
    wait_for(lambda: log.read_bytes().endswith(b" end\n"), "the whole log")
    found = entries(log)
    assert text(log) == b"x" * 50_000 + b"\nend\n"
    assert [tag for _, tag, _ in found[:-2]] == ["P"] * (len(found) - 2)
    assert [tag for _, tag, _ in found[-2:]] == ["F", "F"]
    assert max(len(content) for _, _, content in found) <= 16 * 1024


def test_bytes_that_are_no_text(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    node.exited(node.launch(sandbox, "printf", "\\377\\376 \\033[1m\\r\\n", log_path="main.log"))
    log = host_directory / "main.log"
    wait_for(lambda: log.read_bytes().endswith(b"\n"), "the log")
    assert text(log).replace(b"\r", b"") == b"\xff\xfe \x1b[1m\n"


def test_reopen_after_a_rotation(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.02; done"
    container = node.launch(sandbox, "sh", "-c", script, log_path="main.log")
    log, rotated = host_directory / "main.log", host_directory / "main.log.1"
    wait_for(lambda: log.exists() and log.read_bytes().count(b"\n") > 2, "the first lines")
    log.rename(rotated)
    node.call("ReopenContainerLog", api.ReopenContainerLogRequest(container_id=container))
    assert log.exists()
    wait_for(lambda: log.read_bytes().count(b"\n") > 2, "lines in the new file")
    node.stop(container)
    numbers = [int(line) for line in (text(rotated) + text(log)).split()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_reopen_needs_a_running_container(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    container = node.create(sandbox, log_path="main.log")
    request = api.ReopenContainerLogRequest(container_id=container)
    node.refused(lambda: node.call("ReopenContainerLog", request), FailedPrecondition)
    unknown = api.ReopenContainerLogRequest(container_id="0" * 64)
    node.refused(lambda: node.call("ReopenContainerLog", unknown), NotFound)


def test_logs_of_two_containers(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    for name in ("one", "two"):
        node.exited(node.launch(sandbox, "echo", name, name=name, log_path=f"{name}.log"))
    for name in ("one", "two"):
        log = host_directory / f"{name}.log"
        wait_for(lambda log=log: log.read_bytes().endswith(b"\n"), "the log")  # type: ignore[misc]
        assert text(log) == f"{name}\n".encode()


def test_terminal_writes_to_stdout(node: Node, host_directory: Path) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    script = "test -t 1 && echo terminal; echo err >&2"
    node.exited(node.launch(sandbox, "sh", "-c", script, tty=True, log_path="main.log"))
    log = host_directory / "main.log"
    wait_for(lambda: log.read_bytes().count(b"\n") >= 2, "the log")
    found = [(stream, content.rstrip(b"\r")) for stream, _, content in entries(log)]
    assert found == [("stdout", b"terminal"), ("stdout", b"err")]


@pytest.mark.parametrize("stays", [True, False])
def test_log_outlives_its_container(node: Node, host_directory: Path, stays: bool) -> None:
    sandbox = node.run(pod(log_directory=str(host_directory)))
    container = node.launch(sandbox, "echo", "last words", log_path="main.log")
    node.exited(container)
    log = host_directory / "main.log"
    wait_for(lambda: log.read_bytes().endswith(b"\n"), "the log")
    if not stays:
        node.remove_container(container)
    assert text(log) == b"last words\n"
