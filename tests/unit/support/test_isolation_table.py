"""docs/isolation.md names every attack that the tests make, and how it ends, or why it cannot be made."""

from __future__ import annotations

from support import isolation
from support.attacks import ATTACKS, Who


def test_the_page_has_every_attack_and_no_empty_cell() -> None:
    rows = isolation.committed()
    assert [row["what is tried"] for row in rows] == [attack.what for attack in ATTACKS]
    assert {len(row) for row in rows} == {1 + len(Who)}
    assert all(cell for row in rows for cell in row.values())


def test_every_cell_is_what_the_tests_demand_or_what_the_machine_lacks() -> None:
    for attack, row in zip(ATTACKS, isolation.committed(), strict=True):
        _, *cells = row.values()
        demanded = [isolation.cell(attack, who, {attack.name: attack.expected(who)}) for who in Who]
        assert cells in (demanded, [attack.lacking] * len(Who))
