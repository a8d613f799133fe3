"""Applies, edits, deletions and killed daemons, at random: in the end what is wanted is what is there.

``PODKEEP_CHAOS_SECONDS=600`` makes the run that long instead of 40 steps, ``PODKEEP_CHAOS_SEED`` repeats the choices of
one that failed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import FOREVER, pod, shell

from support.container_mounts import ContainerMounts
from support.registry import Registry
from support.running_node import RunningNode, is_ready, own_base
from support.supervised_node import SupervisedDaemon, SupervisedNode

STEPS = 40
"""Of a short run; the seed is in the test's output when it fails."""
MOST_PODS = 25
ROUND = 60
"""Steps after which a long run looks whether all is as it is to be."""


class Chaos:
    """Random steps on one node, and what must be there after them."""

    def __init__(self, node: RunningNode, image: str, seed: int) -> None:
        self._node, self._image = node, image
        self._random = random.Random(seed)
        self._count = 0
        self.forever: set[str] = set()
        self.done: set[str] = set()
        self.said: list[str] = []

    def step(self) -> None:
        """Do one thing."""
        steps: list[tuple[Callable[[], None], int]] = [
            (self._apply, 10),
            (self._job, 4),
            (self._delete, 6),
            (self._force, 2),
            (self._replace, 2),
            (self._label, 4),
            (partial(self._kill, "agent"), 2),
            (partial(self._kill, "runtime"), 1),
            (partial(self._kill, "api"), 1),
            (partial(self._kill, "node"), 1),
            (self._pause, 4),
        ]
        if len(self.forever | self.done) > MOST_PODS:
            steps = [(self._delete, 1), (self._force, 1)]
        (step,) = self._random.choices([item for item, _ in steps], [weight for _, weight in steps])
        self.said.append(" ".join(map(str, step.args)) if isinstance(step, partial) else step.__name__)
        step()

    def _name(self) -> str:
        self._count += 1
        return f"pod-{self._count}"

    def _apply(self, name: str = "") -> None:
        name = name or self._name()
        spec: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}]}
        if self._random.random() < 0.3:
            spec["hostUsers"] = False
        if self._random.random() < 0.3:
            spec["initContainers"] = [shell(self._image, "true", "init")]
        container = shell(self._image, FOREVER, volumeMounts=[{"name": "v", "mountPath": "/v"}])
        self._node.apply(pod(container, name=name, restartPolicy="Always", **spec))
        self.forever.add(name)

    def _job(self) -> None:
        name = self._name()
        self._node.apply(pod(shell(self._image, "sleep 0.2"), name=name))
        self.done.add(name)

    def _one(self, names: set[str]) -> str:
        return self._random.choice(sorted(names)) if names else ""

    def _delete(self, **options: Any) -> str:
        name = self._one(self.forever | self.done)
        if name:
            self._node.delete(name, **options)
            self.forever.discard(name)
            self.done.discard(name)
        return name

    def _force(self) -> None:
        self._delete(gracePeriodSeconds=0)

    def _replace(self) -> None:
        if name := self._delete(gracePeriodSeconds=0):
            self._apply(name)

    def _label(self) -> None:
        if name := self._one(self.forever):
            self._node.patch(name, {"metadata": {"labels": {"step": str(len(self.said))}}})

    def _kill(self, name: str) -> None:
        self._node.kill(name)

    def _pause(self) -> None:
        time.sleep(self._random.random())  # steps at every point of what the ones before have begun

    def is_settled(self) -> bool:
        """Return whether every pod is as it is to be, and there is no other."""
        found = {item["metadata"]["name"]: item for item in self._node.ask("GET", "/api/v1/pods")["items"]}
        if found.keys() != self.forever | self.done:
            return False
        succeeded = (found[name]["status"].get("phase") == "Succeeded" for name in self.done)
        return all(is_ready(found[name]) for name in self.forever) and all(succeeded)


def settle(node: RunningNode, chaos: Chaos, said: str) -> None:
    """Wait until every pod is as it is to be, and the node has no other."""
    node.until(chaos.is_settled, f"settled after {said}: {chaos.said[-2 * ROUND :]}")
    uids = {item["metadata"]["uid"] for item in node.ask("GET", "/api/v1/pods")["items"]}
    kubelet = node.daemon.base / "kubelet" / "pods"
    node.until(lambda: {path.name for path in kubelet.iterdir()} == uids, f"no other pod on the node after {said}")


@pytest.fixture
def supervised(
    open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts
) -> Iterator[SupervisedNode]:
    """A ``podkeep node``; fails a test that leaves something of a pod on it."""
    daemon = SupervisedDaemon.of(own_base(open_directory), registry.host, mounts_of_containers)
    with SupervisedNode(daemon) as running:
        before = daemon.resources().after_a_restart()
        yield running
        running.require_nothing_left(before)


@pytest.mark.timeout(3600)
def test_desired_is_actual_whatever_is_killed_under_a_supervisor(supervised: SupervisedNode, image: str) -> None:
    """The same under ``podkeep node``, which starts its daemons again by itself; it is killed, too."""
    shake(supervised, image)


@pytest.mark.timeout(3600)
def test_desired_is_actual_whatever_happened(node: RunningNode, image: str) -> None:
    """After random steps every pod is as it is to be; the fixture sees that nothing is left when they are deleted."""
    shake(node, image)


def shake(node: RunningNode, image: str) -> None:
    """Take random steps, and wait until every pod is as it is to be."""
    seed = int(os.environ.get("PODKEEP_CHAOS_SEED", random.randrange(1 << 32)))
    end = time.monotonic() + float(os.environ.get("PODKEEP_CHAOS_SECONDS", 0))
    chaos = Chaos(node, image, seed)
    for _ in range(STEPS):
        chaos.step()
    while time.monotonic() < end:
        for _ in range(ROUND):
            chaos.step()
        settle(node, chaos, f"{len(chaos.said)} steps of {seed}")
        print(f"{len(chaos.said)} steps of {seed}: settled, {len(chaos.forever | chaos.done)} pods")
    settle(node, chaos, f"{len(chaos.said)} steps of {seed}")
