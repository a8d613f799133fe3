"""No number of one pod's requests keeps another's waiting, and what is started ends with who started it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.base.errors import DeadlineExceeded, ResourceExhausted
from podkeep.base.ids import ContainerID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.daemon.daemon import THREADS_OF_ONE
from podkeep.runtime.lifecycle.containers import COMMANDS_OF_POD, OUTPUT_OF_ALL, OUTPUT_OF_POD, STARTS_OF_POD
from podkeep.runtime.oci.driver import EXEC_START_S, OWN_OUTPUT_BYTES
from support import unanswering
from support.cri import BLOCK, HOUR_S, OTHER_BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.streams import SpdyCommand
from support.waiting import wait_for

SECONDS = (-(2**63), -1, 0, 1 << 31, 2_147_484, 1 << 53, 2**63 - 1)
"""What 64 bits hold and clocks, poll(2) or floating point numbers do not."""


def sleeping(pods: Pods, container: str) -> int:
    return int(pods.exec(container, "sh", "-c", "ps -o args | grep -c '[s]leep 98[0-9]'").stdout)


@pytest.mark.parametrize("timeout", SECONDS)
def test_a_command_has_any_timeout(pods: Pods, timeout: int) -> None:
    container = pods.launch(pods.run())
    answer = pods.exec(container, "sh", "-c", "echo said; sleep 0.1; exit 3", timeout=timeout)
    assert (answer.stdout, answer.exit_code) == (b"said\n", 3)


@pytest.mark.parametrize("timeout", [0, 2_147_484, 2**63 - 1])
def test_a_command_with_any_timeout_ends_with_its_caller(pods: Pods, timeout: int) -> None:
    container = pods.launch(pods.run())
    command = ["sh", "-c", "sleep 981 & setsid sleep 982 & sleep 983; true"]

    async def give_up() -> None:
        request = api.ExecSyncRequest(container_id=container, cmd=command, timeout=timeout)
        calling = asyncio.ensure_future(pods._client.runtime.ExecSync(request))
        look = api.ExecSyncRequest(container_id=container, cmd=["sh", "-c", "ps -o args | grep -q '[s]leep 983'"])
        while (await pods._client.runtime.ExecSync(look)).exit_code != 0:
            assert not calling.done()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

    pods.wait(give_up())
    wait_for(lambda: sleeping(pods, container) == 0, "the end of the command and of what it started")


@pytest.mark.parametrize("turn", range(2))
def test_what_a_command_starts_in_sessions_of_their_own_while_it_is_killed_ends_with_it(pods: Pods, turn: int) -> None:
    container = pods.launch(pods.run())
    command = ["sh", "-c", "n=0; while [ $n -lt 500 ]; do setsid sleep 984 & n=$((n + 1)); done; wait"]
    error_of(lambda: pods.exec(container, *command, timeout=1), DeadlineExceeded)
    # What is left behind sleeps for longer than this waits.
    wait_for(lambda: sleeping(pods, container) == 0, "the end of all that the command started")


@pytest.mark.parametrize("timeout", [timeout for timeout in SECONDS if timeout > 0])
def test_a_container_may_have_any_time_to_end(pods: Pods, timeout: int) -> None:
    container = pods.launch(pods.run(), "sh", "-c", "trap 'exit 7' TERM; : >/ready; while :; do sleep 0.1; done")
    wait_for(lambda: pods.exec(container, "test", "-e", "/ready").exit_code == 0, "the trap")
    request = api.StopContainerRequest(container_id=container, timeout=timeout)
    # The client waits as long as the caller asks for, which is more than there is.
    pods.call("StopContainer", request, timeout=HOUR_S)
    assert pods.status(container).exit_code == 7


@pytest.mark.parametrize("timeout", [-(2**63), -1, 0])
def test_a_container_without_time_to_end_is_killed(pods: Pods, timeout: int) -> None:
    container = pods.launch(pods.run(), "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    pods.call("StopContainer", api.StopContainerRequest(container_id=container, timeout=timeout))
    assert pods.status(container).exit_code == 137


def test_commands_of_one_pod_leave_room_for_those_of_others(pods: Pods) -> None:
    busy = pods.launch(pods.run(pod("busy")))
    other = pods.launch(pods.run(pod("other")))
    endless = api.ExecSyncRequest(container_id=busy, cmd=["sleep", "989"])

    async def go() -> None:
        stub = pods._client.runtime
        calls = [asyncio.ensure_future(stub.ExecSync(endless)) for _ in range(COMMANDS_OF_POD + 20)]
        # Those above the limit are told at once, and what to do.
        refused: list[BaseException] = []
        pending = set(calls)
        while len(refused) < 20:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            refused += filter(None, (call.exception() for call in done))
        assert {type(error) for error in refused} == {ResourceExhausted}
        assert "timeout" in str(refused[0])
        said = await stub.ExecSync(api.ExecSyncRequest(container_id=other, cmd=["echo", "here"]))
        assert said.stdout == b"here\n"
        assert not any(call.done() for call in pending)
        for call in pending:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    pods.wait(go())

    def ended() -> bool:
        try:
            return sleeping(pods, busy) == 0
        except ResourceExhausted:
            return False  # they are being killed

    wait_for(ended, "the end of the commands")


def slow_to_start(mortal: Mortal, tmp_path: Path) -> Pods:
    """Start a daemon with which commands with ``slow-to-start`` in them wait for ``go`` before they are started."""
    program = mortal.daemon.base / "crun"
    program.write_text(
        f"""#!/bin/sh
