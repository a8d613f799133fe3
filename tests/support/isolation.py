"""The table of docs/isolation.md: made of what the attacks of two test runs ended with, and compared with it.

``python -m support.isolation`` (``make isolation``) prints the table of the last runs and fails if the page has other
results, or if a run is missing; ``--write`` brings the page in step. Owns: ``.cache/isolation``, one file for
each machine and attacker.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from support.attacks import ATTACKS, Attack, Outcomes, Who
from support.escaped import DONE

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "isolation"
PAGE = ROOT / "docs" / "isolation.md"
_WHAT, _KERNELS = "what is tried", "on Linux"
_COLUMNS = {Who.ROOT: "root of the machine", Who.BLOCK: "`hostUsers: false`", Who.NODE: "one mapping for the node"}
_TABLE = re.compile(r"(?<=<!-- attacks: written by `make isolation WRITE=1` -->\n\n).*?\n(?=\n)", re.DOTALL)

_HINT = "how an attack ends is in tests/support/attacks.py, and the same on every kernel that has what is attacked"


class Place(StrEnum):
    """Which machine is attacked."""

    NESTED = "nested"
    """The emulated one (``make nested``)."""
    HERE = "here"
    """The one that the tests run on (``make test``)."""


class NoTable(Exception):
    """There is no whole table of what was kept; the message says why, ``hint`` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Run:
    """The attacks on one machine."""

    kernel: str
    """Its version: ``6.1``."""
    ended: Mapping[Who, Outcomes]


def keep(place: Place, release: str, ended: Mapping[Who, Outcomes], directory: Path = KEPT) -> None:
    """Keep what attacks ended with, for the table.

    :param release: of the kernel, as of uname(2).
    """
    directory.mkdir(parents=True, exist_ok=True)
    kernel = ".".join(release.split(".")[:2])
    for who, outcomes in ended.items():
        text = json.dumps({"kernel": kernel, "ended": outcomes}, indent=1)
        (directory / f"{place}-{who}.json").write_text(text)


def kept(directory: Path = KEPT) -> list[Run]:
    """Return what was kept, by machine.

    :raises NoTable: if some attacks were not made, or those of one machine on several kernels.
    """
    runs = []
    for place, command in {Place.NESTED: "make nested", Place.HERE: "make test"}.items():
        files = {who: directory / f"{place}-{who}.json" for who in Who}
        if missing := [_COLUMNS[who] for who, file in files.items() if not file.exists()]:
            raise NoTable(f"{command} has kept no attacks as: {', '.join(missing)}", f"{command}, then make isolation")
        found = {who: json.loads(file.read_text()) for who, file in files.items()}
        kernels = sorted({item["kernel"] for item in found.values()})
        if len(kernels) > 1:
            raise NoTable(
                f"{command} has kept attacks of several kernels: {', '.join(kernels)}", f"{command} once more"
            )
        runs.append(Run(kernel=kernels[0], ended={who: item["ended"] for who, item in found.items()}))
    return runs


def _is_lacking(ended: str) -> bool:
    return " " in ended


def cell(attack: Attack, who: Who, ended: str) -> str:
    """Return how an attack ended, for people."""
    if ended == DONE:
        return f"**done**: {attack.note}" if who is not Who.ROOT else DONE
    return f"allowed, then `{ended}`" if who is Who.ROOT else f"`{ended}`"


def row(attack: Attack, runs: list[Run]) -> list[str]:
    """Return the cells of one attack.

    :raises NoTable: if it ended differently on two kernels, or none has what is attacked, or not for everybody.
    """
    made, without = [], {}
    for run in runs:
        ended = [run.ended[who][attack.name] for who in Who]
        if not any(map(_is_lacking, ended)):
            made.append(run)
        elif len(set(ended)) == 1:
            without[run.kernel] = ended[0]
        else:
            said = f"Linux {run.kernel} is without it for some only: {'; '.join(ended)}"
            raise NoTable(f"{attack.what}: {said}", _HINT)
    cells = []
    for who in Who:
        found = {run.kernel: cell(attack, who, run.ended[who][attack.name]) for run in made}
        if len(set(found.values())) != 1:
            said = "; ".join(f"{text} on Linux {kernel}" for kernel, text in (found or without).items())
            raise NoTable(
                f"{attack.what}, {_COLUMNS[who]}: {said}", "a row has one result: see tests/support/attacks.py"
            )
        cells.append(next(iter(found.values())))
    kernels = ", ".join(dict.fromkeys(run.kernel for run in made))
    return [attack.what, *cells, "; ".join([kernels, *(f"{kernel}: {text}" for kernel, text in without.items())])]


def table(runs: list[Run]) -> str:
    """Return the table.

    :raises NoTable: if it would have no result in some cell, or two.
    """
    head = [_WHAT, *_COLUMNS.values(), _KERNELS]
    rows = [head, ["---"] * len(head), *(row(attack, runs) for attack in ATTACKS)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def committed() -> list[dict[str, str]]:
    """Return the rows of the page: cells by the names of their columns."""
    match = _TABLE.search(PAGE.read_text())
    assert match is not None, f"{PAGE.name} has no table"
    return rows_of(match[0])


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the rows of a table: cells by the names of their columns."""
    head, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in text.splitlines())
    return [dict(zip(head, cells, strict=True)) for cells in rows]


def says_the_same(made: str) -> bool:
    """Return whether the page has the results of a table, made on whichever kernels."""
    ours, theirs = rows_of(made), committed()
    if _kernels(ours) != _kernels(theirs):
        ours, theirs = ([{**row, _KERNELS: ""} for row in rows] for rows in (ours, theirs))
    return ours == theirs


def _kernels(rows: list[dict[str, str]]) -> set[str]:
    return {kernel for row in rows for kernel in re.findall(r"\b\d+\.\d+\b", row[_KERNELS])}


def differences(who: Who, ended: Outcomes) -> list[str]:
    """Return where attacks ended otherwise than the page says; what a machine lacks is nobody's result."""
    page = {row[_WHAT]: row for row in committed()}
    lines = []
    for attack in ATTACKS:
        if not _is_lacking(ended[attack.name]):
            here = cell(attack, who, ended[attack.name])
            there = page.get(attack.what, {}).get(_COLUMNS[who], "nothing")
            if here != there:
                lines.append(f"{attack.what}: {here} here, {there} in {PAGE.name}")
    return lines


def main() -> int:
    """Be the program; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m support.isolation", description="The table of attacks.")
    parser.add_argument("--write", action="store_true", help=f"bring {PAGE.name} in step")
    options = parser.parse_args()
    try:
        made = table(kept())
    except NoTable as error:
        print(error, f"hint: {error.hint}", sep="\n", file=sys.stderr)
        return 1
    print(made)
    page = PAGE.read_text()
    if options.write:
        PAGE.write_text(_TABLE.sub(lambda _: made, page))
    elif not says_the_same(made):
        print(
            f"{PAGE.relative_to(ROOT)} says something else", "hint: make isolation WRITE=1", sep="\n", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
