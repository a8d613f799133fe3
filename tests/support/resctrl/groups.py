"""The groups of a resctrl file system: what can be done to them, and what the kernel says when it cannot.

Owns: control and monitoring groups, CLOSIDs and RMIDs, their tasks, CPUs, modes and counters, and
``info/last_cmd_status``. Does not own: paths and files (``tree.py``), the values in schemata (``schemata.py``).
Behaviour and words are those of Linux 6.16, fs/resctrl. Of pseudo-locking there
are modes, and what groups in them have; not that others are kept out of what is locked.
"""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.resctrl.hardware import Hardware
from support.resctrl.membership import Membership
from support.resctrl.schemata import EXCLUSIVE, LOCKED, LOCKSETUP, SHAREABLE, Controls, Modes, Refused

Counter = tuple[int, str]
"""Domain and event."""


@dataclass(eq=False)
class Group:
    """A control group, or a monitoring group below one."""

    closid: int
    rmid: int
    serial: int
    """Never used again, as an inode's number of kernfs for a long time."""
    parent: Group | None = None
    """Of a monitoring group: its control group."""
    mode: str = SHAREABLE
    locked: str = ""
    """The line of ``schemata`` that is locked."""
    mbps_event: str = "mbm_local_bytes"
    """What the limit of MiB/s is compared with."""
    cpus: set[int] = field(default_factory=set)
    monitoring: dict[str, Group] = field(default_factory=dict)
    counters: dict[Counter, str] = field(default_factory=dict)
    removed: bool = False


