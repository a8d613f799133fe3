"""Questions about users that are answered and not stored: TokenReview, SelfSubjectReview, SubjectAccessReviews.

Each function takes the object as it was sent, decoded against its type, and returns it with its status. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.auth.interfaces import Authorizer, RequestAttributes
from podkeep.apiserver.auth.jwt import InvalidToken
from podkeep.apiserver.auth.rules import Rule
from podkeep.apiserver.auth.tokens import TokenUser
from podkeep.apiserver.auth.user import User, node_of
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import StatusError, bad_request, invalid

GROUP = "authorization.k8s.io"
_EMPTY = "must be empty"
_LABEL_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


class TokenReviewer(Protocol):
    """Tells whose a token is (:class:`podkeep.apiserver.auth.authenticators.BearerAuthenticator`)."""

    def review(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser:
        """Return whose token it is.

        :raises InvalidToken: if nobody's.
        """
        ...


class RuleResolver(Protocol):
    """Lists what a user may do (:class:`podkeep.apiserver.auth.rbac.Rbac`)."""

    def rules_for(self, user: User, namespace: str) -> tuple[list[Rule], str]:
        """Return every rule of a user in a namespace, and what could not be found."""
        ...


def user_info(user: User) -> Object:
    """Return a user as ``UserInfo``."""
    info: Object = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
    info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return {name: value for name, value in info.items() if value}


def self_subject_review(value: Object, user: User) -> Object:
    """Answer who asks."""
    return {**value, "status": {"userInfo": user_info(user)}}


def token_review(value: Object, reviewer: TokenReviewer) -> Object:
    """Answer whose a token is.

    :raises StatusError: 400, if there is none.
    """
    spec = value.get("spec", {})
    if not spec.get("token"):
        raise bad_request("token is required for TokenReview in authentication")
    status: dict[str, Any]
    try:
        found = reviewer.review(spec["token"], spec.get("audiences") or None)
        status = {"authenticated": True, "user": user_info(found.user), "audiences": list(found.audiences)}
    except InvalidToken as error:
        status = {"user": {}, "error": str(error)}
    return {**value, "status": status}


def self_subject_access_review(value: Object, user: User, authorizer: Authorizer) -> Object:
    """Answer whether who asks may do something.

    :raises StatusError: 422, if it is not one question.
    """
    errors = FieldErrors()
    _validate_question(value.get("spec", {}), errors)
    _validate_metadata(value, _EMPTY, (), errors)
    _raise(value, errors)
    return _answered(value, user, authorizer)


def subject_access_review(value: Object, authorizer: Authorizer) -> Object:
    """Answer whether somebody may do something.

    :raises StatusError: 422, if it is not one question about a user.
    """
    errors = FieldErrors()
    _validate_question(value.get("spec", {}), errors, subject=True)
    _validate_metadata(value, _EMPTY, (), errors)
    _raise(value, errors)
    return _answered(value, _subject(value["spec"]), authorizer)


def local_subject_access_review(value: Object, namespace: str, authorizer: Authorizer) -> Object:
    """Answer whether somebody may do something in a namespace, that of the request.

    :raises StatusError: 400 or 422, if it is not one question about a user there.
    """
    spec = value.get("spec", {})
    own = value.setdefault("metadata", {}).setdefault("namespace", namespace)
    if own != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    errors = FieldErrors()
    _validate_question(spec, errors, subject=True)
    _validate_metadata(value, "must be empty except for namespace", ("namespace",), errors)
    asked = spec.get("resourceAttributes")
    if asked is not None and asked.get("namespace", "") != own:
        errors.invalid("spec.resourceAttributes.namespace", asked.get("namespace", ""), "must match metadata.namespace")
    if "nonResourceAttributes" in spec:
        errors.invalid(
            "spec.nonResourceAttributes", spec["nonResourceAttributes"], "disallowed on this kind of request"
        )
    _raise(value, errors)
    return _answered(value, _subject(spec), authorizer)


def self_subject_rules_review(value: Object, user: User, resolver: RuleResolver) -> Object:
    """Answer what who asks may do in a namespace.

    :raises StatusError: 400, if it names none.
    """
    namespace = value.get("spec", {}).get("namespace", "")
    if not namespace:
        raise bad_request("no namespace on request")
    rules, problem = resolver.rules_for(user, namespace)
    status: dict[str, Any] = {
        "resourceRules": [
            _shown(rule, "verbs", "apiGroups", "resources", "resourceNames") for rule in rules if rule.resources
        ],
        "nonResourceRules": [_shown(rule, "verbs", "nonResourceURLs") for rule in rules if rule.urls],
        "incomplete": False,
    }
    problems = [problem] if problem else []
    if node_of(user) is not None:
        problems.append("node authorizer does not support user rule resolution")
        status["incomplete"] = True
    if problems:
        status["evaluationError"] = ", ".join(problems)
    return {**value, "status": status}


def _shown(rule: Rule, *names: str) -> dict[str, Any]:
    return {name: rule.value[name] for name in names if rule.value.get(name)}


def _raise(value: Object, errors: FieldErrors) -> None:
    if errors.found:
        raise invalid(value.get("kind", ""), GROUP, "", errors.found)


def _validate_metadata(value: Object, why: str, allowed: Sequence[str], errors: FieldErrors) -> None:
    given = {name: item for name, item in metadata(value).items() if item and name not in (*allowed, "managedFields")}
    if given:
        errors.invalid("metadata", given, why)


def _validate_question(spec: Mapping[str, Any], errors: FieldErrors, *, subject: bool = False) -> None:
    asked, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if asked is not None and path is not None:
        errors.invalid("spec.nonResourceAttributes", path, "cannot be specified in combination with resourceAttributes")
    if asked is None and path is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.invalid("spec.resourceAttributes", None, why)
    if subject and not spec.get("user") and not spec.get("groups"):
        errors.invalid("spec.user", "", "at least one of user or group must be specified")
    for name in ("fieldSelector", "labelSelector"):
        if asked is not None and name in asked:
            _validate_selector(asked[name], f"spec.resourceAttributes.{name}", errors)


def _validate_selector(selector: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    raw, requirements = selector.get("rawSelector", ""), selector.get("requirements", ())
    if raw and requirements:
        errors.invalid(f"{path}.rawSelector", raw, "may not specified at the same time as requirements")
    if not raw and not requirements:
        errors.add(
            f"{path}.requirements",
            f"Required value: when {path} is specified, requirements or rawSelector is required",
        )
    for index, requirement in enumerate(requirements):
        own = f"{path}.requirements[{index}]"
        operator, values = requirement.get("operator", ""), requirement.get("values", ())
        if operator in ("In", "NotIn") and not values:
            errors.add(f"{own}.values", "Required value: must be specified when `operator` is 'In' or 'NotIn'")
        if operator in ("Exists", "DoesNotExist") and values:
            errors.forbidden(f"{own}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        errors.required(f"{own}.key", requirement.get("key", ""))


def _subject(spec: Mapping[str, Any]) -> User:
    return User(
        name=spec.get("user", ""),
        uid=spec.get("uid", ""),
        groups=tuple(spec.get("groups", ())),
        extra={key: tuple(values) for key, values in spec.get("extra", {}).items()},
    )


def _answered(value: Object, user: User, authorizer: Authorizer) -> Object:
    attributes, problems = asked_for(value["spec"])
    decision = authorizer.authorize(user, attributes)
    status: dict[str, Any] = {"allowed": decision.allowed}
    if decision.denied:
        status["denied"] = True
    if decision.reason:
        status["reason"] = decision.reason
    if problems:
        status["evaluationError"] = ", ".join(problems)
    return {**value, "status": status}


def asked_for(spec: Mapping[str, Any]) -> tuple[RequestAttributes, list[str]]:
    """Return what a review asks about, and which selectors of it were not understood.

    A selector that is left out makes the question broader. So the answer is never "allowed" where the whole question
    would have been refused.
    """
    path = spec.get("nonResourceAttributes")
    if path is not None:
        verb, text = path.get("verb", ""), path.get("path", "")
        return RequestAttributes(verb=verb, resource_request=False, path=text), []
    asked = spec["resourceAttributes"]
    fields, field_problem = _fields(asked.get("fieldSelector", {}))
    labels, label_problem = _labels(asked.get("labelSelector", {}))
    attributes = RequestAttributes(
        verb=asked.get("verb", ""),
        group=asked.get("group", ""),
        version=asked.get("version") or "*",
        resource=asked.get("resource", ""),
        subresource=asked.get("subresource", ""),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
        field_selector=",".join(fields),
        label_selector=",".join(labels),
    )
    problems = [
        f"spec.resourceAttributes.{name} {'partially ' if found else ''}ignored due to parse error"
        for name, found, problem in (("fieldSelector", fields, field_problem), ("labelSelector", labels, label_problem))
        if problem
    ]
    return attributes, problems


def _fields(selector: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the conditions of a field selector as a query has them, and whether some were not understood."""
    if raw := selector.get("rawSelector", ""):
        return _raw(raw, selectors.parse_fields)
    found, problem = [], False
    for requirement in selector.get("requirements", ()):
        operator, values = requirement.get("operator", ""), requirement.get("values", ())
        key = requirement.get("key", "")
        if operator in ("In", "NotIn") and len(values) == 1 and not set(key) & set("\\,=!"):
            value = values[0].replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
            found.append(f"{key}{'=' if operator == 'In' else '!='}{value}")
        else:
            problem = True
    return found, problem


def _labels(selector: Mapping[str, Any]) -> tuple[list[str], bool]:
    if raw := selector.get("rawSelector", ""):
        return _raw(raw, selectors.parse_labels)
    found, problem = [], False
    for requirement in selector.get("requirements", ()):
        operator, key = _LABEL_OPERATORS.get(requirement.get("operator", "")), requirement.get("key", "")
        values = requirement.get("values", ())
        if operator is None or names.label_key(key) or any(map(names.label_value, values)):
            problem = True
            continue
        found.append({"exists": key, "!": f"!{key}"}.get(operator, f"{key} {operator} ({','.join(values)})"))
    return found, problem


def _raw(text: str, parse: Any) -> tuple[list[str], bool]:
    try:
        parse(text)
    except StatusError:
        return [], True
    return [text], False
