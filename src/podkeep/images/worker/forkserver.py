"""The fork server of image workers and of their unpack processes: started by the store, never imported by a server.

It is there while images are pulled and a while longer. It has seen neither a registry nor an image: whatever is a copy
of it begins clean.
"""

from __future__ import annotations

import os
from contextlib import suppress

from podkeep.base.errors import KernelCallError
from podkeep.images.layers import unpack
from podkeep.images.worker import worker
from podkeep.kernel.process import procfs
from podkeep.kernel.process.forkserver import Program, serve

_OOM_SCORE = 1000
"""That of pods without any requests (QoS class BestEffort): of all that have it, the kernel ends the largest first."""


def main() -> None:
    """Serve until the store ends."""
    # A unit gives the daemon -999, so that pods end before it. Images choose what these take, and pods do not pay.
    with suppress(KernelCallError):
        procfs.set_oom_score_adj(os.getpid(), _OOM_SCORE)
    # An unpack process must not ask for another, which would not be confined yet.
    serve({"worker": Program(main=worker.main, asks=True), "unpack": Program(main=unpack.main, pid_namespace=True)})
