"""Who speaks HTTP/1.1 parses with what takes a time in proportion to what came."""

from __future__ import annotations

from pathlib import Path

import podkeep

SOURCE = Path(podkeep.__file__).parent


def test_nobody_gives_h11_what_was_not_looked_at() -> None:
    users = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "h11.Connection(" in path.read_text()}
    # The parser is made of it.
    assert users == set()
    assert "(h11.Connection)" in (SOURCE / "http/parser.py").read_text()
