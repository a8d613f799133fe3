"""Questions about users that are answered and not stored: TokenReview, SelfSubjectReview, SubjectAccessReviews.

Each function takes an object that is valid (``kinds/access/reviews.py``) and returns it with its status. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from podkeep.api import names
from podkeep.apiserver.auth.interfaces import Authorizer, RequestAttributes
from podkeep.apiserver.auth.jwt import InvalidToken
from podkeep.apiserver.auth.rules import Rule
from podkeep.apiserver.auth.tokens import TokenUser
from podkeep.apiserver.auth.user import User, node_of
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError

MAX_RULES_BYTES = 3 << 20
"""Of the rules of a user that are listed, encoded; roles may have any number of them."""
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
    info: Object = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
    info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return {name: value for name, value in info.items() if value}


def self_subject_review(value: Object, user: User, now: str) -> Object:
    """Answer who asks, and when; only the answer has metadata."""
    return {**value, "metadata": {"creationTimestamp": now}, "status": {"userInfo": user_info(user)}}


def token_review(value: Object, reviewer: TokenReviewer) -> Object:
    """Answer whose a token is."""
    spec = value["spec"]
    status: dict[str, Any]
    try:
        found = reviewer.review(spec["token"], spec.get("audiences") or None)
        status = {"authenticated": True, "user": user_info(found.user), "audiences": list(found.audiences)}
    except InvalidToken as error:
        status = {"user": {}, "error": str(error)}
    return {**value, "status": status}


def self_subject_access_review(value: Object, user: User, authorizer: Authorizer) -> Object:
    """Answer whether who asks may do something."""
    return _answered(value, user, authorizer)


def subject_access_review(value: Object, authorizer: Authorizer) -> Object:
    """Answer whether somebody may do something, in a local review in its namespace."""
    return _answered(value, _subject(value["spec"]), authorizer)


def self_subject_rules_review(value: Object, user: User, resolver: RuleResolver) -> Object:
    """Answer what who asks may do in a namespace."""
    rules, problem = resolver.rules_for(user, value["spec"]["namespace"])
    listed = _first_of(rules)
    status: dict[str, Any] = {
        "resourceRules": [
            _shown(rule, "verbs", "apiGroups", "resources", "resourceNames") for rule in listed if rule.resources
        ],
        "nonResourceRules": [_shown(rule, "verbs", "nonResourceURLs") for rule in listed if rule.urls],
        "incomplete": len(listed) < len(rules),
    }
    problems = [problem] if problem else []
    if len(listed) < len(rules):
        problems.append(f"only the first {len(listed)} of {len(rules)} rules are listed")
    if node_of(user) is not None:
        problems.append("node authorizer does not support user rule resolution")
        status["incomplete"] = True
    if problems:
        status["evaluationError"] = ", ".join(problems)
    return {**value, "status": status}


def _first_of(rules: Sequence[Rule]) -> Sequence[Rule]:
    left = MAX_RULES_BYTES
    for count, rule in enumerate(rules):
        left -= len(msgspec.json.encode(rule.value))
        if left < 0:
            return rules[:count]
    return rules


def _shown(rule: Rule, *names: str) -> dict[str, Any]:
    return {name: rule.value[name] for name in names if rule.value.get(name)}


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
        # As upstream's matchAllVersionIfEmpty.
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
        # A field selector in a query knows = and != of one value alone.
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
