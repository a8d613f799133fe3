"""Limits of processes: the configuration's form, and clamping."""

from __future__ import annotations

import resource

import pytest

from podkeep.base.config import RuntimeConfig
from podkeep.base.errors import InvalidArgument
from podkeep.runtime.oci import rlimits
from podkeep.runtime.oci.rlimits import UNLIMITED, Rlimit


def test_the_default() -> None:
    assert rlimits.parse(RuntimeConfig().default_rlimits) == (Rlimit(name="nofile", soft=1024, hard=524288),)


@pytest.mark.parametrize(
    ("text", "soft", "hard"),
    [("5:6", 5, 6), ("7", 7, 7), ("unlimited", UNLIMITED, UNLIMITED), ("0:unlimited", 0, UNLIMITED)],
)
def test_forms(text: str, soft: int, hard: int) -> None:
    assert rlimits.parse({"core": text}) == (Rlimit(name="core", soft=soft, hard=hard),)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("files", "1"), ("NOFILE", "1"), ("ofile", "1"), ("", "1"),
        *(("nofile", text) for text in ("", "a", "-1", "1:", ":1", "2:1", "1:2:3", "unlimited:5", "1.5", "9" * 30)),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, text: str) -> None:
    if (name, text) == ("nofile", "1:"):
        # Nothing after the colon is as no colon.
        assert rlimits.parse({name: text}) == (Rlimit(name=name, soft=1, hard=1),)
        return
    with pytest.raises(InvalidArgument, match=r"runtime\.default_rlimits"):
        rlimits.parse({name: text})


def test_clamped_to_what_may_be_given() -> None:
    limits = (Rlimit(name="nofile", soft=1024, hard=524288), Rlimit(name="core", soft=UNLIMITED, hard=UNLIMITED))
    assert rlimits.to_oci(limits, ceilings={}) == [
        {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 524288},
        {"type": "RLIMIT_CORE", "soft": UNLIMITED, "hard": UNLIMITED},
    ]
    assert rlimits.to_oci(limits, ceilings={"nofile": 512, "core": 0}) == [
        {"type": "RLIMIT_NOFILE", "soft": 512, "hard": 512},
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
    ]


def test_own_ceilings() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert rlimits.own_ceilings()["nofile"] == (UNLIMITED if hard == resource.RLIM_INFINITY else hard)
    assert {"nofile", "nproc", "core", "memlock", "stack"} <= rlimits.own_ceilings().keys()
