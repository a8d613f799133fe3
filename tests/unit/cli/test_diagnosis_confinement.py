"""What `podkeep doctor` says about security modules and the cgroup driver."""

from __future__ import annotations

import pytest

from podkeep.base.config import Config, RuntimeConfig
from podkeep.cli.diagnosis import machine
from podkeep.cli.diagnosis.finding import Level
from podkeep.kernel.cgroup import systemd


@pytest.mark.parametrize(
    ("enabled", "off", "parser", "level"),
    [
        (False, False, None, Level.OK),
        (True, True, None, Level.OK),
        (True, False, None, Level.WARNING),
        (True, False, "/sbin/apparmor_parser", Level.OK),
    ],
)
def test_apparmor(enabled: bool, off: bool, parser: str | None, level: Level) -> None:
    assert machine.apparmor(enabled, switched_off=off, parser=parser).level is level


@pytest.mark.parametrize(
    ("enabled", "off", "told"), [(True, False, "on"), (True, True, '"off"'), (False, False, "off")]
)
def test_selinux(enabled: bool, off: bool, told: str) -> None:
    found = machine.selinux(enabled, switched_off=off)
    assert found.level is Level.OK
    assert told in found.detail


def test_every_finding_of_this_machine() -> None:
    config = Config(runtime=RuntimeConfig(cgroup_driver="systemd"))
    found = {item.name: item for item in machine.examine_confinement(config)}
    assert set(found) == {"security modules", "AppArmor", "SELinux", "cgroup driver"}
    expected = Level.OK if systemd.RUNNING.is_dir() and systemd.BUS.is_socket() else Level.MISSING
    assert found["cgroup driver"].level is expected
    assert machine.examine_confinement(Config())[-1].level is Level.OK
