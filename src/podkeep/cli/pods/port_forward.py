"""``podkeep port-forward``: ports of this machine that lead into a pod."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import completion, connection
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line
from podkeep.cli.pods.node_api import NodeApi
from podkeep.cli.pods.targets import find_pod, namespace_option
from podkeep.cri.v1 import api_pb2
from podkeep.http.transport import abort

if TYPE_CHECKING:
    from podkeep.cli.pods.stream_client import ForwardClient
    from podkeep.cri.client import CriClient

LOCAL = "127.0.0.1"
_NAMED = re.compile(r"(?P<local>[0-9]*:|)(?P<name>(?=.*[a-z])[a-z0-9-]{1,15})")
"""A pair whose REMOTE is the name of a port (IANA_SVC_NAME)."""
_READ_BYTES = 64 * 1024


class PortPair(FrozenStruct):
    """``local`` 0: any that is free."""

    local: int
    remote: int


@click.command(name="port-forward")
@click.argument("pod", shell_complete=completion.running_pods)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@namespace_option
@pass_invocation
def command(invocation: Invocation, pod: str, ports: tuple[str, ...], namespace: str) -> None:
    """Let ports of this machine's loopback lead to ports inside a pod, until interrupted. Connections that come after
    the pod was made anew lead into the new one.

    REMOTE alone is the same on both sides; :REMOTE takes any local port that is free, and says which. REMOTE is a
    number, or for a pod of this machine's node the name of a port.
    """
    for text in ports:
        if not _NAMED.fullmatch(text):
            parse_pair(text)

    async def forward(client: CriClient) -> None:
        async with NodeApi(invocation.config) as api:
            pairs = [parse_pair(await _numbered(api, pod, namespace, text)) for text in ports]

        async def sandbox() -> str:
            # For each connection anew: a pod that was made again, or whose sandbox was, has another one.
            found = await find_pod(client, invocation.config, pod, namespace)
            if found.state != api_pb2.SANDBOX_READY:
                raise FailedPrecondition(f"pod {pod} does not run", hint="`podkeep ps -a` shows how it is")
            return found.id

        await sandbox()
        await Forwarding(client, sandbox, invocation.config.streaming.tls_cert).run(pairs)

    connection.run(invocation, forward)


async def _numbered(api: NodeApi, pod: str, namespace: str, text: str) -> str:
    """Return a pair with the number of its remote port.

    :raises NotFound: if the pod has no port of this name.
    :raises FailedPrecondition: if there is no node that has the pod and would know.
    """
    named = _NAMED.fullmatch(text)
    if named is None:
        return text
    hint = "give its number"
    ports = await api.named_ports(pod, namespace)
    if ports is None:
        raise FailedPrecondition(f"no node of this machine has pod {pod}, and knows what ports are called", hint=hint)
    if named["name"] not in ports:
        hint = f"{hint}, or one of {', '.join(sorted(ports))}" if ports else hint
        raise NotFound(f"pod {pod} has no port that is named {named['name']!r}", hint=hint)
    return f"{named['local']}{ports[named['name']]}"


def parse_pair(text: str) -> PortPair:
    """Return the ports that ``REMOTE``, ``LOCAL:REMOTE`` or ``:REMOTE`` name.

    :raises InvalidArgument: if it is not one of these.
    """
    local, colon, remote = text.rpartition(":")
    try:
        pair = PortPair(int(local or 0) if colon else int(remote), int(remote))
    except ValueError:
        pair = PortPair(-1, -1)
    if not (0 <= pair.local < 1 << 16 and 0 < pair.remote < 1 << 16):
        raise InvalidArgument(f"{text!r} is no pair of ports", hint="write LOCAL:REMOTE, as 8080:80 or 8080:http")
    return pair


class Forwarding:
    """Listeners, and the connections that came in; ``sandbox`` returns the ID of the one that they lead into now."""

    def __init__(self, client: CriClient, sandbox: Callable[[], Awaitable[str]], certificate: str) -> None:
        self._client, self._sandbox, self._certificate = client, sandbox, certificate

    async def run(self, pairs: list[PortPair]) -> None:
        """Forward until cancelled."""
        async with AsyncExitStack() as stack:
            for pair in pairs:
                server = await self.listen(pair)
                stack.callback(server.close)
                number = server.sockets[0].getsockname()[1]
                click.echo(f"Forwarding from {LOCAL}:{number} -> {pair.remote}")
            sys.stdout.flush()
            await asyncio.Event().wait()

    async def listen(self, pair: PortPair) -> asyncio.Server:
        """Return a listener of a pair, whose connections lead into the pod.

        :raises FailedPrecondition: if the port cannot be had.
        """

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._serve(pair.remote, reader, writer)
            except PodkeepError as error:
                echo_line(f"podkeep: port {pair.remote}: {error.message}", err=True)
            finally:
                abort(writer.transport)

        try:
            return await asyncio.start_server(connected, LOCAL, pair.local)
        except OSError as error:
            # Of asyncio's own error the text has Python's form of the address.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise FailedPrecondition(f"cannot listen on {LOCAL} port {pair.local}: {reason}") from error

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from podkeep.cli.pods.stream_client import ForwardClient

        request = api_pb2.PortForwardRequest(pod_sandbox_id=await self._sandbox(), port=[port])
        answer = await self._client.runtime.PortForward(request)
        client = await ForwardClient.connect(answer.url, port, self._certificate)
        sending = asyncio.ensure_future(_send(reader, client))
        try:
            with suppress(OSError):
                async for data in client.received():
                    if data:
                        writer.write(data)
                        await writer.drain()
                    else:
                        # Who reads to the end would wait for ever: the pod may still listen, so this is not the end.
                        writer.write_eof()
                writer.close()
                await writer.wait_closed()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await client.close()


async def _send(reader: asyncio.StreamReader, client: ForwardClient) -> None:
    while data := await reader.read(_READ_BYTES):
        await client.send(data)
    await client.end()