class Groups:
    """All groups of one machine."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.controls = Controls(hardware)
        self._serials = itertools.count()
        self.root = Group(0, 0, next(self._serials), cpus=set(range(hardware.cpus)))
        self.named: dict[str, Group] = {}
        self.status = ""
        self._tasks = Membership(self.root)

    @property
    def can_allocate(self) -> bool:
        """Whether there is anything to allocate."""
        return bool(self.controls.all)

    def modes(self) -> Modes:
        """Return the modes of the CLOSIDs in use, without those whose values mean nothing yet."""
        return Modes({group.closid: group.mode for group in self._served() if group.mode != LOCKSETUP})

    def _served(self) -> list[Group]:
        """Return the groups that have a CLOSID."""
        return [group for group in (self.root, *self.named.values()) if group.mode != LOCKED]

    def shown(self, group: Group) -> str:
        """Return the content of a group's ``schemata``."""
        if group.mode == LOCKSETUP:
            return "".join(f"{item.name}:uninitialized\n" for item in self.controls.all)
        return group.locked or self.controls.shown(group.closid)

    @contextmanager
    def command(self) -> Iterator[None]:
        """Keep what is said about a command for ``info/last_cmd_status``."""
        self.status = ""
        try:
            yield
        except Refused as error:
            self.status += f"{error.text}\n" if error.text else ""
            raise

    def make(self, name: str) -> None:
        """Make a control group.

        :raises Refused: EINVAL for a name with a line feed, ENOSPC.
        """
        if "\n" in name:
            raise Refused(errno.EINVAL)
        with self.command():
            taken = {group.closid for group in self._served()}
            if self.hardware.l3 is not None and self.hardware.l3.io_alloc:
                taken.add(next(item.num_closids for item in self.controls.all if item.name.startswith("L3")) - 1)
            closid = next((number for number in range(self.controls.num_closids) if number not in taken), None)
            if closid is None:
                raise Refused(errno.ENOSPC, "Out of CLOSIDs")
            group = Group(closid, self._free_rmid(), next(self._serials))
            self.controls.init(closid, self.modes())
            self.named[name] = group

    def make_monitoring(self, parent: Group, name: str) -> None:
        """Make a monitoring group.

        :raises Refused: EINVAL for a name with a line feed, ENOSPC.
        """
        if "\n" in name:
            raise Refused(errno.EINVAL)
        with self.command():
            if name == "mon_groups":
                raise Refused(errno.EPERM)
            parent.monitoring[name] = Group(parent.closid, self._free_rmid(), next(self._serials), parent)

    def remove(self, name: str) -> None:
        """Remove a control group with all that is below it; tasks and CPUs go to the root."""
        group = self.named.pop(name)
        places = (group, *group.monitoring.values())
        self._tasks.move_all(self._tasks.in_place(*places), self.root)
        self.root.cpus |= group.cpus
        for place in places:
            place.removed = True

    def remove_monitoring(self, parent: Group, name: str) -> None:
        """Remove a monitoring group; its tasks stay in its control group."""
        group = parent.monitoring.pop(name)
        self._tasks.move_all(self._tasks.in_place(group), parent)
        group.removed = True

    def move_monitoring(self, group: Group, to: Group, name: str) -> None:
        """Move a monitoring group, with its tasks, to a control group, or give it another name.

        :raises Refused: EPERM, EEXIST.
        """
        parent = group.parent
        assert parent is not None
        with self.command():
            if group.cpus and parent is not to:
                raise Refused(errno.EPERM, "Cannot move a MON group that monitors CPUs")
            if name in to.monitoring:
                raise Refused(errno.EEXIST)
            parent.monitoring = {key: item for key, item in parent.monitoring.items() if item is not group}
            to.monitoring[name] = group
            group.parent, group.closid = to, to.closid

    def tasks(self, group: Group) -> list[int]:
        """Return the tasks of a group; a control group's are also those of its monitoring groups."""
        if group is self.root:
            return self._tasks.in_root(*group.monitoring.values())
        return self._tasks.in_place(group, *group.monitoring.values())

    def write_tasks(self, group: Group, text: str, writer: int) -> None:
        """Move tasks, one after the other; those before one that fails stay moved.

        :raises Refused: EINVAL, ESRCH.
        """
        with self.command():
            if group.mode in (LOCKSETUP, LOCKED):
                raise Refused(errno.EINVAL, "Pseudo-locking in progress")
            items = text.removesuffix("\n").split(",") if self.hardware.task_lists else [text]
            for position, item in enumerate(items):
                if not item and position == len(items) - 1:
                    return
                self._write_task(group, item.strip(), writer)

    def _write_task(self, group: Group, item: str, writer: int) -> None:
        parsed = re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", item)
        if parsed is None:
            raise Refused(errno.EINVAL, f"Task list parsing error pid {item}" if self.hardware.task_lists else "")
        digits = parsed[1]
        tid = int(digits, 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10)
        if tid >= 1 << 31:
            raise Refused(errno.EINVAL, f"Task list parsing error pid {item}" if self.hardware.task_lists else "")
        if tid and item.startswith("-"):
            raise Refused(errno.EINVAL, f"Invalid pid {item}")
        failed = f"\nError while processing task {tid}" if self.hardware.task_lists else ""
        tid = tid or writer
        try:
            if group.parent is not None and self._tasks.place_of(tid) not in (
                group.parent,
                *group.parent.monitoring.values(),
            ):
                raise Refused(errno.EINVAL, f"Can't move task to different control group{failed}")
            # Who is in a monitoring group of a control group leaves it when it is written to the control group.
            self._tasks.move(tid, group)
        except ProcessLookupError as error:
            raise Refused(errno.ESRCH, f"No task {tid}{failed}") from error

    def write_schemata(self, group: Group, text: str) -> None:
        """Take new values.

        :raises Refused: EINVAL.
        """
        line = _line(text)
        with self.command():
            if group.mode == LOCKED:
                raise Refused(errno.EINVAL, "Resource group is pseudo-locked")
            # What is locked must be nobody else's.
            alone = Modes({group.closid: EXCLUSIVE} if group.mode == LOCKSETUP else {})
            self.controls.write(line, group.closid, Modes(self.modes().of | alone.of))
            if group.mode == LOCKSETUP:
                group.mode, group.locked = LOCKED, f"{line}\n"

    def write_mode(self, group: Group, text: str) -> None:
        """Set whether the group shares.

        :raises Refused: EINVAL.
        """
        mode = _line(text)
        with self.command():
            if mode == LOCKSETUP and self.hardware.pseudo_locking and group is not self.root:
                if self.tasks(group):
                    raise Refused(errno.EINVAL, "Tasks assigned to resource group")
            elif mode not in (SHAREABLE, EXCLUSIVE):
                raise Refused(errno.EINVAL, "Unknown or unsupported mode")
            if mode == EXCLUSIVE and group.mode != EXCLUSIVE:
                self.controls.check_exclusive(group.closid, self.modes())
            group.mode = mode

    def write_mbps_event(self, group: Group, text: str) -> None:
        """Choose what the limit of MiB/s is compared with.

        :raises Refused: EINVAL.
        """
        event = _line(text)
        with self.command():
            monitoring = self.hardware.monitoring
            if monitoring is None or event not in monitoring.events or not event.startswith("mbm_"):
                raise Refused(errno.EINVAL, f"Unsupported event id '{event}'")
            group.mbps_event = event

    def write_cpus(self, group: Group, text: str, *, is_list: bool) -> None:
        """Give CPUs to a group; they are taken from the others.

        :raises Refused: EINVAL.
        """
        with self.command():
            try:
                wanted = _cpu_list(text) if is_list else _cpu_mask(text)
            except ValueError as error:
                raise Refused(errno.EINVAL, "Bad CPU list/mask") from error
            if not wanted <= set(range(self.hardware.cpus)):
                raise Refused(errno.EINVAL, "Can only assign online CPUs")
            if group.parent is not None:
                self._give_to_monitoring(group, group.parent, wanted)
            else:
                self._give(group, wanted)

    def _give(self, group: Group, wanted: set[int]) -> None:
        dropped = group.cpus - wanted
        if dropped and group is self.root:
            raise Refused(errno.EINVAL, "Can't drop CPUs from default group")
        self.root.cpus |= dropped
        for other in (self.root, *self.named.values()):
            if other is not group:
                other.cpus -= wanted
                for item in other.monitoring.values():
                    item.cpus -= wanted
        group.cpus = wanted
        for item in group.monitoring.values():
            item.cpus = set()

    @staticmethod
    def _give_to_monitoring(group: Group, parent: Group, wanted: set[int]) -> None:
        if not wanted <= parent.cpus:
            raise Refused(errno.EINVAL, "Can only add CPUs to mongroup that belong to parent")
        for other in parent.monitoring.values():
            if other is not group:
                other.cpus -= wanted
        group.cpus = wanted

    def _free_rmid(self) -> int:
        if self.hardware.monitoring is None:
            return 0
        controls = (self.root, *self.named.values())
        taken = {group.rmid for control in controls for group in (control, *control.monitoring.values())}
        for rmid in range(self.hardware.monitoring.num_rmids):
            if rmid not in taken:
                return rmid
        raise Refused(errno.ENOSPC, "Out of RMIDs")


def _line(text: str) -> str:
    if not text.endswith("\n"):
        raise Refused(errno.EINVAL)
    return text[:-1]


def shown_mask(cpus: set[int], count: int) -> str:
    """Return CPUs as a bitmap, in words of 32 bits (printk formats, ``%*pb``)."""
    value = sum(1 << cpu for cpu in cpus)
    words = []
    for start in range(0, count, 32):
        digits = (min(32, count - start) + 3) // 4
        words.append(f"{(value >> start) & 0xFFFFFFFF:0{digits}x}")
    return ",".join(reversed(words))


def shown_list(cpus: set[int]) -> str:
    """Return CPUs as ranges (printk formats, ``%*pbl``)."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _cpu_mask(text: str) -> set[int]:
    value = 0
    for word in text.strip().split(","):
        value = value << 32 | int(word, 16)
    return {bit for bit in range(value.bit_length()) if value >> bit & 1}


def _cpu_list(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
