"""A CRI client that was built against upstream: it knows no addition of podkeep's.

Its messages are made from the listing of upstream's interface (``cri_v1.py``), so what it sends has no field of ours,
and what it receives of ours are bytes that it does not understand.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from podkeep.cri import transport

# isort: split
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from support import cri_v1
from support.waiting import TIMEOUT_S


class StockClient:
    """Calls the runtime service behind a socket."""

    def __init__(self, socket: str) -> None:
        self._target = transport.target(Path(socket))
        self._pool: descriptor_pool.DescriptorPool = cri_v1.build(cri_v1.listed())

    def message(self, name: str) -> type[Message]:
        """Return the class of a message."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"runtime.v1.{name}"))

    def make(self, name: str, /, **fields: Any) -> Any:
        """Return a message; nested ones are given as dictionaries."""
        return self.message(name)(**fields)

    def like(self, ours: Message) -> Any:
        """Return a message with what upstream knows of one of ours."""
        message: Any = self.message(ours.DESCRIPTOR.name).FromString(ours.SerializeToString())
        message.DiscardUnknownFields()
        return message

    def call(self, rpc: str, request: Message) -> Any:
        """Call an RPC of the runtime service and return its answer.

        :raises grpc.RpcError: as any client would see it.
        """
        answer = self.message(request.DESCRIPTOR.name.removesuffix("Request") + "Response")

        async def calling() -> Any:
            async with grpc.aio.insecure_channel(self._target, options=transport.MESSAGE_LIMITS) as channel:
                method = channel.unary_unary(
                    f"/runtime.v1.RuntimeService/{rpc}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=answer.FromString,
                )
                return await method(request, timeout=TIMEOUT_S)

        return asyncio.run(calling())
