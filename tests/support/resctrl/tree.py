"""The files and directories of a resctrl file system, by path.

Owns: which there are, their modes, what reading gives and where writing goes. Does not own: what groups are
(``groups.py``), the file system itself (``server.py``).
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from support.resctrl.groups import Group, Groups, shown_list, shown_mask
from support.resctrl.hardware import Cache
from support.resctrl.schemata import Control, Refused

Write = Callable[[str, int], None]
"""Takes what is written and the thread that writes."""


@dataclass(frozen=True, kw_only=True)
class File:
    """One file; of a group, if it has one."""

    read: Callable[[], str]
    write: Write | None = None
    group: Group | None = None
    counter: tuple[int, str] | None = None
    """Of a file in ``mon_data``: domain and event."""

    @property
    def mode(self) -> int:
        """The file's type and permissions."""
        return stat.S_IFREG | (0o444 if self.write is None else 0o644)


@dataclass(frozen=True, kw_only=True)
class Directory:
    """One directory, and how it can be changed."""

    entries: Mapping[str, File | Directory]
    make: Callable[[str], None] | None = None
    """Makes a group in it."""
    remove: Callable[[str], None] | None = None
    """Removes a group from it."""
    groups: frozenset[str] = field(default_factory=frozenset)
    """The entries that are groups."""
    group: Group | None = None
    """The group that it is, or whose ``mon_groups``."""
    mode: int = stat.S_IFDIR | 0o755


