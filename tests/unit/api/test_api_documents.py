"""Reading manifests as text: what YAML allows, what Kubernetes means, and what is refused."""

from __future__ import annotations

import pytest

from podkeep.api import documents
from podkeep.base.errors import InvalidArgument


def values(text: str) -> list[object]:
    return [document.value for document in documents.parse(text, source="f.yaml")]


def test_documents_keep_their_number_and_line() -> None:
    found = documents.parse("---\n---\na: 1\n---\nb: 2\n", source="f.yaml")
    assert [(d.index, d.line, d.value) for d in found] == [(2, 3, {"a": 1}), (3, 5, {"b": 2})]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1:30", {"a": "1:30"}),
        ("a: 2026-01-31", {"a": "2026-01-31"}),
        ("a: 0400", {"a": 256}),
        ("a: 0o400", {"a": 256}),
        ("a: 0x10", {"a": 16}),
        ("a: -1_000", {"a": -1000}),
        ("a: 1e3", {"a": 1000.0}),
        ("a: 1.5", {"a": 1.5}),
        ("a: yes", {"a": True}),
        ("a: ~", {"a": None}),
        ("1: x\ntrue: y", {"1": "x", "true": "y"}),
        ("b: &x {p: 1, q: 2}\nc:\n  <<: *x\n  q: 3", {"b": {"p": 1, "q": 2}, "c": {"p": 1, "q": 3}}),
        ('{"a": ["b", null]}', {"a": ["b", None]}),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    assert values(text) == [value]


def bomb(levels: int) -> str:
    lines = ["l0: &l0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml: line 3, column 1: the key 'a' is given twice"),
        ("a: [1", "f.yaml: line 2, column 1: did not find expected ',' or ']'"),
        ("a: &x [*x]", "f.yaml: line 1, column 4: this alias refers to a value that contains it"),
        ("a: !!python/object/apply:os.system [x]", "has no meaning"),
        ("a: !!binary aGk=", "the tag tag:yaml.org,2002:binary has no meaning in a manifest"),
        ("{[1]: 2}", "a key must be a text"),
        ("a: {b: 1}\nc:\n  <<: 3", "only a mapping can be merged with <<"),
        (bomb(9), "values once its aliases are expanded"),
        ("\x00", "f.yaml"),
        ("a: " + "[" * 300 + "]" * 300, "nested more than 200 levels deep"),
    ],
)
def test_refused_text(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        documents.parse(text, source="f.yaml")
    assert message in caught.value.message


def test_a_text_that_nests_very_deeply_is_an_error_and_not_a_crash() -> None:
    for text in ("[" * 1_000_000, "{a: " * 1_000_000, "- " * 1_000_000):
        with pytest.raises(InvalidArgument, match="nested more than 200 levels deep"):
            documents.parse(text, source="f.yaml")


def test_aliases_cannot_nest_deeper_than_text() -> None:
    lines = ["- &a0 [x]"] + [f"- &a{n} {'[' * 90}*a{n - 1}{']' * 90}" for n in range(1, 60)]
    with pytest.raises(InvalidArgument, match="its aliases nest too deeply"):
        documents.parse("\n".join(lines), source="f.yaml")


def test_standard_input_has_a_name() -> None:
    with pytest.raises(InvalidArgument, match=r"^<stdin>: "):
        documents.parse("a: [", source="-")


def test_a_text_of_more_than_10_mib_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="larger than 10 MiB"):
        documents.parse("#" * (documents.MAX_BYTES + 1), source="f.yaml")


@pytest.mark.parametrize("number", ["9" * 5000, "0" + "7" * 5000, "0x" + "f" * 5000, "-" + "1_0" * 2000])
@pytest.mark.parametrize("form", ["a: {}", "? {}\n: a", "a: [{}]"])
def test_numbers_of_thousands_of_digits_are_refused(number: str, form: str) -> None:
    with pytest.raises(InvalidArgument, match=r"a number of [0-9]* digits") as caught:
        documents.parse(form.format(number), source="file")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["\u0663", "\u00b2", "1\u0663", "0\u0663", "\uff11.5", "1e\u0663"])
def test_other_digits_than_those_of_ascii_are_texts(text: str) -> None:
    assert documents.parse(f"a: {text}", source="file")[0].value == {"a": text}


def test_merged_values_are_added_to_those_before() -> None:
    """Each of 20,000 mappings was merged with a copy of all before it, which took 11 seconds."""
    parts = "".join(f"- &m{n} {{k{n}: {n}, same: {n}}}\n" for n in range(300))
    [value] = values(parts + "- {<<: [" + ",".join(f"*m{n}" for n in range(300)) + "], k7: own}")
    assert isinstance(value, list)
    assert list(value[-1].items()) == [
        ("k0", 0),
        ("same", 0),
        *((f"k{n}", n) for n in range(1, 7)),
        ("k7", "own"),
        *((f"k{n}", n) for n in range(8, 300)),
    ]


@pytest.mark.slow
def test_aliases_of_all_documents_together_repeat_a_bounded_number_of_values() -> None:
    """Each of two thousand documents in 10 MiB had 500,000 values, made of 5 kB."""
    bomb = f"- &a [{','.join('x' * 400)}]\n" + "- *a\n" * 400
    assert len(values("---\n".join([bomb] * 3))) == 3
    with pytest.raises(InvalidArgument, match=r"line \d+, column 1: aliases up to here repeat more than 500000 values"):
        values("---\n".join([bomb] * 4))
    assert len(values("---\n".join([f"[{','.join('x' * 1000)}]\n"] * 600))) == 600


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        "[&a {0}, *a, *a, *a, *a, *a]",
        "{{k: &a {0}, *a : 1, l: *a, m: *a, n: *a, o: *a}}",
        "--- [&a {0}, *a, *a]\n" * 3,
    ],
)
def test_aliases_repeat_a_bounded_number_of_characters(form: str) -> None:
    """A text of 3 MB with ten thousand aliases was an object of 30 GB as soon as it was written as JSON."""
    long = "x" * (documents.MAX_BYTES // 4)
    assert len(values(form.format("x" * 1000))) == max(form.count("---"), 1)
    with pytest.raises(InvalidArgument, match=r"aliases up to here repeat more than 10485760 characters"):
        values(form.format(long))
    assert len(values(f"[&a {long}, *a, *a]")) == 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("!!float '" + ":".join(["1"] * 400) + "'", "float"),
        ("!!float ''", "float"),
        ("!!float x", "float"),
        ("!!int x", "int"),
        ("!!bool x", "bool"),
    ],
)
def test_a_value_that_is_not_what_its_tag_says(value: str, kind: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^f.yaml: line 2, column 4: this is no {kind}$"):
        values(f"a: 1\nb: {value}")
