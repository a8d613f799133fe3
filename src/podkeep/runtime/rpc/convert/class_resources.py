"""Class resources (KEP-3008): requests to types and classes, and what is offered to its message. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.class_resources import model
from podkeep.runtime.class_resources.catalog import OfferedType
from podkeep.runtime.class_resources.model import Level
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.rpc.convert.checks import MAX_ENTRIES, check_count, quote

MAX_TYPE = 253 + 1 + 63
"""Characters of a type: like the key of a label, which may have a domain in front."""
MAX_CLASS = 255
"""Bytes of a class; those of rdt are names of directories."""


def class_names(field: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return types to classes as a request names them; whether they exist is the registry's to say.

    :param field: what holds them in the request, for the error.
    :raises InvalidArgument: if one cannot be a name.
    """
    check_count(field, given, MAX_ENTRIES)
    for name, class_name in given.items():
        if not name or len(name) > MAX_TYPE or not _is_word(name):
            raise InvalidArgument(f"class resource {quote(name)}: {field}: this is no name of a type")
        if not class_name:
            hint = "a type that is left out has no class, or keeps the one it has"
            raise InvalidArgument(model.problem(name, f"{field}: the class has no name"), hint=hint)
        if len(class_name.encode()) > MAX_CLASS or not _is_word(class_name):
            raise InvalidArgument(model.problem(name, f"{field}: {quote(class_name)} is no name of a class"))
    return dict(given)


def resources_info(classes: ClassResources) -> api.ResourcesInfo:
    """Return what this node offers, as ``Status`` reports it."""
    return api.ResourcesInfo(
        pod_class_resources=_infos(classes.catalog.offers(Level.POD)),
        container_class_resources=_infos(classes.catalog.offers(Level.CONTAINER)),
    )


def _infos(offered: Iterable[OfferedType]) -> list[api.ClassResourceInfo]:
    return [
        api.ClassResourceInfo(
            Name=item.name,
            classes=[api.ClassResourceClassInfo(Name=name) for name in item.offer.classes],
            immutable=item.offer.immutable,
            default_class=item.default,
        )
        for item in offered
    ]


class Discovery:
    """The part of ``Status`` that says what this node offers, made once per configuration."""

    def __init__(self, classes: ClassResources) -> None:
        self._classes = classes
        self._kept: tuple[int, bytes] | None = None

    def add_to(self, answer: api.StatusResponse) -> None:
        """Put what is offered into an answer.

        It is added as bytes: messages of a thousand classes take their time to make and to copy. Clients ask for the
        status every few seconds.
        """
        generation = self._classes.generation
        if self._kept is None or self._kept[0] != generation:
            status = api.RuntimeStatus(resources=resources_info(self._classes))
            self._kept = generation, api.StatusResponse(status=status).SerializeToString()
        answer.MergeFromString(self._kept[1])


def _is_word(text: str) -> bool:
    return text.isprintable() and " " not in text
