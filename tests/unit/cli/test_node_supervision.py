"""Supervising a node's daemons: back-off, reasons, output; and the systemd unit."""

from __future__ import annotations

import configparser
import os
from contextlib import closing
from pathlib import Path

import pytest

from podkeep.base import lockfile, service
from podkeep.base.config import Config, NodeConfig, RuntimeConfig
from podkeep.cli.core import node_report as report
from podkeep.cli.core import service_unit, supervised
from podkeep.cli.node import supervisor
from podkeep.cli.node.child import Output
from podkeep.cli.node.command import left_running
from podkeep.cli.node.restarts import Failures, Reason, reason


def test_back_off_doubles_to_half_a_minute_and_begins_anew_after_a_minute_of_service() -> None:
    failures, delays = Failures(), []
    for _ in range(7):
        failures = failures.after(None)
        delays.append(failures.delay_s)
    assert delays == [1, 2, 4, 8, 16, 30, 30]
    assert failures.after(5.0).delay_s == 30, "that was no good start"
    assert failures.after(60.0).delay_s == 1
    assert Failures(10**6).delay_s == 30


@pytest.mark.parametrize(
    ("lines", "status", "expected"),
    [
        (["noise", "podkeep: no crun", "hint: install it"], 1, Reason("no crun", "install it")),
        (["podkeep: first", "hint: of the first", "podkeep: second"], 1, Reason("second")),
        (["hint: of nothing"], 2, Reason("ended with exit status 2")),
        ([], 0, Reason("ended with exit status 0")),
        (["podkeep: said before"], -9, Reason("killed by SIGKILL")),
        ([], -63, Reason("killed by signal 63")),
    ],
)
def test_reason(lines: list[str], status: int, expected: Reason) -> None:
    assert reason(lines, status) == expected


def test_output_has_the_name_of_the_daemon_in_front_and_is_held_when_told() -> None:
    written: list[str] = []
    output = Output("api", written.append)
    output.feed(b"one\ntw")
    output.feed(b'o\n{"level":"info"}\n\x1b[2Jevil\n')
    assert written == ["api: one", "api: two", '{"level":"info"}', "api: \\x1b[2Jevil"]
    output.begin(hold=True)
    output.feed(b"held\nwithout an end")
    output.end()
    assert written[4:] == []
    output.release()
    assert written[4:] == ["api: held", "api: without an end"]
    assert list(output.last) == ["held", "without an end"]


def test_output_keeps_little_of_a_line_without_an_end() -> None:
    written: list[str] = []
    output = Output("api", written.append)
    for _ in range(100):
        output.feed(b"x" * 65536)
    output.end()
    assert [len(line) for line in written] == [len("api: ") + (16 << 10)]


def test_a_daemon_is_told_nothing_that_systemd_told_its_supervisor() -> None:
    told = {"PATH": "/bin", "NOTIFY_SOCKET": "/run/systemd/notify", "WATCHDOG_PID": "1", "LISTEN_FDS": "1"}
    environment = supervised.environment(told, notify="/run/own", watchdog_s=60)
    assert environment.pop("PODKEEP_SUPERVISOR").isdecimal()
    assert environment == {"PATH": "/bin", "NOTIFY_SOCKET": "/run/own", "WATCHDOG_USEC": "60000000"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["agent"], "agent does not serve"),
        (["api", "agent"], "api and agent do not serve"),
        (["runtime", "api", "agent"], "runtime, api and agent do not serve"),
    ],
)
def test_daemons_that_do_not_serve_are_named(names: list[str], said: str) -> None:
    assert supervisor.not_serving(names) == said


def test_what_a_daemon_says_of_itself() -> None:
    assert service.parse(b"READY=1\nSTATUS=serving a=b") == {"READY": "1", "STATUS": "serving a=b"}
    assert service.parse(b"\xff\nnothing") == {}


def test_a_report_is_read_only_while_the_node_runs(tmp_path: Path) -> None:
    told = report.NodeReport(pid=1, runtime="/s", kubeconfig="/a", embedded=True)
    report.write(tmp_path, told)
    assert report.read(tmp_path) is None
    lockfile.acquire(tmp_path / report.LOCK)
    assert report.read(tmp_path) == told
    (tmp_path / report.FILE).write_text("damaged")
    assert report.read(tmp_path) is None


def test_a_node_of_another_configuration_is_not_this_ones(tmp_path: Path) -> None:
    """Two configurations may leave ``node.run`` at its default."""
    run = NodeConfig(run=str(tmp_path))
    mine = Config(node=run, runtime=RuntimeConfig(socket="unix:///run/mine.sock"))
    told = report.NodeReport(pid=1, runtime=report.runtime_socket(mine), kubeconfig="/a", embedded=True)
    report.write(tmp_path, told)
    with closing(os.fdopen(lockfile.acquire(tmp_path / report.LOCK))):
        assert report.of(mine) == told
        assert report.of(Config(node=run, runtime=RuntimeConfig(socket="/run/mine.sock"))) == told
        assert report.of(Config(node=run, runtime=RuntimeConfig(socket="/run/other.sock"))) is None


def test_what_is_said_of_containers_that_a_node_leaves_behind() -> None:
    assert left_running(0, []) == ()
    assert left_running(2, ["--config", "/a b"]) == (
        "2 containers of its pods run on",
        "hint: to end the pods: `podkeep --config '/a b' runtime &`, `podkeep --config '/a b' rm --all`,"
        " `podkeep --config '/a b' runtime stop`",
    )


def test_unit() -> None:
    text = service_unit.NODE.unit(["/opt/pod keep/podkeep"], ["--config", "/etc/100%.toml"])
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    assert parser["Service"]["ExecStart"] == '"/opt/pod keep/podkeep" --config "/etc/100%%.toml" node'
    assert parser["Service"]["Type"] == "notify"
    assert parser["Service"]["RestartPreventExitStatus"] == "78", "a configuration that is refused is told once"
    assert parser["Service"]["KillMode"] == "process", "containers outlive it"
    assert parser["Install"]["WantedBy"] == "multi-user.target"
