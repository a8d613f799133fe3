"""Values as YAML: each is read back as what it was, and what people look at is written as they would write it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import podkeep
from podkeep.api import documents
from podkeep.base.text.yaml_text import load, to_yaml

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    st.sampled_from("\n \t:#-?|>'\"\\ab01.eE+_oxb~yn\x85\u2028\ufeff"), max_size=12
)
_READS = re.compile(r"\byaml\.(\w*load|compose)|\byaml\.\w*Loader\b")
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


def read(text: str) -> Any:
    [document] = documents.parse(text, source="written")
    return document.value


@pytest.mark.slow
@given(_VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    text = to_yaml({"value": value})
    assert read(text) == {"value": value}
    assert yaml.safe_load(text) == {"value": value}


@pytest.mark.parametrize(
    "text",
    "1234567e8 1e3 1.5e3 5e+2 0o17 08 012 1_000 0x1f 0b11 .5 +1 y N yes"
    " 0X1F 0O17 0B11 -0X1 1e_3 1e1_0 1e_+3 -_1 1_e3".split(),
)
def test_a_text_like_a_number_is_quoted(text: str) -> None:
    assert to_yaml({"a": text}) == f"a: '{text}'\n"


@pytest.mark.parametrize(
    ("number", "written"), [(1, "1"), (1.5, "1.5"), (-3, "-3"), (True, "true"), (10**9, str(10**9))]
)
def test_a_number_is_not_quoted(number: object, written: str) -> None:
    assert to_yaml({"a": number}) == f"a: {written}\n"


@pytest.mark.parametrize(
    "text", ["demo", "1.2.3", "10.0.0.1", "12ab", "busybox:1", "2e", "0x", "yarn", "100m", "1Gi", "."]
)
def test_other_texts_are_not_quoted(text: str) -> None:
    assert to_yaml({"a": text}) == f"a: {text}\n"


def test_lines_are_written_as_lines() -> None:
    file = "server {\n  listen 80;\n\n  # what comes first\n}\n"
    assert to_yaml({"data": {"nginx.conf": file}}) == (
        "data:\n  nginx.conf: |\n    server {\n      listen 80;\n\n      # what comes first\n    }\n"
    )


def test_long_lines_are_not_folded() -> None:
    command = "while true; do " + "echo something; " * 30 + "done"
    assert to_yaml({"command": [command]}) == f"command:\n- {command}\n"


def test_what_is_there_twice_is_written_twice() -> None:
    one = {"a": "b"}
    assert to_yaml([one, one]) == "- a: b\n- a: b\n"


def test_what_is_loaded() -> None:
    assert load(b"a: [1, {b: 2026-01-31}]\n") == yaml.safe_load("a: [1, {b: 2026-01-31}]")
    assert load(b"[" * 100 + b"]" * 100) == yaml.safe_load("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"[" * 101, "more than 100 levels deep"),
        (b"a: " + b"9" * 5000, "a number with too many digits"),
        (b"a: 2024-99-99", "a time that there is not"),
        (b"a: [", "while parsing"),
    ],
    ids=["deep", "long", "time", "open"],
)
def test_what_cannot_be_loaded_says_so_in_the_words_of_yaml(text: bytes, told: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        load(text)
    assert told in str(caught.value)
    assert "limit" not in str(caught.value)


def test_a_depth_at_which_the_library_ends_the_process_is_an_error() -> None:
    """Its composer calls itself for each level, on the stack of C."""
    with pytest.raises(yaml.YAMLError, match="levels deep"):
        load(b"[" * 1_000_000)


@pytest.mark.slow
def test_yaml_is_read_by_those_alone_who_look_at_its_depth_first() -> None:
    """The library's composer ends the process whose stack a file uses up."""
    readers = {"api/documents.py", "base/text/yaml_text.py", "runtime/class_resources/yamlfile.py"}
    package = Path(podkeep.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if _READS.search(path.read_text())}
    assert found == readers
