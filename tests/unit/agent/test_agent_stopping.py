"""How containers are stopped: hooks, grace periods, order. Against a runtime that notes what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.events import Event
from podkeep.agent.pod.stopping import Grace, Stopper, grace_of, prerequisites
from podkeep.agent.probes.hooks import HookFailed, Hooks
from podkeep.agent.probes.model import Target
from podkeep.api.containers import Container, HTTPGetAction, LifecycleHandler, SleepAction, TCPSocketAction
from podkeep.api.pod import Pod
from podkeep.base.errors import Internal, NotFound
from podkeep.base.metrics import Metrics
from podkeep.cri.v1 import api_pb2
from support.pods import container, pod
from unit.cri.cri_endpoint import run, talking

SIDECAR = {"restartPolicy": "Always"}


class Runtime:
    """Notes the calls; ``ends`` is set when a container may end, which is at once for those that are not in it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.failures: dict[str, Exception] = {}
        self.events: list[Event] = []
        self.changed = asyncio.Event()

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.changed.set()

    def event(self, event: Event) -> None:
        self.events.append(event)

    def waiting(self, container: str, reason: str, message: str) -> None:
        raise AssertionError(container)

    def started(self, container: str, attempt: int, log: Path) -> None:
        raise AssertionError(container)

    async def stop(self, request: api_pb2.StopContainerRequest) -> api_pb2.StopContainerResponse:
        self.note(f"stop {request.container_id} {request.timeout}")
        if request.container_id in self.failures:
            raise self.failures[request.container_id]
        if request.timeout > 0 and request.container_id in self.ends:
            await self.ends[request.container_id].wait()
        self.note(f"{request.container_id} ended")
        return api_pb2.StopContainerResponse()

    async def exec(self, request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        self.note(f"hook of {request.container_id}")
        if request.cmd[0] == "hang":
            await asyncio.Event().wait()
        return api_pb2.ExecSyncResponse(exit_code=int(request.cmd[0] == "fail"), stdout=b"secret")

    async def until(self, *calls: str) -> None:
        while not set(calls) <= set(self.calls):
            self.changed.clear()
            await self.changed.wait()

    @asynccontextmanager
    async def stopper(self, directory: Path) -> AsyncIterator[Stopper]:
        async with talking(directory / "s", runtime={"StopContainer": self.stop, "ExecSync": self.exec}) as client:
            yield Stopper(client, Hooks(client, Metrics()), self)


def targets(wanted: Pod) -> dict[str, Target]:
    both = (*wanted.spec.init_containers, *wanted.spec.containers)
    return {item.name: Target(container=item, id=item.name, pod="web_default(u)", host="127.0.0.1") for item in both}


def hook(*command: str) -> dict[str, Any]:
    return {"lifecycle": {"preStop": {"exec": {"command": command}}}}


def stopped(tmp_path: Path, scenario: Callable[[Runtime, Stopper], Any]) -> Runtime:
    runtime: list[Runtime] = []

    async def work() -> None:
        runtime.append(Runtime())
        async with runtime[0].stopper(tmp_path) as stopper:
            await scenario(runtime[0], stopper)

    run(work())
    return runtime[0]


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ("a b one two", {"one": ["a", "b", "two"], "two": ["a", "b"]}),
        ("a one", {"one": ["a"]}),
        ("one two", {"one": ["two"], "two": []}),
        ("a init", {}),
    ],
)
def test_what_ends_before_a_sidecar(running: str, expected: dict[str, list[str]]) -> None:
    wanted = pod(
        container("a"),
        container("b"),
        init=[container("one", **SIDECAR), container("init"), container("two", **SIDECAR)],
    )
    assert prerequisites(wanted, running.split()) == expected


@pytest.mark.parametrize(("deletion", "spec", "expected"), [(None, 30, 30), (None, None, 2), (5, 30, 5), (0, 30, 0)])
def test_grace_periods(deletion: int | None, spec: int | None, expected: int) -> None:
    metadata = {} if deletion is None else {"deletionGracePeriodSeconds": deletion}
    fields = {} if spec is None else {"terminationGracePeriodSeconds": spec}
    assert grace_of(pod(metadata=metadata, **fields)) == expected


