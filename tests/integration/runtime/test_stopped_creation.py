"""A container that stops the process by which the OCI runtime sets up another container of its pod."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import Cancelled, FailedPrecondition
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.process import process_tree, procfs
from support.cri import Pods, bind, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.waiting import wait_for

# The pod's first process is left alone, and so is the shell, which has no children: all that it calls is built in.
STOPPER = """
while :; do for path in /proc/[0-9]*; do
    case ${path#/proc/} in 1|$$) ;; *) kill -STOP ${path#/proc/} && : >/volume/stopped; esac
done; done 2>/dev/null
"""


def conmons(daemon: Daemon) -> set[int]:
    """Return the process IDs of a daemon's conmons, which may be in a mount namespace of their own."""
    found = set()
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            arguments = procfs.command_line(Path("/proc", entry)).split(b"\0")
            if {b"--exit-dir", os.fsencode(daemon.layout.exits)} <= set(arguments):
                found.add(int(entry))
    return found


def test_a_pod_is_stopped_whose_container_has_stopped_the_creation_of_another(
    daemon: Daemon, pods: Pods, tmp_path: Path
) -> None:
    async def go(sandbox: str, stopped: Path, before: set[int]) -> tuple[list[procfs.ProcessId], object]:
        creating = asyncio.ensure_future(
            pods._client.runtime.CreateContainer(pods.create_request(sandbox, name="stopped"))
        )
        await asyncio.to_thread(wait_for, stopped.exists, "a process is stopped")
        (conmon,) = conmons(daemon) - before
        tree = process_tree.find({conmon}, ())
        await pods._client.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        (outcome,) = await asyncio.gather(creating, return_exceptions=True)
        return tree, outcome

    # What is stopped may be the container's own process, when it is set up but for its start: that is created.
    outcome: object = api.CreateContainerResponse()
    tries = 0
    while isinstance(outcome, api.CreateContainerResponse):
        tries += 1
        assert tries < 50
        volume = tmp_path / str(tries)
        volume.mkdir()
        sandbox = pods.run(pod(f"pod{tries}", options=namespaces(pid=api.POD)))
        pods.launch(sandbox, "sh", "-c", STOPPER, name="stopper", mounts=[bind(volume, "/volume")])
        tree, outcome = pods.wait(go(sandbox, volume / "stopped", conmons(daemon)))
        assert [process for process in tree if procfs.alive(process)] == []
    # And not that the OCI runtime took too long.
    assert isinstance(outcome, Cancelled), outcome
    assert len(tree) >= 3  # with the OCI runtime and what it sets up


def test_a_container_is_not_removed_while_it_is_made(mortal: Mortal, tmp_path: Path) -> None:
    """It is in no list, but its directory has its ID: its rootfs went while its creation was at it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pods = mortal.start(failpoints=f"container.staged=open:{gate}")
    sandbox = pods.run()
    containers = mortal.daemon.layout.root / "containers"

    async def scenario() -> list[object]:
        async with CriClient(mortal.daemon.socket) as client:
            creating = asyncio.ensure_future(client.runtime.CreateContainer(pods.create_request(sandbox)))
            await asyncio.to_thread(wait_for, lambda: list(containers.glob("*")), "a container")
            (container,) = os.listdir(containers)
            remove = api.RemoveContainerRequest(container_id=container)
            removed = await asyncio.gather(client.runtime.RemoveContainer(remove), return_exceptions=True)
            await asyncio.to_thread(gate.write_bytes, b"")
            return [*removed, *await asyncio.gather(creating, return_exceptions=True)]

    removed, created = asyncio.run(scenario())
    assert isinstance(removed, FailedPrecondition), (removed, created)
    assert isinstance(created, api.CreateContainerResponse), created
    assert [container.id for container in pods.containers()] == [created.container_id]
    pods.remove_container(created.container_id)
    assert list(containers.iterdir()) == []
