"""The code blocks of README and docs, and what is said of them in comments that readers do not see.

Comments directly above a block:

- ``<!-- not run: WHY -->``: it cannot be run by a test.
- ``<!-- first: COMMANDS -->``: what the reader has done before, as the text around the block says.
- ``<!-- when: TEXT -->``: the reader waits until TEXT was printed.
- ``<!-- output: WHY -->``: a console block whose output is different here; the commands are run all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
NOTES = frozenset({"not run", "first", "when", "output"})
RUN = frozenset({"sh", "console"})
_NOTE = re.compile(r"<!-- ([a-z ]+): (.+) -->")
_VARIABLE = re.compile(r"(…|\.\.\.)|([0-9a-f]{8,})|(\d+)|([^\d….]+|.)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; ``line`` is that of its fence."""

    document: str
    line: int
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it is."""
        return f"{self.document}:{self.line}"

    def commands(self) -> list[tuple[str, list[str]]]:
        """Return what is pasted, piece by piece, and the lines of output below each."""
        if self.language == "sh":
            return [(self.text, [])]
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("# "):
                found.append((line.removeprefix("# "), []))
            else:
                assert found, f"{self.place}: output without a command"
                found[-1][1].append(line)
        return found


def blocks(document: str) -> list[Block]:
    """Return the fenced blocks of a document in their order."""
    found: list[Block] = []
    notes: dict[str, str] = {}
    opened: tuple[int, str] | None = None
    text: list[str] = []
    for number, line in enumerate((ROOT / document).read_text().splitlines(), start=1):
        if opened is not None:
            if line == "```":
                start, language = opened
                body = "".join(f"{part}\n" for part in text)
                found.append(Block(document=document, line=start, language=language, text=body, notes=notes))
                opened, text, notes = None, [], {}
            else:
                text.append(line)
        elif line.startswith("```"):
            opened = number, line.removeprefix("```")
        elif note := _NOTE.fullmatch(line):
            notes[note[1]] = note[2]
        else:
            notes = {}
    assert opened is None, f"{document}: a block has no end"
    return found


def runnable(document: str) -> list[Block]:
    """Return the blocks of commands that are to be run."""
    return [block for block in blocks(document) if block.language in RUN and "not run" not in block.notes]


def missing(expected: list[str], output: str) -> list[str]:
    """Return the lines of an example that ``output`` does not have in this order.

    Numbers, IDs, and what is left out (``…``) may differ, and so may the width of columns.
    """
    lines = iter(output.splitlines())
    return [line for line in expected if not any(_pattern(line).fullmatch(actual.strip()) for actual in lines)]


def _pattern(line: str) -> re.Pattern[str]:
    def part(match: re.Match[str]) -> str:
        left_out, identity, number, rest = match.groups()
        if left_out:
            return ".*"
        return "[0-9a-f]+" if identity else r"\d+" if number else re.escape(rest)

    return re.compile(r"\s+".join(_VARIABLE.sub(part, word) for word in line.split()) + r"\s*")
