"""What a failure, a kill or a reboot leaves of a pod: nothing that is not shown, and nothing of others is touched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from podkeep.base.errors import AlreadyExists, FailedPrecondition, PodkeepError
from podkeep.base.ids import HandlerName
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.network import netlink
from podkeep.kernel.process import procfs
from support import processes
from support.cri import SLEEP, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.processes import write_script
from support.waiting import wait_for

SHARED_PID = namespaces(pid=api.POD)


@pytest.mark.parametrize("alias", ["", "podkeep:/run/another"])
def test_a_bridge_that_is_not_ours_is_left_alone(own_daemon: Daemon, alias: str) -> None:
    name = f"pkt{own_daemon.token}"
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "link", "set", name, "alias", alias], check=True)
        with pytest.raises(AssertionError, match=f"network link {name} is not ours"):
            own_daemon.start()
        assert name in netlink.links()
    finally:
        netlink.delete_link(name)
    own_daemon.start()
    assert name in netlink.links()
    assert own_daemon.stop() == 0
    assert name not in netlink.links()


# cgroups


@contextmanager
def _client_cgroup(daemon: Daemon) -> Iterator[str]:
    """A cgroup that a client made and keeps for a moment longer than its pods."""
    cgroups, path = Cgroups(), f"{daemon.cgroup_parent}-client"
    cgroups.create(path)
    try:
        yield path
    finally:
        left = cgroups.children(path)
        cgroups.remove(path)
    assert left == []


FAILPOINTS = ["sandbox.files", "sandbox.cgroups", "sandbox.infra"]


@pytest.mark.parametrize("action", ["kill", "error"])
@pytest.mark.parametrize("name", FAILPOINTS)
def test_parents_of_half_made_sandboxes_are_removed(mortal: Mortal, name: str, action: str) -> None:
    cgroups = Cgroups()
    with _client_cgroup(mortal.daemon) as client:
        config = pod(options=SHARED_PID, cgroup_parent=f"{client}/deep/er")
        pods = mortal.start(failpoints=f"{name}={action}")
        with pytest.raises(PodkeepError):
            pods.run(config)
        if action == "kill":
            assert mortal.daemon.process is not None
            assert mortal.daemon.process.wait(timeout=60) == -signal.SIGKILL
            assert mortal.start().sandboxes() == []
        assert cgroups.children(client) == []
        assert cgroups.exists(client)


def test_the_last_sandbox_in_a_parent_removes_it(mortal: Mortal) -> None:
    cgroups = Cgroups()
    with _client_cgroup(mortal.daemon) as client:
        pods = mortal.start()
        first = pods.run(pod("first", cgroup_parent=f"{client}/made"))
        second = pods.run(pod("second", cgroup_parent=f"{client}/made/more"))
        pods.remove(first)
        assert cgroups.exists(f"{client}/made/more")
        mortal.daemon.kill()
        again = mortal.start()
        third = again.run(pod("third", cgroup_parent=f"{client}/made"))
        again.remove(second)
        assert cgroups.children(f"{client}/made") == [f"{client}/made/pod-{third}"]
        again.remove(third)
        assert cgroups.children(client) == []


def test_a_parent_that_a_client_made_stays(mortal: Mortal) -> None:
    cgroups = Cgroups()
    with _client_cgroup(mortal.daemon) as client:
        pods = mortal.start()
        pods.remove(pods.run(pod(cgroup_parent=client)))
        assert cgroups.exists(client)


# programs at work

_STOPS = """#!/bin/sh
/usr/bin/crun "$@" || exit
case " $* " in *" probe-"*) ;; *" create "*) kill -STOP $$;; esac
"""
"""An OCI runtime that stops when it has created what it was asked for, unless that is the daemon's own probe."""


def test_the_oci_runtime_that_was_at_work_is_ended_before_its_work_is_undone(mortal: Mortal) -> None:
    daemon, stops = mortal.daemon, write_script(mortal.daemon.base / "stops", _STOPS)
    daemon.extra += f'[runtime.handlers.crun]\npath = "{stops}"\n'
    daemon.write()
    pods, before = mortal.start(), daemon.resources()
    state = f"--root={daemon.layout.handler_root(HandlerName('crun'))}"

    def run() -> None:
        with suppress(PodkeepError), Pods(daemon.socket, "") as client:
            client.run(pod(options=SHARED_PID))

    thread = threading.Thread(target=run)
    thread.start()

    def stopped() -> list[procfs.ProcessId]:
        found = processes.find_by_argument(f"{stops}\0{state}")
        return [process for process in found if "State:\tT" in Path(f"/proc/{process.pid}/status").read_text()]

    (stray,) = wait_for(stopped, "crun create") or ()
    daemon.kill()
    thread.join()
    assert procfs.alive(stray)
    again = mortal.start()
    assert not procfs.alive(stray)
    assert again.sandboxes() == []
    assert daemon.resources() == before
    assert pods is not again


# the infra process


