"""Running one probe once: exec, HTTP, TCP or gRPC, with upstream's words for what comes of it.

What a container answers is hostile: it is bounded in size and, by the probe's timeout, in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from podkeep.agent import durations
from podkeep.agent.environment.variables import expand_all
from podkeep.agent.probes import dialing, grpc_health, ports
from podkeep.agent.probes.model import Outcome, Target, Verdict
from podkeep.agent.probes.places import Places
from podkeep.api.containers import Container, EphemeralContainer, ExecAction, Probe, TCPSocketAction
from podkeep.base.errors import DeadlineExceeded, PodkeepError
from podkeep.base.text import netloc
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.http.transport import abort

_MAX_OUTPUT = 10 * 1024
"""Bytes of a command's output that are shown (k8s.io/kubernetes/pkg/probe/exec)."""
_EXEC_PLACES = 16
"""How many commands of probes begin at a time: each is a process on the node before it is one in its container."""
_EXEC_PLACES_OF_POD = 4
"""Of them those of one pod, which may have hundreds of containers that are all probed each second."""


class Checks:
    """Runs probes, of all pods."""

    def __init__(self, client: CriClient) -> None:
        self._client = client
        self._places = Places(_EXEC_PLACES, share=_EXEC_PLACES_OF_POD)

    async def run(self, probe: Probe, target: Target) -> Outcome:
        """Run ``probe`` once. Nothing is raised: what cannot be carried out is UNKNOWN, with the reason as text."""
        timeout = max(probe.timeout_seconds, 1)
        try:
            if probe.exec is not None:
                return await self._exec(probe.exec, target, timeout)
            if probe.http_get is not None:
                from podkeep.agent.probes import http_get  # h11, of which `podkeep run` has no other use

                request = http_get.request(probe.http_get, target, "probe")
                return await http_get.probe(request, timeout)
            if probe.tcp_socket is not None:
                return await _tcp(probe.tcp_socket, target, timeout)
            if probe.grpc is not None:
                return await grpc_health.probe(target.host, probe.grpc.port, probe.grpc.service or "", timeout)
        except PodkeepError as error:
            # Without the hint, which is for who runs a command: a pod's event is read by others, and on a node.
            return Outcome(verdict=Verdict.UNKNOWN, text=error.message)
        return Outcome(verdict=Verdict.UNKNOWN, text=f"missing probe handler for {target.pod}:{target.container.name}")

    async def _exec(self, action: ExecAction, target: Target, timeout: int) -> Outcome:
        command = static_command(action.command, target.container)
        # The timeout counts from the request on: a probe that waits for a place is late, but does not fail for it.
        async with self._places.one(target.pod):
            request = api_pb2.ExecSyncRequest(container_id=target.id, cmd=command, timeout=timeout)
            try:
                answer = await self._client.runtime.ExecSync(request)
            except DeadlineExceeded:
                text = f'command timed out: "{" ".join(command)}" timed out after {durations.text(timeout)}'
                return Outcome(verdict=Verdict.FAILURE, text=text)
        output = (answer.stdout + answer.stderr)[:_MAX_OUTPUT].decode(errors="replace")
        verdict = Verdict.SUCCESS if answer.exit_code == 0 else Verdict.FAILURE
        return Outcome(verdict=verdict, text=output)


def static_command(command: Sequence[str], container: Container | EphemeralContainer) -> list[str]:
    """Return a probe's command with ``$(NAME)`` replaced by variables whose values the manifest has.

    :raises InvalidArgument: if it gets too long.
    """
    return expand_all(command, {variable.name: variable.value for variable in container.env})


async def _tcp(action: TCPSocketAction, target: Target, timeout: int) -> Outcome:
    host, port = action.host or target.host, ports.resolve(action.port, target.container)
    try:
        async with asyncio.timeout(timeout):
            _, writer = await dialing.connect(host, port)
    except TimeoutError:
        return Outcome(verdict=Verdict.FAILURE, text=f"dial tcp {netloc.join(host, port)}: i/o timeout")
    except dialing.DialFailed as failure:
        return Outcome(verdict=Verdict.FAILURE, text=failure.message)
    abort(writer.transport)
    return Outcome(verdict=Verdict.SUCCESS)
