"""From file and hardware to the lines of every class: the arithmetic, the budget, and what is not possible here.

The values are goresctrl's for the same file and hardware, except where bandwidth is rounded as the kernel rounds it.
"""

from __future__ import annotations

import pytest
from rdt_machine import CDP, FULL, L2, L2_CDP, MBPS, NO_L3, NO_MB, Machine

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError, ResourceExhausted
from podkeep.runtime.class_resources.model import Origin
from podkeep.runtime.class_resources.rdt import allocation
from podkeep.runtime.class_resources.rdt.hardware import Hardware
from support.resctrl import hardware as stand_in

_MIXED = """
partitions:
  a:
    l3Allocation: {all: 60%, 1: "0xff000", 2: "9-15"}
    mbAllocation: {all: [100%]}
    classes:
      whole: {l3Allocation: 100%}
      parts:
        l3Allocation: {all: 100%, 0-1: 10%, 2: "0x70"}
        mbAllocation: {all: [40%], 3: [10%]}
  b:
    l3Allocation: {all: 39%, 1: "0-10", 2: "0-6"}
    mbAllocation: {all: [50%], 1: [80%], 2: [100%]}
    classes:
      half: {l3Allocation: 50%, mbAllocation: [100%]}
      some: {mbAllocation: {all: [40%], 0: [80%]}}
      system/default: {l3Allocation: 60%, mbAllocation: [60%]}
  c:
    l3Allocation: {all: 1%, 1: "0x800", 2: "7,8"}
    mbAllocation: [20%]
    classes:
      least: {mbAllocation: {all: [100%], 0: [1%]}}
"""

_TWO = """
partitions:
  a: {{l3Allocation: {a}, classes: {{one: {one}}}}}
  b: {{l3Allocation: {b}, classes: {{two: {two}}}}}
"""


def _two(*, a: str, b: str, one: str = "", two: str = "") -> str:
    return _TWO.format(a=a, b=b, one=one, two=two)


_CODE_AND_DATA = _two(
    a="{'0,1': {unified: 60%, code: 70%, data: 50%}, '2,3': 40%}",
    b="{'0,1': {unified: 40%, code: 30%, data: 50%}, '2,3': 60%}",
    two="{l3Allocation: {all: 100%, 3: {unified: 80%, code: 60%, data: 90%}}}",
)

_LEVELS = """
partitions:
  a:
    l2Allocation:
      all: 42%
      2: {unified: 30%, code: 20%, data: 50%}
      3: {unified: 30%, code: 40%, data: 50%}
    l3Allocation: 30%
    classes: {one: }
  b:
    l2Allocation:
      all: 43%
      2: {unified: 70%, code: 40%, data: 30%}
      3: {unified: 30%, code: 60%, data: 50%}
    l3Allocation: 50%
    classes:
      two: {l2Allocation: {all: 80%, 2: {unified: 80%, code: 60%, data: 90%}}}
      three: {l3Allocation: 60%}
"""

