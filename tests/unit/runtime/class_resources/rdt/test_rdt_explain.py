"""What ``podkeep classes check`` shows of a file: masks, budget, what is not offered; and the same as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rdt_machine import CDP, FULL, MBPS, NO_L3, NO_MB, Machine

from podkeep.runtime.class_resources.rdt import explain
from support.resctrl import hardware as stand_in

_FILE = """
partitions:
  exclusive:
    l3Allocation: 60%
    mbAllocation: [100%]
    classes: {gold: {kubernetes: {denyPodAnnotation: true, denyContainerAnnotation: true}}}
  shared:
    l3Allocation: 40%
    mbAllocation: [50%]
    classes:
      silver: {l3Allocation: {all: 100%, 2: 1%}}
      bronze: {l3Allocation: 50%, mbAllocation: [40%], kubernetes: {denyPodAnnotation: true}}
      system/default: {l3Allocation: 30%}
"""


@pytest.mark.requirement("Q37", "Q40")
def test_the_picture() -> None:
    plan = Machine(FULL).plan(_FILE, foreign=("other",))
    assert explain.explain(plan) == [
        "L3: 20 bits; masks of one block, at least 1 wide",
        "  cache 0-1,3",
        "                      19                 0",
        "    exclusive         ........############  0x00fff  60%  bits 0-11",
        "      gold            ........############  0x00fff  60%  bits 0-11",
        "    shared            ########............  0xff000  40%  bits 12-19",
        "      bronze          ....####............  0x0f000  20%  bits 12-15",
        "      silver          ########............  0xff000  40%  bits 12-19",
        "      system/default  .....###............  0x07000  15%  bits 12-14",
        "  cache 2",
        "                      19                 0",
        "    exclusive         ........############  0x00fff  60%  bits 0-11",
        "      gold            ........############  0x00fff  60%  bits 0-11",
        "    shared            ########............  0xff000  40%  bits 12-19",
        "      bronze          ....####............  0x0f000  20%  bits 12-15",
        "      silver          .......#............  0x01000   5%  bit 12",
        "      system/default  .....###............  0x07000  15%  bits 12-14",
        "",
        "MB: memory bandwidth in percent, at least 10, in steps of 10",
        "  cache 0-3",
        "    gold            no limit",
        "    bronze          20",
        "    silver          50",
        "    system/default  50",
        "",
        "control groups: 5 of 8: the root group (system/default), 3 of classes, 1 of others (other)",
        "  bronze: not by pod annotation",
        "  gold: not by pod and container annotation",
    ]


@pytest.mark.requirement("Q43")
@pytest.mark.parametrize(
    ("width", "ids", "caches", "ruler", "a", "b"),
    [
        (11, (0,), "0", "10        0", "....####### 0x07f", "####....... 0x780"),
        (12, (0, 1), "0-1", "11         0", "....######## 0x0ff", "####........ 0xf00"),
        (15, (0, 2), "0,2", "14            0", "......######### 0x01ff", "######......... 0x7e00"),
        (16, (0, 1, 8), "0-1,8", "15             0", "......########## 0x03ff", "######.......... 0xfc00"),
        (
            20,
            (0x10000, 0x81000000),
            "65536,2164260864",
            f"19{'0':>18}",
            f"{'.' * 8}{'#' * 12} 0x00fff",
            f"{'#' * 8}{'.' * 12} 0xff000",
        ),
        (1, (3,), "3", "0", "# 0x1", ""),
    ],
)
def test_caches_of_all_widths(width: int, ids: tuple[int, ...], caches: str, ruler: str, a: str, b: str) -> None:
    """Also with IDs that Arm's firmware makes up."""
    machine = Machine(stand_in.Hardware(l3=stand_in.Cache(cbm_mask=(1 << width) - 1, domains=ids)))
    other = ", b: {l3Allocation: 40%, classes: {y: }}" if b else ""
    lines = explain.explain(machine.plan(f"partitions: {{a: {{l3Allocation: 60%, classes: {{x: }}}}{other}}}"))
    assert lines[1:3] == [f"  cache {caches}", f"{'':14}{ruler}"]
    assert lines[3].split()[1:3] == a.split()
    assert not b or lines[5].split()[1:3] == b.split()


