"""Which versions have known holes, by their number and by what the distribution's package says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.config import Config, HandlerConfig, RuntimeConfig
from podkeep.cli.diagnosis import known_holes, programs
from podkeep.cli.diagnosis.finding import Finding, Level
from podkeep.cli.diagnosis.known_holes import HOLES, Package, judge, parse
from support.processes import write_script

BY_CVE = {hole.cve: hole for hole in HOLES}


@pytest.mark.parametrize(
    ("cve", "affected", "fine"),
    [
        ("CVE-2026-88265", ["0.21", "1.8.1", "1.29"], ["1.30", "2.0"]),
        ("CVE-2026-88264", ["1.29.1"], ["1.30"]),
        ("CVE-2026-84042", ["1.29", "1.30"], ["1.28", "1.30.1"]),
        ("CVE-2026-133553", ["1.8.1", "1.30.1", "1.31", "2.0"], []),
        ("CVE-2026-47766", ["1.8.1", "1.27.1"], ["1.28", "1.29.1"]),
        ("CVE-2026-30892", ["1.19", "1.26"], ["1.18.2", "1.27"]),
        ("CVE-2022-27650", ["1.4.3"], ["1.4.4", "1.8.1"]),
        ("CVE-2024-21626", ["1.1.5+ds1", "1.1.11", "1.1.12-rc.1"], ["1.1.12", "1.2.0-rc.1", "1.3.0"]),
        ("CVE-2024-45310", ["1.1.13", "1.2.0-rc.2"], ["1.1.14", "1.2.0", "1.3.0-rc.1"]),
        (
            "CVE-2025-31133",
            ["1.1.15", "1.2.7", "1.3.0", "1.3.2", "1.4.0-rc.2"],
            ["1.2.8", "1.2.9", "1.3.3", "1.4.0", "1.5.0"],
        ),
        ("CVE-2026-41579", ["1.2.9", "1.3.5", "1.4.2", "1.5.0-rc.2"], ["1.3.6", "1.4.3", "1.5.0", "1.6.1"]),
        (
            "CVE-2026-31431",
            ["4.14", "5.10.253", "6.1.169", "6.12.84", "6.17.13", "6.18.21", "6.19.11", "7.0-rc7"],
            ["4.13", "5.10.254", "6.1.170", "6.12.85", "6.18.22", "6.18.44-fc-v657", "6.19.12", "7.0"],
        ),
        ("CVE-2026-43500", ["5.10.254", "6.6.139", "6.18.28", "7.0.5"], ["5.2", "6.6.140", "6.18.29", "7.0.6", "7.1"]),
        ("CVE-2026-46300", ["6.1.173", "6.18.32", "7.0.9"], ["6.1.174", "6.18.33", "7.0.10", "7.1"]),
        ("CVE-2026-43284", ["6.1.171", "6.18.27", "6.19.13", "7.0.4"], ["6.1.172", "6.18.28", "7.0.5", "7.1"]),
        ("CVE-2023-3269", ["6.1.36", "6.2.16", "6.3.10", "6.4"], ["6.0.19", "6.1.37", "6.3.11", "6.4.1", "6.5"]),
        ("CVE-2024-1086", ["5.10.209", "6.1.75", "6.6.14", "6.5.13"], ["3.14", "5.10.210", "6.1.76", "6.6.15", "6.8"]),
        ("CVE-2023-32233", ["6.1.27", "6.3.1"], ["6.1.28", "6.3.2", "6.4", "6.18.44-fc-v657"]),
        ("CVE-2022-0847", ["5.8", "5.15.24", "5.16.10"], ["5.7", "5.15.25", "5.16.11", "5.17"]),
    ],
)
def test_versions_that_have_a_hole(cve: str, affected: list[str], fine: list[str]) -> None:
    def has_it(text: str) -> bool:
        version = parse(text)
        assert version is not None
        return BY_CVE[cve].affects(version)

    assert [text for text in affected if not has_it(text)] == []
    assert [text for text in fine if has_it(text)] == []


def test_every_entry_can_be_read_and_says_what_fixes_it() -> None:
    for hole in HOLES:
        assert hole.program in {*known_holes.PROGRAMS, "linux"}
        assert bool(hole.fixed) != bool(hole.until)
        versions = [parse(item) for item in hole.fixed]
        assert None not in versions
        assert versions == sorted(versions)
        assert hole.podkeep or not hole.safe


def found(said: str, path: str = "/nonexistent/runtime") -> dict[str, Finding]:
    return {item.name: item for item in known_holes.of_program(path, said)}


def test_a_hole_that_podkeep_closes_is_told_and_is_no_warning() -> None:
    item = found("crun version 1.8.1\ncommit: f8a0\n")["crun CVE-2026-88265"]
    assert (item.level, item.fix) == (Level.OK, "")
    assert "harmless here: podkeep refuses such volumes" in item.detail


def test_a_hole_that_it_does_not_close_is_a_warning_with_what_fixes_it() -> None:
    item = found("runc version 1.2.7\n")["runc CVE-2025-31133"]
    assert (item.level, item.fix) == (Level.WARNING, "runc 1.2.8, 1.3.3, 1.4.0 or newer")
    assert found("runc version 1.5.1\n") == {}
    assert found("conmon version 2.1.6\ncommit: unknown\n") == {}


def test_a_version_newer_than_those_that_were_looked_at_is_not_told_to_be_fine() -> None:
    newer = known_holes.Hole(program="runc", cve="CVE-2026-1", what="a hole", until="1.5.1")
    version = parse("9.0")
    assert version is not None
    assert newer.affects(version)
    item = judge(newer, "9.0", None)
    assert (item.level, item.fix) == (Level.WARNING, "no release up to 1.5.1 fixes it")


@pytest.mark.slow
def test_a_version_is_found_behind_what_a_wrapper_says() -> None:
    said = "using the wrapper version 7\nrunc version 1.2.7\ncommit: v1.2.7\n"
    assert found(said).keys() == found("runc version 1.2.7\n").keys()


def test_what_the_distribution_has_fixed_is_seen_in_the_changelog_of_its_package() -> None:
    hole = BY_CVE["CVE-2024-21626"]
    fixed = judge(hole, "1.1.5+ds1", Package(name="runc", changelog="  * CVE-2024-21626: several breakouts\n"))
    assert fixed.level is Level.OK
    assert "the changelog of runc" in fixed.detail
    open_still = judge(hole, "1.1.5+ds1", Package(name="runc", changelog="  * CVE-2024-216260: another\n"))
    assert open_still.level is Level.WARNING
    assert "does not name it" in open_still.fix
    untold = judge(hole, "1.1.5+ds1", Package(name="runc"))
    assert "may have it in runc already: apt changelog runc" in untold.fix


@pytest.mark.slow
def test_a_package_is_found_by_every_path_of_its_program(tmp_path: Path) -> None:
    """dpkg knows no /bin/crun where /bin is a link to /usr/bin: what Debian has fixed was told as open."""
    (tmp_path / "bin").symlink_to("/usr/bin")
    for path in (Path("/usr/bin/conmon"), tmp_path / "bin" / "conmon"):
        package = known_holes.package_of(str(path))
        assert package is not None, path
        assert package.name == "conmon"
    assert known_holes.package_of(str(tmp_path / "bin" / "no-such-program")) is None


@pytest.mark.slow
def test_a_file_that_somebody_has_put_in_the_place_of_a_packages_is_known() -> None:
    said = "??5?????? c /etc/crun.conf\n??5??????   /usr/bin/crun\nmissing     /usr/share/doc/crun/NEWS\n"
    assert known_holes.changed_files(said) == ["/etc/crun.conf", "/usr/bin/crun"]
    assert known_holes.changed_files("") == []
    package = known_holes.package_of("/usr/bin/conmon")
    assert package is not None
    assert package.changelog


def test_debian_and_ubuntu_say_which_kernel_theirs_is_made_from() -> None:
    def names(release: str, version: str, signature: str = "") -> set[str]:
        return {item.name for item in known_holes.of_kernel(release, version, signature)}

    version = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.{}-1 (2026-06-01)"
    assert names("6.1.0-40-none", version.format(173)) == {"kernel CVE-2026-46300", "kernel CVE-2026-43500"}
    assert "kernel CVE-2026-46300" not in names("6.1.0-40-none", version.format(174))
    assert "kernel CVE-2024-1086" not in names("6.5.0-40-none", "#40", "Ubuntu 6.8.0-40.40-generic 6.8.12\n")
    assert "kernel CVE-2024-1086" not in names("6.5.0-45-none", "#45", "Ubuntu 6.8.0-45.45~22.04.1-generic 6.8.12\n")
    item = known_holes.of_kernel("6.8.0-1014-aws", "#14", "Ubuntu 6.5.0-1014.14~22.04.1-aws 6.5.13\n")[0]
    assert item.detail.startswith("6.5.13: ")
    item = {item.name: item for item in known_holes.of_kernel("6.7.1", "#1 SMP", "")}["kernel CVE-2024-1086"]
    assert "apt changelog linux-image-6.7.1" in item.fix


_SIGNED = """\
linux-signed-amd64 (5.10.46+5) bullseye-security; urgency=high

  * Sign kernel from linux 5.10.46-5
  * the second (CVE-2021-2222)