_TABLE: dict[str, tuple[stand_in.Hardware, str, dict[str, tuple[str, ...]]]] = {
    "parts and masks by cache": (
        FULL,
        _MIXED,
        {
            "whole": ("L3:0=fff;1=ff000;2=fe00;3=fff", "MB:0=100;1=100;2=100;3=100"),
            "parts": ("L3:0=3;1=1000;2=e000;3=fff", "MB:0=40;1=40;2=40;3=10"),
            "some": ("L3:0=7f000;1=7ff;2=7f;3=7f000", "MB:0=40;1=40;2=40;3=20"),
            "half": ("L3:0=f000;1=3f;2=f;3=f000", "MB:0=50;1=80;2=100;3=50"),
            "system/default": ("L3:0=1f000;1=7f;2=1f;3=1f000", "MB:0=30;1=50;2=60;3=30"),
            "least": ("L3:0=80000;1=800;2=180;3=80000", "MB:0=10;1=20;2=20;3=20"),
        },
    ),
    "code and data where they are one": (
        NO_MB,
        _CODE_AND_DATA,
        {"one": ("L3:0=fff;1=fff;2=ff;3=ff",), "two": ("L3:0=ff000;1=ff000;2=fff00;3=3ff00",)},
    ),
    "code and data apart": (
        CDP,
        _CODE_AND_DATA,
        {
            "one": ("L3CODE:0=3fff;1=3fff;2=ff;3=ff", "L3DATA:0=3ff;1=3ff;2=ff;3=ff"),
            "two": ("L3CODE:0=fc000;1=fc000;2=fff00;3=ff00", "L3DATA:0=ffc00;1=ffc00;2=fff00;3=7ff00"),
        },
    ),
    "code and data apart in one level": (
        L2_CDP,
        _LEVELS,
        {
            "one": ("L2CODE:0=ff;1=ff;2=f;3=ff", "L2DATA:0=ff;1=ff;2=3ff;3=3ff", "L3:0=7"),
            "two": ("L2CODE:0=ff00;1=ff00;2=1f0;3=3ff00", "L2DATA:0=ff00;1=ff00;2=fc00;3=3fc00", "L3:0=1f8"),
            "three": ("L2CODE:0=1ff00;1=1ff00;2=ff0;3=fff00", "L2DATA:0=1ff00;1=1ff00;2=fc00;3=ffc00", "L3:0=78"),
        },
    ),
    "no cache is divided": (
        FULL,
        "partitions: {p: {mbAllocation: [100%], classes: {c: {mbAllocation: [50%]}}}}",
        {"c": ("L3:0=fffff;1=fffff;2=fffff;3=fffff", "MB:0=50;1=50;2=50;3=50")},
    ),
    "no bandwidth is limited": (
        FULL,
        "partitions: {p: {l3Allocation: 100%, classes: {c: {l3Allocation: 50%}}}}",
        {"c": ("L3:0=3ff;1=3ff;2=3ff;3=3ff", "MB:0=100;1=100;2=100;3=100")},
    ),
    "parts that leave some over": (
        NO_MB,
        _two(a="{all: 21%, 1: 42%, 2: 63%, 3: 89%}", b="{all: 29%, 1: 8%, 2: 19%, 3: 11%}"),
        {"one": ("L3:0=f;1=ff;2=1fff;3=3ffff",), "two": ("L3:0=3f0;1=300;2=e000;3=c0000",)},
    ),
    "no mask is too small": (
        NO_MB,
        "partitions: {p: {l3Allocation: 100%, classes: {c: {l3Allocation: {all: 1%, 1-2: 99-100%}}}}}",
        {"c": ("L3:0=3;1=c0000;2=c0000;3=3",)},
    ),
    "a range": (
        NO_MB,
        "partitions: {p: {l3Allocation: 100%, classes: {c: {l3Allocation: 50-60%}}}}",
        {"c": ("L3:0=e00;1=e00;2=e00;3=e00",)},
    ),
    "bandwidth under the least": (
        NO_L3,
        "partitions: {p: {mbAllocation: [1%], classes: {c: {mbAllocation: [100%]}, d: {mbAllocation: [0%]}}}}",
        {"c": ("MB:0=10;1=10;2=10;3=10",), "d": ("MB:0=10;1=10;2=10;3=10",)},
    ),
    "a small cache and three partitions": (
        L2,
        "partitions:\n a: {l2Allocation: {all: 30%, 1: 75%}, classes: {one: }}\n"
        " b: {l2Allocation: {0: 30%, 1: {unified: 20%}}, classes: {two: }}\n"
        " c: {l2Allocation: {0: 40%, 1: 5%}, classes: {three: }}\n",
        {"one": ("L2:0=3;1=3f",), "two": ("L2:0=c;1=40",), "three": ("L2:0=f0;1=80",)},
    ),
    "steps that do not end at the most": (
        stand_in.Hardware(mb=stand_in.MemoryBandwidth(bandwidth_gran=30, domains=(0,))),
        "partitions: {p: {mbAllocation: [100%], classes: {c: {mbAllocation: [95%]}, d: {mbAllocation: [31%]}}}}",
        {"c": ("MB:0=100",), "d": ("MB:0=60",)},
    ),
    "megabytes": (
        MBPS,
        "partitions:\n a: {mbAllocation: [50%, 1000MBps], classes: {one: {mbAllocation: [100%, 1500MBps]}}}\n"
        " b: {mbAllocation: {all: [1000MBps], '0,1': [500MBps]}, classes: {two: {mbAllocation: [750MBps]}}}\n"
        " c: {mbAllocation: [100%], classes: {three: , four: {mbAllocation: [50%, 7MBps]}}}\n",
        {
            "one": ("MB:0=1000;1=1000;2=1000;3=1000",),
            "two": ("MB:0=500;1=500;2=750;3=750",),
            "three": ("MB:0=4294967295;1=4294967295;2=4294967295;3=4294967295",),
            "four": ("MB:0=7;1=7;2=7;3=7",),
        },
    ),
    "gaps where the hardware takes them, and its own units": (
        stand_in.AMD,
        "partitions:\n"
        " a: {l3Allocation: '0-3,8-11', mbAllocation: [50%], classes: {one: , two: {l3Allocation: 50-100%}}}\n"
        " b: {l3Allocation: '4-7', mbAllocation: [1%], classes: {three: {l3Allocation: '0,2', mbAllocation: [1%]}}}\n",
        {
            "one": ("L3:0=f0f;1=f0f;2=f0f;3=f0f", "MB:0=1024;1=1024;2=1024;3=1024"),
            "two": ("L3:0=f08;1=f08;2=f08;3=f08", "MB:0=1024;1=1024;2=1024;3=1024"),
            "three": ("L3:0=50;1=50;2=50;3=50", "MB:0=1;1=1;2=1;3=1"),
        },
    ),
    "a cache whose id is not 0": (
        stand_in.ARM,
        "partitions: {p: {l3Allocation: {all: 50%, 1: 25%}, classes: {c: }}}",
        {"c": ("L3:1=7", "MB:1=100")},
    ),
}


