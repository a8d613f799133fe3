"""A container that stops the process by which the OCI runtime sets up another container of its pod."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import Cancelled
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.process import procfs
from support.cri import Pods, bind, namespaces, pod
from support.daemon import Daemon
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
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    pods.launch(sandbox, "sh", "-c", STOPPER, name="stopper", mounts=[bind(tmp_path, "/volume")])
    before = conmons(daemon)
    request = pods.create_request(sandbox, name="stopped")

    async def go() -> list[procfs.ProcessId]:
        creating = asyncio.ensure_future(pods._client.runtime.CreateContainer(request))
        await asyncio.to_thread(wait_for, (tmp_path / "stopped").exists, "a process is stopped")
        (conmon,) = conmons(daemon) - before
        family = procfs.find_family({conmon}, ())
        await pods._client.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        (error,) = await asyncio.gather(creating, return_exceptions=True)
        # And not that the OCI runtime took too long.
        assert isinstance(error, Cancelled), error
        return family

    family = pods.wait(go())
    assert len(family) >= 3  # with the OCI runtime and what it sets up
    assert [process for process in family if procfs.alive(process)] == []
