"""Large bodies: read one after the other, by users in turn, while others are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from support.api_calls import Api, run

MAPS = "/api/v1/namespaces/default/configmaps"


def test_a_small_request_does_not_wait_for_many_large_bodies(tmp_path: Path) -> None:
    async def steps(api: Api) -> None:
        await api.make_roles()
        data = {f"key-{number}": "x" * 100 for number in range(4_000)}
        ended: list[str] = []

        async def ends(name: str, work: Awaitable[object]) -> None:
            await work
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                # Refused when it is read: it never comes to where writes of large objects take turns, too.
                value = {"metadata": {"name": f"large-{number}"}, "data": data, "unknown": "field"}
                group.create_task(ends("large", api.call("POST", f"{MAPS}?fieldValidation=Strict", value)))
            group.create_task(ends("small", api.call("POST", MAPS, {"metadata": {"name": "small"}})))
        assert ended.index("small") < 10

    run(tmp_path, steps)
