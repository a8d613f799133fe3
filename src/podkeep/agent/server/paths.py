"""Paths of requests: decoded once, so that what is authorized is what is answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, unquote

from podkeep.base.frozen import FrozenStruct
from podkeep.http.messages import Head, Refused

_MAX_FIELDS = 10_000
_METHODS = frozenset({"OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"})
_BUCKETS = frozenset(
    "healthz pods stats metrics metrics/cadvisor metrics/probes metrics/resource run exec attach portForward"
    " containerLogs configz runningpods checkpoint logs".split()
)
_OF_PODS = frozenset({"run", "exec", "attach", "portForward", "containerLogs", "checkpoint"})
"""Followed by a pod's namespace."""
_LONG = frozenset({"exec", "attach", "portForward"})


class Path(FrozenStruct, kw_only=True):
    """``parts`` are decoded; none is empty, ``.`` or ``..``, or has a slash in it."""

    parts: tuple[str, ...]
    query: Mapping[str, Sequence[str]]

    @property
    def text(self) -> str:
        """The path as one text, decoded, without the query."""
        return "/" + "/".join(self.parts)

    @property
    def namespace(self) -> str:
        """Of the pod that it names; empty: it names none."""
        return self.parts[1] if len(self.parts) > 1 and self.parts[0] in _OF_PODS else ""


def of_request(head: Head) -> Path:
    """Return the path and the query of a request.

    :raises Refused: 400, if somebody else might read the path otherwise.
    """
    raw, _, query = head.target.partition("?")
    try:
        # Split before it is decoded: an escaped slash is part of a name and not another step, and is refused below.
        parts = tuple(unquote(part, errors="strict") for part in raw.split("/")[1:])
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise Refused(400, "the request's target cannot be decoded") from error
    if parts and not parts[-1]:
        parts = parts[:-1]
    if not raw.startswith("/") or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise Refused(400, "the path has empty parts, . or .. in it")
    return Path(parts=parts, query=fields)


def labels(method: str, path: Path | None) -> tuple[str, str, str, str]:
    """Return the labels of a request's metrics: what strangers make up must not make series."""
    parts = path.parts if path else ()
    root = "/".join(parts[:2]) if parts[:1] == ("metrics",) else next(iter(parts), "")
    bucket = root if root in _BUCKETS else "other"
    return (
        method if method in _METHODS else "other",
        bucket,
        "readwrite",
        "true" if bucket in _LONG else "false",
    )
