"""The systemd unit: its command line is quoted, and systemd takes it."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

from podkeep.cli.unit import quoted, runtime_unit


def test_the_unit_keeps_containers_when_the_runtime_ends() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(runtime_unit(["/opt/pod keep/bin/podkeep"], ["--config", "/etc/p.toml"]))
    service = parser["Service"]
    assert service["ExecStart"] == '"/opt/pod keep/bin/podkeep" --config /etc/p.toml runtime'
    assert (service["Type"], service["KillMode"], service["Delegate"]) == ("notify", "process", "yes")
    assert service["ExecReload"] == "/bin/sh -c 'kill -HUP $MAINPID'", "not every system has a program kill"


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/usr/bin/podkeep", "/usr/bin/podkeep"),
        ("two words", '"two words"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("it's", '"it\'s"'),
        ("", '""'),
    ],
)
def test_words_are_quoted_for_systemd(word: str, written: str) -> None:
    assert quoted(word) == written


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "podkeep.service"
    unit.write_text(runtime_unit(["/bin/true"], ["--set", "runtime.root=/srv/a b"]))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if "podkeep" in line]
    assert (done.returncode, said) == (0, []), done.stderr