if grep -qs slow-to-start "$(expr "$*" : '.*--process \\([^ ]*\\)')"; then
    date +%s.%N >{tmp_path}/new.$$
    mv {tmp_path}/new.$$ {tmp_path}/start.$$
    until [ -e {tmp_path}/go ]; do sleep 0.05; done
fi
exec crun "$@"
"""
    )
    program.chmod(0o755)
    config = mortal.daemon.config
    config.write_text(config.read_text() + f'[runtime.handlers.crun]\npath = "{program}"\n')
    return mortal.start()


def test_few_commands_of_one_pod_are_started_at_a_time(mortal: Mortal, tmp_path: Path) -> None:
    """Each is work of the runtime: 64 at a time kept a probe of another pod waiting for longer than its second."""
    pods = slow_to_start(mortal, tmp_path)
    busy = pods.launch(pods.run(pod("busy")))
    other = pods.launch(pods.run(pod("other")))
    slow = api.ExecSyncRequest(container_id=busy, cmd=["echo", "slow-to-start"])

    async def go() -> None:
        stub, began = pods._client.runtime, time.time()
        calls = [asyncio.ensure_future(stub.ExecSync(slow)) for _ in range(COMMANDS_OF_POD - 1)]

        async def until_started(number: int) -> None:
            while len(list(tmp_path.glob("start.*"))) < number:
                said = await stub.ExecSync(api.ExecSyncRequest(container_id=other, cmd=["echo", "here"]))
                assert said.stdout == b"here\n"

        await until_started(STARTS_OF_POD)
        # The time of one that waits for the others goes by.
        with pytest.raises(DeadlineExceeded, match="did not finish within 1 s: it waited for other commands"):
            await stub.ExecSync(api.ExecSyncRequest(container_id=busy, cmd=["echo", "late"], timeout=1))
        await until_started(STARTS_OF_POD + 1)
        times = sorted(float(path.read_text()) for path in tmp_path.glob("start.*"))
        # Starts that wait for something give way to others, but only then. The first ones begin some time before they
        # say so.
        assert times[STARTS_OF_POD] - began >= EXEC_START_S
        (tmp_path / "go").touch()
        assert {answer.stdout for answer in await asyncio.gather(*calls)} == {b"slow-to-start\n"}

    pods.wait(go())


def test_starts_that_are_given_up_keep_no_others_waiting(mortal: Mortal, tmp_path: Path) -> None:
    """Probes with a timeout of a second, of a container that hangs: each took up to ten to end, and kept its turn."""
    pods = slow_to_start(mortal, tmp_path)
    busy = pods.launch(pods.run(pod("busy")))

    async def go() -> None:
        stub = pods._client.runtime
        slow = api.ExecSyncRequest(container_id=busy, cmd=["echo", "slow-to-start"], timeout=1)
        calls = [asyncio.ensure_future(stub.ExecSync(slow)) for _ in range(STARTS_OF_POD)]
        await asyncio.to_thread(wait_for, lambda: len(list(tmp_path.glob("start.*"))) == STARTS_OF_POD, "the starts")
        said = await stub.ExecSync(api.ExecSyncRequest(container_id=busy, cmd=["echo", "here"]))
        assert said.stdout == b"here\n"
        assert not any(call.done() for call in calls)
        (tmp_path / "go").touch()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {DeadlineExceeded}

    pods.wait(go())


def test_what_commands_of_all_pods_write_has_a_bound(pods: Pods) -> None:
    """A probe may write 16 MiB and go on for hours: two in each of a hundred pods were gigabytes."""
    containers = [pods.launch(pods.run(pod(f"writer{number}"))) for number in range(OUTPUT_OF_ALL // OUTPUT_OF_POD + 1)]
    script = "head -c 16777000 /dev/zero; : >/written$0; until [ -e /go ]; do sleep 0.1; done"
    requests = [
        api.ExecSyncRequest(container_id=container, cmd=["sh", "-c", script, number])
        for container in containers
        for number in "12"
    ]

    async def go() -> list[int]:
        call = pods._client.runtime.ExecSync
        flood = asyncio.gather(*map(call, requests))

        async def all_say(*command: str) -> bool:
            asked = [api.ExecSyncRequest(container_id=container, cmd=command) for container in containers]
            return all(answer.exit_code == 0 for answer in await asyncio.gather(*map(call, asked)))

        while not await all_say("test", "-e", "/written1", "-a", "-e", "/written2"):
            assert not flood.done()
        said = await call(api.ExecSyncRequest(container_id=containers[0], cmd=["head", "-c", "16000", "/dev/zero"]))
        assert len(said.stdout) == 16000
        assert await all_say("touch", "/go")
        return [len(answer.stdout) for answer in await flood]

    found = pods.wait(go())
    assert sum(found) <= OUTPUT_OF_ALL + len(found) * OWN_OUTPUT_BYTES
    assert min(found) >= OWN_OUTPUT_BYTES


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_directory_that_is_not_made_keeps_no_other_pod_waiting(pods: Pods, open_directory: Path) -> None:
    """A mount point in a volume that does not answer: root of the pod makes it, in a process of the runtime."""
    volume, inner = (open_directory / os.urandom(4).hex() for _ in range(2))
    for path in (volume, inner):
        path.mkdir()
    sandbox = pods.run(pod("hanging", options=namespaces(user=BLOCK)))
    request = pods.create_request(sandbox, mounts=[bind(volume, "/volume"), bind(inner, "/volume/inner")])
    hanging = unanswering.Holding(volume, unanswering.MKDIR)

    async def go() -> None:
        creating = asyncio.ensure_future(pods._client.runtime.CreateContainer(request))
        try:
            await hanging.held()
            config = pod("other", options=namespaces(user=OTHER_BLOCK))
            made = await pods._client.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config))
            pods.adopt(made.pod_sandbox_id, config)
            assert not creating.done()
        finally:
            hanging.close()
        (error,) = await asyncio.gather(creating, return_exceptions=True)
        # What the pod's root was told, and not that the runtime has waited long enough.
        assert "mkdir('inner')" in str(error)

    pods.wait(go())
    assert pods.containers() == []


def test_steps_that_hang_for_one_pod_leave_threads_for_others(daemon: Daemon, pods: Pods) -> None:
    """A conmon that takes no connections lets those who attach wait on threads."""
    sandbox = pods.run(pod("hanging"))
    hanging = pods.launch(sandbox)
    conmon = int((daemon.layout.bundle(ContainerID(hanging)) / "conmon.pid").read_text())

    async def go() -> None:
        stub = pods._client.runtime
        wanted = api.AttachRequest(container_id=hanging, stdout=True)
        clients = []
        for _ in range(5 * THREADS_OF_ONE):
            clients.append(await SpdyCommand.connect((await stub.Attach(wanted)).url, ("stdout",)))
        # They hang: nothing comes of any of them while another pod comes, is used, and goes.
        ends = [asyncio.ensure_future(client.connection.reader.read(1 << 20)) for client in clients]
        config = pod("other")
        other = (await stub.RunPodSandbox(api.RunPodSandboxRequest(config=config))).pod_sandbox_id
        pods.adopt(other, config)
        container = (await stub.CreateContainer(pods.create_request(other))).container_id
        await stub.StartContainer(api.StartContainerRequest(container_id=container))
        said = await stub.ExecSync(api.ExecSyncRequest(container_id=container, cmd=["echo", "here"]))
        assert said.stdout == b"here\n"
        # And the pod itself can be stopped: its streams have threads of their own.
        await stub.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=other))
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        for client in clients:
            client.connection.writer.transport.abort()

    with stopped(conmon):
        pods.wait(go())
    assert pods.exec(hanging, "echo", "on").stdout == b"on\n"


def test_a_registry_that_does_not_answer_keeps_no_other_pull_waiting(mortal: Mortal) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        mortal.daemon.config.write_text(mortal.daemon.config.read_text() + f'[registries."{host}"]\ninsecure = true\n')
        pods = mortal.start()

        async def go() -> None:
            stub = pods._client.images
            names = [f"{host}/image:{number}" for number in range(2 * THREADS_OF_ONE)]
            requests = [api.PullImageRequest(image=api.ImageSpec(image=name)) for name in names]
            calls = [asyncio.ensure_future(stub.PullImage(request)) for request in requests]
            # One of them has come as far as it gets.
            connection, _ = await asyncio.to_thread(silent.accept)
            with connection:
                await stub.PullImage(api.PullImageRequest(image=api.ImageSpec(image=pods.image)))
                assert not any(call.done() for call in calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

        pods.wait(go())
