"""``python -m support.traced``: podkeep, as ``python -m podkeep`` is, with a recorder of one kind of request.

``PODKEEP_TRACE_RPC`` names the request, ``PODKEEP_TRACE_FILE`` the file that gets a line of JSON (``tracing.Span``)
for each of them that was answered. ``support.workbench`` starts it and reads the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from podkeep.cli.main import main
from support.tracing import Recorder, Span

RPC, FILE = "PODKEEP_TRACE_RPC", "PODKEEP_TRACE_FILE"


def write(span: Span) -> None:
    """Append a record to the file."""
    with Path(os.environ[FILE]).open("ab") as records:
        records.write(msgspec.json.encode(span) + b"\n")


if __name__ == "__main__":
    Recorder(os.environ[RPC], write).install()
    main()
