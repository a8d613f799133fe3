"""Rules of roles (``rbac.authorization.k8s.io/v1`` ``PolicyRule``): what each allows, and which others cover. Pure.

Whoever writes a role may grant only what the rules of their own roles cover.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import quote

ALL = "*"
MAX_PARTS = 5_000
"""Of a role whose writer may not grant whatever they like: each is held against all that they may do."""
MAX_COMPARISONS = 50_000
"""Of those parts with rules of the writer that are long, some 1.5 µs each; and with URLs. Others are looked up."""
_LOOKED_UP = 16
"""Parts that a rule comes apart into, up to which they are looked up, and not compared one by one."""
_FEW = 8
"""Texts among which one is looked for one by one."""

_SHOWN_CHARACTERS = 300
"""Of each text of a part that is listed; names in paths have 253 at most."""


class Part(NamedTuple):
    """A verb on one resource (of one name, if that is not empty) or, if that is not empty, on one URL."""

    verb: str
    group: str = ""
    resource: str = ""
    name: str = ""
    url: str = ""


class Rule(FrozenStruct):
    """A rule as a role has it. Nothing is made of it in advance: a role may have thousands, for a single request."""

    value: Mapping[str, Any]

    @property
    def verbs(self) -> Collection[str]:
        return self._texts("verbs")

    @property
    def resources(self) -> Collection[str]:
        return self._texts("resources")

    @property
    def urls(self) -> Collection[str]:
        return self._texts("nonResourceURLs")

    def _texts(self, field: str) -> Collection[str]:
        texts: Collection[str] = self.value.get(field, ())
        return texts

    def allows(self, attributes: RequestAttributes) -> bool:
        verbs = self.verbs
        if attributes.verb not in verbs and ALL not in verbs:
            return False
        if not attributes.resource_request:
            return any(url_covers(url, attributes.path) for url in self.urls)
        subresource = attributes.subresource
        resource = f"{attributes.resource}/{subresource}" if subresource else attributes.resource
        names = self._texts("resourceNames")
        return (
            self._has_group(attributes.group)
            and self._has_resource(resource, subresource)
            and (not names or attributes.name in names)
        )

    def _has_group(self, group: str) -> bool:
        groups = self._texts("apiGroups")
        return group in groups or ALL in groups

    def _has_resource(self, resource: str, subresource: str) -> bool:
        resources = self.resources
        if resource in resources or ALL in resources:
            return True
        # `pods/*` is no pattern: an asterisk stands before the slash alone (upstream: ResourceMatches).
        return bool(subresource) and f"*/{subresource}" in resources

    def covers(self, part: Part) -> bool:
        """Tell whether whatever ``part`` allows is allowed by this rule."""
        verbs = self.verbs
        if part.verb not in verbs and ALL not in verbs:
            return False
        if part.url:
            return any(url_covers(url, part.url) for url in self.urls)
        names = self._texts("resourceNames")
        return (
            self._has_group(part.group)
            and self._has_resource(part.resource, part.resource.partition("/")[2])
            # A part without a name is all of them.
            and (not names or (bool(part.name) and part.name in names))
        )

    def indexed(self) -> Rule:
        """Return the same rule for many comparisons: none takes longer for long lists."""
        if all(len(texts) <= _FEW for texts in self.value.values()):
            return self
        return Rule({field: texts if len(texts) <= _FEW else frozenset(texts) for field, texts in self.value.items()})


def url_covers(url: str, path: str) -> bool:
    """Tell whether a URL of a rule, which may end with ``*``, is or begins a path."""
    # All asterisks at the end go, as in NonResourceURLMatches.
    return url in (ALL, path) or (url.endswith(ALL) and path.startswith(url.rstrip(ALL)))


def parts(value: Mapping[str, Any]) -> Iterator[Part]:
    """Yield what together is a rule: each with one verb, one resource or URL, and one name at most."""
    verbs = dict.fromkeys(value.get("verbs", ()))
    groups, resources = dict.fromkeys(value.get("apiGroups", ())), dict.fromkeys(value.get("resources", ()))
    names = dict.fromkeys(value.get("resourceNames", ())) or [""]
    for group in groups:
        for resource in resources:
            for verb in verbs:
                for name in names:
                    yield Part(verb, group, resource, name)
    for url in dict.fromkeys(value.get("nonResourceURLs", ())):
        for verb in verbs:
            yield Part(verb, url=url)


class TooManyParts(Exception):
    """Rules are too many to compare, taken apart."""


def uncovered(owned: Iterable[Rule], wanted: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Return the parts of ``wanted`` that no single rule of ``owned`` covers.

    :raises TooManyParts: if ``wanted`` has more than :data:`MAX_PARTS`, or they take :data:`MAX_COMPARISONS`.
    """
    own = _Owned(owned)
    missing = []
    for count, part in enumerate(chain.from_iterable(map(parts, wanted))):
        if count == MAX_PARTS or own.compared > MAX_COMPARISONS:
            raise TooManyParts
        if not own.cover(part):
            missing.append(part)
    return missing


