"""Kinds of objects: what an API's discovery says, and which one a person means by ``po``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.similar import similar
from podkeep.client.resources import Resource


class Kind(FrozenStruct, kw_only=True):
    """A resource, the other names that it has, and the ``versions`` of its group that have it."""

    resource: Resource
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    def is_called(self, name: str) -> bool:
        """Return whether a name in lower case, without a group, is one of its."""
        return bool(name) and name in {self.resource.name, self.singular, self.resource.kind.lower(), *self.short_names}


def discovered(answer: Any) -> list[Kind]:
    """Return the kinds in an ``APIGroupDiscoveryList``; of each group, those of the version that it prefers."""
    found: dict[tuple[str, str], Kind] = {}
    for group in answer.get("items") or ():
        name = group.get("metadata", {}).get("name", "")
        for version in group.get("versions") or ():
            for item in version.get("resources") or ():
                kind = _kind(name, version.get("version", ""), item)
                first = found.setdefault((name, kind.resource.name), kind)
                found[name, kind.resource.name] = structs.replace(
                    first, versions=(*first.versions, kind.resource.version)
                )
    return list(found.values())


def _kind(group: str, version: str, item: Any) -> Kind:
    return Kind(
        resource=Resource(
            group=group,
            version=version,
            name=item["resource"],
            kind=item.get("responseKind", {}).get("kind", ""),
            namespaced=item.get("scope") == "Namespaced",
        ),
        singular=item.get("singularResource", ""),
        short_names=tuple(item.get("shortNames") or ()),
        categories=tuple(item.get("categories") or ()),
        verbs=tuple(item.get("verbs") or ()),
    )


def named(kinds: Sequence[Kind], text: str) -> Resource:
    """Return the resource that a person means: ``po``, ``Pod``, ``deployments.apps``, ``deployments.v1.apps``.

    :raises NotFound: in kubectl's words, if the API has none.
    """
    name, _, rest = text.lower().partition(".")
    called = [kind for kind in kinds if kind.is_called(name)]
    for kind in called:
        group, version = kind.resource.group, kind.resource.version
        if not rest or rest in {group, f"{version}.{group}", group or version}:
            return kind.resource
    near = similar(name, [word for kind in kinds for word in (kind.resource.name, kind.singular) if word])
    hint = f"did you mean {near[0]}?" if near else "types are for example pods, services, configmaps, events and nodes"
    raise NotFound(f'the server doesn\'t have a resource type "{text}"', hint=hint)


def several(kinds: Sequence[Kind], text: str) -> list[Resource]:
    """Return the resources in ``pods,services``; a category such as ``all`` is each resource of it.

    :raises NotFound: if the API has no such.
    """
    found: list[Resource] = []
    for word in filter(None, text.split(",")):
        of_category = [kind.resource for kind in kinds if word in kind.categories and "list" in kind.verbs]
        found += of_category or [named(kinds, word)]
    return list(dict.fromkeys(found))


def of_object(kinds: Iterable[Kind], api_version: str, kind: str) -> Resource:
    """Return the resource of an object by its ``apiVersion`` and ``kind``.

    :raises NotFound: in kubectl's words, if the API has none.
    """
    group, _, version = api_version.rpartition("/")
    meant = ""
    for item in kinds:
        resource = item.resource
        if resource.group != group or version not in item.versions or "/" in resource.name:
            continue
        if resource.kind == kind:
            return Resource(group=group, version=version, name=resource.name, kind=kind, namespaced=resource.namespaced)
        if resource.kind.lower() == kind.lower():
            meant = resource.kind
    raise NotFound(
        f'no matches for kind "{kind}" in version "{api_version}"',
        hint=f"kinds have capital letters, this one is written {meant}" if meant else "",
    )


class Meant(FrozenStruct, kw_only=True):
    """Objects that a person names: of a resource those with these names; none: all of it."""

    resource: Resource
    names: tuple[str, ...] = ()


def meant(kinds: Sequence[Kind], words: Sequence[str]) -> list[Meant]:
    """Return what ``pods``, ``pod web db``, ``pod/web service/web`` or ``pods,services`` mean.

    :raises InvalidArgument: if the two forms are mixed.
    :raises NotFound: if the API has no such resource.
    """
    if not words:
        raise InvalidArgument("name what: TYPE [NAME...] or TYPE/NAME", hint="for example: podkeep get pods")
    with_slash = [word for word in words if "/" in word]
    if not with_slash:
        resources = several(kinds, words[0])
        return [Meant(resource=resource, names=tuple(words[1:])) for resource in resources]
    if len(with_slash) != len(words):
        raise InvalidArgument(
            "there is no need to specify a resource type as a separate argument when passing arguments in "
            "resource/name form",
            hint="write each as TYPE/NAME, or the type once and then names",
        )
    result = []
    for word in words:
        type_, _, name = word.partition("/")
        if not type_ or not name or "/" in name:
            raise InvalidArgument(f"{word}: not of the form TYPE/NAME")
        result.append(Meant(resource=named(kinds, type_), names=(name,)))
    return result