def _infra(pods: Pods, sandbox: str) -> procfs.ProcessId:
    info = json.loads(pods.pod_status(sandbox, verbose=True).info["info"])
    return procfs.identify(info["status"]["infra"]["pid"])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_sandbox_whose_infra_process_died_is_stopped(mortal: Mortal, restarted: bool) -> None:
    pods = mortal.start()
    before = mortal.daemon.resources()
    config = pod(options=SHARED_PID)
    sandbox = pods.run(config)
    container, address, infra = pods.launch(sandbox), pods.address(sandbox), _infra(pods, sandbox)
    if restarted:
        mortal.daemon.kill()
        pods = mortal.start()
    assert procfs.kill(infra, signal.SIGKILL)

    def stopped() -> bool:
        return pods.pod_status(sandbox).status.state == api.SANDBOX_NOTREADY

    wait_for(stopped, "the end of the sandbox")
    assert pods.exited(container).exit_code == 137
    wait_for(lambda: f"addresses {address}" not in mortal.daemon.records(), "the address to be free")
    assert "run a new sandbox" in error_of(lambda: pods.launch(sandbox, name="late"), FailedPrecondition)
    pods.remove(sandbox)
    assert mortal.daemon.resources() == before


def test_stopping_a_sandbox_is_no_accident(mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run(pod(options=SHARED_PID))
    pods.stop_pod(sandbox)
    pods.remove(sandbox)
    assert "infra process of sandbox" not in mortal.daemon.log.read_text()


# requests


def test_different_requests_of_one_name_at_a_time(mortal: Mortal) -> None:
    """Equal ones get one sandbox, whatever the order of their labels; the other one learns that its name is taken."""
    pods = mortal.start()
    labels = {"a": "1", "b": "2"}
    configs = [pod(labels=labels), pod(labels=dict(reversed(labels.items()))), pod(labels={"a": "other"})]

    async def run() -> list[object]:
        async with CriClient(mortal.daemon.socket) as client:
            requests = [client.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config)) for config in configs]
            return list(await asyncio.gather(*requests, return_exceptions=True))

    answers = asyncio.run(run())
    refused = [item for item in answers if isinstance(item, AlreadyExists)]
    made = {item.pod_sandbox_id for item in answers if isinstance(item, api.RunPodSandboxResponse)}
    assert (len(answers), len(made)) == (3, 1)
    # The requests may arrive in any order, but never do different ones get the same answer.
    shown = {item.id: dict(item.labels) for item in pods.sandboxes()}
    assert made == set(shown)
    winner = next(iter(shown.values()))
    assert len(refused) == (1 if winner == labels else 2)


# reboot and secrets


def test_a_reboot_is_noticed_also_without_namespaces_of_the_pods_own(mortal: Mortal) -> None:
    pods = mortal.start()
    options = namespaces(network=api.NODE, ipc=api.NODE, pid=api.CONTAINER)
    sandbox = pods.run(pod(options=options))
    daemon = mortal.daemon
    daemon.kill()
    with closing(sqlite3.connect(daemon.layout.state)) as database, database:
        assert database.execute("SELECT id FROM boot").fetchall() == [(procfs.boot_id(),)]
        database.execute("UPDATE boot SET id = 'the one before'")
    again = mortal.start()
    assert [item.state for item in again.sandboxes()] == [api.SANDBOX_NOTREADY]
    again.remove(sandbox)
    assert daemon.resources().records == ()


def test_nobody_else_reads_the_environment_of_containers(mortal: Mortal) -> None:
    pods = mortal.start()
    pods.create(pods.run(), *SLEEP, envs=[api.KeyValue(key="PASSWORD", value=b"correct horse")])
    top = mortal.daemon.layout
    found = [path for base in (top.root, top.run) for path in base.rglob("*") if _holds(path, b"correct horse")]
    assert top.state in found or Path(f"{top.state}-wal") in found
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", *map(str, found)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert b"correct horse" not in done.stdout
    assert done.stderr.count(b"Permission denied") == len(found)


def _holds(path: Path, text: bytes) -> bool:
    try:
        return path.is_file() and text in path.read_bytes()
    except OSError:  # a pinned namespace
        return False


def test_a_daemon_serves_before_what_was_left_is_removed(mortal: Mortal, tmp_path: Path) -> None:
    """Millions of files of a container took longer than the service manager waits for a daemon to be ready."""
    mortal.start()
    mortal.daemon.stop()
    left = mortal.daemon.layout.containers_data / ("d" * 64) / "upper"
    left.mkdir(parents=True)
    for number in range(100):
        (left / f"{number}").touch()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pods = mortal.start(failpoints=f"leftovers.remove=open:{gate}")
    leftovers = mortal.daemon.layout.leftovers
    assert pods.call("Version", api.VersionRequest()).runtime_name == "podkeep"
    assert not left.exists()
    assert len(list(leftovers.rglob("*/upper/*"))) == 100
    gate.open("wb").close()
    assert wait_for(lambda: not leftovers.exists(), "what was left to be removed")
