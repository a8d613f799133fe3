"""What ``/logs/`` answers, whatever the files there are called."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path

from podkeep.agent.server import system_logs


def test_a_list_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    """It leads to the file, and the others are listed as ever."""
    for name in (b"\xff.log", b"syslog"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    with ExitStack() as closing:
        answer = asyncio.run(system_logs.answer(str(tmp_path), (), closing))
    assert answer.body == b'<pre>\n<a href="syslog">syslog</a>\n<a href="%FF.log">?.log</a>\n</pre>\n'
