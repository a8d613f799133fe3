from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.status import StatusError


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("", [{}, {"a": "b"}], []),
        ("a=b", [{"a": "b", "c": "d"}], [{}, {"a": "c"}]),
        ("a==b", [{"a": "b"}], [{"a": ""}]),
        ("a=", [{"a": ""}], [{}, {"a": "b"}]),
        ("a!=b", [{}, {"a": "c"}], [{"a": "b"}]),
        ("a,b", [{"a": "", "b": "x"}], [{"a": ""}]),
        ("!a", [{}, {"b": ""}], [{"a": ""}]),
        ("a in (b, c)", [{"a": "b"}, {"a": "c"}], [{}, {"a": "d"}]),
        ("a in (,c)", [{"a": ""}, {"a": "c"}], [{}]),
        ("a notin (b,c)", [{}, {"a": "d"}], [{"a": "b"}]),
        (" x.io/a in ( b ) , c != d ", [{"x.io/a": "b"}], [{"x.io/a": "b", "c": "d"}]),
        ("a>1", [{"a": "2"}], [{"a": "1"}, {"a": "x"}, {}]),
        ("a<1", [{"a": "-2"}], [{"a": "1"}]),
        ("a in ()", [{"a": ""}], [{}, {"a": "b"}]),
        ("a>5", [{"a": "+6"}, {"a": "010"}], [{"a": "1_0"}, {"a": " 10"}, {"a": "١٠"}, {"a": "9" * 19}, {"a": "-"}]),
        ("in=notin", [{"in": "notin"}], [{}]),
    ],
)
def test_label_selectors(text: str, matching: list[dict[str, str]], others: list[dict[str, str]]) -> None:
    selector = selectors.parse_labels(text)
    assert all(map(selector.matches, matching))
    assert not any(map(selector.matches, others))


_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_OPERATOR = "in, notin, =, ==, !=, gt, lt"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("=", "found '=', expected: !, identifier, or 'end of string'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a=b,", "found '', expected: identifier after ','"),
        ("a,=b", "found '=', expected: identifier after ','"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("!=a", "found '!=', expected: !, identifier, or 'end of string'"),
        ("a b", f"unable to parse requirement: found 'b', expected: {_OPERATOR}"),
        ("a(b)", f"unable to parse requirement: found '(', expected: {_OPERATOR}"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a in ((b))", "unable to parse requirement: found '(', expected: ',', ')' or identifier"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a=(b)", "unable to parse requirement: found '(', expected: identifier"),
        ("-a=b", f'unable to parse requirement: <nil>: Invalid value: "-a": {_KEY}'),
        ("a=-b", f'unable to parse requirement: values[0][a]: Invalid value: "-b": {_VALUE}'),
        ("a in (c,-b)", f'unable to parse requirement: values[0][a]: Invalid value: "-b": {_VALUE}'),
        (
            "a>x",
            'unable to parse requirement: values[0]: Invalid value: "x": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        ("a<-1", f'unable to parse requirement: values[0][a]: Invalid value: "-1": {_VALUE}'),
        ("a" * 70_000, "unable to parse requirement: it is longer than 65536 characters"),
    ],
)
def test_label_selectors_that_are_not_ones(text: str, why: str) -> None:
    with pytest.raises(StatusError) as caught:
        selectors.parse_labels(text)
    assert caught.value.code == 400
    assert caught.value.message == why


@pytest.mark.parametrize("text", ["a" * 60_000, f"a in ({','.join(f'-{number}' for number in range(9_000))})", "\n-"])
def test_what_is_wrong_with_a_label_selector_is_told_in_few_words(text: str) -> None:
    with pytest.raises(StatusError, match="unable to parse requirement") as caught:
        selectors.parse_labels(text)
    assert len(caught.value.message) < 6_000


