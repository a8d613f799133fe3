"""Nobody grants more than they have: checks of roles and bindings that are written (``pkg/registry/rbac``).

Those who may ``escalate`` a role or ``bind`` it may grant what is in it; administrators may grant everything. In
kube-apiserver this is no plugin that can be switched off, and nor is it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.auth.interfaces import Authorizer, RequestAttributes
from podkeep.apiserver.auth.rbac import GROUP, MAX_SUBJECTS, Rbac, RoleRef, aggregates, subjects_weight
from podkeep.apiserver.auth.rules import TooManyParts, compact, quoted, uncovered
from podkeep.apiserver.auth.user import MASTERS
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, forbidden
from podkeep.base.text.printable import quote

_EVERYTHING = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)
_GARBAGE_FIELDS = frozenset({"ownerReferences", "finalizers", "managedFields", "selfLink"})
_SHOWN_CHARACTERS = 8_192
"""Of the permissions that are missing."""


class RbacEscalation:
    """The check."""

    def __init__(self, rbac: Rbac, authorizer: Authorizer) -> None:
        self._rbac = rbac
        self._authorizer = authorizer

    def mutate(self, attributes: Attributes) -> None: ...

    def validate(self, attributes: Attributes) -> None:
        """Refuse a role or binding that gives what its writer does not have."""
        resource = attributes.target.resource
        if attributes.operation is Operation.DELETE or resource.group != GROUP:
            return
        if resource.plural == "rolebindings":
            self._require_few(attributes)
        if MASTERS in attributes.user.groups:
            return
        # The garbage collector has few permissions, and may still have to change these fields (IsOnlyMutatingGCFields).
        if attributes.old is not None and _only_for_garbage_collection(attributes.value or {}, attributes.old):
            return
        if resource.plural in ("roles", "clusterroles"):
            self._role(attributes)
        elif resource.plural in ("rolebindings", "clusterrolebindings"):
            self._binding(attributes)

    def _require_few(self, attributes: Attributes) -> None:
        """Refuse subjects that would not count, unless they are no more than before."""
        target, weight = attributes.target, subjects_weight(attributes.value or {})
        if weight > max(self._rbac.room_of(target.namespace, target.name), subjects_weight(attributes.old or {})):
            why = f"the bindings of namespace {target.namespace} may have {MAX_SUBJECTS} subjects together"
            raise _refused(attributes, f"{why}; bind groups, or delete some first")

    def _role(self, attributes: Attributes) -> None:
        target, role = attributes.target, attributes.value or {}
        # The name of what is new is not in the request's path, where a rule could be held against it.
        name = "" if attributes.operation is Operation.CREATE else target.name
        if self._may(attributes, "escalate", target.resource.plural, name):
            return
        self._require(attributes, role.get("rules") or ())
        # Whoever labels a role later decides what is aggregated: that can be any permission.
        if aggregates(role) or aggregates(attributes.old or {}):
            try:
                self._require(attributes, _EVERYTHING)
            except StatusError:
                raise _refused(attributes, "must have cluster-admin privileges to use the aggregationRule") from None

    def _binding(self, attributes: Attributes) -> None:
        ref = (attributes.value or {}).get("roleRef", {})
        plural = {"ClusterRole": "clusterroles", "Role": "roles"}.get(ref.get("kind", ""))
        if plural and self._may(attributes, "bind", plural, ref.get("name", ""), ref.get("apiGroup", "")):
            return
        role = RoleRef(ref.get("kind", ""), attributes.target.namespace, ref.get("name", ""))
        self._require(attributes, [rule.value for rule in self._rbac.role_rules(role)])

    def _may(self, attributes: Attributes, verb: str, plural: str, name: str, group: str = GROUP) -> bool:
        asked = RequestAttributes(
            verb=verb,
            group=group,
            version="*",
            resource=plural,
            namespace=attributes.target.namespace,
            name=name,
        )
        return self._authorizer.authorize(attributes.user, asked).allowed

    def _require(self, attributes: Attributes, rules: Iterable[Mapping[str, Any]]) -> None:
        user = attributes.user
        owned, problem = self._rbac.rules_for(user, attributes.target.namespace)
        try:
            missing = compact(uncovered(owned, rules))
        except TooManyParts:
            raise _refused(
                attributes, "its rules are too many to compare with those that the user has: split the role"
            ) from None
        if missing:
            shown = "\n".join(missing)
            why = (
                f"user {quote(user.name)} (groups={quoted(user.groups)}) is attempting to grant RBAC permissions not"
                f" currently held:\n{shown[:_SHOWN_CHARACTERS]}"
            )
            raise _refused(attributes, why + (f"; resolution errors: [{problem}]" if problem else ""))


def _refused(attributes: Attributes, why: str) -> StatusError:
    resource = attributes.target.resource
    name = attributes.target.name or metadata(attributes.value or {}).get("name", "")
    return forbidden(resource.plural, resource.group, name, why)


def _only_for_garbage_collection(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Tell whether an update changes only what a garbage collector may have to."""
    return _granting(new) == _granting(old)


def _granting(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: item for name, item in metadata(value).items() if name not in _GARBAGE_FIELDS}
    return {**value, "metadata": fields}
