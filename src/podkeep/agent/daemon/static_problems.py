"""What is wrong with static pods, in words: for the status of the daemon, and for events. Decides nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from podkeep.base.frozen import FrozenStruct

INVALID_STATIC_POD = "InvalidStaticPod"
STATIC_POD_NOT_SHOWN = "StaticPodNotShown"


class StaticProblems(FrozenStruct, kw_only=True):
    """Why static pods are not there, and why others are not seen where people look for pods."""

    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What is wrong with the files that are no pod, by path."""
    not_shown: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Why there is no mirror pod of those that run, by namespace and name."""

    def status(self, words: str) -> str:
        """Return ``words`` with the first problem, and how many more there are."""
        for _, what, problem in self._all():
            others = len(self.left_out) + len(self.not_shown) - 1
            more = f" (and {others} more)" if others else ""
            return f"{words}; {what}{more}: {problem}"
        return words

    @property
    def summary(self) -> str:
        """In few words; empty: nothing is wrong."""
        counts = (len(self.left_out), "left out"), (len(self.not_shown), "not shown in the API")
        said = [f"{count} static {'pod is' if count == 1 else 'pods are'} {what}" for count, what in counts if count]
        return ", ".join(said)

    def news(self, before: StaticProblems) -> list[tuple[str, str]]:
        """Return reason and message of an event for each problem that was not there before."""
        known = {*before._all()}
        return [(item[0], f"{item[1]}: {item[2]}") for item in self._all() if item not in known]

    def _all(self) -> Iterator[tuple[str, str, str]]:
        for name, problem in sorted(self.left_out.items()):
            yield INVALID_STATIC_POD, f"static pod {name} is left out", problem
        for name, problem in sorted(self.not_shown.items()):
            yield STATIC_POD_NOT_SHOWN, f"static pod {name} is not shown in the API", problem
