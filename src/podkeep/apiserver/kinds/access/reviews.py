"""Questions that are answered and not stored: reviews of tokens and of access.

``VIRTUAL`` names their kinds; their strategies validate. ``auth/reviews.py`` answers in their ``status``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.field_rules import named, required
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import bad_request
from podkeep.apiserver.schema.table import Kind

AUTHENTICATION = "authentication.k8s.io"
AUTHORIZATION = "authorization.k8s.io"
_CREATE = frozenset({"create"})
_BOTH = "may not specified at the same time as requirements"
_VALUES = "must be specified when `operator` is 'In' or 'NotIn'"
_NO_VALUES = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"


def _validate_token_review(value: Object, _: FieldErrors) -> None:
    """Refuse a review of no token.

    :raises StatusError: 400, as upstream does.
    """
    if not value.get("spec", {}).get("token"):
        raise bad_request("token is required for TokenReview in authentication")


def _validate_rules_review(value: Object, _: FieldErrors) -> None:
    """Refuse a review of no namespace.

    :raises StatusError: 400, as upstream does.
    """
    if not value.get("spec", {}).get("namespace"):
        raise bad_request("no namespace on request")


def _validate_self_review(value: Object, errors: FieldErrors) -> None:
    _attributes(value.get("spec", {}), errors)
    _no_metadata(value, errors)


def _validate_review(value: Object, errors: FieldErrors) -> None:
    _subject(value.get("spec", {}), errors)
    _no_metadata(value, errors)


def _subject(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    _attributes(spec, errors)
    if not spec.get("user") and not spec.get("groups"):
        errors.invalid("spec.user", spec.get("user", ""), "at least one of user or group must be specified")


def _validate_local_review(value: Object, errors: FieldErrors) -> None:
    spec = value.get("spec", {})
    _subject(spec, errors)
    _no_metadata(value, errors, but=("namespace",))
    resource = spec.get("resourceAttributes")
    if resource is not None and resource.get("namespace", "") != metadata(value).get("namespace", ""):
        errors.invalid(
            "spec.resourceAttributes.namespace", resource.get("namespace", ""), "must match metadata.namespace"
        )
    if "nonResourceAttributes" in spec:
        errors.invalid(
            "spec.nonResourceAttributes", spec["nonResourceAttributes"], "disallowed on this kind of request"
        )


def _no_metadata(value: Mapping[str, Any], errors: FieldErrors, *, but: tuple[str, ...] = ()) -> None:
    given = {name: item for name, item in metadata(value).items() if item and name != "managedFields"}
    if given.keys() - set(but):
        errors.invalid("metadata", given, "must be empty" + "".join(f" except for {name}" for name in but))


def _attributes(spec: Mapping[str, Any], errors: FieldErrors) -> None:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        errors.invalid("spec.nonResourceAttributes", path, "cannot be specified in combination with resourceAttributes")
    if resource is None and path is None:
        errors.invalid(
            "spec.resourceAttributes",
            None,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )
    for field in ("fieldSelector", "labelSelector"):
        if resource is not None and field in resource:
            _selector(resource[field], field, f"spec.resourceAttributes.{field}", errors)


def _selector(selector: Mapping[str, Any], field: str, path: str, errors: FieldErrors) -> None:
    raw, requirements = selector.get("rawSelector", ""), selector.get("requirements", ())
    if raw and requirements:
        errors.invalid(f"{path}.rawSelector", raw, _BOTH)
    if not raw and not requirements:
        required(f"{path}.requirements", f"when {path} is specified, requirements or rawSelector is required", errors)
    for index, item in enumerate(requirements):
        where, key, values = f"{path}.requirements[{index}]", item.get("key", ""), item.get("values", ())
        if field == "fieldSelector" and not key:
            required(f"{where}.key", "must be specified", errors)
        operator = item.get("operator", "")  # newer clients may know others
        if operator in ("In", "NotIn") and not values:
            required(f"{where}.values", _VALUES, errors)
        if operator in ("Exists", "DoesNotExist") and values:
            errors.forbidden(f"{where}.values", _NO_VALUES)
        if field == "labelSelector":
            _label_requirement(key, values, where, errors)


def _label_requirement(key: str, values: list[str], path: str, errors: FieldErrors) -> None:
    named(f"{path}.key", key, names.label_key_problems(key), errors)
    for index, value in enumerate(values):
        named(f"{path}.values[{index}]", value, names.label_value(value), errors)


TOKEN_REVIEW = Resource(
    kind=Kind(AUTHENTICATION, "v1", "TokenReview"),
    plural="tokenreviews",
    namespaced=False,
    verbs=_CREATE,
    strategy=Strategy(validate=_validate_token_review),
)
SELF_SUBJECT_REVIEW = Resource(
    kind=Kind(AUTHENTICATION, "v1", "SelfSubjectReview"),
    plural="selfsubjectreviews",
    namespaced=False,
    verbs=_CREATE,
)
SUBJECT_ACCESS_REVIEW = Resource(
    kind=Kind(AUTHORIZATION, "v1", "SubjectAccessReview"),
    plural="subjectaccessreviews",
    namespaced=False,
    verbs=_CREATE,
    strategy=Strategy(validate=_validate_review),
)
LOCAL_SUBJECT_ACCESS_REVIEW = Resource(
    kind=Kind(AUTHORIZATION, "v1", "LocalSubjectAccessReview"),
    plural="localsubjectaccessreviews",
    verbs=_CREATE,
    strategy=Strategy(validate=_validate_local_review),
)
SELF_SUBJECT_ACCESS_REVIEW = Resource(
    kind=Kind(AUTHORIZATION, "v1", "SelfSubjectAccessReview"),
    plural="selfsubjectaccessreviews",
    namespaced=False,
    verbs=_CREATE,
    strategy=Strategy(validate=_validate_self_review),
)
SELF_SUBJECT_RULES_REVIEW = Resource(
    kind=Kind(AUTHORIZATION, "v1", "SelfSubjectRulesReview"),
    plural="selfsubjectrulesreviews",
    namespaced=False,
    verbs=_CREATE,
    strategy=Strategy(validate=_validate_rules_review),
)

VIRTUAL = (
    TOKEN_REVIEW,
    SELF_SUBJECT_REVIEW,
    SUBJECT_ACCESS_REVIEW,
    LOCAL_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
)
"""Resources with paths of their own, of which nothing is stored."""