def test_hooks_of_all_run_at_once_and_sidecars_stop_last(tmp_path: Path) -> None:
    wanted = pod(
        container("main", **hook("true")),
        init=[container("one", **SIDECAR, **hook("true")), container("two", **SIDECAR)],
    )

    async def scenario(runtime: Runtime, stopper: Stopper) -> None:
        runtime.ends["main"] = asyncio.Event()
        stopping = asyncio.create_task(stopper.stop_pod(wanted, targets(wanted), Grace(1000)))
        await runtime.until("hook of one", "hook of main", "stop main 1000")
        runtime.ends["main"].set()
        await stopping

    runtime = stopped(tmp_path, scenario)
    order = [call for call in runtime.calls if not call.startswith("hook")]
    assert order == ["stop main 1000", "main ended", "stop two 1000", "two ended", "stop one 1000", "one ended"]
    assert {(event.reason, event.message) for event in runtime.events} == {
        ("Killing", f"Stopping container {name}") for name in ("main", "one", "two")
    }


@pytest.mark.slow
def test_a_hook_counts_into_the_grace_period_and_two_seconds_are_always_left(tmp_path: Path) -> None:
    wanted = pod(container("main", **hook("hang")))

    async def scenario(runtime: Runtime, stopper: Stopper) -> None:
        await stopper.stop_pod(wanted, targets(wanted), Grace(0.1))

    assert stopped(tmp_path, scenario).calls == ["hook of main", "stop main 2", "main ended"]


@pytest.mark.parametrize("seconds", [2**31, 2**63 - 1])
def test_no_grace_period_is_more_than_a_runtime_takes(tmp_path: Path, seconds: int) -> None:
    """Manifests may say any 64 bits; a container that cannot be stopped would run for ever."""
    wanted = pod(container("main"))

    async def scenario(_: Runtime, stopper: Stopper) -> None:
        await stopper.stop_pod(wanted, targets(wanted), Grace(seconds))
        shortened = Grace(seconds)
        shortened.shorten(seconds - 1)
        await stopper.kill(targets(wanted)["main"], shortened, "it is unhealthy")

    calls = [call.split() for call in stopped(tmp_path, scenario).calls if call.startswith("stop main")]
    assert [2**31 - 60 < int(timeout) < 2**31 for _, _, timeout in calls] == [True, True]


def test_a_hook_that_fails_is_said_without_what_it_printed(tmp_path: Path) -> None:
    wanted = pod(container("main", **hook("fail")))

    async def scenario(runtime: Runtime, stopper: Stopper) -> None:
        await stopper.kill(targets(wanted)["main"], Grace(30), "Container main failed liveness probe")

    runtime = stopped(tmp_path, scenario)
    assert runtime.calls == ["hook of main", "stop main 30", "main ended"]
    assert [(event.reason, event.message) for event in runtime.events] == [
        ("Killing", "Container main failed liveness probe"),
        ("FailedPreStopHook", "PreStopHook failed"),
    ]


@pytest.mark.parametrize(("at_once", "seconds"), [(False, 2), (True, 0)])
def test_without_a_grace_period_no_hook_runs(tmp_path: Path, at_once: bool, seconds: int) -> None:
    wanted = pod(container("main", **hook("true")))

    async def scenario(runtime: Runtime, stopper: Stopper) -> None:
        await stopper.stop_pod(wanted, targets(wanted), Grace(0, at_once=at_once))

    assert stopped(tmp_path, scenario).calls == [f"stop main {seconds}", "main ended"]