class Tree:
    """All paths."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self._top: Directory | None = None
        """Everything there is, until a group comes or goes: files are made when they are read."""

    def find(self, path: str) -> File | Directory:
        """Return what is at a path.

        :raises Refused: ENOENT.
        """
        found: File | Directory = self._all()
        for name in path.split("/"):
            if name:
                if not isinstance(found, Directory) or name not in found.entries:
                    raise Refused(errno.ENOENT)
                found = found.entries[name]
        return found

    def make(self, parent: str, name: str) -> None:
        """Make a group.

        :raises Refused: as the kernel, EPERM where there are no groups.
        """
        directory = self.find(parent)
        if not isinstance(directory, Directory) or directory.make is None:
            raise Refused(errno.EPERM)
        self._top = None
        directory.make(name)

    def remove(self, parent: str, name: str) -> None:
        """Remove a group.

        :raises Refused: EPERM, if it is none.
        """
        directory = self.find(parent)
        if not isinstance(directory, Directory) or name not in directory.groups or directory.remove is None:
            raise Refused(errno.EPERM)
        self._top = None
        directory.remove(name)

    def move(self, old: str, new: str) -> None:
        """Move a group.

        :raises Refused: EPERM, if it is no monitoring group, or does not come to others; else as the kernel.
        """
        moved = self.find(old)
        to, _, name = new.rpartition("/")
        target = self.find(to)
        with self.groups.command():
            if not self.groups.hardware.movable_monitors:
                raise Refused(errno.EPERM)
            if not isinstance(moved, Directory):
                raise Refused(errno.EPERM, "Source and destination must be directories")
            if moved.group is None or moved.group.parent is None:
                raise Refused(errno.EPERM, "Source must be a MON group")
            if not isinstance(target, Directory) or not to.endswith("/mon_groups") or target.group is None:
                raise Refused(errno.EPERM, "Destination must be a mon_groups subdirectory")
        self._top = None
        self.groups.move_monitoring(moved.group, target.group, name)

    def identity(self, path: str) -> tuple[int, str]:
        """Return what stays the same as long as something is there: the serial of its group, and the path below it."""
        found: File | Directory = self._all()
        serial, below = self.groups.root.serial, ""
        for name in path.split("/"):
            if name:
                assert isinstance(found, Directory)
                is_group, found = name in found.groups, found.entries[name]
                below = f"{below}/{name}"
                if is_group and isinstance(found, Directory) and found.group is not None:
                    serial, below = found.group.serial, ""
        return serial, below

    def _all(self) -> Directory:
        if self._top is None:
            self._top = self._root()
        return self._top

    def _root(self) -> Directory:
        groups = self.groups
        entries: dict[str, File | Directory] = {"info": self._info()}
        entries |= self._control_group(groups.root)
        for name, group in groups.named.items():
            entries[name] = Directory(entries=self._control_group(group), group=group)
        return Directory(
            entries=entries,
            make=groups.make if groups.can_allocate else None,
            remove=groups.remove,
            groups=frozenset(groups.named),
        )

    def _control_group(self, group: Group) -> dict[str, File | Directory]:
        groups = self.groups
        entries = self._common(group)
        if groups.can_allocate:
            entries["schemata"] = File(
                read=lambda: groups.shown(group),
                write=lambda text, _: groups.write_schemata(group, text),
                group=group,
            )
            entries["size"] = File(read=lambda: groups.controls.sizes(group.closid), group=group)
            entries["mode"] = File(
                read=lambda: f"{group.mode}\n", write=lambda text, _: groups.write_mode(group, text), group=group
            )
        if groups.hardware.mb is not None and groups.hardware.mb.mbps:
            entries["mba_MBps_event"] = File(
                read=lambda: f"{group.mbps_event}\n",
                write=lambda text, _: groups.write_mbps_event(group, text),
                group=group,
            )
        if groups.hardware.monitoring is not None:
            entries["mon_groups"] = Directory(
                entries={
                    name: Directory(entries=self._common(item), group=item) for name, item in group.monitoring.items()
                },
                group=group,
                make=lambda name: groups.make_monitoring(group, name),
                remove=lambda name: groups.remove_monitoring(group, name),
                groups=frozenset(group.monitoring),
            )
        return entries

    def _common(self, group: Group) -> dict[str, File | Directory]:
        groups = self.groups
        entries: dict[str, File | Directory] = {
            "tasks": File(
                read=lambda: "".join(f"{tid}\n" for tid in groups.tasks(group)),
                write=lambda text, writer: groups.write_tasks(group, text, writer),
                group=group,
            ),
            "cpus": File(
                read=lambda: shown_mask(group.cpus, groups.hardware.cpus) + "\n",
                write=lambda text, _: groups.write_cpus(group, text, is_list=False),
                group=group,
            ),
            "cpus_list": File(
                read=lambda: shown_list(group.cpus) + "\n",
                write=lambda text, _: groups.write_cpus(group, text, is_list=True),
                group=group,
            ),
        }
        monitoring = groups.hardware.monitoring
        if monitoring is not None:
            entries["mon_data"] = Directory(
                entries={
                    f"mon_L3_{domain:02}": Directory(
                        entries={event: self._counter(group, domain, event) for event in monitoring.events}
                    )
                    for domain in monitoring.domains
                }
            )
        return entries

    @staticmethod
    def _counter(group: Group, domain: int, event: str) -> File:
        counter = (domain, event)
        return File(read=lambda: group.counters.get(counter, "0") + "\n", group=group, counter=counter)

    def _info(self) -> Directory:
        groups = self.groups
        entries: dict[str, File | Directory] = {"last_cmd_status": File(read=lambda: groups.status or "ok\n")}
        for control in groups.controls.all:
            entries[control.name] = Directory(entries=self._info_of(control))
        monitoring = groups.hardware.monitoring
        if monitoring is not None:
            entries["L3_MON"] = Directory(
                entries={
                    "num_rmids": _fixed(monitoring.num_rmids),
                    "mon_features": _fixed("\n".join(monitoring.events)),
                    "max_threshold_occupancy": _fixed(1 << 20),
                }
            )
        return Directory(entries=entries)

    def _info_of(self, control: Control) -> dict[str, File | Directory]:
        groups = self.groups
        entries: dict[str, File | Directory] = {"num_closids": _fixed(control.num_closids)}
        resource = control.resource
        if not isinstance(resource, Cache):
            return entries | {
                "min_bandwidth": _fixed(resource.min_bandwidth),
                "bandwidth_gran": _fixed(resource.bandwidth_gran),
                "delay_linear": _fixed(resource.delay_linear),
            }
        entries |= {
            "cbm_mask": _fixed(f"{resource.cbm_mask:x}"),
            "min_cbm_bits": _fixed(resource.min_cbm_bits),
            "shareable_bits": _fixed(f"{resource.shareable_bits:x}"),
            "bit_usage": File(read=lambda: groups.controls.bit_usage(control, resource, groups.modes()) + "\n"),
        }
        if resource.io_alloc:
            entries["io_alloc"] = _fixed("enabled")
        if resource.sparse_masks is not None:
            entries["sparse_masks"] = _fixed(int(resource.sparse_masks))
        return entries


def _fixed(value: object) -> File:
    return File(read=lambda: f"{value}\n")
