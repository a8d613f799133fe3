"""What a kubelet is asked for a pod's log and streams, computed from the pod and the query (core: ``pod/strategy.go``).

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.pods.validation.fields import CONTAINER_FIELDS
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, bad_request, invalid
from podkeep.apiserver.requests.query import Query
from podkeep.base.text import rfc3339

_FLAGS = ("follow", "previous", "timestamps")
_STREAMS = (("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"))
"""What each is called in a request to the API, and in one to a kubelet."""


def container_of(pod: Mapping[str, Any], asked: str) -> str:
    """Return the container that a request means.

    :param asked: its name; empty: the only one.
    :raises StatusError: 400, if there is none of that name, or none is asked for and there are several.
    """
    pod_name = metadata(pod)["name"]
    names = [item["name"] for kind in CONTAINER_FIELDS for item in at(pod, "spec", kind, default=())]
    if asked:
        if asked not in names:
            raise bad_request(f"container {asked[:253]} is not valid for pod {pod_name}")
        return asked
    containers = at(pod, "spec", "containers", default=())
    if len(containers) == 1:
        return str(containers[0]["name"])
    among = f", choose one of: [{' '.join(names)}]" if containers else ""
    raise bad_request(f"a container name must be specified for pod {pod_name}{among}")


def node_of(pod: Mapping[str, Any]) -> str:
    """Return the node that a pod is on.

    :raises StatusError: 400, if it is on none.
    """
    node: str = at(pod, "spec", "nodeName", default="")
    if not node:
        raise bad_request(f"pod {metadata(pod)['name']} does not have a host assigned")
    return node


def log_query(query: Query, pod_name: str) -> str:
    """Return the query of a request for a log.

    :raises StatusError: 400 or 422, if what is asked for makes no sense.
    """
    numbers = {name: query.integer(name) for name in ("sinceSeconds", "tailLines", "limitBytes")}
    given = {name: number for name, number in numbers.items() if number is not None}
    since = query.text("sinceTime")
    errors = FieldErrors()
    if given.get("tailLines", 0) < 0:
        errors.invalid("tailLines", given["tailLines"], "must be greater than or equal to 0")
    if given.get("limitBytes", 1) < 1:
        errors.invalid("limitBytes", given["limitBytes"], "must be greater than 0")
    if "sinceSeconds" in given and since:
        errors.add("[]", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif given.get("sinceSeconds", 1) < 1:
        errors.invalid("sinceSeconds", given["sinceSeconds"], "must be greater than 0")
    if "stream" in query:
        errors.add("stream", "Forbidden: may not be specified")
    moment = _moment(since) if since else ""
    if errors.found:
        raise invalid("PodLogOptions", "", pod_name, errors.found)
    fields: dict[str, Any] = {name: "true" for name in _FLAGS if query.boolean(name)} | given
    return urlencode(fields | ({"sinceTime": moment} if moment else {}))


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None and "T" in text.upper():
            return rfc3339.of(moment)
    except (ValueError, OverflowError):
        pass
    raise bad_request(f'parsing time "{text[:80]}" as "2006-01-02T15:04:05Z07:00": cannot parse it')


def stream_query(query: Query, *, command: bool) -> str:
    """Return the query of a request for exec (``command``) or attach."""
    fields = [(theirs, "1") for ours, theirs in _STREAMS if query.boolean(ours)]
    return urlencode(fields + ([("command", word) for word in query.texts("command")] if command else []))


def ports_query(query: Query) -> str:
    """Return the query of a request to forward ports; a client may name them in its streams instead.

    :raises StatusError: 400, if one is no number.
    """
    ports = [Query(f"port={text}").integer("port") for text in query.texts("ports") if text.isalnum()]
    return urlencode({"port": ",".join(map(str, ports))}) if ports else ""


_MESSAGES = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}


def log_refusal(status: int, body: bytes, pod_name: str) -> StatusError:
    """Return the error for a log that a kubelet refused (apiserver: ``GenericHttpResponseChecker``)."""
    text = body.decode(errors="replace")
    if status == 500:
        return StatusError(500, "InternalError", f"Internal error occurred: {text}", causes=[{"message": text}])
    if status == 400:
        return bad_request(text)
    plain = f"the server responded with the status code {status} but did not return more information"
    reason, message = _MESSAGES.get(status, ("", plain))
    if status == 403:
        reason, message = "Forbidden", text
    elif not reason and status >= 500:
        reason = "InternalError"
        quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        message = f"an error on the server ({quoted}) has prevented the request from succeeding"
    message = f"{message} ( pods/log {pod_name})"
    return StatusError(status if 400 <= status < 600 else 500, reason, message, name=pod_name, kind="pods/log")
