"""docs/isolation.md names every attack that the tests make, how it ends, and on which kernels that was seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import isolation
from support.attacks import ATTACKS, Attack, Who
from support.isolation import NoTable, Place, Run

ATTACK = Attack(name="attack", what="attack", note="why", lacking="built without it")
EXPECTED = {who: {attack.name: attack.expected(who) for attack in ATTACKS} for who in Who}


def run(kernel: str, *ended: str) -> Run:
    """Return a run of one attack, by everybody."""
    return Run(kernel=kernel, ended={who: {ATTACK.name: end} for who, end in zip(Who, ended, strict=True)})


ALL = run("6.1", "done", "EPERM", "done")
LACKING = run("6.18", *["built without it"] * 3)


def test_the_page_has_every_attack_and_no_empty_cell() -> None:
    rows = isolation.committed()
    assert [row["what is tried"] for row in rows] == [attack.what for attack in ATTACKS]
    assert {len(row) for row in rows} == {2 + len(Who)}
    assert all(cell for row in rows for cell in row.values())


def test_every_cell_is_what_the_tests_demand_on_some_kernel() -> None:
    for attack, row in zip(ATTACKS, isolation.committed(), strict=True):
        _, *cells, kernels = row.values()
        assert cells == [isolation.cell(attack, who, attack.expected(who)) for who in Who]
        assert kernels[0].isdigit()


def test_a_row_says_on_which_kernels_it_was_seen() -> None:
    cells = ["attack", "done", "`EPERM`", "**done**: why"]
    assert isolation.row(ATTACK, [ALL, dataclasses.replace(ALL, kernel="6.18")]) == [*cells, "6.1, 6.18"]
    assert isolation.row(ATTACK, [ALL, LACKING]) == [*cells, "6.1; 6.18: built without it"]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([LACKING], "attack, root of the machine: built without it on Linux 6.18"),
        (
            [ALL, run("6.18", "done", "EACCES", "done")],
            "attack, `hostUsers: false`: `EPERM` on Linux 6.1; `EACCES` on Linux 6.18",
        ),
        (
            [run("6.18", "built without it", "EPERM", "EPERM")],
            "attack: Linux 6.18 is without it for some only: built without it; EPERM; EPERM",
        ),
    ],
    ids=["no kernel", "two results", "lacking for root alone"],
)
def test_a_row_without_one_result_is_none(runs: list[Run], said: str) -> None:
    with pytest.raises(NoTable, match=r"^attack") as caught:
        isolation.row(ATTACK, runs)
    assert str(caught.value) == said


@pytest.mark.parametrize(("place", "said"), [(Place.NESTED, "make test"), (Place.HERE, "make nested")], ids=str)
def test_there_is_no_table_of_one_machine(place: Place, said: str, tmp_path: Path) -> None:
    isolation.keep(place, "6.1.0-1-amd64", EXPECTED, tmp_path)
    with pytest.raises(NoTable, match=f"^{said} has kept no attacks as: root of the machine, `hostUsers") as caught:
        isolation.kept(tmp_path)
    assert caught.value.hint == f"{said}, then make isolation"


def test_there_is_no_table_if_somebody_did_not_attack(tmp_path: Path) -> None:
    both: Mapping[Who, Mapping[str, str]] = {who: EXPECTED[who] for who in (Who.ROOT, Who.BLOCK)}
    isolation.keep(Place.NESTED, "6.1.0-1-amd64", EXPECTED, tmp_path)
    isolation.keep(Place.HERE, "6.18.1", both, tmp_path)
    with pytest.raises(NoTable, match=r"^make test has kept no attacks as: one mapping for the node$"):
        isolation.kept(tmp_path)


def test_there_is_no_table_if_a_machine_changed_its_kernel_between(tmp_path: Path) -> None:
    isolation.keep(Place.NESTED, "6.1.0-1-amd64", EXPECTED, tmp_path)
    isolation.keep(Place.HERE, "6.18.1", EXPECTED, tmp_path)
    isolation.keep(Place.HERE, "6.19.1", {Who.NODE: EXPECTED[Who.NODE]}, tmp_path)
    with pytest.raises(NoTable, match=r"^make test has kept attacks of several kernels: 6\.18, 6\.19$"):
        isolation.kept(tmp_path)


def test_a_table_of_two_machines(tmp_path: Path) -> None:
    for place, release in ((Place.NESTED, "6.1.0-1-amd64"), (Place.HERE, "6.18.1")):
        isolation.keep(place, release, EXPECTED, tmp_path)
    runs = isolation.kept(tmp_path)
    assert [run.kernel for run in runs] == ["6.1", "6.18"]
    lines = isolation.table(runs).splitlines()
    assert len(lines) == 2 + len(ATTACKS)
    assert all(line.endswith(" | 6.1, 6.18 |") for line in lines[2:])


def test_a_machine_with_another_kernel_has_the_same_results() -> None:
    found = [Run(kernel=kernel, ended=EXPECTED) for kernel in ("6.1", "7.3")]
    made = isolation.table(found)
    assert "6.1, 7.3" in made
    assert isolation.says_the_same(made)
    assert not isolation.says_the_same(made.replace("`EPERM`", "done", 1))


def test_a_machine_with_the_same_kernels_has_what_is_attacked() -> None:
    page = isolation.table([Run(kernel=kernel, ended=EXPECTED) for kernel in ("6.1", "6.18")])
    assert not isolation.says_the_same(page)  # which is a table of kernels that have everything


def test_what_differs_from_the_page_is_said() -> None:
    assert isolation.differences(Who.BLOCK, EXPECTED[Who.BLOCK]) == []
    lacking = {attack.name: attack.lacking for attack in ATTACKS if attack.lacking}
    assert lacking
    assert isolation.differences(Who.BLOCK, EXPECTED[Who.BLOCK] | lacking) == []
    (line,) = isolation.differences(Who.BLOCK, EXPECTED[Who.BLOCK] | {"reboot": "done"})
    assert line.startswith("reboot: **done**")
    assert line.endswith("here, `EPERM` in isolation.md")


def test_what_a_kernel_lacks_is_told_by_its_path_or_by_enosys() -> None:
    assert (ATTACK.lacks("EPERM"), ATTACK.lacks("ENOSYS")) == ("", "built without it")
    assert dataclasses.replace(ATTACK, needs="/nowhere").lacks("ENOENT") == "built without it"
    assert dataclasses.replace(ATTACK, needs="/proc").lacks("ENOENT") == ""
    assert dataclasses.replace(ATTACK, lacking="").lacks("ENOSYS") == ""
