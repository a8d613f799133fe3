"""``/logs/``: files below a directory of the machine's logs, for whoever may read ``nodes/log``; off by default.

The directory is the machine's, what is in it is others': every path is resolved below it, no link is followed, and
nothing but regular files and directories is opened.
"""

from __future__ import annotations

import html
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from urllib.parse import quote

from podkeep.base.concurrency.tasks import on_thread
from podkeep.base.errors import PodkeepError
from podkeep.http.messages import Refused, Response
from podkeep.kernel.files import openat

_OWNER = "system logs"
"""Whose threads files are read on: they may be on any file system, and the agent's own steps do not wait for them."""
_PIECE = 64 * 1024
_MAX_ENTRIES = 10_000


async def answer(root: str, parts: tuple[str, ...], at_end: ExitStack) -> Response:
    """Return a file, or the list of a directory.

    :param at_end: closes the file.
    :raises Refused: 404, if there is none.
    """
    return await on_thread(partial(_answer, root, parts, at_end), owner=_OWNER)


def _answer(root: str, parts: tuple[str, ...], at_end: ExitStack) -> Response:
    with ExitStack() as closing:
        try:
            directory = openat.open_directory(root)
            closing.callback(os.close, directory)
            name = "/".join(parts) or "."
            # O_PATH first: opening a FIFO would block, and opening a device may do something; only then it is known
            # what it is.
            found = openat.openat2(directory, os.fsencode(name), os.O_PATH, openat.CONFINED)
            closing.callback(os.close, found)
            status = os.fstat(found)
            if stat.S_ISDIR(status.st_mode):
                body = _listing(openat.reopen(found, os.O_RDONLY))
                return Response(headers=[("Content-Type", "text/html; charset=utf-8")], body=body)
            if not stat.S_ISREG(status.st_mode):
                raise Refused(404, "404 page not found")
            file = openat.reopen(found, os.O_RDONLY)
            at_end.callback(os.close, file)
        except (OSError, PodkeepError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(404, "404 page not found") from error
    return Response(headers=[("Content-Type", "text/plain; charset=utf-8")], body=_pieces(file, status.st_size))


def _listing(directory: int) -> bytes:
    try:
        with os.scandir(directory) as entries:
            shown = islice(entries, _MAX_ENTRIES)
            names = [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in shown]
    finally:
        os.close(directory)
    lines = (f'<a href="{quote(os.fsencode(name))}">{html.escape(name)}</a>\n' for name in sorted(names))
    return f"<pre>\n{''.join(lines)}</pre>\n".encode(errors="replace")


async def _pieces(file: int, size: int) -> AsyncGenerator[bytes, None]:
    while size > 0 and (piece := await on_thread(partial(os.read, file, min(size, _PIECE)), owner=_OWNER)):
        size -= len(piece)
        yield piece
