from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from podkeep.base.errors import NotFound
from podkeep.cli.core import output


def test_table_aligns_columns_and_leaves_no_trailing_space() -> None:
    columns: output.Columns[tuple[str, str]] = {"NAME": lambda row: row[0], "AGE": lambda row: row[1]}
    lines = output.table(columns, [("a-long-name", "1s"), ("b", "2d")])
    assert lines == ["NAME          AGE", "a-long-name   1s", "b             2d"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0s"), (-0.5, "0s"), (0, "0s"), (185.5, "3m5s"), (800 * 86400, "2y70d")]
)
def test_age(seconds: float, text: str) -> None:
    assert output.age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1_500_000, "1.43 MiB"), (3 << 40, "3 TiB")]
)
def test_size(count: int, text: str) -> None:
    assert output.size(count) == text


EVIL = "x\x1b]0;owned\x07\x9b31m\r\u202ey"
PLAIN = r"x\x1b]0;owned\x07\x9b31m\r\u202ey"


def test_what_others_wrote_gives_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.aligned([("N", "M"), (EVIL, "z")]) == ["N" + " " * len(PLAIN) + "  M", f"{PLAIN}   z"]
    assert output.error_text(NotFound(f"{EVIL}\nmore", hint=EVIL)) == f"podkeep: {PLAIN}\npodkeep: more\nhint: {PLAIN}"
    output.echo_line(EVIL)
    output.echo_json(EVIL)
    assert capsys.readouterr().out.splitlines() == [PLAIN, '"x\\u001b]0;owned\\u0007\\u009b31m\\r\\u202ey"']


class Wire(msgspec.Struct, frozen=True):
    name: str


@dataclass(frozen=True)
class Told:
    parts: tuple[Wire, ...]
    where: Path


def test_json_has_the_fields_of_what_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo_json(Told((Wire("a"),), Path("/x")))
    assert json.loads(capsys.readouterr().out) == {"parts": [{"name": "a"}], "where": "/x"}
