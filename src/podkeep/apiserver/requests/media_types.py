"""Content types: what a client takes as an answer, and what its body is. Pure.

The rules are kube-apiserver's (``endpoints/handlers/negotiation``); protobuf is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from podkeep.apiserver.meta.status import StatusError, not_acceptable, unsupported_media_type
from podkeep.base.frozen import FrozenStruct

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
ACCEPTED = (JSON, YAML)
READ = (JSON, YAML, PROTOBUF)
"""Of bodies: newer clients of Go write protobuf without having asked, and take JSON."""
APPLY = "application/apply-patch+yaml"
_META = "meta.k8s.io"
_HUMANS = ("curl", "Wget", "Mozilla/5.0")
As = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]


class Form(FrozenStruct, kw_only=True):
    """How an answer is written: as which media type, and ``as_`` what instead of the object; ``version`` of that."""

    media_type: str = JSON
    as_: As = ""
    version: str = "v1"
    pretty: bool = False

    @property
    def content_type(self) -> str:
        """The header of an answer that is not a stream."""
        return self.media_type


PLAIN = Form()


class Clause(FrozenStruct):
    """One choice of an ``Accept`` header."""

    media_type: str
    parameters: tuple[tuple[str, str], ...] = ()
    quality: float = 1.0


def clauses(header: str) -> list[Clause]:
    """Return the choices of an ``Accept`` header, the dearest first."""
    found = []
    for text in header.split(","):
        media_type, *given = (part.strip() for part in text.split(";"))
        pairs = [(name.strip(), value.strip().strip('"')) for name, _, value in (part.partition("=") for part in given)]
        quality = dict(pairs).get("q", "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 1.0
        if media_type:
            found.append(Clause(media_type.lower(), tuple(pair for pair in pairs if pair[0] != "q"), weight))
    return sorted(found, key=lambda clause: -clause.quality)


def negotiate(header: str, *, pretty: bool = False, transforms: bool = True) -> Form:
    """Return the form that a client likes best of those that are served.

    :param header: ``Accept``.
    :param transforms: whether Tables and metadata alone can be had.
    :raises StatusError: 406, if there is none.
    """
    if header in ("", JSON, "*/*"):
        return Form(pretty=True) if pretty else PLAIN
    for clause in clauses(header):
        if (media_type := _matching(clause.media_type)) and (form := _form(clause, media_type, pretty, transforms)):
            return form
    raise not_acceptable(ACCEPTED)


def _matching(media_type: str) -> str:
    if media_type in ACCEPTED:
        return media_type
    return JSON if media_type in ("*/*", "application/*") else ""


def _form(clause: Clause, media_type: str, pretty: bool, transforms: bool) -> Form | None:
    given = dict(clause.parameters)
    if given.get("stream", "watch") != "watch" or given.get("sv"):
        return None
    pretty = pretty or given.get("pretty") == "1"
    kind, group, version = given.get("as", ""), given.get("g", ""), given.get("v", "")
    if not (kind or group or version):
        return Form(media_type=media_type, pretty=pretty)
    if not transforms or group != _META or version not in ("v1", "v1beta1"):
        return None
    match kind:
        case "Table" | "PartialObjectMetadata" | "PartialObjectMetadataList":
            return Form(media_type=media_type, as_=kind, version=version, pretty=pretty)
    return None


def wants_pretty(query_value: str, user_agent: str) -> bool:
    """Tell whether an answer is for a person: the parameter ``pretty`` says so, or the client is a known one."""
    if query_value:
        return query_value.lower() in ("1", "t", "true")
    return user_agent.startswith(_HUMANS)


def of_body(header: str, accepted: Sequence[str] = READ) -> str:
    """Return the media type of a body; the first that is accepted if the client names none.

    :raises StatusError: 415, if it is not one of those.
    """
    media_type = header.partition(";")[0].strip().lower() or accepted[0]
    if media_type not in accepted:
        raise unsupported_media_type(accepted)
    return media_type


def refusal_form(header: str) -> Form:
    """Return the form of an error for a client that may take nothing that is served: JSON then."""
    try:
        return negotiate(header)
    except StatusError:
        return PLAIN
