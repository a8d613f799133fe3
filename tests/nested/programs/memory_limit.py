"""Sets the memory limit of the machine's one container, in bytes, as a kubelet does.

memory_limit.py BYTES
"""

from __future__ import annotations

import asyncio
import sys

from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api


async def update(limit: int) -> None:
    async with CriClient("/run/podkeep/podkeep.sock") as client:
        listed = await client.runtime.ListContainers(api.ListContainersRequest())
        request = api.UpdateContainerResourcesRequest(
            container_id=listed.containers[0].id, linux=api.LinuxContainerResources(memory_limit_in_bytes=limit)
        )
        await client.runtime.UpdateContainerResources(request)


asyncio.run(update(int(sys.argv[1])))
