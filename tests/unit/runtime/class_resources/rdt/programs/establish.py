"""A daemon that makes its RDT classes, gold and silver; a failpoint kills it.

establish.py RESCTRL STATE_DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from podkeep.kernel.cgroup.resctrl import Resctrl
from podkeep.runtime.class_resources.rdt.groups import ControlGroups

ControlGroups(Resctrl(Path(sys.argv[1])), Path(sys.argv[2])).establish({"gold": ("L3:0=f;1=f",), "silver": ()})
