"""A machine for tests of the RDT model: the stand-in's rules without its file system, so that many can be tried."""

from __future__ import annotations

import re

from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.rdt import allocation, configuration, hardware
from support.resctrl import hardware as stand_in
from support.resctrl.groups import Groups
from support.resctrl.schemata import Refused
from support.resctrl.tree import Directory, File, Tree

NO_MB = stand_in.Hardware(l3=stand_in.Cache(min_cbm_bits=2, domains=(0, 1, 2, 3)))
NO_L3 = stand_in.Hardware(mb=stand_in.MemoryBandwidth(domains=(0, 1, 2, 3)))
MBPS = stand_in.Hardware(mb=stand_in.MemoryBandwidth(mbps=True, domains=(0, 1, 2, 3)))
FULL = stand_in.Hardware(l3=stand_in.Cache(domains=(0, 1, 2, 3)), mb=stand_in.MemoryBandwidth(domains=(0, 1, 2, 3)))
CDP = stand_in.Hardware(l3=stand_in.Cache(cdp=True, domains=(0, 1, 2, 3)))
L2 = stand_in.Hardware(l2=stand_in.Cache(cbm_mask=0xFF, num_closids=4, domains=(0, 1)))
L2_CDP = stand_in.Hardware(
    l2=stand_in.Cache(cdp=True, num_closids=8, domains=(0, 1, 2, 3)),
    l3=stand_in.Cache(cbm_mask=0xFFF, num_closids=4, domains=(0,)),
)
"""Code and data apart in L2 alone."""


class Machine:
    """One machine whose groups take what the kernel would take."""

    def __init__(self, machine: stand_in.Hardware) -> None:
        self.groups = Groups(machine)

    def info(self) -> dict[str, str]:
        """Return the files of ``info`` with their texts."""
        top = Tree(self.groups).find("info")
        assert isinstance(top, Directory)
        return {
            f"{name}/{file}": entry.read()
            for name, directory in top.entries.items()
            if isinstance(directory, Directory)
            for file, entry in directory.entries.items()
            if isinstance(entry, File)
        }

    def hardware(self) -> hardware.Hardware:
        """Return what our reader makes of it; the maximum of bandwidth as the kernel tells it when it refuses."""
        shown = [self.groups.controls.shown(closid) for closid in sorted(self.groups.modes().of)]
        mb = self.groups.hardware.mb
        maximum = None
        if mb is not None and not mb.mbps:
            try:
                self.groups.write_schemata(self.groups.root, f"MB:{mb.domains[0]}=4294967295\n")
            except Refused as error:
                maximum = int(re.findall(r"\d+", error.text)[-1])
        options = {"mba_MBps"} if mb is not None and mb.mbps else set()
        return hardware.read(self.info(), shown, mount_options=options, bandwidth_maximum=maximum)

    def plan(self, text: str, *, foreign: tuple[str, ...] = ()) -> allocation.Plan:
        """Return what the file ``text`` means here."""
        return allocation.plan(
            configuration.read(yamlfile.parse(text, source="rdt.yaml")), self.hardware(), foreign=foreign
        )

    def write(self, plan: allocation.Plan) -> dict[str, str]:
        """Make the groups of a plan and write their lines; return what their files show then.

        :raises Refused: what the kernel would refuse.
        """
        shown = {}
        for name, each in plan.classes.items():
            self.groups.make(name)
            group = self.groups.named[name]
            self.groups.write_schemata(group, "".join(f"{line}\n" for line in each.schemata))
            shown[name] = self.groups.controls.shown(group.closid)
        if plan.root:
            self.groups.write_schemata(self.groups.root, "".join(f"{line}\n" for line in plan.root.schemata))
            shown[""] = self.groups.controls.shown(0)
        return shown
