"""Running manifests through ``podkeep run``, and checking that nothing of a pod is left on the node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import basic, text

from podkeep.agent.user_namespaces import blocks as userns
from podkeep.agent.user_namespaces import subordinate_ids
from podkeep.kernel.mount import mountinfo
from support import forked
from support.daemon import Daemon
from support.registry import Registry
from support.waiting import TIMEOUT_S, wait_for

BCRYPT_OF_SECRET = "$2b$04$HaBX7kZuW/ID3OJNAR4XPeVTxebPbJZm59xYFPz22L0pQ7GgCNVYW"
LOGIN = {"Authorization": f"Basic {basic()}"}
"""How a test pushes to the private registry."""


class Background(forked.Popen[str]):
    """A program that a failing test interrupts: ``with`` waits for its end, which only the rest of the test brings."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.send_signal(signal.SIGINT)
        super().__exit__(kind, *rest)


class Runner:
    """Runs manifests against one daemon."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon = daemon
        self._directory = directory
        self._count = 0
        self._started: list[Background] = []

    def file(self, *documents: dict[str, Any]) -> Path:
        """Write a manifest and return its path."""
        self._count += 1
        path = self._directory / f"manifest-{self._count}.yaml"
        path.write_text(text(*documents))
        return path

    def run(
        self, *documents: dict[str, Any], options: tuple[str, ...] = (), timeout: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a manifest to its end."""
        return self.daemon.run("run", *options, str(self.file(*documents)), timeout=timeout)

    def start(
        self, *documents: dict[str, Any], env: dict[str, str] | None = None, options: tuple[str, ...] = ()
    ) -> Background:
        """Run a manifest in the background."""
        process = Background(
            self.daemon.command("run", *options, str(self.file(*documents))),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill what a failed test has left: without its runtime it would wait for ever."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def trust(self, *hosts: str) -> None:
        """Let the daemon, not started yet, speak to these registries without TLS."""
        self.daemon.extra += "".join(f'[registries."{host}"]\ninsecure = true\n' for host in hosts)
        self.daemon.write()

    def rows(self) -> list[dict[str, Any]]:
        """Return what ``podkeep ps`` says."""
        rows: list[dict[str, Any]] = json.loads(self.daemon.run("ps", "-o", "json", check=True).stdout)
        return rows

    def pods(self) -> list[Path]:
        """Return the pod directories on the node."""
        root = self.daemon.base / "kubelet" / "pods"
        return sorted(root.iterdir()) if root.exists() else []

    def left_behind(self) -> list[str]:
        """Return what pods left on the node beside the runtime."""
        assert self.daemon.process is not None
        logs = self.daemon.base / "logs"
        found = [str(path) for path in self.pods()]
        found += [str(path) for path in logs.iterdir()] if logs.exists() else []
        found += [item.mount_point for item in mountinfo.under(self.daemon.base / "kubelet", self.daemon.process.pid)]
        return found


def free_blocks(count: int) -> list[int]:
    """Return the first host IDs of the blocks that pods get on a machine without any, whatever its users have."""
    return list(userns.default_range(count).without(subordinate_ids.read()).starts())


def until(condition: Callable[[], Any], what: str, run: subprocess.Popen[str] | None = None) -> Any:
    """Return the first true value of ``condition``.

    :param run: the program that brings it about; if it ends before, waiting is in vain.
    """

    def look() -> Any:
        value = condition()
        if not value and run is not None and run.poll() is not None:
            raise AssertionError(f"never came: {what}; the run ended: {run.communicate()}")
        return value

    return wait_for(look, what)


def interrupt(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal, wait for the end, and return exit status and both outputs."""
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@pytest.fixture
def runner(daemon: Daemon, tmp_path: Path) -> Iterator[Runner]:
    """A runner on the shared daemon; fails a test that leaves something on the node."""
    runner = Runner(daemon, tmp_path)
    yield runner
    runner.end()
    assert runner.left_behind() == []


@pytest.fixture
def present(runner: Runner, image: str) -> str:
    """The name of an image that is here, so that a run says nothing of its pull."""
    runner.daemon.run("image", "pull", image, check=True)
    return image


@pytest.fixture
def private(tmp_path: Path, scratch_machine: None) -> Iterator[Registry]:
    """A registry that knows ``user`` with password ``secret`` and nobody else."""
    with Registry(tmp_path / "private", htpasswd=f"user:{BCRYPT_OF_SECRET}\n") as running:
        yield running


@pytest.fixture
def private_runner(own_runner: Runner, private: Registry) -> Runner:
    """A runner on a daemon that has the private registry as one of its registries, but no credentials."""
    own_runner.trust(private.host)
    own_runner.daemon.start()
    return own_runner


@pytest.fixture
def own_runner(own_daemon: Daemon, tmp_path: Path) -> Iterator[Runner]:
    """A runner on a daemon of the test's own, which the test configures and starts."""
    runner = Runner(own_daemon, tmp_path)
    yield runner
    runner.end()
    assert runner.left_behind() == []