@pytest.mark.parametrize(("seconds", "again"), [(5, "stop main 5"), (1, "stop main 2"), (0, "stop main 0")])
def test_a_shorter_grace_period_counts_for_what_is_being_stopped(tmp_path: Path, seconds: int, again: str) -> None:
    wanted = pod(container("main"))

    async def scenario(runtime: Runtime, stopper: Stopper) -> None:
        runtime.ends["main"] = asyncio.Event()
        grace = Grace(1000)
        stopping = asyncio.create_task(stopper.stop_pod(wanted, targets(wanted), grace))
        await runtime.until("stop main 1000")
        grace.shorten(2000)
        grace.shorten(seconds)
        await runtime.until(again)
        runtime.ends["main"].set()
        await stopping

    assert stopped(tmp_path, scenario).calls[:2] == ["stop main 1000", again]


def test_a_container_is_killed_without_its_hook(tmp_path: Path) -> None:
    target = targets(pod(container("main", **hook("true"))))["main"]

    async def scenario(_: Runtime, stopper: Stopper) -> None:
        await stopper.kill(target, Grace(30), "it has a newer attempt", hook=False)

    assert stopped(tmp_path, scenario).calls == ["stop main 30", "main ended"]


def test_a_second_try_runs_no_hook_again(tmp_path: Path) -> None:
    """A runtime that fails once is asked again; what could be stopped was; one that is gone counts as stopped."""
    wanted = pod(container("main", **hook("true")), container("other"), container("gone"))

    async def scenario(runtime: Runtime, stopper: Stopper) -> None:
        runtime.failures = {"main": Internal("no"), "gone": NotFound("no")}
        with pytest.raises(Internal):
            await stopper.stop_pod(wanted, targets(wanted), Grace(30))
        runtime.failures.clear()
        await stopper.stop_pod(wanted, {"main": targets(wanted)["main"]}, Grace(30))

    runtime = stopped(tmp_path, scenario)
    assert runtime.calls.count("hook of main") == 1
    assert runtime.calls.count("other ended") == 1
    assert runtime.calls[-1] == "main ended"
    assert len([event for event in runtime.events if event.reason == "Killing"]) == 3


def test_handlers_of_hooks(tmp_path: Path) -> None:
    """A sleep, a request whose answer is an error, one to nobody, and the two handlers that are refused."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def work() -> None:
        runtime = Runtime()
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = Target(container=Container(name="c"), id="c", pod="web_default(u)", host="127.0.0.1")
        async with listening, talking(tmp_path / "s", runtime={}) as client:
            hooks = Hooks(client, Metrics())
            port = str(listening.sockets[0].getsockname()[1])
            await hooks.run(LifecycleHandler(sleep=SleepAction(seconds=0)), target, runtime)
            await hooks.run(LifecycleHandler(http_get=HTTPGetAction(path="/x", port=port)), target, runtime)
            with pytest.raises(HookFailed):
                await hooks.run(LifecycleHandler(http_get=HTTPGetAction(path="/x", port="1")), target, runtime)
            for refused in (LifecycleHandler(tcp_socket=TCPSocketAction(port=port)), LifecycleHandler()):
                with pytest.raises(HookFailed, match="Cannot run handler: invalid handler"):
                    await hooks.run(refused, target, runtime)

    run(work())
    assert b"kube-lifecycle/1.36" in heads[0]


def test_an_https_hook_that_is_answered_without_tls_is_sent_again(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(4096)
        heads.append(first)
        writer.write(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def work() -> list[Event]:
        runtime = Runtime()
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = str(listening.sockets[0].getsockname()[1])
        target = Target(container=Container(name="c"), id="c", pod="web_default(u)", host="127.0.0.1")
        async with listening, talking(tmp_path / "s", runtime={}) as client:
            action = HTTPGetAction(path="/x", port=port, scheme="HTTPS")
            await Hooks(client, Metrics()).run(LifecycleHandler(http_get=action), target, runtime)
        return [
            Event(type=event.type, reason=event.reason, message=event.message.replace(port, "PORT"))
            for event in runtime.events
        ]

    message = "request to HTTPS lifecycle hook 127.0.0.1:PORT got HTTP response, retry with HTTP succeeded"
    assert run(work()) == [Event(type="Warning", reason="LifecycleHTTPFallback", message=message)]
    assert heads[-1].startswith(b"GET /x HTTP/1.1")
