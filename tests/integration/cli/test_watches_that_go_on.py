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
from support import forked
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

EVENTS = "/api/v1/namespaces/default/events"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api"), "--set", "api.history=1") as daemon:
        yield daemon


@contextmanager
def watching(api: ApiDaemon, *arguments: str) -> Iterator[IO[str]]:
    """Run a verb, and give what it writes."""
    command = [sys.executable, "-m", "podkeep", *arguments, "-w", "--kubeconfig", str(api.kubeconfig)]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


def happen(api: ApiDaemon, name: str) -> None:
    """Make an object, and an event of it."""
    with closing(ApiClient(api.socket)) as client:
        made = client.ask("POST", CONFIG_MAPS, {"metadata": {"name": name}}).value
        about = {"kind": "ConfigMap", "namespace": "default", "name": name, "uid": made["metadata"]["uid"]}
        event = {"metadata": {"name": name}, "involvedObject": about, "reason": "Told", "type": "Normal"}
        client.ask("POST", EVENTS, {**event, "message": name})


def is_shown(lines: IO[str], name: str) -> bool:
    """Read until something of that name is shown."""
    return any(name in line for line in iter(lines.readline, ""))


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


@pytest.mark.parametrize("verb", [("get", "configmaps"), ("events",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_watched_goes_on_when_the_api_was_started_again(
    api: ApiDaemon, verb: tuple[str, ...], number: signal.Signals
) -> None:
    first, *others = [f"{verb[0]}-{number.name.lower()}-{count}" for count in range(3)]
    happen(api, first)
    with watching(api, *verb) as lines:
        assert is_shown(lines, first)
        for name in others:
            api.stop(number)
            api.start()
            happen(api, name)
            assert is_shown(lines, name)


def test_a_watch_says_that_the_api_is_away(api: ApiDaemon) -> None:
    command = [sys.executable, "-m", "podkeep", "get", "configmaps", "-w", "--kubeconfig", str(api.kubeconfig)]
    with forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.readline()
            # What came after the list is shown by the watch, which has begun.
            happen(api, "watched")
            assert is_shown(process.stdout, "watched")
            api.stop(signal.SIGKILL)
            said = process.stderr.readline()
        finally:
            process.terminate()
            api.start()
    assert said.startswith("podkeep: the API at ")
    assert said.endswith(": it closed the connection; what happens is shown when it answers again\n")


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
