"""The systemd unit: its command line is quoted, and systemd takes it."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

from podkeep.cli.core.service_unit import AGENT, RUNTIME
from podkeep.mountns import execstart, units
from podkeep.mountns.execstart import Entry, Part, quoted
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN


def test_the_unit_keeps_containers_when_the_runtime_ends() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(RUNTIME.unit(["/opt/pod keep/bin/podkeep"], ["--config", "/etc/p.toml"], None))
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


@pytest.mark.requirement("M11", "M12", "M14")
@pytest.mark.parametrize(
    ("pin", "service"), [(DEFAULT_PIN, "container-mount-namespace.service"), (KUBENS_PIN, "kubens.service")]
)
def test_the_unit_of_a_runtime_that_hides_mounts_needs_no_drop_in(pin: Path, service: str) -> None:
    text = RUNTIME.unit(["/opt/podkeep"], ["--config", "/etc/p.toml"], pin)
    assert f"ExecStart=/opt/podkeep --config /etc/p.toml runtime --mount-namespace={pin}\n" in text
    unit = execstart.read("podkeep.service", [Part(path="podkeep.service", text=text)])
    assert service in unit.names("Requires") & unit.names("After")
    assert units.drop_in(unit, Entry(pin=pin)) == ""


@pytest.mark.slow
@pytest.mark.requirement("M12")
@pytest.mark.parametrize(
    ("pin", "service"), [(DEFAULT_PIN, "container-mount-namespace.service"), (KUBENS_PIN, "kubens.service")]
)
def test_the_unit_of_an_agent_that_hides_mounts_needs_no_drop_in(pin: Path, service: str, tmp_path: Path) -> None:
    name, text = "podkeep-agent.service", AGENT.unit(["/opt/podkeep"], ["--config", "/etc/p.toml"], pin)
    assert f"ExecStart=/opt/podkeep --config /etc/p.toml agent --mount-namespace={pin}\n" in text
    unit = execstart.read(name, [Part(path=name, text=text)])
    assert service in unit.names("Requires") & unit.names("After")
    assert "podkeep.service" in unit.names("After")
    assert units.drop_in(unit, Entry(pin=pin)) == ""
    file = tmp_path / "podkeep-agent.service"
    # systemd looks for the program, and for what the unit requires.
    file.write_text(text.replace("/opt/podkeep", "/bin/true").replace(f"Requires={service}\n", ""))
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "podkeep-agent" in line]
    assert (done.returncode, said) == (0, []), done.stderr
    assert "mount-namespace" not in AGENT.unit(["/opt/podkeep"], [], None)


@pytest.mark.requirement("M16")
def test_the_unit_of_a_runtime_that_hides_nothing_knows_no_namespace() -> None:
    text = RUNTIME.unit(["/opt/podkeep"], [], None)
    assert "mount-namespace" not in text
    assert "Requires" not in text


@pytest.mark.parametrize("pin", [None, DEFAULT_PIN])
def test_systemd_takes_the_unit(tmp_path: Path, pin: Path | None) -> None:
    unit = tmp_path / "podkeep.service"
    unit.write_text(RUNTIME.unit(["/bin/true"], ["--set", "runtime.root=/srv/a b"], pin))
    (tmp_path / "container-mount-namespace.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if "podkeep" in line]
    assert (done.returncode, said) == (0, []), done.stderr
