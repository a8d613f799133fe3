"""Pulling one image: name to manifest to configuration to layers, each verified before the next step looks at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import Digest
from podkeep.base.registries.reference import Reference
from podkeep.images.formats import manifest
from podkeep.images.messages import FetchedImage, Pull, Repository
from podkeep.images.registry import referrers
from podkeep.images.registry.fallback import first
from podkeep.images.registry.registry import Registry
from podkeep.images.worker import selection
from podkeep.images.worker.assembly import Assembly
from podkeep.images.worker.channel import Channel

_Answer = TypeVar("_Answer")


def pull(request: Pull, assembly: Assembly, channel: Channel) -> FetchedImage:
    """Pull what ``request`` names and return its one image."""
    wanted = request.source.name
    name = structs.replace(wanted, artifact_type="")
    pulling = _Pull(name, _registries(request.source, channel), assembly, channel)
    if not wanted.artifact_type:
        return pulling.run()
    places = [referrers.Repository(name=name, registries=_registries(request.source, channel))]
    if request.referrers:
        others = _registries(request.referrers, channel)
        places.append(referrers.Repository(name=request.referrers.name, registries=others))
    subjects = pulling.digests()
    place, found = referrers.find(wanted, subjects, places)
    name = Reference(host=place.name.host, repository=place.name.repository, digest=found.digest)
    image = _Pull(name, place.registries, assembly, channel).run(subjects)
    # What it was asked for by is a name that leads elsewhere when something newer is attached, like a tag.
    return structs.replace(image, tags=(str(wanted),))


def _registries(repository: Repository, channel: Channel) -> list[Registry]:
    return [Registry(item, repository.name.repository, on_wait=channel.retrying) for item in repository.endpoints]


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """The digest that a name leads to, the documents on the way, and what they come to."""

    top: Digest
    documents: tuple[tuple[Digest, bytes], ...]
    config: bytes
    selection: selection.Selection


class _Pull:
    def __init__(self, name: Reference, registries: Sequence[Registry], assembly: Assembly, channel: Channel) -> None:
        self._name = name
        self._registries = list(registries)
        for registry in registries:
            registry.on_break = lambda digest, done, size: channel.progress(digest, "resuming", done, size)
        self._assembly = assembly
        self._channel = channel

    def run(self, subjects: Sequence[Digest] = ()) -> FetchedImage:
        """Get it and return it; ``subjects``: of what it must be a referrer."""
        found = self._selected(subjects)
        return selection.fetched_image(
            selection=found.selection,
            config=found.config,
            manifests=found.documents,
            layers=selection.fetch_missing(found.selection.jobs, self._registries, self._assembly, self._channel),
            tags=[] if self._name.digest else [str(self._name)],
            digests=[self._name.with_digest(found.top)],
        )

    def _selected(self, subjects: Sequence[Digest]) -> _Found:
        """Return what is to be fetched. What was decoded for it ends here: a document may be 30 times its bytes in
        memory, and a registry may take hours to send the layers."""
        top, documents, document = self._manifest()
        what = str(self._name)
        if subjects:
            # A list of referrers is the registry's word, or under a tag anybody's; the artifact's own manifest has the
            # last one.
            referrers.check_subject(documents[0][1], subjects, what)
        parsed = manifest.parse_manifest(document, what)
        config = manifest.embedded(parsed.config, f"{what}: configuration")
        if config is None:
            config = self._first(lambda registry: registry.document(parsed.config))
        selected = selection.select(parsed, documents[-1][0], config, self._assembly.settings.policy, what)
        return _Found(top=top, documents=tuple(documents), config=config, selection=selected)

    def digests(self) -> list[Digest]:
        """Return the digests that the name stands for: the index's, if it is one, and the manifest's."""
        return [digest for digest, _ in self._manifest()[1]]

    def _manifest(self) -> tuple[Digest, list[tuple[Digest, bytes]], dict[str, Any]]:
        """Return the digest of what the name leads to, the documents on the way, and the image manifest."""
        what = str(self._name)
        data, document, is_index = self._fetch(self._name.target, self._name.digest, what)
        top = self._name.digest or manifest.digest_of(data)
        documents = [(top, data)]
        if not is_index:
            return top, documents, document
        chosen = manifest.choose(document, self._assembly.settings.architecture, what).digest
        what = f"{what}: manifest {chosen}"
        data, document, is_index = self._fetch(chosen, chosen, what)
        documents.append((chosen, data))
        if is_index:
            raise InvalidArgument(f"{what} is an index in an index")
        return top, documents, document

    def _fetch(self, target: str, digest: Digest | None, what: str) -> tuple[bytes, dict[str, Any], bool]:
        """Return a document as bytes and as an object, and whether it is an index."""

        def ask(registry: Registry) -> tuple[bytes, dict[str, Any], bool]:
            data, media_type = registry.fetch_manifest(target)
            if digest is not None:
                # Before it is parsed: nothing is looked at whose digest is not right.
                manifest.verify(data, digest, f"{registry}: manifest")
            document = manifest.parse_document(data, what)
            manifest.check_kind(document, media_type, what)
            return data, document, manifest.is_index(document, media_type)

        return self._first(ask)

    def _first(self, ask: Callable[[Registry], _Answer]) -> _Answer:
        return first(self._registries, ask, str(self._name))