linux-signed-amd64 (5.10.46+4) bullseye; urgency=medium

  * Sign kernel from linux 5.10.46-4
  * the first (CVE-2021-1111)
"""


@pytest.mark.parametrize(
    ("version", "fixed"),
    [
        ("5.10.46-5", {"2222", "1111"}),
        ("5.10.46-4", {"1111"}),
        ("5.10.46+4", {"1111"}),
        ("5.10.46-3", None),
        ("", None),
    ],
)
def test_a_kernel_that_runs_has_no_more_than_its_own_package_fixes(version: str, fixed: set[str] | None) -> None:
    """Debian updates packages of the same name: the one on the disk may be newer, until the machine is booted."""
    changelog = known_holes.of_version(_SIGNED, version)
    assert (changelog is None) is (fixed is None)
    package = Package(name="linux-image", changelog=changelog)
    assert {number for number in ("1111", "2222") if package.fixes(f"CVE-2021-{number}")} == (fixed or set())


@pytest.mark.parametrize("said", ["", "crun", "crun version", "crun version x.y", "crun version 1", "1.2.3", "\0\n"])
def test_a_version_that_is_not_understood_is_told(said: str) -> None:
    (item,) = known_holes.of_program("/usr/bin/crun", said)
    assert item.level is Level.WARNING
    assert item.name == "crun version"


@pytest.mark.slow
@given(st.text())
def test_whatever_a_program_says_breaks_nothing(said: str) -> None:
    known_holes.of_program("/opt/runtime", said)
    known_holes.of_program("/nonexistent/runc", f"runc version {said}")
    known_holes.of_kernel(said, said, said)


def test_a_program_that_says_nonsense_is_found_all_the_same(tmp_path: Path) -> None:
    program = tmp_path / "crun"
    write_script(program, "#!/bin/sh\nhead -c 100000 /dev/urandom\n")
    config = Config(runtime=RuntimeConfig(handlers={"crun": HandlerConfig(path=os.fspath(program))}))
    items = {item.name: item for item in programs.examine(config)}
    assert items["crun"].level is Level.OK
    assert items["crun version"].level is Level.WARNING
    assert "crun version" not in {item.name for item in programs.examine(config, holes=False)}
