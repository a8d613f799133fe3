"""What a campaign found, and the page that it prints at its end."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_NUMBERS = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|'[^']*'|/[^\s:,]*")


@dataclass
class Finding:
    """One kind of what must not be, with the first case that showed it."""

    case: str
    said: str
    count: int = 1


@dataclass
class Report:
    """The results of one campaign."""

    name: str
    seed: int
    cases: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    """MiB resident, each time that everything was removed."""
    threads: int = 0
    """When everything was removed last."""
    findings: dict[str, Finding] = field(default_factory=dict)

    def find(self, case: str, where: str, said: str) -> bool:
        """Note what must not be; return whether it is of a new kind."""
        key = f"{where}: {_NUMBERS.sub('_', said)[:160]}"
        if key in self.findings:
            self.findings[key].count += 1
            return False
        self.findings[key] = Finding(case, f"{where}: {said}")
        return True

    def lines(self) -> list[str]:
        """Return the page."""
        codes: Counter[str] = Counter()
        for name, count in self.answers.items():
            codes[name.rpartition(" ")[2]] += count
        total = ", ".join(f"{count} {name}" for name, count in codes.most_common())
        result = [f"{self.name}: seed {self.seed}, {self.cases} cases; {total}"]
        memory = " ".join(map(str, self.memory))
        result.append(f"  when everything was removed: {memory} MiB resident, {self.threads} threads at last")
        by_rpc: dict[str, list[str]] = {}
        for name, count in sorted(self.answers.items()):
            rpc, _, code = name.rpartition(" ")
            by_rpc.setdefault(rpc, []).append(f"{count} {code}")
        result += [f"  {rpc}: {', '.join(counts)}" for rpc, counts in by_rpc.items()]
        for item in self.findings.values():
            result += [
                f"  FOUND {item.count} times: {item.said[:1500]}",
                f"    again: python -m attack --seed {self.seed} --only {item.case}",
            ]
        result.append(f"  {len(self.findings)} kinds of findings")
        return result
