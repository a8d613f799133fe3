"""RBAC: bindings give users the rules of roles, in one namespace or everywhere (kubernetes: ``plugin/pkg/auth``).

An index of bindings by their subjects and of roles' rules is kept over a lister, and follows what is written. A cluster
role that aggregates others has their rules at once, whether or not its own list of them is written yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from podkeep.apiserver.auth.following import Changes, Following
from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.rules import Rule
from podkeep.apiserver.auth.user import User, service_account_name
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.lister import ChangingLister, Lister
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, not_found
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import aggregated, quote

GROUP = "rbac.authorization.k8s.io"
ROLES = f"{GROUP}/roles"
CLUSTER_ROLES = f"{GROUP}/clusterroles"
ROLE_BINDINGS = f"{GROUP}/rolebindings"
CLUSTER_ROLE_BINDINGS = f"{GROUP}/clusterrolebindings"
_MAX_USERS = 1_000
"""Of whom is kept what they may do, each in one namespace: their names have 4 million characters at most. For one more
all are given up, and looked up again."""
_MAX_GROUPS, _MAX_CHARACTERS = 50, 4_096
"""Groups of a user who is kept, and characters of all names: a service account has three groups, and what tokens of
others say may be as long as a request's head."""
_MAX_ERROR_CHARACTERS = 1_024
"""Of what is told of roles that are not there, and of the last of them: so that such a user can be kept."""
MAX_BYTES = 256 << 10
"""Of the rules of one user in one namespace, encoded: the role that goes beyond it does not count, and none after it.
They may be read for each request, and each is held against all of them."""
MAX_GRANTS = 20_000
"""Of one user in one namespace: bindings to them and to each of their groups. A review may name thousands of groups,
with a thousand bindings to each."""
MAX_SUBJECTS = 50_000
"""Of the bindings of one namespace together, each some 1 KiB in memory; one with a long name counts as several. Those
of the binding that goes beyond it do not count: all that have room in a namespace would be gigabytes."""
_SUBJECT_CHARACTERS = 512
"""Of a name, from which on a subject counts as two."""
_MAX_KEPT_BYTES = 16 * MAX_BYTES
"""Of the rules that are kept for all users, encoded; they may be twenty times that in memory."""


class RoleRef(NamedTuple):
    """A role that a binding names; ``namespace`` is the binding's."""

    kind: str
    namespace: str
    name: str


class Grant(FrozenStruct):
    """A role that a user has by a binding, which names the user or a group of theirs."""

    role: RoleRef
    binding: str
    subject: Mapping[str, Any]

    @property
    def source(self) -> str:
        """The binding, as kube-apiserver writes it. Each subject's would have the names of binding and role whole."""
        return _described(self.binding, self.role, self.subject)


class _Subject(NamedTuple):
    namespace: str
    """Of the binding; empty for those of the whole cluster."""
    kind: str
    name: str


class _Granted(FrozenStruct):
    """The rules that a user has in one namespace, by what grants them, and what is wrong with other roles."""

    rules: tuple[tuple[Grant, tuple[Rule, ...]], ...]
    errors: tuple[str, ...]