@pytest.mark.parametrize("separator", [",", ",!", "=b,", "!=b,", " in (b),"])
def test_a_query_has_so_many_requirements_and_no_more(separator: str) -> None:
    """Each of them is held against every object; values of one requirement are looked up at once."""
    text = separator.join(["a"] * selectors.MAX_REQUIREMENTS)
    assert len(selectors.parse_labels(text).requirements) == selectors.MAX_REQUIREMENTS
    with pytest.raises(StatusError, match="more than 500 requirements"):
        selectors.parse_labels(f"a,{text}")
    fields = ",".join(["a!=b", *["a=b"] * (selectors.MAX_REQUIREMENTS - 1)])
    assert selectors.parse_fields(fields).matches({"a": "c"}) is False
    with pytest.raises(StatusError, match="more than 500 requirements"):
        selectors.parse_fields(f"a=b,{fields}")
    values = [f"v{number}" for number in range(5_000)]
    assert selectors.parse_labels(f"a in ({','.join(values)})").matches({"a": values[-1]})


@given(st.text(alphabet="ab=!,() <>in", max_size=30))
def test_any_text_is_a_selector_or_a_bad_request(text: str) -> None:
    for parse in (selectors.parse_labels, selectors.parse_fields):
        code = 400
        try:
            parse(text).matches({"a": "b"})
        except StatusError as error:
            code = error.code
        assert code == 400


@pytest.mark.parametrize(
    ("selector", "matching", "others"),
    [
        ({}, [{}, {"a": "b"}], []),
        ({"matchLabels": {"a": "b"}}, [{"a": "b"}], [{}]),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Exists"}]},
            [{"a": "b", "c": ""}],
            [{"a": "b"}],
        ),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, [{}, {"a": "c"}], [{"a": "b"}]),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, [{}], [{"a": "b"}]),
    ],
)
def test_selectors_of_objects(selector: dict[str, Any], matching: list[Any], others: list[Any]) -> None:
    found = selectors.of_object(selector)
    assert found is not None
    assert all(map(found.matches, matching))
    assert not any(map(found.matches, others))
    assert selectors.of_object(None) is None


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("", [{}], []),
        ("metadata.name=web", [{"metadata.name": "web"}], [{}, {"metadata.name": "x"}]),
        (
            "status.phase!=Running,spec.nodeName==n",
            [{"spec.nodeName": "n"}],
            [{"status.phase": "Running", "spec.nodeName": "n"}],
        ),
        ("spec.nodeName=", [{}, {"spec.nodeName": ""}], [{"spec.nodeName": "n"}]),
        (r"a=b\,c\=d\\", [{"a": "b,c=d\\"}], [{"a": "b"}]),
    ],
)
def test_field_selectors(text: str, matching: list[dict[str, str]], others: list[dict[str, str]]) -> None:
    selector = selectors.parse_fields(text)
    assert all(map(selector.matches, matching))
    assert not any(map(selector.matches, others))


@pytest.mark.parametrize(
    ("text", "sequence"),
    [(r"a=\b", r"\b"), ("a=b\\", "\\"), ("a=b\\\\\\", "\\"), (r"a=b,c=d\e", r"\e"), ("\\", "")],
)
def test_escapes_that_are_not_ones(text: str, sequence: str) -> None:
    with pytest.raises(StatusError) as caught:
        selectors.parse_fields(text)
    assert caught.value.code == 400
    assert "invalid" in caught.value.message
    if sequence:
        assert caught.value.message == f"invalid field selector: invalid escape sequence: {sequence}"


@pytest.mark.parametrize("text", ["a", "a=b,c", "a=b=c", "a" * 70_000])
def test_field_selectors_that_are_not_ones(text: str) -> None:
    with pytest.raises(StatusError, match="invalid selector"):
        selectors.parse_fields(text)


def test_the_value_that_a_field_must_have() -> None:
    selector = selectors.parse_fields("metadata.name=web,spec.nodeName!=n")
    assert selector.value("metadata.name") == "web"
    assert selector.value("spec.nodeName") is None
