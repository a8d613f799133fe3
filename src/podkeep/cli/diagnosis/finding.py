"""What ``podkeep doctor`` finds: one value per thing looked at, and how it is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Pods run; something they may ask for does not work."""
    MISSING = "missing"
    """Pods do not run, or user namespaces do not work."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at. ``why`` and ``fix`` (a command, or what to change) are empty when it is in order."""

    name: str
    level: Level
    detail: str
    why: str = ""
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding as values for JSON."""
        return {**asdict(self), "level": self.level.value}

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
    """Return a finding that is in order."""
    return Finding(name=name, level=Level.OK, detail=detail)


def missing(name: str, detail: str, *, why: str, fix: str) -> Finding:
    """Return a finding without which pods do not run."""
    return Finding(name=name, level=Level.MISSING, detail=detail, why=why, fix=fix)


def warning(name: str, detail: str, *, why: str, fix: str) -> Finding:
    """Return a finding that limits what pods may ask for."""
    return Finding(name=name, level=Level.WARNING, detail=detail, why=why, fix=fix)


def report(findings: Sequence[Finding]) -> str:
    """Return all findings for a person, and a last line that sums them up."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for line in finding.lines(width)]
    counts = {level: sum(1 for finding in findings if finding.level is level) for level in Level}
    lines.append(", ".join(f"{count} {level.value}" for level, count in counts.items()))
    return "\n".join(lines)
