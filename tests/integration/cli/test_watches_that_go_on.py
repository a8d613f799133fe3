"""``-w`` of verbs on objects goes on where the API does not know any more what followed; waiting, where it was away."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from typing import IO

import pytest

from podkeep.base.errors import Unavailable
from podkeep.cli.core import following
from podkeep.client import kubeconfig
from podkeep.client.client import Client
from podkeep.client.resources import CONFIG_MAPS as RESOURCE
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.timeout import TIMEOUT_S

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api"), "--set", "api.history=1") as daemon:
        yield daemon


@contextmanager
def watching(api: ApiDaemon, *arguments: str) -> Iterator[IO[str]]:
    """Run a verb, and give what it writes."""
    command = [sys.executable, "-m", "podkeep", *arguments, "-w", "--kubeconfig", str(api.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


def test_one_object_that_was_written_long_ago(api: ApiDaemon) -> None:
    with closing(ApiClient(api.socket)) as client:
        old = client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "old"}}).value["metadata"]["resourceVersion"]
        client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "new"}})
        past = f"{CONFIG_MAPS}?watch=true&timeoutSeconds=1&resourceVersion={old}"
        while b'"code":410' not in client.ask("GET", past).data:
            pass
    with watching(api, "get", "configmap", "old") as lines:
        assert lines.readline().split() == ["NAME", "DATA", "AGE"]
        assert lines.readline().split()[:2] == ["old", "0"]
        api.kubectl("patch", "configmap", "old", "-p", json.dumps({"data": {"a": "b"}}))
        assert lines.readline().split()[:2] == ["old", "1"]


def test_what_is_waited_for_is_known_when_the_api_was_started_again(api: ApiDaemon) -> None:
    with closing(ApiClient(api.socket)) as one:
        one.ask("POST", CONFIG_MAPS, {"metadata": {"name": "awaited"}})

    async def followed() -> None:
        client = Client(kubeconfig.load([api.kubeconfig]))
        try:
            async with aclosing(following.states(client, RESOURCE, "awaited", "default")) as states:
                assert await anext(states)
                coming = asyncio.ensure_future(anext(states))
                await asyncio.to_thread(api.stop, signal.SIGKILL)
                await asyncio.to_thread(api.start)
                await asyncio.to_thread(api.kubectl, "patch", "configmap", "awaited", "-p", '{"data": {"a": "b"}}')
                state = await coming
                while not (state and state.get("data")):
                    state = await anext(states)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(followed(), TIMEOUT_S))


def test_an_api_that_never_answered_is_not_waited_for(api: ApiDaemon) -> None:
    async def followed() -> None:
        client = Client(kubeconfig.load([api.kubeconfig]))
        try:
            async with aclosing(following.states(client, RESOURCE, "awaited", "default")) as states:
                await anext(states)
        finally:
            await client.close()

    api.stop()
    try:
        with pytest.raises(Unavailable, match="cannot be reached"):
            asyncio.run(asyncio.wait_for(followed(), following.AWAY_S / 2))
    finally:
        api.start()