@pytest.mark.requirement("Q37", "Q40", "Q41", "Q43")
@pytest.mark.parametrize(("machine", "text", "lines"), _TABLE.values(), ids=_TABLE)
def test_lines_of_the_classes(machine: stand_in.Hardware, text: str, lines: dict[str, tuple[str, ...]]) -> None:
    tried = Machine(machine)
    plan = tried.plan(text)
    found = {name: each.schemata for name, each in plan.classes.items()}
    if plan.root:
        found[plan.root.name] = plan.root.schemata
    assert found == lines
    assert plan.unavailable == {}
    assert len(tried.write(plan)) == len(lines)  # the kernel takes all of them


@pytest.mark.requirement("Q40")
def test_a_class_with_cache_of_its_own_shares_no_bit() -> None:
    """KEP-3008, story 1."""
    plan = Machine(FULL).plan(
        "partitions:\n exclusive: {l3Allocation: 60%, classes: {gold: }}\n"
        " shared: {l3Allocation: 40%, classes: {silver: , bronze: {l3Allocation: 50%}, system/default: }}\n"
    )
    gold = plan.classes["gold"].values["L3"]
    assert plan.root
    for other in (plan.classes["silver"], plan.classes["bronze"], plan.root):
        assert all(not mask & gold[cache] for cache, mask in other.values["L3"].items())
    assert plan.warnings == ()


@pytest.mark.requirement("Q40")
def test_a_warning_if_those_without_class_may_use_what_is_exclusive() -> None:
    plan = Machine(FULL).plan(_two(a="60%", b="40%"))
    assert plan.warnings == (
        "rdt.yaml: processes without a class may use all of the L3 cache, also the part of a, b; a class system/default"
        " in a partition keeps them there",
    )
    assert Machine(FULL).plan("partitions: {p: {l3Allocation: 100%, classes: {c: }}}").warnings == ()


@pytest.mark.requirement("Q41")
def test_a_class_with_little_bandwidth() -> None:
    """KEP-3008, story 4."""
    plan = Machine(stand_in.INTEL).plan(
        "partitions: {p: {mbAllocation: [100%], classes: {low: {mbAllocation: [20%]}}}}"
    )
    assert plan.classes["low"].schemata[-1] == "MB:0=20;1=20"


@pytest.mark.requirement("Q41")
def test_a_limit_stays_the_same_after_no_group_is_without_one() -> None:
    """The kernel's largest value is no property of what groups have at the moment."""
    machine = Machine(stand_in.AMD)
    text = "partitions: {p: {mbAllocation: [50%], classes: {c: , system/default: }}}"
    first = machine.plan(text)
    machine.write(first)
    second = machine.plan(text)
    assert second.classes["c"].schemata == first.classes["c"].schemata
    assert "MB:0=1024;1=1024;2=1024;3=1024" in second.classes["c"].schemata


