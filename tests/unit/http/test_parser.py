"""Who speaks HTTP/1.1 parses with what takes a time in proportion to what came."""

from __future__ import annotations

from pathlib import Path

import h11
import pytest

import podkeep
from podkeep.http.parser import MAX_INTERIM_ANSWERS, Parser

SOURCE = Path(podkeep.__file__).parent


def test_nobody_gives_h11_what_was_not_looked_at() -> None:
    users = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "h11.Connection(" in path.read_text()}
    # The parser is made of it.
    assert users == set()
    assert "(h11.Connection)" in (SOURCE / "http/parser.py").read_text()


def _asked() -> Parser:
    parser = Parser(h11.CLIENT, 1000)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    parser.send(h11.EndOfMessage())
    return parser


def test_interim_answers_have_an_end() -> None:
    parser = _asked()
    parser.receive_data(b"HTTP/1.1 103 a\r\n\r\n" * (MAX_INTERIM_ANSWERS + 1))
    for _ in range(MAX_INTERIM_ANSWERS):
        assert isinstance(parser.next_event(), h11.InformationalResponse)
    for _ in range(2):
        with pytest.raises(h11.RemoteProtocolError, match="too many 1xx informational responses"):
            parser.next_event()


def test_some_interim_answers_come_before_the_last() -> None:
    parser = _asked()
    parser.receive_data(b"HTTP/1.1 103 a\r\n\r\n" * MAX_INTERIM_ANSWERS)
    parser.receive_data(b"HTTP/1.1 200 a\r\nContent-Length: 0\r\n\r\n")
    for _ in range(MAX_INTERIM_ANSWERS):
        assert isinstance(parser.next_event(), h11.InformationalResponse)
    assert isinstance(parser.next_event(), h11.Response)
