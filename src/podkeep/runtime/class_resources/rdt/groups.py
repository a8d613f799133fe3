"""Control groups of resctrl as a configuration wants them: made, adopted, rewritten and removed, all of it or nothing.

Owns: the order of these steps, taking them back, and notes of whose a group is. Does not own: what a group may use
(``allocation.py``), the tasks in it (``plugin.py``). A group that was there before and has the name of a class is
adopted: it is rewritten and never removed. Any other one of somebody else is never touched.

    establish ──▶ remove ours that no class has ──▶ make what is missing ──▶ write schemata ──▶ read back
                   │ a task is in it: it stays as it is, until its last task has ended
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec

from podkeep.base import atomicfile, failpoints
from podkeep.base.errors import FailedPrecondition, KernelCallError, PodkeepError, ResourceExhausted
from podkeep.base.undo import UndoStack
from podkeep.kernel.cgroup.resctrl import Group, Resctrl, ResctrlError
from podkeep.kernel.process import procfs
from podkeep.kernel.tables import GONE
from podkeep.runtime.class_resources.model import RDT_NOTES
from podkeep.runtime.class_resources.rdt import schemata, tasks
from podkeep.runtime.class_resources.rdt.monitoring import Monitoring

log = logging.getLogger(__name__)

DEFAULT = ""
"""The name of the default group."""
PSEUDO_LOCK = "pseudo-lock"
"""How the modes begin of groups that hold a part of a cache for one program, and have no schemata."""
PSEUDO_LOCKED = "pseudo-locked"
"""The mode of such a group when it is ready."""

Wanted = Mapping[str, Sequence[str]]
"""Names of groups to the lines of their schemata."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    boot: str
    resctrl: str
    """Where the file system is mounted."""
    groups: dict[str, str] = {}
    """Names to :meth:`podkeep.kernel.cgroup.resctrl.Resctrl.identity`; empty: about to be made."""
    default_changed: bool = False
    """The default group does not have everything any more."""


class Notes:
    """What was made or changed in one resctrl file system, in ``<root>/rdt-groups.json``. One thread changes it.

    Nothing of resctrl outlives a boot, so a note of another boot says nothing; nor does one of a group whose place
    somebody else's has taken since.

    Nothing of the file is kept in memory: during a reload there are two of these. What changes it raises
    :class:`KernelCallError` if the file cannot be written.
    """

    def __init__(self, root: Path, resctrl: Path) -> None:
        """Use the file in ``root``; while it cannot be read, every group is somebody else's."""
        self._file = root / RDT_NOTES
        self._empty = _Content(boot=procfs.boot_id(), resctrl=str(resctrl))

    @property
    def groups(self) -> dict[str, str]:
        """Names of groups to their identities; empty: not known, because making it was not finished."""
        return self._read().groups

    @property
    def default_changed(self) -> bool:
        return self._read().default_changed

    def __bool__(self) -> bool:
        return self._read() != self._empty

    def note(self, name: str, identity: str = "") -> None:
        """Note a group: before it is made, and again when its identity is known."""
        self._change(groups={**self.groups, name: identity})

    def forget(self, name: str) -> None:
        groups = self.groups
        if groups.pop(name, None) is not None:
            self._change(groups=groups)

    def note_default(self, changed: bool) -> None:
        if changed != self.default_changed:
            self._change(default_changed=changed)

    def _change(self, **changes: object) -> None:
        content = msgspec.structs.replace(self._read(), **changes)
        try:
            if content == self._empty:
                self._file.unlink(missing_ok=True)
            else:
                atomicfile.write(self._file, msgspec.json.encode(content))
        except OSError as error:
            raise KernelCallError(f"write({self._file})", error.errno or 0) from error

    def _read(self) -> _Content:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Content)
        except FileNotFoundError:
            return self._empty
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be read, so no group of resctrl is taken for podkeep's own: %s", self._file, error)
            return self._empty
        return found if (found.boot, found.resctrl) == (self._empty.boot, self._empty.resctrl) else self._empty