_FAILURES: dict[str, tuple[stand_in.Hardware, str, type[PodkeepError], str]] = {
    "class outside its partition": (
        NO_MB,
        "partitions:\n p: {l3Allocation: 40%, classes: {c: {l3Allocation: 0x1ff}}}\n q: {l3Allocation: 60%}",
        InvalidArgument,
        "rdt.yaml:2: partitions.p.classes.c.l3Allocation: L3, cache 0: 0x1ff is bits 0-8 here, and only 0-7 are its"
        " own; hint: bits of a class count from the lowest bit of its partition, which has 0xff here: at most 0xff",
    ),
    "partition with a gap": (
        NO_MB,
        "partitions: {p: {l3Allocation: {all: 100%, 1: 0x2f}}}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p.l3Allocation.1: L3, cache 1: 0x2f is 2 blocks of bits (0-3,5), and this cache takes",
    ),
    "class with a gap": (
        NO_MB,
        "partitions: {p: {l3Allocation: 100%, classes: {c: {l3Allocation: '0,1,4,5'}}}}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p.classes.c.l3Allocation: L3, cache 0: 0x33 is 2 blocks of bits (0-1,4-5), and",
    ),
    "more bits than there are": (
        NO_MB,
        "partitions: {p: {l3Allocation: 0x1fffff}}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p.l3Allocation: L3, cache 0: 0x1fffff has bits 20, and this cache has 0-19 alone",
    ),
    "too few bits": (
        NO_MB,
        "partitions: {p: {l3Allocation: 100%, classes: {c: {l3Allocation: '3'}}}}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p.classes.c.l3Allocation: L3, cache 0: 0x8 has fewer than 2 neighbouring bits",
    ),
    "more partitions than bits": (
        L2,
        "partitions: {" + ", ".join(f"p{number}: {{l2Allocation: 1%}}" for number in range(9)) + "}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p0.l2Allocation: L2, cache 0: 9 partitions need 9 bits, 1 each, and it has 8; hint: ",
    ),
    "all of what is not named": (
        FULL,
        _two(a="{all: 50%}", b="{0-2: 50%}"),
        InvalidArgument,
        "rdt.yaml:3: partitions.a.l3Allocation.all: L3, cache 3: the partitions ask for 150% of unified together",
    ),
    "megabytes alone": (
        NO_L3,
        "partitions: {p: {mbAllocation: [100MBps], classes: {c: }}}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p.mbAllocation: has no limit in percent, and this machine limits in percent; hint: ",
    ),
    "percent alone": (
        MBPS,
        "partitions: {p: {mbAllocation: [50%], classes: {c: }}}",
        InvalidArgument,
        "rdt.yaml:1: partitions.p.mbAllocation: has no limit in MBps, and resctrl is mounted with mba_MBps; hint: ",
    ),
    "cache that must be there": (
        NO_L3,
        "options: {l3: {optional: false}}\npartitions: {p: {l3Allocation: 100%, classes: {c: {l3Allocation: 5%}}}}",
        FailedPrecondition,
        "rdt.yaml:2: partitions.p.classes.c.l3Allocation: this machine cannot allocate L3 cache,"
        " and options.l3.optional is false; hint: set options.l3.optional to true, or check",
    ),
    "bandwidth that must be there": (
        NO_MB,
        "options: {mb: {optional: false}}\npartitions: {p: {mbAllocation: [50%], classes: {c: }}}",
        FailedPrecondition,
        "rdt.yaml:2: partitions.p.mbAllocation: this machine cannot allocate memory bandwidth, and options.mb.optional",
    ),
    "more classes than CLOSIDs": (
        L2,
        "partitions: {p: {classes: {a: , b: , c: , d: }}}",
        ResourceExhausted,
        "rdt.yaml: 5 control groups are needed, and this machine has 4: the root group, 4 classes; hint: define fewer",
    ),
}


@pytest.mark.requirement("Q37")
@pytest.mark.parametrize(("machine", "text", "kind", "message"), _FAILURES.values(), ids=_FAILURES)
def test_what_does_not_fit(machine: stand_in.Hardware, text: str, kind: type[PodkeepError], message: str) -> None:
    with pytest.raises(PodkeepError) as caught:
        Machine(machine).plan(text)
    assert str(caught.value).startswith(message)
    assert type(caught.value) is kind


@pytest.mark.requirement("Q37")
def test_groups_of_others_take_closids() -> None:
    text = "partitions: {p: {classes: {a: , b: , system/default: }}}"
    assert Machine(L2).plan(text, foreign=("x", "a")).foreign == ("x",)  # the group "a" becomes ours
    with pytest.raises(ResourceExhausted) as caught:
        Machine(L2).plan(text, foreign=("y", "x"))
    assert str(caught.value).startswith(
        "rdt.yaml: 5 control groups are needed, and this machine has 4: the root group, 2 classes, 2 of others (x, y);"
        " hint: define fewer classes, or remove unused control groups"
    )


