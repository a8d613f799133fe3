"""How many image workers run at a time."""

from __future__ import annotations

import asyncio
import os

import pytest

from podkeep.images.store import workers as store_workers
from podkeep.images.store.workers import (
    COMMON_OF_TENANT,
    MAX_REGISTRIES,
    MAX_WORKERS,
    OWN_OF_TENANT,
    WORKERS_A_REGISTRY,
    Workers,
    WorkerServer,
)
from support.processes import children
from support.waiting import wait_for


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_owners_have_a_worker_of_their_own_and_shares_of_the_others() -> None:
    async def steps() -> None:
        workers = Workers(most=1, share=2, owners=3, tenant_owners=3)
        running: list[str] = []
        ends = {name: asyncio.Event() for name in ("a1", "a2", "a3", "b1", "b2", "c1", "d1")}

        async def work(name: str) -> None:
            async with workers.slot(name[0]):
                running.append(name)
                await ends[name].wait()
                running.remove(name)

        tasks = {name: asyncio.ensure_future(work(name)) for name in ends}
        await settled()
        assert sorted(running) == ["a1", "a2", "b1", "c1"]  # a2 has the common one, a3 is beyond a's share
        tasks["a3"].cancel()
        ends["a2"].set()
        await settled()
        assert sorted(running) == ["a1", "b1", "b2", "c1"]
        ends["b2"].set()
        await settled()
        assert sorted(running) == ["a1", "b1", "c1", "d1"]  # a fourth owner has none of its own
        for end in ends.values():
            end.set()
        await asyncio.wait(tasks.values())
        assert running == []
        assert not len(workers._owners) + len(workers._tenants)

    asyncio.run(steps())


def test_who_waits_is_served_in_order() -> None:
    async def steps() -> None:
        workers = Workers(most=1, share=1, owners=0)
        order: list[int] = []

        async def work(number: int) -> None:
            async with workers.slot(str(number % 2)):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(work(number) for number in range(6)))
        assert order == list(range(6))

    asyncio.run(steps())


def test_no_number_of_tenants_keeps_another_from_its_first_worker() -> None:
    async def steps() -> None:
        workers = Workers()
        running: set[tuple[str, str]] = set()
        end = asyncio.Event()

        async def work(tenant: str, owner: str) -> None:
            async with workers.slot(owner, tenant):
                running.add((tenant, owner))
                await end.wait()

        tasks = [
            asyncio.ensure_future(work(f"evil-{tenant}", f"{number}.example"))
            for tenant in range(10)
            for number in range(100)
        ]
        await settled()
        tasks += [asyncio.ensure_future(work("good", owner)) for owner in ("1.example", "2.example")]
        await settled()
        assert [owner for tenant, owner in running if tenant == "good"] == ["1.example"]
        assert len(running) <= MAX_REGISTRIES + MAX_WORKERS + 11
        end.set()
        await asyncio.wait(tasks)
        assert not len(workers._owners) + len(workers._tenants)

    asyncio.run(steps())


def test_a_tenant_with_any_number_of_slow_registries_keeps_no_other_waiting() -> None:
    async def steps() -> None:
        workers = Workers()
        running: set[tuple[str, str]] = set()
        end = asyncio.Event()

        async def work(tenant: str, owner: str) -> None:
            async with workers.slot(owner, tenant):
                running.add((tenant, owner))
                await end.wait()

        tasks = [asyncio.ensure_future(work("evil", f"{number}.example")) for number in range(1000)]
        await settled()
        assert len(running) == OWN_OF_TENANT + COMMON_OF_TENANT
        tasks += [asyncio.ensure_future(work("good", "1.example")) for _ in range(WORKERS_A_REGISTRY)]
        tasks += [asyncio.ensure_future(work("", f"{number}.example")) for number in range(OWN_OF_TENANT)]
        await settled()
        assert len(running) == OWN_OF_TENANT + COMMON_OF_TENANT + 1 + OWN_OF_TENANT
        end.set()
        await asyncio.wait(tasks)
        assert not len(workers._owners) + len(workers._tenants)

    asyncio.run(steps())


@pytest.mark.slow
def test_the_fork_server_ends_once_no_worker_was_there_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_workers, "IDLE_S", 0.0)

    async def steps() -> None:
        server, before = WorkerServer(), children(os.getpid())
        with server.in_use() as forks:
            with server.in_use():
                forks.begin()
            await settled()
            (process,) = children(os.getpid()) - before
        with server.in_use():
            await settled()
            assert children(os.getpid()) - before == {process}
        await asyncio.to_thread(wait_for, lambda: children(os.getpid()) == before, "its end")
        with server.in_use():
            forks.begin()  # again
            assert len(children(os.getpid()) - before) == 1
            await asyncio.to_thread(server.end)
            assert children(os.getpid()) == before

    asyncio.run(steps())
