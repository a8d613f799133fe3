"""Records that layers were synced, and ends without closing anything, as a machine that loses its power.

power_loss.py DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from podkeep.base.ids import Digest
from podkeep.images.store.database import ImageDatabase, LayerRecord

LAYER = Digest("sha256:" + 64 * "0")

if __name__ == "__main__":
    database = ImageDatabase(Path(sys.argv[1]) / "images.db")
    database.add([], [LayerRecord(id=LAYER, bytes=1, inodes=1, boot_id="this")])
    database.mark_synced([LAYER])
    os._exit(0)
