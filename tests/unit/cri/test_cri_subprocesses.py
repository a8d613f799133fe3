"""Starting programs next to a running gRPC server: the library's fork handlers are off, and nothing hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from cri_endpoint import run, talking

from podkeep.base import spawn
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2

_WATCHING_IMPORTS = Path(__file__).with_name("programs") / "watching_imports.py"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["podkeep.cri.status", "podkeep.cri.server", "podkeep.cri.client"])
def test_fork_support_is_off_before_grpc_is_imported(module: str) -> None:
    done = subprocess.run([sys.executable, _WATCHING_IMPORTS, module], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.slow
def test_five_hundred_programs_from_threads_beside_a_busy_server(tmp_path: Path) -> None:
    async def version(_request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        done = await asyncio.to_thread(spawn.run, ["/bin/echo", "hello"], timeout=30)
        return api_pb2.VersionResponse(runtime_name=done.check().stdout.decode())

    async def ask(client: CriClient, count: int) -> list[str]:
        return [(await client.runtime.Version(api_pb2.VersionRequest())).runtime_name for _ in range(count)]

    async def main() -> list[str]:
        async with talking(tmp_path / "cri.sock", runtime={"Version": version}) as client:
            batches = await asyncio.gather(*(ask(client, 125) for _ in range(4)))
        return [name for batch in batches for name in batch]

    assert run(main()) == ["hello\n"] * 500
