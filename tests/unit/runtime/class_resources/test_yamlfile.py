"""The strict reader of files of classes: places, duplicates, unknown keys, merge keys, hostile input."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.class_resources import yamlfile
from support.opening import never_opened


def _parse(text: str) -> yamlfile.Node:
    return yamlfile.parse(text, source="f.yaml")


def _message(text: str, read: str = "entries") -> str:
    with pytest.raises(InvalidArgument) as caught:
        getattr(_parse(text), read)()
    return str(caught.value)


def test_entries_keep_order_and_place() -> None:
    root = _parse("b: 1\na:\n  c: [x, y]\n")
    entries = root.entries()
    assert list(entries) == ["b", "a"]
    assert [entries["a"].line, entries["a"].path] == [2, ("a",)]
    second = entries["a"].entries()["c"].items()[1]
    assert (second.text(), str(second.error("is odd"))) == ("y", "f.yaml:3: a.c[1]: is odd")


@pytest.mark.parametrize("text", ["", "# only words\n", "~\n", "null\n"])
def test_nothing_written(text: str) -> None:
    root = _parse(text)
    assert root.is_null
    assert root.entries() == {}
    assert root.fields({"a"}) == {}
    assert root.items() == []


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "{a: 1, b: 2,\n\na: 3}\n"])
def test_a_key_twice(text: str) -> None:
    assert _message(text) == "f.yaml:3: a: is there twice, first in line 1"


def test_a_field_in_any_case_and_twice() -> None:
    root = _parse("L3allocation: 5\n")
    assert root.fields({"l3Allocation"})["l3Allocation"].text() == "5"
    with pytest.raises(InvalidArgument, match=r"^f.yaml:2: l3Allocation: is there twice, first in line 1$"):
        _parse("L3allocation: 5\nl3Allocation: 6\n").fields({"l3Allocation"})


def test_a_key_cannot_break_a_message_into_lines() -> None:
    with pytest.raises(InvalidArgument) as caught:
        _parse('"a\\nb": 1\n').fields({"c"})
    assert caught.value.message == "f.yaml:1: 'a\\nb': unknown key"


def test_an_unknown_field_is_named_with_what_was_meant() -> None:
    with pytest.raises(InvalidArgument) as caught:
        _parse("options:\n  l4: 1\nl3Alocation: 1\n").fields({"options", "l3Allocation"})
    assert caught.value.message == "f.yaml:3: l3Alocation: unknown key"
    assert caught.value.hint == "did you mean l3Allocation?"
    with pytest.raises(InvalidArgument) as caught:
        _parse("zzz: 1\n").fields({"b", "a"})
    assert caught.value.hint == "known here: a, b"


@pytest.mark.parametrize(
    ("text", "read", "message"),
    [
        ("- a\n", "entries", "f.yaml:1: must be keys and values, not a list"),
        ("a\n", "entries", "f.yaml:1: must be keys and values, not 'a'"),
        ("a: 1\n", "items", "f.yaml:1: must be a list, not keys and values"),
        ("", "text", "f.yaml:1: must be a single value, not nothing"),
        ("[]", "text", "f.yaml:1: must be a single value, not a list"),
        ("yes", "boolean", "f.yaml:1: must be true or false, not 'yes'"),
        ("'true'", "boolean", "f.yaml:1: must be true or false, not 'true'"),
        ("-", "text", "f.yaml:1: must be a single value, not a list"),
        ("[1, 2]: x", "entries", "f.yaml:1: a key must be a single value"),
    ],
)
def test_wrong_kinds(text: str, read: str, message: str) -> None:
    assert _message(text, read) == message


def test_values() -> None:
    assert _parse("0xff").text() == "0xff"
    assert _parse("'0xff'").text() == "0xff"
    assert _parse("2001-01-01").text() == "2001-01-01"
    assert [_parse("True").boolean(), _parse("false").boolean()] == [True, False]


def test_merge_keys() -> None:
    root = _parse("x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz:\n  <<: [*y, *x]\n  c: 3\n")
    assert {key: node.text() for key, node in root.entries()["z"].entries().items()} == {"c": "3", "b": "2", "a": "1"}
    assert "must name keys and values to take over" in _message("<<: 5\n")
    assert "takes itself over" in _message("&a\n<<: *a\n")


def _chain(length: int, named: str) -> str:
    links = [f"m{number}: &m{number} {{k{number}: 1, <<: {named.format(number - 1)}}}" for number in range(1, length)]
    return "\n".join(["m0: &m0 {k0: 1}", *links])


def test_what_is_merged_twice_is_looked_at_once() -> None:
    last = _parse(_chain(35, "[*m{0}, *m{0}]")).entries()["m34"]
    assert set(last.entries()) == {f"k{number}" for number in range(35)}


@pytest.mark.slow
def test_merging_has_an_end() -> None:
    with pytest.raises(InvalidArgument, match="takes over more than 40 levels deep"):
        _parse(_chain(5000, "*m{0}")).entries()["m4999"].entries()


def test_two_nodes_that_merge_each_other() -> None:
    node = _parse("&a\nx: 1\n<<: {y: 2, <<: *a}\n")
    with pytest.raises(InvalidArgument, match="takes itself over"):
        node.entries()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "f.yaml:2: not YAML: "),
        ("a: *nothing\n", "f.yaml:1: not YAML: "),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document"),
        (
            "a: !!python/object/apply:os.system [x]\n",
            "f.yaml:1: the tag tag:yaml.org,2002:python/object/apply:os.system",
        ),
        ("\n" + "[" * 5000, "f.yaml:2: nested more than 40 levels deep"),
        ("a: 1\nb: \x00", "f.yaml:2: not YAML: control characters are not allowed"),
    ],
)
def test_what_is_no_file_of_classes(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        _parse(text)
    assert str(caught.value).startswith(message)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "rdt.yaml"
    with pytest.raises(InvalidArgument, match=r"rdt.yaml: No such file or directory$"):
        yamlfile.load(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(InvalidArgument, match=r"rdt.yaml: not UTF-8 text: .* at byte 3$"):
        yamlfile.load(path)
    path.write_bytes(b"#" * (yamlfile.MAX_BYTES + 1))
    with pytest.raises(InvalidArgument, match=r"rdt.yaml: larger than 1024 KiB$"):
        yamlfile.load(path)
    path.write_text("a: 1\n")
    assert yamlfile.load(path).entries()["a"].text() == "1"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rdt.yaml")
    with pytest.raises(InvalidArgument, match=r"rdt\.yaml: not a regular file$"):
        yamlfile.load(tmp_path / "rdt.yaml")
    zero = tmp_path / "zero"
    os.mknod(zero, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with never_opened(zero), pytest.raises(InvalidArgument, match=r": not a regular file$"):
        yamlfile.load(zero)
