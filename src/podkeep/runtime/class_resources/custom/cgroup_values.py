"""Files of a cgroup that a class sets: written, read back, and what they held before put back afterwards.

Owns: that content. What a file held before, and what it reads since, is noted in an extended attribute of the cgroup,
so the note lives exactly as long as the cgroup does, a killed daemon included. Does not own: which files a class sets
(``plugin.py``), or limits that a request asks for (``runtime/lifecycle/resource_plan.py``). Called by the types of the
configuration, for one cgroup on one thread at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.tables import GONE

ATTRIBUTE = "trusted.podkeep.class-resources"
"""Of the cgroup; see :meth:`podkeep.kernel.cgroup.cgroups.Cgroups.set_attribute`."""

_FILE = re.compile(r"[a-z0-9_]+(\.[A-Za-z0-9_-]+)+")
_NOT_FOR_CLASSES = frozenset({"cgroup", "devices", "freezer"})
"""What files begin with that hold the cgroup itself, isolate, or keep what is killed from dying."""
_UNLIKE = "memory.oom_control"
"""It reads otherwise than it is written, and counts."""
_FILE_HINT = "name a file that sets a share or a limit, such as cpu.shares or memory.high"
_NUMBER = re.compile(r"([0-9]{1,20})([KMG]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a class set: what it read before, what it reads since, and what was written."""

    before: str
    after: str
    wrote: str = ""


_Notes = dict[str, dict[str, Noted]]
"""By type and file."""
_DECODER = msgspec.json.Decoder(_Notes)


def check_file(name: str, *, key: str) -> None:
    """Check the name of a file that a class sets.

    :param key: where it stands, for the message.
    :raises InvalidArgument: if it is a path, or a file by which podkeep or the kernel keeps the cgroup itself.
    """
    if not _FILE.fullmatch(name):
        raise InvalidArgument(f"{key}: {name!r} is no file of a controller", hint=_FILE_HINT)
    if name.partition(".")[0] in _NOT_FOR_CLASSES or name == _UNLIKE:
        raise InvalidArgument(f"{key}: {name} is not for classes", hint=_FILE_HINT)


def resetting(name: str, before: str, now: str) -> list[str]:
    """Return the lines to write so that the file ``name``, which reads ``now``, reads ``before`` again; pure.

    In files with a line for each device (cgroup-v2.rst, "Format": flat and nested keyed) a line goes if its key gets
    the value that stands for none.
    """
    kept, lines = before.splitlines(), now.splitlines()
    keys = {line.split(" ", 1)[0] for line in kept}
    dropped = [line for line in lines if line.split(" ", 1)[0] not in keys]
    if len(kept) == 1 and dropped == lines:  # one value
        return kept
    if not kept and not any(" " in line for line in lines):
        return ["\n"]
    return [*(_without_value(name, line) for line in dropped), *kept]


def _without_value(name: str, line: str) -> str:
    key, *values = line.split()
    if any("=" in value for value in values):
        return " ".join([key, *(f"{value.partition('=')[0]}=max" for value in values)])
    return f"{key} 0" if name.startswith("blkio.throttle.") else f"{key} default"


def differs(written: str, read: str) -> bool:
    """Say whether the kernel made another number of what was written; pure.

    It may round an amount of memory to pages. What is not one number it writes in forms of its own, and would have
    refused, or calls it invalid (cgroup-v2.rst, cpuset.cpus.partition).
    """
    if "invalid" in read.split():
        return True
    asked, found = _NUMBER.fullmatch(written.strip()), _NUMBER.fullmatch(read.strip())
    if asked is None or found is None:
        return False
    amounts = [int(match[1]) * _FACTORS[match[2].upper()] for match in (asked, found)]
    return amounts[0] != amounts[1] and (amounts[0] < _PAGE or abs(amounts[0] - amounts[1]) >= _PAGE)


