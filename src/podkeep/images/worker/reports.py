"""What an unpack process says of a layer. It has read what is hostile, so nothing it says is taken for granted.

A process that was taken over can make any tree, and say that it has any digest; what it cannot do is have the worker,
which is not confined, read or change what is not the layer's. Called by ``layers``. What the process *made* is checked
where it is opened (``snapshots``).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from podkeep.base.errors import Internal, InvalidArgument
from podkeep.base.ids import parse_digest
from podkeep.images.layers.messages import Refused, Unpacked

MOST = 256 << 20
"""Bytes of a report; the lists of directories in it have limits of their own (``rules``)."""
_decode = msgspec.json.Decoder(Unpacked | Refused).decode


def decode(line: bytes | bytearray, makes: Collection[tuple[str, str]]) -> Unpacked | Refused:
    """Return a report on a layer.

    :param makes: what may have been made of it, by driver and path (``Form.makes``).
    :raises Internal: if it says what no unpack process says.
    """
    try:
        report: Unpacked | Refused = _decode(line)
        if isinstance(report, Unpacked):
            if (report.tree.driver, report.tree.path) not in makes:
                raise ValueError(f"a layer in {report.tree.path!r} for {report.tree.driver!r}")
            parse_digest(report.digest)
    except (ValueError, RecursionError, InvalidArgument) as error:
        raise Internal(f"the unpack process said what it never says: {error}") from error
    return report
