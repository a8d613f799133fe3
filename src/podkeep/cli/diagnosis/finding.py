"""What ``podkeep doctor`` finds: one value per thing looked at, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

from podkeep.base.errors import PodkeepError
from podkeep.base.frozen import FrozenStruct


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Pods run; something they may ask for does not work."""
    MISSING = "missing"
    """Pods do not run, or user namespaces do not work."""


class Finding(FrozenStruct, kw_only=True):
    """One thing looked at. ``why`` and ``fix`` (a command, or what to change) are empty when it is in order."""

    name: str
    level: Level
    detail: str
    why: str = ""
    fix: str = ""

    def lines(self, width: int) -> list[str]:
        """Return the finding as lines for a person; ``width`` columns are for the name."""
        indent = " " * (9 + width + 2)
        found = [f"{self.level.value:<9}{self.name:<{width}}  {self.detail}"]
        if self.why:
            found.append(f"{indent}why: {self.why}")
        if self.fix:
            found.append(f"{indent}fix: {self.fix}")
        return found


def ok(name: str, detail: str) -> Finding:
    return Finding(name=name, level=Level.OK, detail=detail)


def missing(name: str, detail: str, *, why: str, fix: str) -> Finding:
    """Return a finding without which pods do not run."""
    return Finding(name=name, level=Level.MISSING, detail=detail, why=why, fix=fix)


def warning(name: str, detail: str, *, why: str, fix: str) -> Finding:
    """Return a finding that limits what pods may ask for."""
    return Finding(name=name, level=Level.WARNING, detail=detail, why=why, fix=fix)


def failed(
    name: str, error: PodkeepError | OSError, *, why: str, fix: str = "", level: Level = Level.MISSING
) -> Finding:
    """Return a finding for what ``error`` says; its hint, if it has one, goes before ``fix``."""
    said, hint = (error.message, error.hint) if isinstance(error, PodkeepError) else (str(error), "")
    return Finding(name=name, level=level, detail=said, why=why, fix=hint or fix)


def tried(name: str, look: Callable[[], str], *, why: str, fix: str = "") -> Finding:
    """Return what ``look`` finds in order, or why it failed.

    :param look: returns the detail; raises PodkeepError or OSError.
    """
    try:
        return ok(name, look())
    except (PodkeepError, OSError) as error:
        return failed(name, error, why=why, fix=fix)


def report(findings: Sequence[Finding]) -> list[str]:
    """Return all findings as lines for a person, and a last line that sums them up."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for text in finding.lines(width) for line in text.split("\n")]
    counts = Counter(finding.level for finding in findings)
    return [*lines, ", ".join(f"{counts[level]} {level.value}" for level in Level)]
