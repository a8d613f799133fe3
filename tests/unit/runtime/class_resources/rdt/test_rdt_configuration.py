"""The file of RDT classes: what it may say, and what is said about the rest, without any hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.model import Origin
from podkeep.runtime.class_resources.rdt import configuration
from podkeep.runtime.class_resources.rdt.proportions import Bits, Kind, Share

_EVERYTHING = """\
options:
  l2: {optional: true}
  l3:
    optional: false
  mb:
partitions:
  default:  # a partition may be called so, a class not
    l2Allocation: 100%
    l3Allocation:
      all: 0xfff0
      0-1,3: {unified: "4-15", code: 0xf0, data: "8,9,10"}
    mbAllocation: ["100%", "5000MBps"]
    classes:
      Gold:
        l3Allocation: {all: 50-60%, 2: "1-2"}
        mbAllocation: {all: [50%], "1,3": [10%, 1000MBps]}
        kubernetes:
          denyPodAnnotation: true
          denyContainerAnnotation: false
      silver_1.x:
      "": {l2Allocation: "30%"}
"""


def _parse(text: str) -> configuration.Configuration:
    return configuration.read(yamlfile.parse(text, source="rdt.yaml"))


@pytest.mark.requirement("Q37")
def test_everything_that_a_file_may_say() -> None:
    found = _parse(_EVERYTHING)
    assert found.optional == {Kind.L2: True, Kind.L3: False}
    assert found.classes == ("Gold", "silver_1.x", "system/default")
    (partition,) = found.partitions
    cache = partition.request.caches[Kind.L3]
    assert sorted(cache.by_id) == [0, 1, 3]
    value = cache.by_id[3]
    assert [each.mask for each in (value.unified, value.code, value.data) if isinstance(each, Bits)] == [
        0xFFF0,
        0xF0,
        0x700,
    ]
    gold, silver, root = partition.classes
    share = gold.request.caches[Kind.L3].get(7)
    assert share
    assert isinstance(share.unified, Share)
    assert (share.unified.low, share.unified.high, share.code) == (50, 60, None)
    assert gold.request.mb
    limits = {cache: gold.request.mb.get(cache) for cache in (0, 3)}
    assert {cache: (limit.percent, limit.mbps) for cache, limit in limits.items() if limit} == {
        0: (50, None),
        3: (10, 1000),
    }
    assert gold.denied == {Origin.POD}
    assert (silver.request.caches, silver.request.mb, silver.denied) == ({}, None, frozenset())
    assert root.name == configuration.ROOT_CLASS


@pytest.mark.parametrize("text", ["", "options:\npartitions:\n", "partitions: {empty: }\n"])
def test_files_without_classes(text: str) -> None:
    assert _parse(text).classes == ()


def test_keys_in_any_case() -> None:
    assert _parse("Partitions: {p: {L3allocation: 5%, CLASSES: {a: }}}\n").classes == ("a",)


def test_anchors() -> None:
    found = _parse(
        "partitions:\n  p:\n    l3Allocation: 100%\n    classes:\n      a: &a {l3Allocation: 10%}\n"
        "      b: {<<: *a, kubernetes: {denyPodAnnotation: true}}\n"
    )
    share = found.partitions[0].classes[1].request.caches[Kind.L3].rest
    assert share
    assert str(share.unified) == "10%"


def _allocation(text: str) -> str:
    """Return a file with one partition and ``text`` as its L3 allocation, in line 3."""
    return f"partitions:\n  p:\n    l3Allocation: {text}\n"


_LINE_3 = "rdt.yaml:3: partitions.p.l3Allocation"

_ERRORS = {
    "unknown key": ("partitons:\n", "rdt.yaml:1: partitons: unknown key; hint: did you mean partitions?"),
    "unknown key of a class": (
        "partitions:\n p:\n  classes:\n   c:\n    l3: 5%\n",
        "rdt.yaml:5: partitions.p.classes.c.l3: unknown key; hint: known here: kubernetes, l2Allocation, l3Allocation,",
    ),
    "class twice": (
        "partitions:\n p:\n  classes:\n   c:\n   d:\n   c:\n",
        "rdt.yaml:6: partitions.p.classes.c: is there twice, first in line 4",
    ),
    "class in two partitions": (
        "partitions:\n p: {classes: {c: }}\n q: {classes: {c: }}\n",
        "rdt.yaml:3: partitions.q.classes.c: the class 'c' is there twice, first at rdt.yaml:2: partitions.p.classes.c",
    ),
    "root class twice": (
        "partitions:\n p: {classes: {'': }}\n q: {classes: {system/default: }}\n",
        "rdt.yaml:3: partitions.q.classes.system/default: the class 'system/default' is there twice",
    ),
    "reserved class": (
        "partitions:\n p: {classes: {default: }}\n",
        "rdt.yaml:2: partitions.p.classes.default: no class may be called 'default'",
    ),
    "name that is no directory": (
        "partitions:\n p: {classes: {a/b: }}\n",
        "rdt.yaml:2: partitions.p.classes.a/b: 'a/b' is no name of a class",
    ),
    "name of resctrl's": (
        "partitions:\n p: {classes: {mon_groups: }}\n",
        "rdt.yaml:2: partitions.p.classes.mon_groups: 'mon_groups' is a name of resctrl's own",
    ),
    "optional that is no boolean": (
        "options:\n  l3: {optional: maybe}\n",
        "rdt.yaml:2: options.l3.optional: must be true or false, not 'maybe'",
    ),
    "unknown option": ("options: {l4: }\n", "rdt.yaml:1: options.l4: unknown key; hint: known here: l2, l3, mb"),
    "denied that is no boolean": (
        "partitions: {p: {classes: {c: {kubernetes: {denyPodAnnotation: 1}}}}}\n",
        "rdt.yaml:1: partitions.p.classes.c.kubernetes.denyPodAnnotation: must be true or false, not '1'",
    ),
    "allocation of nothing": (_allocation(""), f"{_LINE_3}: nothing is written here; hint: write a percentage"),
    "allocation of a list": (_allocation("[5%]"), f"{_LINE_3}: must be a single value, not a list"),
    "no percentage": (_allocation("1f%"), f"{_LINE_3}: '1f' is no whole percentage of 0 to 100"),
    "a fraction": (_allocation("12.5%"), f"{_LINE_3}: '12.5' is no whole percentage of 0 to 100"),
    "too much": (_allocation("101%"), f"{_LINE_3}: '101' is no whole percentage of 0 to 100"),
    "nothing of it": (_allocation("0%"), f"{_LINE_3}: '0%' is nothing of the cache; hint: the least"),
    "range in a partition": (_allocation("50-60%"), f"{_LINE_3}: a partition cannot have a range such as 50-60%"),
    "bits that are none": (
        _allocation("3-c"),
        f"{_LINE_3}: '3-c' is no list of numbers and ranges such as 0,2,4-7; hint:",
    ),
    "no mask": (_allocation("0xgg"), f"{_LINE_3}: '0xgg' is no hexadecimal mask; hint: write"),
    "no cache id": (_allocation("{a: 5%}"), f"{_LINE_3}.a: not cache IDs: 'a' is no list of numbers"),
    "cache id twice": (_allocation("{0-2: 5%, 2: 6%}"), f"{_LINE_3}.2: cache 2 is there twice, first in line 3"),
    "huge cache id": (_allocation("{0-4294967296: 5%}"), f"{_LINE_3}.0-4294967296: not cache IDs: 4294967296 in"),
    "many cache ids": (_allocation("{0-9999: 5%}"), f"{_LINE_3}.0-9999: not cache IDs: '0-9999' has more than 4096"),
    "unified is missing": (_allocation("{all: {code: 5%, data: 5%}}"), f"{_LINE_3}.all: 'unified' is missing; hint:"),
    "data is missing": (
        _allocation("{all: {unified: 5%, code: 5%}}"),
        f"{_LINE_3}.all: has 'code' without 'data'; hint: write both or none",
    ),
    "code is missing": (
        _allocation("{all: {unified: 5%, data: 5%}}"),
        f"{_LINE_3}.all: has 'data' without 'code'; hint: write both or none",
    ),
    "range that falls": (
        "partitions: {p: {l3Allocation: 5%, classes: {c: {l3Allocation: 60-50%}}}}\n",
        "rdt.yaml:1: partitions.p.classes.c.l3Allocation: the range '60-50%' does not rise",
    ),
    "class without its partition's part": (
        "partitions: {p: {classes: {c: {l3Allocation: 5%}}}}\n",
        "rdt.yaml:1: partitions.p.classes.c.l3Allocation: the partition 'p' has no l3Allocation, of which the class",
    ),
    "bandwidth without its partition's": (
        "partitions: {p: {classes: {c: {mbAllocation: [5%]}}}}\n",
        "rdt.yaml:1: partitions.p.classes.c.mbAllocation: the partition 'p' has no mbAllocation, of which",
    ),
    "bandwidth that is no list": (
        "partitions: {p: {mbAllocation: 50%}}\n",
        'rdt.yaml:1: partitions.p.mbAllocation: must be a list of limits; hint: write a list of one or two limits: ["',
    ),
    "bandwidth without unit": (
        "partitions: {p: {mbAllocation: {0: [50]}}}\n",
        "rdt.yaml:1: partitions.p.mbAllocation.0[0]: '50' has no unit that is known here: % or MBps; hint: write",
    ),
    "bandwidth of another unit": (
        "partitions: {p: {mbAllocation: [5%, 1GBps]}}\n",
        "rdt.yaml:1: partitions.p.mbAllocation[1]: '1GBps' has no unit that is known here",
    ),
    "bandwidth twice": (
        "partitions: {p: {mbAllocation: [5%, 6%]}}\n",
        "rdt.yaml:1: partitions.p.mbAllocation[1]: '6%' is the second limit of its unit",
    ),
    "bandwidth that is too much": (
        "partitions: {p: {mbAllocation: [4294967296MBps]}}\n",
        "rdt.yaml:1: partitions.p.mbAllocation[0]: '4294967296MBps' is not 1 to 4294967295 MBps",
    ),
    "bandwidth in hexadecimal": (
        "partitions: {p: {mbAllocation: [0xffMBps]}}\n",
        "rdt.yaml:1: partitions.p.mbAllocation[0]:",
    ),
    "a partition is silent": (
        "partitions:\n p: {l3Allocation: 5%}\n q:\n",
        "rdt.yaml:2: partitions.p.l3Allocation: the partitions q have no l3Allocation; hint: if one partition has a",
    ),
    "too much together": (
        "partitions:\n p: {l3Allocation: 50%}\n q: {l3Allocation: {all: 51%, 3: 5%}}\n",
        "rdt.yaml:2: partitions.p.l3Allocation: L3, each cache that is not named: the partitions ask for 101% of"
        " unified together (p 50%, q 51%); hint: make it 100% at most",
    ),
    "too much data together": (
        "partitions:\n p: {l3Allocation: {1: &a {unified: 5%, code: 5%, data: 60%}}}\n q: {l3Allocation: {1: *a}}\n",
        "rdt.yaml:2: partitions.p.l3Allocation.1.data: L3, cache 1: the partitions ask for 120% of data together",
    ),
    "code and data in one partition alone": (
        "partitions:\n p: {l2Allocation: {all: {unified: 5%, code: 5%, data: 60%}}}\n q: {l2Allocation: 5%}\n",
        "rdt.yaml:2: partitions.p.l2Allocation.all.code: L2, each cache: the partitions q have no 'code'",
    ),
    "parts and masks": (
        "partitions:\n p: {l3Allocation: 50%}\n q: {l3Allocation: 0xf}\n",
        "rdt.yaml:3: partitions.q.l3Allocation: L3, each cache: 0xf is a mask, and 50% at rdt.yaml:2: partitions.p.l3A",
    ),
    "class outside its partition": (
        "partitions:\n p: {l3Allocation: {all: 0xff0, 3: 50%}, classes: {c: {l3Allocation: {3: 0xfff, 4: 0x1ff}}}}\n",
        "rdt.yaml:2: partitions.p.classes.c.l3Allocation.4: L3, cache 4: 0x1ff is bits 4-12 here, and only 4-11 are",
    ),
    "code without a cache": (_allocation("{code: 5%}"), f"{_LINE_3}.code: not cache IDs: 'code' is no list of numbers"),
    "overlap": (
        "partitions:\n p: {l3Allocation: 0xff}\n q: {l3Allocation: {all: 0xff00, 2: 0xff80}}\n",
        "rdt.yaml:3: partitions.q.l3Allocation.2: L3, cache 2: bits 7 of 0xff80 are also those of the partition 'p' (",
    ),
}


@pytest.mark.requirement("Q37", "Q40")
@pytest.mark.parametrize(("text", "message"), _ERRORS.values(), ids=_ERRORS)
def test_errors_name_the_place_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        _parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.requirement("Q80")
def test_the_hint_for_a_class_called_default() -> None:
    with pytest.raises(InvalidArgument) as caught:
        _parse("partitions: {p: {classes: {default: }}}\n")
    assert "container_defaults" in caught.value.hint


def test_what_only_some_machines_have_is_judged_there() -> None:
    """A partition that does not name cache 2 asks for all of it, which matters where cache 2 is."""
    found = _parse("partitions:\n p: {l3Allocation: {all: 50%}}\n q: {l3Allocation: {0: 50%, 1: 50%}}\n")
    assert [partition.name for partition in found.partitions] == ["p", "q"]


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "rdt.yaml"
    path.write_text(_EVERYTHING)
    assert configuration.load(path).source == str(path)
    path.write_text("partitions: 5\n")
    with pytest.raises(InvalidArgument, match=rf"^{path}:1: partitions: must be keys and values, not '5'$"):
        configuration.load(path)
