"""Allocates a block of user IDs for each of the pods, when it is told to, and prints where they begin.

allocate.py DIRECTORY POD-UID...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from podkeep.agent.poddirs import PodDirs
from podkeep.agent.user_namespaces import blocks as userns
from podkeep.base.ids import PodUID

dirs = PodDirs(Path(sys.argv[1]), "/run/s.sock")
sys.stdin.readline()
for uid in sys.argv[2:]:
    with dirs.locked():
        os.close(dirs.own(PodUID(uid)))
        print(userns.allocate(dirs.pods, uid, userns.default_range(110)).first)