class CgroupValues:
    """The files of one cgroup that the classes of one type set."""

    def __init__(self, cgroups: Cgroups, owner: str, cgroup: str) -> None:
        """:param owner: the type, by which what it sets is noted."""
        self._cgroups, self._owner, self._cgroup = cgroups, owner, cgroup

    def apply(self, wanted: Mapping[str, str]) -> None:
        """Make ``wanted`` the files that the type sets; files it set before read as ever.

        After an error some may be set; what all read before is noted for the next call, and for :meth:`release`.

        :raises FailedPrecondition: if there is no such file, or the kernel made something else of a value.
        :raises KernelCallError: if the kernel refuses.
        """
        noted = self._noted()
        now = {name: self._content(name) for name in (*wanted, *(name for name in noted if name not in wanted))}
        notes = {name: noted.get(name, Noted(before=now[name], after=now[name])) for name in now}
        self._note(notes)  # before a file changes: a daemon that is killed knows what it read
        steps = [partial(self._reset, name, notes[name].before) for name in now if name not in wanted]
        _in_possible_order([*steps, *(partial(self._write_lines, name, text) for name, text in wanted.items())])
        self._note(
            {
                # The kernel writes some values in forms of its own, so what it shows now is what later looks are
                # compared with.
                name: Noted(before=notes[name].before, after=self._content(name), wrote=text)
                for name, text in wanted.items()
            }
        )

    def wrote(self) -> dict[str, str]:
        """Return what :meth:`apply` was last told to make of the files."""
        return {name: each.wrote for name, each in self._noted().items()}

    def wrong(self, wanted: Mapping[str, str]) -> str:
        """Return which file is not as :meth:`apply` leaves it, and what it reads; empty if all are.

        What is written may be another text than when it was, and the files may be others.
        """
        noted = self._noted()
        for name in wanted:
            if name not in noted:
                return f"{name} was not set"
            if noted[name].wrote != wanted[name]:
                return f"{name} was set to {noted[name].wrote!r} and not to {wanted[name]!r}"
            now = self._content(name)
            if now != noted[name].after:
                return f"{name} reads {now.strip()!r} instead of {noted[name].after.strip()!r}"
        if more := sorted(noted.keys() - wanted.keys()):
            return f"{', '.join(more)} was set, and is not part of it"
        return ""

    def release(self) -> None:
        """Put back what the files read before; a cgroup that is gone, or was never set, is no error.

        :raises KernelCallError: if the kernel refuses.
        """
        noted = self._noted()
        if not noted:
            return
        try:
            _in_possible_order([partial(self._reset, name, each.before) for name, each in noted.items()])
        except KernelCallError as error:
            if error.errno not in GONE:
                raise
        # After the files: a daemon that is killed in between puts them back once more.
        self._note({})

    def _content(self, name: str) -> str:
        """Return what a file reads.

        :raises FailedPrecondition: if there is none.
        """
        found = self._cgroups.read(self._cgroup, name)
        if found is None:
            hint = f"this machine has cgroups of version {self._cgroups.version}, whose files have names of their own"
            raise FailedPrecondition(f"cgroup {self._cgroup} has no file {name}", hint=hint)
        return found

    def _write_lines(self, name: str, text: str) -> None:
        """Write every line of a value.

        :raises FailedPrecondition: if the kernel made something else of it.
        """
        for line in text.splitlines():  # the kernel takes one in a call
            self._cgroups.write(self._cgroup, name, line)
        now = self._content(name)
        if differs(text, now):
            hint = "write the class with a value that the kernel takes as it is"
            raise FailedPrecondition(f"{name}: wrote {text!r}, and it reads {now.strip()!r}", hint=hint)

    def _reset(self, name: str, content: str) -> None:
        """Make a file read ``content`` again; one that is gone needs nothing."""
        now = self._cgroups.read(self._cgroup, name)
        if now is None or now == content:
            return
        for line in resetting(name, content, now):
            self._cgroups.write(self._cgroup, name, line)

    def _all_noted(self) -> _Notes:
        text = self._cgroups.attribute(self._cgroup, ATTRIBUTE)
        return {} if text is None else _DECODER.decode(text)

    def _noted(self) -> dict[str, Noted]:
        return self._all_noted().get(self._owner, {})

    def _note(self, files: dict[str, Noted]) -> None:
        """Note what the type sets; nothing: it sets none."""
        notes = {**self._all_noted(), self._owner: files}
        if not files:
            del notes[self._owner]
        self._cgroups.set_attribute(self._cgroup, ATTRIBUTE, msgspec.json.encode(notes) if notes else None)


def _in_possible_order(steps: Sequence[Callable[[], None]]) -> None:
    """Take every step; one that the kernel refuses again after others were taken, which may have been in its way.

    One limit may have to stay below another (memory-v1: memory.limit_in_bytes, memory.memsw.limit_in_bytes).

    :raises KernelCallError: if it refuses one for good; the others are taken.
    """
    left = list(steps)
    while left:
        refused: list[tuple[Callable[[], None], KernelCallError]] = []
        for step in left:
            try:
                step()
            except KernelCallError as error:
                refused.append((step, error))
        if len(refused) == len(left):
            raise refused[0][1]
        left = [step for step, _ in refused]