class ControlGroups:
    """The control groups of one resctrl file system. One thread at a time changes them.

    Every method raises :class:`ResctrlError` with what the kernel says if it refuses.
    """

    def __init__(self, resctrl: Resctrl, root: Path) -> None:
        """:param root: the runtime's persistent directory, which says what groups are its own."""
        self.resctrl, self.notes = resctrl, Notes(root, resctrl.root)

    def ours(self) -> set[str]:
        """Return the groups that this runtime has made and that are still there."""
        noted = self.notes.groups
        return {name for name in self.resctrl.groups() & noted.keys() if self._is_noted(name, noted[name])}

    def establish(self, wanted: Wanted, unlimited: Sequence[str] = ()) -> None:
        """Make what is there be what is wanted; if that fails, everything is as it was.

        :param wanted: with :data:`DEFAULT` also what the default group may use.
        :param unlimited: what the default group gets back without, if it was changed before.
        :raises ResourceExhausted: if the hardware has no CLOSID or RMID left.
        :raises FailedPrecondition: if another program has the lock, a group is pseudo-locked, or the kernel keeps
            something else than was written.
        """
        restricts, changed = DEFAULT in wanted, self.notes.default_changed
        if changed and not restricts:
            wanted = {**wanted, DEFAULT: unlimited}
        with self.resctrl.locked(), UndoStack() as undo:
            self._settle()
            # These first: each has a CLOSID that a new one may need.
            for name in sorted(self.ours() - wanted.keys()):
                if living := self._remove_unused(name, undo):
                    log.warning("resctrl group %s has no class any more and stays: %d tasks are in it", name, living)
            # Noted before it is changed, so that a daemon that starts after a kill knows to give it back.
            undo.push("note the default group of resctrl", partial(self.notes.note_default, changed))
            self.notes.note_default(changed or restricts)
            self._bring(wanted, undo)
            self.notes.note_default(restricts)

    def fix(self, name: str, lines: Sequence[str]) -> bool:
        """Give a group back what somebody else changed since :meth:`establish`; cheap if nobody did.

        :returns: whether it was missing, and so has no tasks.
        :raises PodkeepError: as :meth:`establish`.
        """
        try:
            changed = self.differences(name, lines)
        except ResctrlError as error:
            if error.errno not in GONE:
                raise
            changed = ["it is missing"]
        if not changed:
            return False
        log.warning("resctrl group %s is restored: %s", name or "/", "; ".join(changed))
        with self.resctrl.locked(), UndoStack() as undo:
            missing = name != DEFAULT and name not in self.resctrl.groups()
            self._bring({name: lines}, undo)
        return missing

    def differences(self, name: str, lines: Sequence[str]) -> list[str]:
        """Return, in words, in what a group differs from ``lines``; empty if in nothing."""
        return schemata.differences(tuple(lines), self.resctrl.schemata(name), step=self._bandwidth_step)

    def remove_unused(self, names: Collection[str]) -> None:
        """Remove those of the groups that are ours and have no task; the others stay."""
        with self.resctrl.locked(), UndoStack() as undo:
            for name in sorted(self.ours() & set(names)):
                self._remove_unused(name, undo)

    def _settle(self) -> None:
        """Complete the notes of groups that a daemon which was killed was about to make, or had removed."""
        there = self.resctrl.groups()
        for name, identity in self.notes.groups.items():
            if name not in there:
                self.notes.forget(name)
            elif not identity:
                self.notes.note(name, self.resctrl.identity(Group(name=name)))

    def _is_noted(self, name: str, identity: str) -> bool:
        try:
            return identity in {"", self.resctrl.identity(Group(name=name))}
        except ResctrlError:
            return False  # it was removed meanwhile

    def _remove_unused(self, name: str, undo: UndoStack) -> int:
        """Remove a group and return 0, or return how many tasks keep it."""
        group = Group(name=name)
        if living := tasks.in_use(self.resctrl, group):
            return living
        before = self.resctrl.schemata(name).splitlines()
        undo.push(f"make resctrl group {name} again", partial(self._recreate, name, before))
        self.resctrl.remove(group)
        self.notes.forget(name)
        log.info("removed resctrl group %s", name)
        return 0

    def _recreate(self, name: str, lines: Sequence[str]) -> None:
        with UndoStack() as undo:
            self._bring({name: lines}, undo)

    def _bring(self, wanted: Wanted, undo: UndoStack) -> None:
        """Make the groups that are missing, and let each use what is wanted; they do, or this raises."""
        for name in sorted(wanted.keys() - {DEFAULT} - self.resctrl.groups()):
            self._create(name, undo)
        failpoints.reach("rdt.groups.made")
        self._write(wanted, undo)
        for name, lines in wanted.items():
            if wrong := self.differences(name, lines):
                text = f"resctrl group {name or '/'} does not keep what was written: {'; '.join(wrong)}"
                raise FailedPrecondition(text)

    def _create(self, name: str, undo: UndoStack) -> None:
        group = Group(name=name)
        self.notes.note(name)
        # Noted before it is made: after a kill the next daemon knows it for its own (_settle).
        undo.push(f"remove resctrl group {name}", partial(self._discard, name))
        failpoints.reach("rdt.group.noted")
        try:
            self._make(group)
        except ResctrlError as error:
            # Nothing of ours is there, whoever made one of this name meanwhile.
            self.notes.forget(name)
            if error.errno == errno.EEXIST:
                return
            raise explain_creation(error, name, self.resctrl) from error
        self.notes.note(name, self.resctrl.identity(group))
        log.info("made resctrl group %s", name)

    def _make(self, group: Group) -> None:
        """Make a control group, at the cost of a monitoring group of ours if there is no RMID for it."""
        try:
            self.resctrl.create(group)
        except ResctrlError as error:
            if not (_lacks_rmid(error) and Monitoring(self.resctrl).give_up(self.ours(), group.name)):
                raise
            self.resctrl.create(group)

    def _discard(self, name: str) -> None:
        if name in self.notes.groups:
            self.resctrl.remove(Group(name=name))
            self.notes.forget(name)

    def _write(self, wanted: Wanted, undo: UndoStack) -> None:
        """Write schemata; those that only give something up go first, so that nothing is shared on the way.

        Where a group is exclusive the kernel refuses what overlaps with it. The other may be about to shrink, so what
        was refused is tried again as long as anything else succeeds.
        """
        for name in wanted:
            self._check_mode(name)
        before = {name: self.resctrl.schemata(name) for name in wanted}
        pending = [name for name, lines in wanted.items() if schemata.differences(tuple(lines), before[name])]
        pending.sort(key=lambda name: (gains(before[name], wanted[name]), name))
        while pending:
            refused: list[tuple[str, ResctrlError]] = []
            for name in pending:
                # Before the attempt: with mba_MBps a command that fails may have changed something.
                restore = partial(self.resctrl.write_schemata, name, before[name].splitlines())
                undo.push(f"restore resctrl group {name or '/'}", restore)
                try:
                    self.resctrl.write_schemata(name, wanted[name])
                except ResctrlError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    refused.append((name, error))
                failpoints.reach("rdt.schemata.written")
            if len(refused) == len(pending):
                raise refused[0][1]
            pending = [name for name, _ in refused]

    @cached_property
    def _bandwidth_step(self) -> int:
        """How far from what was written the kernel may show a bandwidth."""
        text = self.resctrl.info().get("MB/bandwidth_gran", "").strip()
        return int(text) if text.isdecimal() else 1

    def _check_mode(self, name: str) -> None:
        if (mode := self.resctrl.mode(name)).startswith(PSEUDO_LOCK):
            raise FailedPrecondition(
                f"resctrl group {name or '/'} is {mode}", hint="give the class another name, or remove that group"
            )