_OPTIONAL = """
options: {{{options}}}
partitions:
  p:
    l3Allocation: 60%
    mbAllocation: [100%]
    classes: {{c: {{mbAllocation: [50%]}}}}
  q:
    l3Allocation: 40%
    mbAllocation: [100%]
    classes: {{d: }}
"""


@pytest.mark.requirement("Q39")
def test_a_class_whose_part_is_not_there_is_not_offered() -> None:
    plan = Machine(NO_L3).plan(_OPTIONAL.format(options=""))
    assert plan.classes == {}
    assert plan.unavailable["d"] == (
        "it has a part of the L3 cache (rdt.yaml:9: partitions.q.l3Allocation), which this machine cannot allocate;"
        " options.l3.optional: true offers the class without it"
    )
    assert sorted(plan.unavailable) == ["c", "d"]


def test_a_part_that_is_optional_is_left_out() -> None:
    plan = Machine(NO_L3).plan(_OPTIONAL.format(options="l3: {optional: true}"))
    assert {name: each.schemata for name, each in plan.classes.items()} == {
        "c": ("MB:0=50;1=50;2=50;3=50",),
        "d": ("MB:0=100;1=100;2=100;3=100",),
    }


def test_all_of_something_needs_no_hardware() -> None:
    plan = Machine(NO_MB).plan("partitions: {p: {mbAllocation: [100%, 9MBps], l2Allocation: 100%, classes: {c: }}}")
    assert list(plan.classes) == ["c"]
    plan = Machine(NO_MB).plan("partitions: {p: {mbAllocation: [9MBps], classes: {c: }}}")
    assert list(plan.unavailable) == ["c"]


@pytest.mark.requirement("Q39")
@pytest.mark.parametrize("options", ["", "l3: {optional: true}, mb: {optional: true}"])
def test_nothing_can_be_allocated(options: str) -> None:
    for plan in (
        Machine(stand_in.MONITORING_ONLY).plan(_OPTIONAL.format(options=options)),
        Machine(stand_in.MONITORING_ONLY).plan("partitions: {p: {classes: {c: , system/default: }}}"),
    ):
        assert (plan.classes, plan.root) == ({}, None)
        assert plan.unavailable
    assert plan.unavailable["c"] == "this machine can allocate neither cache nor memory bandwidth"


def test_caches_that_are_not_there_are_worth_a_warning() -> None:
    """One file may be for several machines."""
    plan = Machine(L2).plan(
        "partitions: {p: {l2Allocation: 100%, mbAllocation: {9: [100%]},"
        " classes: {c: {l2Allocation: {all: 50%, '1,7-8': 20%}}}}}"
    )
    assert plan.warnings == (
        "rdt.yaml:1: partitions.p.classes.c.l2Allocation: cache 7, 8 is not there; this machine has 0, 1",
    )
    assert plan.classes["c"].schemata == ("L2:0=f;1=3",)


def test_a_warning_if_code_of_one_and_data_of_another_partition_meet() -> None:
    warnings = Machine(CDP).plan(_CODE_AND_DATA.replace("two:", "system/default:")).warnings
    assert warnings == (
        "rdt.yaml: code of the partition a and data of b share bits of the L3 cache 0, 1;"
        " the same bits for code and data keep them apart",
    )


def test_everything_is_what_the_root_group_has() -> None:
    for machine in (FULL, CDP, L2_CDP, MBPS, stand_in.AMD):
        tried = Machine(machine)
        lines = allocation.everything(tried.hardware())
        before = tried.groups.controls.shown(0)
        tried.groups.write_schemata(tried.groups.root, "".join(f"{line}\n" for line in lines))
        assert tried.groups.controls.shown(0) == before
    assert allocation.everything(Hardware()) == ()


def test_who_may_not_ask_is_kept() -> None:
    plan = Machine(FULL).plan("partitions: {p: {classes: {c: {kubernetes: {denyContainerAnnotation: true}}}}}")
    assert plan.classes["c"].denied == {Origin.CONTAINER}


def test_partitions_say_what_they_have() -> None:
    plan = Machine(FULL).plan(_two(a="60%", b="40%"))
    assert [(each.name, each.masks["L3"][0], each.classes) for each in plan.partitions] == [
        ("a", 0xFFF, ("one",)),
        ("b", 0xFF000, ("two",)),
    ]
