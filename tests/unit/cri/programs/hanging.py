"""A CRI runtime on a unix socket that never answers.

hanging.py SOCKET
"""

from __future__ import annotations

import asyncio
import sys

import grpc


class Hanging(grpc.GenericRpcHandler):
    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def hang(_request: bytes, _context: object) -> None:
            print("asked", flush=True)
            await asyncio.Event().wait()

        return grpc.unary_unary_rpc_method_handler(hang)


async def main() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Hanging(),))
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    await server.start()
    print("serving", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