def test_bits_that_other_hardware_uses_too() -> None:
    machine = stand_in.Hardware(l3=stand_in.Cache(shareable_bits=0xC0000, domains=(0,)))
    lines = explain.explain(Machine(machine).plan("partitions: {p: {l3Allocation: 100%, classes: {c: }}}"))
    assert lines[-3].split() == ["(shared)", "##..................", *"other hardware uses these bits, too".split()]


def test_code_and_data_have_a_picture_each() -> None:
    lines = explain.explain(Machine(CDP).plan("partitions: {p: {l3Allocation: 50%, classes: {c: }}}"))
    assert [line for line in lines if line.startswith("L")] == [
        "L3CODE: 20 bits; masks of one block, at least 1 wide",
        "L3DATA: 20 bits; masks of one block, at least 1 wide",
    ]


def test_units() -> None:
    text = "partitions: {p: {mbAllocation: [50%, 700MBps], classes: {c: }}}"
    assert explain.explain(Machine(MBPS).plan(text))[:3] == [
        "MB: memory bandwidth in MBps",
        "  cache 0-3",
        "    c  700",
    ]
    amd = explain.explain(Machine(stand_in.AMD).plan(text))
    assert "L3: 16 bits; masks of any bits, at least 1 wide" in amd
    assert "MB: memory bandwidth in units of the hardware, 2048 of them, at least 1, in steps of 1" in amd


@pytest.mark.requirement("Q39")
def test_what_is_not_offered() -> None:
    lines = explain.explain(Machine(NO_L3).plan(_FILE))
    start = lines.index("not offered:")
    assert lines[start + 1].startswith("  bronze: it has a part of the L3 cache (rdt.yaml:")
    nothing = explain.explain(Machine(stand_in.MONITORING_ONLY).plan(_FILE))
    assert nothing[0] == "control groups: none, this machine can allocate neither cache nor memory bandwidth"


def test_warnings_come_last() -> None:
    lines = explain.explain(Machine(NO_MB).plan("partitions: {p: {l3Allocation: 50%, classes: {c: }}}"))
    assert lines[-2] == "to be known:"
    assert lines[-1].startswith("  rdt.yaml: processes without a class may use all of the L3 cache")


def test_json() -> None:
    found = explain.describe(Machine(FULL).plan(_FILE, foreign=("other",)))
    assert json.loads(json.dumps(found)) == found
    assert found["closids"] == {"available": 8, "used": 5, "others": ["other"]}
    assert found["caches"]["L3"]["mask"] == "0xfffff"
    assert found["memoryBandwidth"] == {"ids": [0, 1, 2, 3], "unit": "percent", "minimum": 10, "step": 10}
    assert found["partitions"]["exclusive"] == {
        "masks": {"L3": {"0": "0xfff", "1": "0xfff", "2": "0xfff", "3": "0xfff"}},
        "classes": ["gold"],
    }
    assert found["classes"]["silver"] == {
        "partition": "shared",
        "schemata": ["L3:0=ff000;1=ff000;2=1000;3=ff000", "MB:0=50;1=50;2=50;3=50"],
        "denyPodAnnotation": False,
        "denyContainerAnnotation": False,
    }
    assert "system/default" in found["classes"]
    assert found["unavailable"] == {}


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[5] / "docs/class-rdt.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example
    plan = Machine(FULL).plan(example[1])
    assert {name: each.schemata for name, each in plan.classes.items()} == {
        "bronze": ("L3:0=f000;1=f000;2=f000;3=f000", "MB:0=20;1=20;2=20;3=20"),
        "gold": ("L3:0=fff;1=fff;2=fff;3=fff", "MB:0=100;1=100;2=100;3=100"),
        "silver": ("L3:0=ff000;1=ff000;2=ff000;3=ff000", "MB:0=50;1=50;2=50;3=50"),
    }
    assert plan.root
    assert plan.warnings == ()