def gains(before: str, wanted: Sequence[str]) -> bool:
    """Say whether any cache mask grows from the text of a schemata file to the lines wanted; pure.

    Bandwidth is an amount, which nobody has for oneself, so there is no order to keep.
    """
    old, new = schemata.parse(before), schemata.parse("\n".join(wanted))
    return any(
        value & ~old.get(resource, {}).get(domain, 0)
        for resource, domains in new.items()
        if resource not in schemata.BANDWIDTH
        for domain, value in domains.items()
    )


def _lacks_rmid(error: ResctrlError) -> bool:
    # EBUSY: some are free, and still have lines in the cache.
    return "RMID" in error.status or error.errno == errno.EBUSY


def explain_creation(error: ResctrlError, name: str, resctrl: Resctrl) -> PodkeepError:
    """Return what to say when a control group cannot be made; ``error`` itself if there is nothing to add."""
    groups = ", ".join(["/", *sorted(resctrl.groups())])
    if error.errno == errno.ENOSPC and "CLOSID" in error.status:
        limits = {
            file.partition("/")[0]: int(text) for file, text in resctrl.info().items() if file.endswith("/num_closids")
        }
        has = ", ".join(f"{resource} {number}" for resource, number in sorted(limits.items()))
        return ResourceExhausted(
            f"no CLOSID is left for class {name!r}: the hardware has {min(limits.values(), default=0)} ({has}), and"
            f" there are the control groups {groups}; the kernel says: {error.status}",
            hint="configure fewer classes, or remove groups of other programs",
        )
    if _lacks_rmid(error):
        return ResourceExhausted(
            f"no RMID is left for class {name!r}: every control and monitoring group takes one; the control groups are"
            f" {groups}; the kernel says: {error.status or 'busy'}",
            hint="remove monitoring groups of other programs; an RMID is free some time after its group was removed",
        )
    if error.errno == errno.ENOSPC:
        return ResourceExhausted(
            f"no part of a cache is left for class {name!r}: groups in exclusive mode have it all; the control groups"
            f" are {groups}; the kernel says: {error.status}",
            hint="write shareable to the mode file of those groups, or remove them",
        )
    return error
