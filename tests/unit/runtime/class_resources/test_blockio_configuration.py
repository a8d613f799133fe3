"""The file of blockio classes: what it may say, and what is refused with its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.blockio import configuration, patterns
from podkeep.runtime.class_resources.blockio.configuration import Setting

FILE = """\
Classes:
  LowPrioThrottled:
    - Weight: 80
    - Devices:
        - /dev/sd[a-z]
        - /dev/vd[a-z]
      ThrottleReadBps: 50M   # a comment
      ThrottleWriteBps: 10Mi
      ThrottleReadIOPS: 10k
      ThrottleWriteIOPS: 5k
      Weight: 50
    - Devices: ["/dev/disk/by-id/*SSD*"]
      ThrottleReadBps: "100M"
  HighPrioFullSpeed:
    - Weight: 400
  nolimit:
"""


def parse(text: str) -> configuration.Configuration:
    return configuration.read(yamlfile.parse(textwrap.dedent(text), source="blockio.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.requirement("Q45")
def test_classes_rules_and_quantities() -> None:
    read = parse(FILE)
    assert list(read.classes) == ["HighPrioFullSpeed", "LowPrioThrottled", "nolimit"]
    default, named, ssd = read.classes["LowPrioThrottled"].rules
    assert (default.devices, default.values) == ((), {Setting.WEIGHT: 80})
    assert named.devices == ("/dev/sd[a-z]", "/dev/vd[a-z]")
    assert named.values == {
        Setting.READ_BPS: 50_000_000,
        Setting.WRITE_BPS: 10 << 20,
        Setting.READ_IOPS: 10_000,
        Setting.WRITE_IOPS: 5_000,
        Setting.WEIGHT: 50,
    }
    assert (ssd.values, ssd.line) == ({Setting.READ_BPS: 100_000_000}, 12)
    assert read.classes["nolimit"].rules == ()
    assert [(item.throttles, item.weighs) for item in read.classes.values()] == [
        (False, True), (True, True), (False, False),
    ]  # fmt: skip


def test_the_documentation_has_files_that_can_be_used() -> None:
    documentation = Path(__file__).parents[4] / "docs" / "class-blockio.md"
    parts = documentation.read_text().split("```yaml\n")[1:]
    found = [configuration.read(yamlfile.parse(part.partition("```")[0], source="docs")) for part in parts]
    assert [list(read.classes) for read in found] == [["background", "foreground", "free"], ["throttled"]]


def test_keys_are_read_in_any_case_as_goresctrl_does() -> None:
    read = parse("classes:\n  slow:\n    - devices: [/dev/vda]\n      throttlereadbps: 5M\n")
    assert read.classes["slow"].rules[0].values == {Setting.READ_BPS: 5_000_000}


@pytest.mark.parametrize("text", ["", "Classes:\n", "# nothing\n"])
def test_no_classes(text: str) -> None:
    assert parse(text).classes == {}


def test_fractions_are_rounded_up_and_zero_is_no_limit() -> None:
    read = parse("Classes:\n  c:\n    - Devices: [/dev/vda]\n      ThrottleReadBps: 1.5\n      ThrottleWriteBps: 0\n")
    assert read.classes["c"].rules[0].values == {Setting.READ_BPS: 2, Setting.WRITE_BPS: 0}


RULE = "Classes:\n  c:\n    - Devices: [/dev/vda]\n      "
BAD = {
    "unknown key": (RULE + "ThrottleReedBps: 5M", "blockio.yaml:4: Classes.c[0].ThrottleReedBps", "ThrottleReadBps"),
    "unknown outermost": ("Klasses: {}", "blockio.yaml:1: Klasses", "Classes"),
    "twice": (RULE + "Weight: 50\n      weight: 60", "blockio.yaml:5", "twice"),
    "class twice": ("Classes:\n  c:\n  c:\n", "blockio.yaml:3", "twice"),
    "no quantity": (RULE + "ThrottleReadBps: fast", "blockio.yaml:4: Classes.c[0].ThrottleReadBps", "'fast'"),
    "a space": (RULE + "ThrottleReadBps: 64 M", "blockio.yaml:4", "'64 M'"),
    "negative": (RULE + "ThrottleWriteIOPS: -1", "blockio.yaml:4", "negative"),
    "light": (RULE + "Weight: 9", "blockio.yaml:4", "between 10 and 1000"),
    "heavy": ("Classes:\n  c:\n    - Weight: 1001", "blockio.yaml:3", "between 10 and 1000"),
    "more than counted": (RULE + "ThrottleReadIOPS: 4294967295", "blockio.yaml:4", "than the kernel can count"),
    "larger than 63 bits": (RULE + "ThrottleReadBps: 10E", "blockio.yaml:4", "larger"),
    "throttle of nothing": ("Classes:\n  c:\n    - ThrottleReadBps: 5M", "blockio.yaml:3", "needs Devices"),
    "empty devices": ("Classes:\n  c:\n    - Devices: []\n      Weight: 50", "blockio.yaml:3", "names no device"),
    "empty rule": ("Classes:\n  c:\n    - {}", "blockio.yaml:3", "says nothing"),
    "relative": ("Classes:\n  c:\n    - Devices:\n      - vda\n      Weight: 50", "blockio.yaml:4", "absolute"),
    "pattern": ("Classes:\n  c:\n    - Devices: ['/dev/sd[a-']", "blockio.yaml:3: Classes.c[0].Devices[0]", "]"),
    "device is a map": ("Classes:\n  c:\n    - Devices: [{a: 1}]", "blockio.yaml:3", "single value"),
    "class is a map": ("Classes:\n  c:\n    Weight: 50", "blockio.yaml:2", "must be a list"),
    "reserved": ("Classes:\n  default:\n    - Weight: 50", "blockio.yaml:2", "default"),
    "no name": ("Classes:\n  a b:\n    - Weight: 50", "blockio.yaml:2", "'a b'"),
    "no YAML": ("Classes: [", "blockio.yaml:", "not YAML"),
}


@pytest.mark.requirement("Q45", "Q80")
@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_names_the_line(case: str) -> None:
    text, *expected = BAD[case]
    message = refusal(text)
    assert [part for part in expected if part not in message] == [], message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"missing\.yaml: No such file"):
        configuration.load(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("sd*", ["sda", "sda1", "sdb"]),
        ("sd?", ["sda", "sdb"]),
        ("sd[a-b]", ["sda", "sdb"]),
        ("sd[^a]", ["sdb"]),
        ("sd[!a]", ["sda"]),
        ("*SSD*", ["ata-SSD_1"]),
        ("*", [".hidden", "a*b", "ata-SSD_1", "sda", "sda1", "sdb", "x]"]),
        ("a\\*b", ["a*b"]),
        ("x[\\]]", ["x]"]),
        ("nothing*", []),
        ("sda", ["sda"]),
    ],
)
def test_patterns_mean_what_they_mean_in_go(tmp_path: Path, pattern: str, found: list[str]) -> None:
    for name in (".hidden", "a*b", "ata-SSD_1", "sda", "sda1", "sdb", "x]"):
        (tmp_path / name).touch()
    patterns.check(f"{tmp_path}/{pattern}")
    assert patterns.expand(f"{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in found]


@pytest.mark.parametrize(
    "pattern", ["/dev/[", "/dev/[]", "/dev/[z-a]", "/dev/[a-]", "/dev/x\\", "/dev/../x", "x", "/[-/x]"]
)
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        patterns.check(pattern)
