"""Reviews: what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.access import reviews
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.schema.table import kubernetes

SUBJECT = reviews.SUBJECT_ACCESS_REVIEW
SELF = reviews.SELF_SUBJECT_ACCESS_REVIEW
LOCAL = reviews.LOCAL_SUBJECT_ACCESS_REVIEW
AT = "spec.resourceAttributes"


def problems(resource: Resource, value: dict[str, Any]) -> list[str]:
    errors = FieldErrors()
    resource.strategy.default(value)
    resource.strategy.validate(value, errors)
    return [str(error) for error in errors.found]


def spec(**fields: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": fields}


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (reviews.TOKEN_REVIEW, "token is required for TokenReview in authentication"),
        (reviews.SELF_SUBJECT_RULES_REVIEW, "no namespace on request"),
    ],
)
def test_reviews_of_nothing(resource: Resource, text: str) -> None:
    with pytest.raises(StatusError) as caught:
        problems(resource, spec())
    assert (caught.value.code, caught.value.message) == (400, text)
    assert problems(resource, spec(token="t", namespace="n")) == []


@pytest.mark.parametrize(
    ("resource", "value", "expected"),
    [
        (SUBJECT, spec(user="u", resourceAttributes={}), []),
        (SUBJECT, spec(groups=["g"], nonResourceAttributes={}), []),
        (
            SUBJECT,
            spec(),
            [
                f"{AT}: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be"
                " specified",
                'spec.user: Invalid value: "": at least one of user or group must be specified',
            ],
        ),
        (
            SELF,
            spec(resourceAttributes={}, nonResourceAttributes={"path": "/a"}),
            [
                'spec.nonResourceAttributes: Invalid value: {"path":"/a"}: cannot be specified in combination with'
                " resourceAttributes"
            ],
        ),
        (
            SELF,
            {"metadata": {"name": "a"}, "spec": {"resourceAttributes": {}}},
            ['metadata: Invalid value: {"name":"a"}: must be empty'],
        ),
        (
            SUBJECT,
            {"metadata": {"namespace": "a"}, "spec": {"user": "u", "resourceAttributes": {}}},
            ['metadata: Invalid value: {"namespace":"a"}: must be empty'],
        ),
        (
            LOCAL,
            {"metadata": {"namespace": "a"}, "spec": {"user": "u", "resourceAttributes": {"namespace": "a"}}},
            [],
        ),
        (
            LOCAL,
            {
                "metadata": {"namespace": "a", "name": "b"},
                "spec": {"user": "u", "resourceAttributes": {"namespace": "c"}},
            },
            [
                'metadata: Invalid value: {"namespace":"a","name":"b"}: must be empty except for namespace',
                f'{AT}.namespace: Invalid value: "c": must match metadata.namespace',
            ],
        ),
        (
            LOCAL,
            {"metadata": {"namespace": "a"}, "spec": {"user": "u", "nonResourceAttributes": {}}},
            ["spec.nonResourceAttributes: Invalid value: {}: disallowed on this kind of request"],
        ),
        (
            SELF,
            spec(resourceAttributes={"fieldSelector": {}, "labelSelector": {}}),
            [
                f"{AT}.fieldSelector.requirements: Required value: when {AT}.fieldSelector is specified, requirements"
                " or rawSelector is required",
                f"{AT}.labelSelector.requirements: Required value: when {AT}.labelSelector is specified, requirements"
                " or rawSelector is required",
            ],
        ),
        (
            SELF,
            spec(
                resourceAttributes={
                    "fieldSelector": {
                        "rawSelector": "a=b",
                        "requirements": [{"operator": "In"}, {"key": "a", "operator": "Exists", "values": ["b"]}],
                    },
                    "labelSelector": {"requirements": [{"key": "-", "operator": "New", "values": ["-"]}]},
                }
            ),
            [
                f'{AT}.fieldSelector.rawSelector: Invalid value: "a=b": may not specified at the same time as'
                " requirements",
                f"{AT}.fieldSelector.requirements[0].key: Required value: must be specified",
                f"{AT}.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In'"
                " or 'NotIn'",
                f"{AT}.fieldSelector.requirements[1].values: Forbidden: may not be specified when `operator` is"
                " 'Exists' or 'DoesNotExist'",
                f'{AT}.labelSelector.requirements[0].key: Invalid value: "-": {names.label_key("-")}',
                f'{AT}.labelSelector.requirements[0].values[0]: Invalid value: "-": {names.label_value("-")}',
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_review(resource: Resource, value: dict[str, Any], expected: list[str]) -> None:
    assert problems(resource, value) == expected


def test_their_kinds_are_known_and_can_only_be_created() -> None:
    for resource in reviews.VIRTUAL:
        assert resource.kind in kubernetes().kinds
        assert resource.verbs == {"create"}
