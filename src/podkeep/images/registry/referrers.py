"""Referrers: artifacts that say of an image, in their ``subject``, that they belong to it.

Owns: asking a registry for them (OCI distribution-spec, "Listing Referrers", and the tag schema for registries that
have no such API) and choosing one of several. Does not own: whether images may be named in this way
(``referrer_names.py``), getting what was chosen (``pull.py``), attaching one (``pushing.py``). Called by the worker and
by ``podkeep artifact``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.ids import Digest
from podkeep.base.registries.reference import Reference
from podkeep.images.formats import manifest, texts
from podkeep.images.registry.calls import Call, ask
from podkeep.images.registry.fallback import UNREADABLE
from podkeep.images.registry.registry import Registry

CREATED = "org.opencontainers.image.created"
_MAX_REFERRERS = 10_000
_MAX_PAGES = 1000
_MAX_BYTES = 16 << 20
"""Of all pages of a list."""
_MAX_LINK = 4096
_NEXT = re.compile(r'<([^>]+)>\s*;[^,]*\brel="?next"?')
_NO_API = (404, 405, 501)


class Referrer(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that refers to an image, as the registry lists it; ``size`` of its manifest in bytes."""

    digest: Digest
    media_type: str
    size: int
    artifact_type: str
    annotations: Mapping[str, str]

    @property
    def created(self) -> datetime | None:
        """When it was made, if it says so with a time zone (OCI image-spec, annotations.md; RFC 3339)."""
        try:
            when = datetime.fromisoformat(self.annotations.get(CREATED, ""))
        except ValueError:
            return None
        return when if when.tzinfo else None


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository where referrers may be, ``host/repository``, and the servers to ask."""

    name: Reference
    registries: Sequence[Registry]


def tag_of(subject: Digest) -> str:
    """Return the tag that lists the referrers of ``subject`` where the registry does not (distribution-spec,
    "Referrers Tag Schema")."""
    algorithm, _, encoded = subject.partition(":")
    return f"{algorithm[:32]}-{encoded[:64]}"


def find(name: Reference, subjects: Sequence[Digest], places: Sequence[Repository]) -> tuple[Repository, Referrer]:
    """Return the artifact of type ``name.artifact_type`` that refers to one of ``subjects``, and where it is.

    :param subjects: the digests that ``name`` stands for: the index's, if it is one, and the manifest's.
    :raises NotFound: if there is none.
    :raises FailedPrecondition: if there are several and none is the newest.
    :raises PodkeepError: if no server of a place answers.
    """
    found: dict[Digest, tuple[Repository, Referrer]] = {}
    for place in places:
        for subject in subjects:
            for referrer in list_anywhere(place.registries, subject, name.artifact_type):
                found.setdefault(referrer.digest, (place, referrer))
    if not found:
        where = " and ".join(place.name.name for place in places)
        raise NotFound(
            f"{name}: nothing of this type in {where} refers to {' or '.join(subjects)}",
            hint="`podkeep artifact referrers` lists what does",
        )
    chosen = newest([referrer for _, referrer in found.values()], str(name))
    return found[chosen.digest]


def newest(referrers: Sequence[Referrer], what: str) -> Referrer:
    """Return the only one, or the one that was created last.

    :raises FailedPrecondition: if they do not tell, naming them.
    """
    if len(referrers) == 1:
        return referrers[0]
    dated = sorted(((item.created, item) for item in referrers if item.created), key=lambda pair: pair[0])
    # One without a date may be the newest, and of two with the same date either.
    if len(dated) < len(referrers) or dated[-1][0] == dated[-2][0]:
        raise FailedPrecondition(
            f"{what}: {len(referrers)} artifacts match, and {CREATED} does not tell which one is the newest: "
            + ", ".join(sorted(item.digest for item in referrers)[:10]),
            hint="name the one that is meant by its digest",
        )
    return dated[-1][1]


def subjects(registry: Registry, name: Reference) -> list[Digest]:
    """Return the digests that ``name`` stands for on this machine: of the index, if it is one, and of the manifest.

    :raises NotFound: if the registry does not have it.
    """
    data, media_type = registry.fetch_manifest(name.target)
    if name.digest is not None:
        manifest.verify(data, name.digest, f"{registry}: manifest")
    top = name.digest or manifest.digest_of(data)
    document = manifest.parse_document(data, str(name))
    if not manifest.is_index(document, media_type):
        return [top]
    try:
        return [top, manifest.choose(document, manifest.node_architecture(), str(name)).digest]
    except NotFound:
        return [top]


def list_anywhere(registries: Sequence[Registry], subject: Digest, artifact_type: str = "") -> list[Referrer]:
    """Return the referrers that the first of several servers knows; a mirror may well have none of them.

    :raises PodkeepError: if the last one fails, and none before it had any.
    """
    failure: PodkeepError | None = None
    for registry in registries:
        try:
            if found := list_referrers(registry, subject, artifact_type):
                return found
            failure = None
        except UNREADABLE as error:
            failure = error
    if failure is not None:
        raise failure
    return []


def list_referrers(registry: Registry, subject: Digest, artifact_type: str = "") -> list[Referrer]:
    """Return what refers to ``subject`` in the repository, all of it or one type only.

    :raises InvalidArgument: if the registry's list is malformed or longer than anyone needs.
    :raises RegistryUnavailable: if it does not answer.
    """
    what = f"{registry}: referrers of {subject}"
    found: dict[Digest, Referrer] = {}
    entries = 0
    for document in _pages(registry, subject, artifact_type, what):
        page = referrers_in(document, what)
        entries += len(page)
        if entries > _MAX_REFERRERS:
            raise _endless(what)
        # A registry may leave the filtering to the client, and says so by leaving out OCI-Filters-Applied.
        found |= {item.digest: item for item in page if not artifact_type or item.artifact_type == artifact_type}
    return list(found.values())


def check_subject(manifest_data: bytes, subjects: Sequence[Digest], what: str) -> None:
    """Check that an artifact refers to one of ``subjects`` itself; in a list under a tag there may be anything.

    :raises FailedPrecondition: if it refers to something else, or nothing.
    """
    subject = manifest.parse_document(manifest_data, what).get("subject")
    digest = subject.get("digest") if isinstance(subject, dict) else None
    if digest not in subjects:
        raise FailedPrecondition(
            f"{what} is listed as an artifact that refers to {' or '.join(subjects)}, and says itself that it refers to"
            f" {texts.short(str(digest)) if digest else 'nothing'}",
            hint="attach it again, or name it by its digest",
        )


def _pages(registry: Registry, subject: Digest, artifact_type: str, what: str) -> Iterator[dict[str, Any]]:
    """Yield every page of the list, or the one under a tag if the registry has no such API."""
    path = f"referrers/{subject}" + (f"?artifactType={quote(artifact_type, safe='')}" if artifact_type else "")
    seen: set[str] = set()
    size = 0
    while path:
        seen.add(path)
        call = Call(
            method="GET",
            path=path,
            what=what,
            headers={"Accept": manifest.OCI_INDEX},
            accept=(200, *_NO_API),
            most=manifest.MAX_MANIFEST_BYTES,
        )
        reply = ask(registry, call)
        # Anything but an index is no answer of the API (distribution-spec, "Listing Referrers"): the tag is asked then.
        if len(seen) == 1 and (reply.status != 200 or reply.media_type != manifest.OCI_INDEX):
            if index := tagged_index(registry, subject):
                yield index
            return
        if reply.status != 200:
            raise NotFound(f"{what}: a page of the list is gone", hint="try again")
        size += len(reply.data)
        path = _following(path, reply.headers.get("link", ""), what)
        # A registry chooses where the next page is: it may lead in a circle, or on for ever.
        if path in seen or len(seen) >= _MAX_PAGES or size > _MAX_BYTES:
            raise _endless(what)
        yield manifest.parse_document(reply.data, what)


def _following(path: str, link: str, what: str) -> str:
    """Return where the next page is (RFC 8288, as the registry's tags are listed); empty: there is none."""
    found = _NEXT.search(link[:_MAX_LINK])
    if found is None:
        return ""
    try:
        # Registries behind a proxy may well name themselves as only the proxy does: the way counts, not the host.
        parts = urlsplit(urljoin(path, found[1]))
    except ValueError as error:
        raise InvalidArgument(
            f"{what}: {texts.short(found[1].partition('?')[0])} is not where a next page can be"
        ) from error
    return str(urlunsplit(("", "", re.sub("^/+", "/", parts.path), parts.query, "")))


def _endless(what: str) -> InvalidArgument:
    return InvalidArgument(f"{what}: the list does not end, or has more than {_MAX_REFERRERS} entries")


def tagged_index(registry: Registry, subject: Digest) -> dict[str, Any] | None:
    """Return the index under the tag for the referrers of ``subject``; None if there is no such tag.

    :raises InvalidArgument: if there is something else.
    """
    try:
        data, media_type = registry.fetch_manifest(tag_of(subject))
    except NotFound:
        return None
    what = f"{registry}:{tag_of(subject)}"
    document = manifest.parse_document(data, what)
    if not manifest.is_index(document, media_type):
        raise InvalidArgument(f"{what} is no index, although the name is one of a list of referrers")
    return document


def referrers_in(document: Mapping[str, Any], what: str) -> list[Referrer]:
    """Return the entries of a list of referrers.

    :raises InvalidArgument: naming the field that is wrong.
    """
    entries = document.get("manifests") or []
    if not isinstance(entries, list) or len(entries) > _MAX_REFERRERS:
        raise InvalidArgument(f"{what}: manifests is not a list of at most {_MAX_REFERRERS} entries")
    result = []
    for number, entry in enumerate(entries):
        place = f"{what}: manifests[{number}]"
        described = manifest.descriptor(entry, place)
        artifact_type = manifest.media_type_in(entry, "artifactType", place)
        result.append(
            Referrer(
                digest=described.digest,
                media_type=described.media_type,
                size=described.size,
                artifact_type=artifact_type,
                annotations=manifest.string_map(entry, "annotations", place),
            )
        )
    return result
