"""Whether a runtime answers, and what its handlers can do (CRI: StatusResponse.runtime_handlers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podkeep.base.errors import PodkeepError
from podkeep.cli.core import connection
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding

if TYPE_CHECKING:
    from podkeep.cli.core.invocation import Invocation
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import api_pb2

_REQUIRED = frozenset({"RuntimeReady", "NetworkReady"})
"""Conditions without which a kubelet runs no pod (CRI: RuntimeCondition)."""


def examine(invocation: Invocation) -> list[Finding]:
    """Ask the runtime, if there is one. None running is worth a remark, not an error: ``podkeep run`` starts one."""

    async def ask(client: CriClient) -> tuple[api_pb2.VersionResponse, api_pb2.StatusResponse]:
        from podkeep.cri.v1 import api_pb2

        version = await client.runtime.Version(api_pb2.VersionRequest())
        return version, await client.runtime.Status(api_pb2.StatusRequest(verbose=True))

    try:
        version, status = connection.run(invocation, ask)
    except PodkeepError as error:
        return [
            finding.warning("runtime", error.message, why="ps, logs, exec and image need it", fix=_start(invocation))
        ]
    answers = f"{version.runtime_name} {version.runtime_version} answers on {invocation.config.runtime.socket}"
    conditions, handlers = status.status.conditions, status.runtime_handlers
    reasons = _reasons(status.info.get("handlers", ""))
    return [
        finding.ok("runtime", answers),
        *map(of_condition, conditions),
        *(of_handler(handler, reasons.get(handler.name, "")) for handler in handlers),
    ]


def _reasons(text: str) -> dict[str, str]:
    """Return by handler why it gives no user namespaces, as podkeep's runtime says it; another one does not."""
    import msgspec

    class Features(msgspec.Struct):
        why_not: str = ""

    try:
        return {name: found.why_not for name, found in msgspec.json.decode(text, type=dict[str, Features]).items()}
    except msgspec.DecodeError:
        return {}


def _start(invocation: Invocation) -> str:
    node = connection.command_line(invocation, "node")
    if connection.was_node(invocation.config):
        return node
    runtime = connection.command_line(invocation, "runtime")
    return f"{node} (a Kubernetes node: runtime, API and agent), or {runtime} (the runtime alone, as for a kubelet)"


def of_condition(condition: api_pb2.RuntimeCondition) -> Finding:
    """Judge what the runtime says of itself (CRI: RuntimeReady, NetworkReady, and others that are informative)."""
    if condition.status:
        return finding.ok(condition.type, "true")
    message, _, hint = condition.message.partition("; hint: ")
    said = f"{condition.reason}: {message}" if message else condition.reason or "false"
    fix = hint or "read the runtime's log"
    if condition.type in _REQUIRED:
        why = "the runtime reports that it cannot run pods"
        return finding.missing(condition.type, said, why=why, fix=fix)
    return finding.warning(condition.type, said, why="the runtime reports that not everything works", fix=fix)


def of_handler(handler: api_pb2.RuntimeHandler, reason: str = "") -> Finding:
    """Judge a handler by the features it reports; the nameless one is the default.

    :param reason: why it gives no user namespaces, if that is known.
    """
    name = f"handler {handler.name or '(default)'}"
    features = {
        "user_namespaces": handler.features.user_namespaces,
        "recursive_read_only_mounts": handler.features.recursive_read_only_mounts,
    }
    detail = ", ".join(f"{feature}: {'yes' if has else 'no'}" for feature, has in features.items())
    if features["user_namespaces"]:
        return finding.ok(name, detail)
    why = "pods with hostUsers: false are refused with this handler"
    if not reason:
        return finding.warning(name, detail, why=why, fix="use a handler whose OCI runtime maps mounts, such as crun")
    message, _, hint = reason.partition("; hint: ")
    fix = hint or "end what keeps it from that, and start the runtime again; or use another handler"
    return finding.warning(name, f"{detail}: {message}", why=why, fix=fix)
