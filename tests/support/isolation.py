"""The table of docs/isolation.md: made of what the attacks of a test run ended with, and compared with it.

``python -m support.isolation`` (``make isolation``) prints the table of the last run and fails if the page says
something else; ``--write`` brings the page in step. Owns: ``.cache/isolation``, one file for each machine and attacker.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from support.attacks import ATTACKS, Attack, Who
from support.escaped import DONE

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "isolation"
PAGE = ROOT / "docs" / "isolation.md"
OLDER = "6.1"
"""The kernel of the nested machine, which has a column of its own."""
_COLUMNS = {Who.ROOT: "root of the machine", Who.BLOCK: "`hostUsers: false`", Who.NODE: "one mapping for the node"}
_OLDER_COLUMN = "Debian's Linux 6.1"
_SAME = "the same"
_TABLE = re.compile(r"(?<=<!-- attacks: written by `make isolation WRITE=1` -->\n\n).*?\n(?=\n)", re.DOTALL)

Outcomes = Mapping[str, str]
"""How each attack ended, by its name; of one that the machine lacks, what it lacks."""


def kernel() -> str:
    """Return the version of the kernel, ``6.18``."""
    return ".".join(os.uname().release.split(".")[:2])


def keep(who: Who, found: Mapping[str, str]) -> None:
    """Keep what the attacks ended with, for the table."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{kernel()}-{who}.json").write_text(json.dumps(_outcomes(found), indent=1))


def _outcomes(found: Mapping[str, str]) -> Outcomes:
    return {attack.name: attack.lacks or found[attack.name] for attack in ATTACKS}


def kept(older: bool) -> dict[Who, Outcomes]:
    """Return what was kept of the nested machine, or of the other one."""
    found = {}
    for path in sorted(KEPT.glob("*.json")):
        version, _, who = path.stem.partition("-")
        if (version == OLDER) is older:
            found[Who(who)] = json.loads(path.read_text())
    return found


def cell(attack: Attack, who: Who, outcomes: Outcomes) -> str:
    """Return how an attack ended, for people."""
    ended = outcomes[attack.name]
    if " " in ended:  # what the machine lacks
        return ended
    if ended == DONE:
        return f"**done**: {attack.note}" if who is not Who.ROOT else DONE
    return f"allowed, then `{ended}`" if who is Who.ROOT else f"`{ended}`"


def _in_older(attack: Attack, newer: Mapping[Who, Outcomes], older: Mapping[Who, Outcomes]) -> str:
    both = (Who.ROOT, Who.BLOCK)
    now, before = ([cell(attack, who, found[who]) for who in both] for found in (newer, older))
    if before[0] == before[1]:
        return before[0]
    return _SAME if now == before else "; ".join(before)


def table() -> str:
    """Return the table of what was kept; it has no column for whom nothing was kept of."""
    newer, older = kept(older=False), kept(older=True)
    columns = [who for who in Who if who in newer]
    rows = [["what is tried", *(_COLUMNS[who] for who in columns)]]
    rows += [[attack.what, *(cell(attack, who, newer[who]) for who in columns)] for attack in ATTACKS]
    if older:
        texts = (_OLDER_COLUMN, *(_in_older(attack, newer, older) for attack in ATTACKS))
        rows = [[*cells, text] for cells, text in zip(rows, texts, strict=True)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def committed() -> list[dict[str, str]]:
    """Return the rows of the page: cells by the names of their columns."""
    match = _TABLE.search(PAGE.read_text())
    assert match is not None, f"{PAGE.name} has no table"
    head, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in match[0].splitlines())
    return [dict(zip(head, cells, strict=True)) for cells in rows]


def differences(who: Who, found: Mapping[str, str]) -> list[str]:
    """Return where attacks ended otherwise than the page says, but for what one of the machines lacks."""
    if kernel() == OLDER:
        return []  # its column is of several attackers, and compared by :func:`main`
    outcomes, page = _outcomes(found), {row["what is tried"]: row for row in committed()}
    lines = []
    for attack in ATTACKS:
        here, there = cell(attack, who, outcomes), page.get(attack.what, {}).get(_COLUMNS[who], "nothing")
        if here != there and not attack.lacks and there != attack.lacking:
            lines.append(f"{attack.what}: {here} here, {there} in {PAGE.name}")
    return lines


def main() -> int:
    """Be the program; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m support.isolation", description="The table of attacks.")
    parser.add_argument("--write", action="store_true", help=f"bring {PAGE.name} in step")
    options = parser.parse_args()
    if Who.ROOT not in kept(older=False):
        print("no attacks were made", "hint: make test, and make nested", sep="\n", file=sys.stderr)
        return 1
    made = table()
    print(made)
    page = PAGE.read_text()
    if options.write:
        PAGE.write_text(_TABLE.sub(lambda _: made, page))
    elif made not in page:
        print(
            f"{PAGE.relative_to(ROOT)} says something else", "hint: make isolation WRITE=1", sep="\n", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