class _Owned:
    """The rules that somebody has: thousands of short ones, of which each part is looked up, and few long ones."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._parts: set[Part] = set()
        self._long: list[Rule] = []
        self._with_urls: list[Rule] = []
        self.compared = 0
        for rule in rules:
            if rule.urls:
                self._with_urls.append(rule)
            if not _is_short(rule.value):
                self._long.append(rule.indexed())
            else:
                found = parts({**rule.value, "nonResourceURLs": ()})
                # An empty name in a rule is none of an object; that there are no names means all of them.
                is_named = bool(rule.value.get("resourceNames"))
                self._parts.update(part for part in found if part.name or not is_named)

    def cover(self, part: Part) -> bool:
        """Tell whether a single rule covers a part."""
        if part.url:
            for rule in self._with_urls:
                self.compared += len(rule.urls)
                if rule.covers(part):
                    return True
            return False
        if any(Part(*texts) in self._parts for texts in product(*_alternatives(part))):
            return True
        for rule in self._long:
            self.compared += 1
            if rule.covers(part):
                return True
        return False


def _is_short(rule: Mapping[str, Any]) -> bool:
    lengths = (len(rule.get(field, ())) or 1 for field in ("verbs", "apiGroups", "resources", "resourceNames"))
    return prod(lengths) <= _LOOKED_UP


def _alternatives(part: Part) -> Iterator[tuple[str, ...]]:
    """Yield for each text of a part on a resource what a rule may have for it, as :meth:`Rule.covers` has it."""
    subresource = part.resource.partition("/")[2]
    yield part.verb, ALL
    yield part.group, ALL
    yield (part.resource, ALL, f"*/{subresource}") if subresource else (part.resource, ALL)
    yield (part.name, "") if part.name else ("",)


def compact(missing: Iterable[Part]) -> list[str]:
    """Return parts as messages list them, in order: verbs of the same resource together, URLs one by one."""
    verbs: dict[tuple[str, str, str], list[str]] = {}
    shown = set()
    for part in missing:
        # Many parts may have the same text, which may be most of the role.
        verb, group, resource, name, url = (text[:_SHOWN_CHARACTERS] for text in part)
        if url:
            shown.add(f"{{NonResourceURLs:{quoted([url])}, Verbs:{quoted([verb])}}}")
        else:
            verbs.setdefault((group, resource, name), []).append(verb)
    for (group, resource, name), found in verbs.items():
        names = f", ResourceNames:{quoted([name])}" if name else ""
        shown.add(f"{{APIGroups:{quoted([group])}, Resources:{quoted([resource])}{names}, Verbs:{quoted(found)}}}")
    return sorted(shown)


def quoted(texts: Iterable[str]) -> str:
    """Return texts as Go's ``%q`` writes a list of them."""
    return "[" + " ".join(quote(text) for text in texts) + "]"
