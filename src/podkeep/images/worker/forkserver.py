"""The fork server of image workers and of their unpack processes: started by the store, never imported by a server.

It is there while images are pulled and a while longer. It has seen neither a registry nor an image: whatever is a copy
of it begins clean.
"""

from __future__ import annotations

from podkeep.images.layers import unpack
from podkeep.images.worker import worker
from podkeep.kernel.process.forkserver import Program, serve


def main() -> None:
    """Serve until the store ends."""
    # An unpack process must not ask for another, which would not be confined yet.
    serve({"worker": Program(main=worker.main, asks=True), "unpack": Program(main=unpack.main, pid_namespace=True)})
