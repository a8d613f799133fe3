"""What the API asks kubelets for: logs, exec, attach, port-forward, and whatever is behind their own paths.

Where a request goes is computed from the pod and its node (registry/core/pod: ``LogLocation``, ``streamLocation``);
``relay`` passes it on. The kubelet proves itself with a certificate of the API's authority.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.endpoints.call import Call
from podkeep.apiserver.endpoints.catalog import Entry
from podkeep.apiserver.endpoints.handler import Answer
from podkeep.apiserver.endpoints.query import Query
from podkeep.apiserver.endpoints.relay import Place, relay
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, bad_request, internal, invalid, not_found
from podkeep.http.messages import Response, Upgrade

PORT = 10250
_ADDRESSES = ("InternalIP", "ExternalIP", "Hostname")
"""Which address of a node is asked, the first that it has."""
_LOG_NUMBERS = {"sinceSeconds": 1, "tailLines": 0, "limitBytes": 1}
"""Options of logs that are numbers, and the least that each may be."""
_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Options of exec and attach, and what kubelets call them."""


def container_of(pod: Mapping[str, Any], name: str) -> str:
    """Return the container that a request means.

    :raises StatusError: 400, if it is not there, or none is named and there are several.
    """
    spec, pod_name = pod.get("spec", {}), metadata(pod)["name"]
    lists = ("initContainers", "containers", "ephemeralContainers")
    known = [item["name"] for kind in lists for item in spec.get(kind, ())]
    if name:
        if name not in known:
            raise bad_request(f"container {name[:80]} is not valid for pod {pod_name}")
        return name
    containers = spec.get("containers", ())
    if len(containers) == 1:
        only: str = containers[0]["name"]
        return only
    raise bad_request(f"a container name must be specified for pod {pod_name}, choose one of: [{' '.join(known)}]")


def log_parameters(query: Query) -> list[tuple[str, str]]:
    """Return a kubelet's parameters for a log.

    :raises StatusError: 400 or 422, if they make no sense.
    """
    found = [(name, "true") for name in ("follow", "previous", "timestamps") if query.boolean(name)]
    errors = FieldErrors()
    for name, least in _LOG_NUMBERS.items():
        number = query.integer(name)
        if number is None:
            continue
        if number < least:
            errors.invalid(name, number, f"must be greater than {'or equal to ' if least == 0 else ''}0")
        found.append((name, str(number)))
    if time := query.text("sinceTime"):
        if "sinceSeconds" in query:
            errors.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        found.append(("sinceTime", time))
    stream = query.text("stream")
    if stream not in ("", "All", "Stdout", "Stderr"):
        errors.unsupported("stream", stream, ["All", "Stdout", "Stderr"])
    if errors.found:
        raise invalid("PodLogOptions", "", "", errors.found)
    return [*found, *([("stream", stream)] if stream else [])]


def stream_parameters(query: Query, *, command: bool) -> list[tuple[str, str]]:
    """Return a kubelet's parameters for exec and attach.

    :raises StatusError: 422, if there is no command, or no stream.
    """
    found = [(theirs, "1") for ours, theirs in _STREAMS.items() if query.boolean(ours)]
    errors = FieldErrors()
    if command and not query.texts("command"):
        errors.required("command", "")
    if not {"input", "output", "error"} & {name for name, _ in found}:
        errors.add("", "Required value: you must specify at least one of stdin, stdout, stderr")
    if errors.found:
        raise invalid("PodExecOptions" if command else "PodAttachOptions", "", "", errors.found)
    return [*found, *(("command", word) for word in query.texts("command") if command)]


def address_of(node: Mapping[str, Any]) -> tuple[str, int]:
    """Return where the kubelet of a node listens.

    :raises StatusError: 500, if the node does not say.
    """
    status = node.get("status", {})
    known = {item["type"]: item["address"] for item in reversed(status.get("addresses", ()))}
    port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port") or PORT
    for kind in _ADDRESSES:
        if kind in known:
            return known[kind], port
    raise internal(f"no preferred addresses found; known addresses: [{' '.join(known)}]")


@dataclass(frozen=True, slots=True)
class Kubelets:
    """Answers requests that a kubelet answers.

    :param tls: with the API's certificate for kubelets, and the authority of theirs.
    """

    lister: Lister
    tls: ssl.SSLContext

    def answers(self) -> dict[str, Answer]:
        """Return what answers, by name in discovery."""
        return {
            "pods/log": self.log,
            "pods/exec": self.stream,
            "pods/attach": self.stream,
            "pods/portforward": self.port_forward,
            "nodes/proxy": self.node,
        }

    async def log(self, call: Call, _: Entry) -> Response | Upgrade:
        """Answer with a container's log."""
        pod = self._pod(call)
        parameters = log_parameters(call.query)
        container = container_of(pod, call.query.text("container"))
        if not pod["spec"].get("nodeName"):
            return call.respond(b"", content_type="text/plain")
        answer = await self._ask(
            call, pod, ("containerLogs", call.info.namespace, call.info.name, container), parameters
        )
        if isinstance(answer, Response) and answer.status == 200:
            return call.respond(answer.body, content_type="text/plain")
        return answer

    async def stream(self, call: Call, entry: Entry) -> Response | Upgrade:
        """Run a command in a container, or attach to it."""
        pod = self._pod(call)
        container = container_of(pod, call.query.text("container"))
        parameters = stream_parameters(call.query, command=entry.subresource == "exec")
        return await self._ask(
            call, pod, (entry.subresource, call.info.namespace, call.info.name, container), parameters
        )

    async def port_forward(self, call: Call, _: Entry) -> Response | Upgrade:
        """Lead to ports of a pod."""
        ports = [("port", text) for text in call.query.texts("ports")]
        return await self._ask(call, self._pod(call), ("portForward", call.info.namespace, call.info.name), ports)

    async def node(self, call: Call, _: Entry) -> Response | Upgrade:
        """Pass a request on to a kubelet's own paths."""
        host, port = address_of(self._node(call.info.name))
        path = "/" + "/".join(quote(part) for part in call.info.rest)
        query = call.request.target.partition("?")[2]
        target = f"{path}?{query}" if query else path
        return await relay(call.request, Place(host=host, port=port, target=target, tls=self.tls))

    async def _ask(
        self, call: Call, pod: Mapping[str, Any], parts: Sequence[str], parameters: Sequence[tuple[str, str]]
    ) -> Response | Upgrade:
        name = pod["spec"].get("nodeName")
        if not name:
            raise bad_request(f"pod {call.info.name} does not have a host assigned")
        host, port = address_of(self._node(name))
        path = "/" + "/".join(quote(part, safe="") for part in parts)
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        return await relay(call.request, Place(host=host, port=port, target=target, tls=self.tls))

    def _pod(self, call: Call) -> Mapping[str, Any]:
        found = self.lister.get("pods", call.info.namespace, call.info.name)
        if found is None:
            raise not_found("pods", "", call.info.name)
        return found

    def _node(self, name: str) -> Mapping[str, Any]:
        found = self.lister.get("nodes", "", name)
        if found is None:
            raise _no_node(name)
        return found


def _no_node(name: str) -> StatusError:
    return not_found("nodes", "", name)
