"""Writes objects until it is killed, and prints each with its revision when it is acknowledged."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from podkeep.apiserver.storage.records import Key
from podkeep.apiserver.storage.store import Store


async def write(store: Store, worker: int) -> None:
    number = 0
    while True:
        key = Key("pods", "default", f"w{worker}-{number % 7}")
        stored = await store.put(key, {"metadata": {"name": key.name}, "number": number}, store.newest(key))
        print(key.name, stored.revision, flush=True)
        number += 1


async def main() -> None:
    async with Store(Path(sys.argv[1])) as store:
        await asyncio.gather(*(write(store, worker) for worker in range(8)))


asyncio.run(main())