def aggregates(role: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the label selectors of the cluster roles whose rules a cluster role has; none if it has its own."""
    found: Sequence[Mapping[str, Any]] = role.get("aggregationRule", {}).get("clusterRoleSelectors", ())
    return found


def aggregated_rules(role: Mapping[str, Any], roles: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rules of the roles that ``role`` aggregates, and of those that they do, each once, by roles' names.

    This is what kube-controller-manager comes to in the end (``pkg/controller/clusterroleaggregation``).
    """
    found = {metadata(role)["name"]: role}
    waiting = [role]
    while waiting:
        wanted = [selector for value in aggregates(waiting.pop()) if (selector := selectors.of_object(value))]
        for other in roles:
            name, labels = metadata(other)["name"], metadata(other).get("labels", {})
            if name not in found and any(selector.matches(labels) for selector in wanted):
                found[name] = other
                waiting.append(other)
    own = (found[name].get("rules") or () for name in sorted(found) if not aggregates(found[name]))
    return list({msgspec.json.encode(value): value for rules in own for value in rules}.values())


class _Rules(NamedTuple):
    """The rules of a role, and how many bytes they are, encoded; of more than count, none."""

    rules: tuple[Rule, ...]
    size: int


@dataclass
class _Index:
    """Bindings by subject, and roles' rules."""

    grants: dict[_Subject, dict[str, tuple[int, Grant]]] = field(default_factory=dict)
    """By the name of the binding, with the place of the subject in it."""
    subjects: dict[tuple[str, str], list[_Subject]] = field(default_factory=dict)
    """Of a binding, by its namespace and name."""
    weights: dict[tuple[str, str], int] = field(default_factory=dict)
    """What the subjects of a binding that counts are of ``MAX_SUBJECTS``."""
    bound: Counter[str] = field(default_factory=Counter)
    """What those of a namespace are together."""
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bindings of a namespace that do not count, and what their subjects would be."""
    rules: dict[RoleRef, _Rules] = field(default_factory=dict)
    kept: int = 0
    """The size of these rules, or more."""
    users: dict[tuple[str, tuple[str, ...], str], _Granted] = field(default_factory=dict)

    def bind(self, binding: Mapping[str, Any], namespace: str) -> None:
        name = metadata(binding)["name"]
        weight = subjects_weight(binding)
        # Those of the whole cluster are made by who may do everything in it.
        if namespace and self.bound[namespace] + weight > MAX_SUBJECTS:
            self.left_out.setdefault(namespace, {})[name] = weight
            return
        self.weights[namespace, name] = weight
        self.bound[namespace] += weight
        ref = binding["roleRef"]
        role = RoleRef(ref.get("kind", ""), namespace, ref.get("name", ""))
        for place, value in enumerate(binding.get("subjects") or ()):
            subject = _subject(value, namespace)
            if subject is None:
                continue
            grants = self.grants.setdefault(subject, {})
            if name not in grants:
                grants[name] = place, Grant(role, name, value)
                self.subjects.setdefault((namespace, name), []).append(subject)

    def unbind(self, namespace: str, name: str) -> None:
        self.bound[namespace] -= self.weights.pop((namespace, name), 0)
        if not self.bound[namespace]:
            del self.bound[namespace]
        left_out = self.left_out.get(namespace, {})
        if left_out.pop(name, None) is not None and not left_out:
            del self.left_out[namespace]
        for subject in self.subjects.pop((namespace, name), ()):
            grants = self.grants[subject]
            del grants[name]
            if not grants:
                del self.grants[subject]

    def fitting(self, namespace: str) -> str | None:
        """Return a binding of a namespace that was left out, and would not be any more; None: there is none."""
        room = MAX_SUBJECTS - self.bound[namespace]
        return next((name for name, weight in self.left_out.get(namespace, {}).items() if weight <= room), None)

    def granted(self, user: User, namespace: str) -> tuple[list[Grant], bool]:
        """Return what bindings of one namespace (empty: of the cluster) give a user, by their names, and whether that
        is all: of more than ``MAX_GRANTS`` no others are looked at."""
        found: dict[str, tuple[int, Grant]] = {}
        left = MAX_GRANTS
        for kind, name in (("User", user.name), *(("Group", group) for group in user.groups)):
            grants = self.grants.get(_Subject(namespace, kind, name), {})
            for binding, grant in islice(grants.items(), left):
                # Of several subjects that are the user the first in the binding counts, as upstream (`appliesTo`).
                found[binding] = min(found.get(binding, grant), grant, key=lambda placed: placed[0])
            left -= len(grants)
            if left < 0:
                break
        return [found[binding][1] for binding in sorted(found)], left >= 0


def subjects_weight(binding: Mapping[str, Any]) -> int:
    """Return what the subjects of a binding are of ``MAX_SUBJECTS``."""
    subjects = binding.get("subjects") or ()
    return sum(
        1 + (len(subject.get("name", "")) + len(subject.get("namespace", ""))) // _SUBJECT_CHARACTERS
        for subject in subjects
    )


def _subject(value: Mapping[str, Any], namespace: str) -> _Subject | None:
    kind, name = value.get("kind", ""), value.get("name", "")
    if kind == "ServiceAccount":
        own = value.get("namespace") or namespace
        return _Subject(namespace, "User", service_account_name(own, name)) if own else None
    return _Subject(namespace, kind, name) if kind in ("User", "Group") else None


def _described(binding: str, role: RoleRef, subject: Mapping[str, Any]) -> str:
    name = subject.get("name", "")
    if subject["kind"] == "ServiceAccount":
        # Name first, as upstream writes it (describeSubject).
        name = f"{name}/{subject.get('namespace') or role.namespace}"
    kind = "RoleBinding" if role.namespace else "ClusterRoleBinding"
    place = f"{binding}/{role.namespace}" if role.namespace else binding
    return f"{kind} {quote(place)} of {role.kind} {quote(role.name)} to {subject['kind']} {quote(name)}"


class Rbac:
    """Authorizes by what bindings and roles say now."""

    def __init__(self, lister: ChangingLister) -> None:
        self._lister = lister
        self._index = Following(lister, _built, _follow)

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        """Allow what a rule allows; have no opinion on the rest."""
        namespaces = ("", attributes.namespace) if attributes.namespace else ("",)
        errors: list[str] = []
        for namespace in namespaces:
            granted = self._granted(user, namespace)
            for grant, rules in granted.rules:
                if any(rule.allows(attributes) for rule in rules):
                    return Decision(allowed=True, reason=f"RBAC: allowed by {grant.source}")
            errors.extend(granted.errors)
        return Decision(allowed=False, reason=f"RBAC: {aggregated(errors)}" if errors else "")

    def rules_for(self, user: User, namespace: str) -> tuple[list[Rule], str]:
        """Return every rule that a user has in a namespace and everywhere, and what of them could not be found."""
        rules: list[Rule] = []
        errors: list[str] = []
        for place in ("", namespace) if namespace else ("",):
            granted = self._granted(user, place)
            rules.extend(rule for _, found in granted.rules for rule in found)
            errors.extend(granted.errors)
        return rules, aggregated(errors)

    def room_of(self, namespace: str, name: str) -> int:
        """Return what of ``MAX_SUBJECTS`` a binding of a namespace may have."""
        index = self._index.current()
        return MAX_SUBJECTS - index.bound[namespace] + index.weights.get((namespace, name), 0)

    def role_rules(self, role: RoleRef) -> tuple[Rule, ...]:
        """Return the rules of a role.

        :raises StatusError: 404, if there is none.
        """
        return tuple(map(Rule, _written_rules(self._lister, role)))

    def _granted(self, user: User, namespace: str) -> _Granted:
        index = self._index.current()
        key = user.name, user.groups, namespace
        if (known := index.users.get(key)) is not None:
            return known
        rules: list[tuple[Grant, tuple[Rule, ...]]] = []
        errors: list[str] = []
        first: dict[RoleRef, Grant] = {}
        grants, are_all = index.granted(user, namespace)
        if not are_all:
            errors.append(f"more than {MAX_GRANTS} bindings to the user and their groups; others do not count")
        if left_out := index.left_out.get(namespace):
            why = f"{len(left_out)} bindings of the namespace do not count: they have more than {MAX_SUBJECTS} subjects"
            errors.append(f"{why} together with the others")
        for grant in grants:
            first.setdefault(grant.role, grant)
        # The first binding to a role is the reason; others give nothing more, and there may be any number of them.
        size = 0
        for grant in first.values():
            try:
                found_rules, more = _rules(index, self._lister, grant.role)
            except StatusError as error:
                # Any number of bindings may name roles that are not there, each with a long name.
                if sum(map(len, errors)) < _MAX_ERROR_CHARACTERS:
                    errors.append(error.message[:_MAX_ERROR_CHARACTERS])
                continue
            size += more
            if size > MAX_BYTES:
                why = f"more than {MAX_BYTES} bytes of rules; those of {grant.source} and later ones do not count"
                errors.append(why[:_MAX_ERROR_CHARACTERS])
                break
            rules.append((grant, found_rules))
        found = _Granted(tuple(rules), tuple(errors))
        characters = sum(map(len, (user.name, *user.groups, *found.errors)))
        if len(user.groups) <= _MAX_GROUPS and characters <= _MAX_CHARACTERS:
            if len(index.users) >= _MAX_USERS:
                index.users.clear()
            index.users[key] = found
        return found


def _built(lister: Lister) -> _Index:
    index = _Index()
    for resource in (CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS):
        for binding in lister.list(resource):
            index.bind(binding, metadata(binding).get("namespace", ""))
    return index


def _follow(index: _Index, lister: Lister, changes: Changes) -> None:
    ours = {change for change in changes if change[0].startswith(GROUP)}
    for resource, namespace, name in ours:
        if resource == ROLES:
            index.rules.pop(RoleRef("Role", namespace, name), None)
            continue
        if resource == CLUSTER_ROLES:
            # It may be part of others.
            index.rules.clear()
            index.kept = 0
            continue
        index.unbind(namespace, name)
        if binding := lister.get(resource, namespace, name):
            index.bind(binding, namespace)
        while (waiting := index.fitting(namespace)) is not None:
            index.unbind(namespace, waiting)
            if binding := lister.get(ROLE_BINDINGS, namespace, waiting):
                index.bind(binding, namespace)
    if ours:
        index.users.clear()


def _rules(index: _Index, lister: Lister, role: RoleRef) -> _Rules:
    if role.kind == "ClusterRole":
        # One entry for the bindings of all namespaces.
        role = role._replace(namespace="")
    if (known := index.rules.get(role)) is not None:
        return known
    written = _written_rules(lister, role)
    size = len(msgspec.json.encode(written))
    if size > MAX_BYTES:
        found = _Rules((), size)
    else:
        found = _Rules(tuple(map(Rule, written)), size)
        index.kept += size
    if index.kept > _MAX_KEPT_BYTES:
        index.rules.clear()
        index.users.clear()
        index.kept = size
    index.rules[role] = found
    return found


def _written_rules(lister: Lister, role: RoleRef) -> Sequence[Mapping[str, Any]]:
    if role.kind == "Role":
        found = lister.get(ROLES, role.namespace, role.name) if role.namespace else None
    elif role.kind == "ClusterRole":
        found = lister.get(CLUSTER_ROLES, "", role.name)
    else:
        raise StatusError(500, "", f"unsupported role reference kind: {quote(role.kind)}")
    if found is None:
        raise not_found(role.kind.lower(), GROUP, role.name)
    if aggregates(found):
        return aggregated_rules(found, list(lister.list(CLUSTER_ROLES)))
    return found.get("rules") or ()
