"""Life cycle hooks of containers: exec, HTTP, sleep (kubelet, lifecycle/handlers.go).

What is done about a hook that fails is up to the caller: a container whose postStart fails is killed, one whose preStop
fails is stopped all the same.
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from podkeep.agent.events import Event, PodListener
from podkeep.agent.metrics import HOOK_HTTP_FALLBACKS, HOOK_SLEEP_ENDED_EARLY
from podkeep.agent.probes.model import Target
from podkeep.api.containers import ExecAction, HTTPGetAction, LifecycleHandler
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.metrics import Metrics
from podkeep.base.text import netloc
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

_MAX_OUTPUT = 10 * 1024


class HookFailed(FailedPrecondition):
    """A hook failed. The message may have in it what its command printed: it goes to a status, and into no event."""


class Hooks:
    """Runs hooks, of all pods."""

    def __init__(self, client: CriClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics

    async def run(self, handler: LifecycleHandler, target: Target, listener: PodListener) -> None:
        """Run one hook to its end, however long it takes; cancel it to give it up.

        :param target: the container for which it runs, and in which a command does.
        :param listener: hears of an HTTPS hook that was answered without TLS.
        :raises HookFailed: in a kubelet's words.
        """
        if handler.exec is not None:
            await self._exec(handler.exec, target)
        elif handler.http_get is not None:
            await self._http(handler.http_get, target, listener)
        elif handler.sleep is not None:
            await self._sleep(handler.sleep.seconds)
        else:
            # Also for tcpSocket, which is deprecated and was never carried out.
            raise HookFailed("Cannot run handler: invalid handler: a hook is exec, httpGet or sleep")

    async def _exec(self, action: ExecAction, target: Target) -> None:
        command = list(action.command)
        request = api_pb2.ExecSyncRequest(container_id=target.id, cmd=command)
        output = ""
        try:
            answer = await self._client.runtime.ExecSync(request)
        except PodkeepError as failure:
            error = failure.message
        else:
            if answer.exit_code == 0:
                return
            error = f"command '{' '.join(command)}' exited with {answer.exit_code}: {_text(answer.stderr)}"
            output = _text(answer.stdout + answer.stderr)
        of = f'Container "{target.container.name}" in Pod "{target.pod}"'
        raise HookFailed(
            f'Exec lifecycle hook ([{" ".join(command)}]) for {of} failed - error: {error}, message: "{output}"'
        )

    async def _sleep(self, seconds: int) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._metrics.add(HOOK_SLEEP_ENDED_EARLY)
            raise

    async def _http(self, action: HTTPGetAction, target: Target, listener: PodListener) -> None:
        """Send the request of a hook. Whatever status the answer has will do."""
        from podkeep.agent.probes import http_get  # h11, of which `podkeep run` has no other use

        try:
            request = http_get.request(action, target, "lifecycle")
            try:
                await http_get.get(request, None)
            except http_get.PlainAnswer:
                # What was meant for TLS is not sent in the clear.
                headers = tuple(item for item in request.headers if item[0].lower() != "authorization")
                await http_get.get(structs.replace(request, scheme="http", headers=headers), None)
                place = netloc.join(request.host, request.port)
                text = f"request to HTTPS lifecycle hook {place} got HTTP response, retry with HTTP succeeded"
                self._metrics.add(HOOK_HTTP_FALLBACKS)
                listener.event(Event(type="Warning", reason="LifecycleHTTPFallback", message=text))
        except PodkeepError as error:
            raise HookFailed(
                f'HTTP lifecycle hook ({action.path}) for Container "{target.container.name}" in Pod "{target.pod}" '
                f"failed - error: {error.message}"
            ) from error


def _text(output: bytes) -> str:
    return output[:_MAX_OUTPUT].decode(errors="replace")
