"""Large bodies, and large objects that are read: one after the other, by users in turn, while others are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from podkeep.apiserver.requests.output import Rendering
from support.api_calls import Answer, Api, run
from support.loop_turns import calls_in_turns

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.slow
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


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "accept"),
    [
        (f"{PODS}/a", TABLE),
        (f"{PODS}/a", METADATA),
        (f"{PODS}/a?pretty=true", "application/json"),
        (f"{PODS}/a", "application/yaml"),
        (f"{DEPLOYMENTS}/a/scale", "application/json"),
    ],
)
def test_a_small_request_does_not_wait_for_many_reads_of_large_objects(path: str, accept: str, tmp_path: Path) -> None:
    """Each takes 10 ms to 20 ms for each MB, and one user may have two hundred at a time."""
    template = {"containers": [{"name": "a", "image": "b", "args": ["x" * 100] * 4_000}]}
    deployment = {
        "metadata": {"name": "a"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": template},
        },
    }

    async def steps(api: Api) -> None:
        await api.make_roles()
        pod = {"metadata": {"name": "a"}, "spec": template}
        for where, value in ((PODS, pod), (DEPLOYMENTS, deployment)):
            assert (await api.call("POST", where, value)).status == 201
        ended: list[str] = []

        async def ends(name: str, work: Awaitable[Answer]) -> None:
            assert (await work).status == 200
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ends("large", api.call("GET", path, accept=accept)))
            group.create_task(ends("small", api.call("GET", f"{MAPS}?limit=1")))
        assert ended.index("small") < 4

    run(tmp_path, steps)


@pytest.mark.slow
def test_the_log_of_a_small_pod_does_not_wait_for_reads_of_large_ones(tmp_path: Path) -> None:
    async def steps(api: Api) -> None:
        await api.make_roles()
        for name, args in ("large", ["x" * 100] * 4_000), ("small", []):
            spec = {"containers": [{"name": "a", "image": "b", "args": args}]}
            assert (await api.call("POST", PODS, {"metadata": {"name": name}, "spec": spec})).status == 201
        ended: list[str] = []

        async def ends(name: str) -> None:
            # A pod that is on no node has no log.
            assert (await api.call("GET", f"{PODS}/{name}/log")).status == 204
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for name in [*["large"] * 20, "small"]:
                group.create_task(ends(name))
        assert ended.index("small") < 4

    run(tmp_path, steps)


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "&watch=true"])
def test_of_many_lists_one_reads_a_large_object_in_each_turn(query: str, tmp_path: Path) -> None:
    """A row of a Table is made of the whole object."""

    async def steps(api: Api) -> None:
        await api.make_roles()
        for name in "abc":
            value = {"metadata": {"name": name}, "data": {"x": "x" * 100_000}}
            assert (await api.call("POST", MAPS, value)).status == 201

        async def listed() -> None:
            answer = await api.call("GET", f"{MAPS}?includeObject=Object{query}", accept=TABLE)
            assert answer.lines is not None
            size = 0
            while size < 300_000:
                size += len(await anext(answer.lines))
            await answer.leave()

        async with calls_in_turns(Rendering.row) as in_a_turn:
            await asyncio.gather(*(listed() for _ in range(8)))
        assert (sum(in_a_turn), max(in_a_turn)) == (24, 1)

    run(tmp_path, steps)
