"""The type ``oom``: how likely the kernel ends a container's processes when memory is short.

Owns: classes of ``oom_score_adj`` (proc_pid_oom_score_adj(5)), given to the processes of a container. A class wins over
the number in the request's resources, so that what a client derived from other values can be overruled (KEP-3008, Pod
QoS class). Does not own: limits of memory.

A process may raise its own value, and children inherit it. Such a choice is left alone: a change moves the processes
that have the value they were given. That, and the value before the first class, is noted in extended attributes of the
cgroup, so that a daemon that starts knows it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.model import OOM, ClassResource, Level, Offer, Target, check_class, problem
from podkeep.runtime.oci.compose import Config, setting

log = logging.getLogger(__name__)

_BEFORE = "trusted.podkeep.oom-score-adj"
"""Extended attribute of a container's cgroup: the value that its processes had before they were put into a class."""
_GIVEN = "trusted.podkeep.oom-score-given"
"""Extended attribute of a container's cgroup: the value that its processes were given last.

While another one is being given, those before it as well.
"""
_RANGE = range(-1000, 1001)
_MAX_PASSES = 100
"""Times that a container's processes are looked through before it is taken for one that starts others for ever."""


class Oom(ClassResource):
    """See the module."""

    name = OOM

    def __init__(self, classes: Mapping[str, int], *, cgroups: Cgroups, floor: int = -1000) -> None:
        """Offer ``classes``.

        :param floor: the lowest value that this process may give; see ``confinement.oom_score_floor``.
        """
        self._scores = dict(sorted(classes.items()))
        self._cgroups, self._floor = cgroups, floor
        self._offers = {Level.CONTAINER: Offer(classes=tuple(self._scores))} if classes else {}

    def offers(self) -> Mapping[Level, Offer]:
        return self._offers

    def why_not(self, level: Level) -> str:
        if level is Level.POD:
            return "the kernel has no oom_score_adj of several processes together"
        return "" if self._scores else "class_resources.oom has no classes"

    def check(self, _level: Level, class_name: str) -> None:
        """Every class can be given; of one that is below the floor as much as this process may."""
        wanted, given = self._scores[class_name], self._score(class_name)
        if wanted != given:
            log.warning(
                "%s",
                problem(
                    OOM,
                    f"class {class_name}: attempted {wanted}, and given {given}: the runtime has no CAP_SYS_RESOURCE",
                ),
            )

    def _score(self, class_name: str) -> int:
        return max(self._scores[class_name], self._floor)

    def edit(self, class_name: str, config: Config) -> Config:
        return setting("process", oomScoreAdj=self._score(class_name))(config)

    def entering(self, target: Target, class_name: str) -> Callable[[int], None] | None:
        # Not every OCI runtime gives a command the value of the process it is told to run (crun 1.8 does not).
        if class_name in self._scores:
            return partial(procfs.set_oom_score_adj, score=self._score(class_name))
        first = target.process
        return None if first is None else lambda pid: procfs.set_oom_score_adj(pid, procfs.oom_score_adj(first.pid))

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        if previous is None:
            self._note_before(target, self._score(class_name))
        self._give(target, self._score(class_name), {self._score(previous)} if previous in self._scores else ())

    def way_back(self, target: Target, class_name: str, previous: str | None) -> Callable[[], None]:
        given = self._noted(target, _GIVEN)
        if previous is None or not given:
            return super().way_back(target, class_name, previous)
        return partial(self._give, target, given[-1], {self._score(class_name)})

    def _give(self, target: Target, score: int, followers: Collection[int]) -> None:
        """Give ``score`` to the processes that were given another, or have one of ``followers``."""
        given = self._noted(target, _GIVEN)
        self._note(target, _GIVEN, *given, score)  # first: whoever takes it back knows who was given what
        self._move_all(target, score, {*given, *followers} if given else None)
        self._note(target, _GIVEN, score)

    def _note_before(self, target: Target, score: int) -> None:
        if target.process is None or self._noted(target, _BEFORE):
            return
        with suppress(NotFound):
            has = procfs.oom_score_adj(target.process.pid)
            if has != score:
                self._note(target, _BEFORE, has)

    def _move_all(self, target: Target, score: int, followers: Collection[int] | None) -> None:
        """Give ``score`` to the processes that have one of ``followers``, or too little; None: to all.

        Also to those that are started meanwhile. Too little is no choice of theirs: to lower it takes a privilege.
        """
        for _ in range(_MAX_PASSES):
            moved = False
            for pid in self._processes(target):
                try:
                    has = procfs.oom_score_adj(pid)
                    if has == score or (followers is not None and has > score and has not in followers):
                        continue
                    procfs.set_oom_score_adj(pid, score)
                except NotFound:
                    continue
                moved = True
            if not moved:
                return
        raise FailedPrecondition(problem(OOM, f"{target.name} starts processes faster than they can be changed"))

    def _processes(self, target: Target) -> list[int]:
        # 0 is a process that has no ID in this PID namespace.
        found = [pid for pid in self._cgroups.members(target.cgroup) if pid > 0]
        if target.process is not None and target.process.pid not in found and procfs.alive(target.process):
            found.append(target.process.pid)
        return found

    def verify(self, target: Target, class_name: str) -> None:
        wanted = self._score(class_name)
        if target.process is None:
            return
        try:
            has = procfs.oom_score_adj(target.process.pid)
        except NotFound:
            return
        given = self._noted(target, _GIVEN)
        # It may have raised it itself by now. What it was given may be what the class meant once.
        if (has < wanted or (has in given and has != wanted)) and procfs.alive(target.process):
            raise FailedPrecondition(
                problem(OOM, f"{target.name} has oom_score_adj {has}, and class {class_name} is {wanted}"),
                hint="something else than podkeep changed it",
            )

    def release(self, target: Target, class_name: str) -> None:
        """Give what still lives the value that it had before its first class; else a value ends with its process."""
        before, given = self._noted(target, _BEFORE), self._noted(target, _GIVEN)
        if before:
            self._move_all(target, before[0], given or None)
        for attribute in (_BEFORE, _GIVEN):
            self._note(target, attribute)

    def _noted(self, target: Target, attribute: str) -> list[int]:
        """Return the values that a cgroup's attribute has, the last one last; none if there is no such attribute."""
        return [int(value) for value in (self._cgroups.attribute(target.cgroup, attribute) or b"").split()]

    def _note(self, target: Target, attribute: str, *scores: int) -> None:
        """Note values with the cgroup, so that a daemon that is killed meanwhile can give them back; none: forget."""
        self._cgroups.set_attribute(target.cgroup, attribute, b" ".join(b"%d" % score for score in scores) or None)

    def describe(self) -> dict[str, Any]:
        return {"classes": {name: self._describe(name) for name in self._scores}, "floor": self._floor}

    def _describe(self, class_name: str) -> dict[str, int]:
        wanted, given = self._scores[class_name], self._score(class_name)
        return {"oomScoreAdj": given} | ({"attempted": wanted} if wanted != given else {})


def check(classes: Mapping[str, int]) -> None:
    """Check the classes of the configuration; pure.

    :raises InvalidArgument: naming the class that cannot be.
    """
    for name, score in classes.items():
        check_class(name, key="class_resources.oom")
        if score not in _RANGE:
            raise InvalidArgument(f"class_resources.oom.{name}: {score} is not between -1000 and 1000")
