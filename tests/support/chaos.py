"""Applies, edits, deletions and killed daemons, at random, on any node: and that what is wanted is there in the end.

Owns: which step is taken, what is wanted after it, and how both are compared. Daemons are killed by the node's own
class; machines are booted again by the tests that have one.

``PODKEEP_CHAOS_SECONDS=600`` makes a run that long, ``PODKEEP_CHAOS_SEED`` repeats the choices of one that failed.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import Any

from support.node_client import NodeClient, is_ready

MOST_PODS = 25
TOLD = 120
"""Steps that the message of a failure tells."""
RUNS, SUCCEEDED, ENDED = frozenset({"Running"}), frozenset({"Succeeded"}), frozenset({"Succeeded", "Failed"})
SLEEPS = "trap 'exit 0' TERM; sleep 100000 & wait"

Step = Callable[[], object]


def seconds() -> float:
    """Return how long a run is to be; 0: a short one."""
    return float(os.environ.get("PODKEEP_CHAOS_SECONDS", 0))


def seed() -> int:
    """Return what all choices of a run follow from."""
    return int(os.environ.get("PODKEEP_CHAOS_SEED", random.randrange(1 << 32)))


@dataclass(kw_only=True)
class Wanted:
    """One pod, as the API has acknowledged it.

    :ivar phases: one of which it is to be in; if that is Running, it is to be ready as well.
    :ivar label: value of its label ``step``.
    """

    phases: frozenset[str]
    uid: str
    label: str | None = None

    def is_there(self, pod: dict[str, Any]) -> bool:
        """Return whether a pod is as it is to be."""
        metadata = pod["metadata"]
        if (metadata["uid"], metadata.get("labels", {}).get("step")) != (self.uid, self.label):
            return False
        return pod["status"].get("phase") in self.phases and (self.phases != RUNS or is_ready(pod))


class Chaos:
    """Random steps on one node, and what must be there after them.

    :param most_pods: with more of them, only deletions follow.
    """

    def __init__(self, node: NodeClient, image: str, seed: int, *, most_pods: int = MOST_PODS) -> None:
        self._node, self._image, self._most_pods = node, image, most_pods
        self._seed, self._random = seed, random.Random(seed)
        print(f"seed: {seed}")
        self._count = 0
        self._asked: tuple[str, str | None] | None = None
        """Name and label of the pod that is being written: not acknowledged."""
        self._revision = 0
        """The newest that was acknowledged."""
        self._ended: set[str] = set()
        """Pods whose end was seen in the API."""
        self.wanted: dict[str, Wanted] = {}
        self.said: list[str] = []

    def steps(self, count: int) -> None:
        """Do so many things, one after the other."""
        writes = self._writes()
        kills: list[tuple[Step, int]] = [
            (partial(self._node.kill, name), weight)
            for name, weight in (("agent", 2), ("runtime", 1), ("api", 1), ("node", 1))
        ]
        for _ in range(count):
            self._step(self._deletions() if len(self.wanted) > self._most_pods else [*writes, *kills, (self._pause, 4)])

    def writes_until(self, cut: Step, writes: int) -> None:
        """Write without a pause, and ``cut`` in the middle of the write after so many: it ends all connections."""
        acknowledged = threading.Semaphore(0)

        def write() -> None:
            with suppress(OSError, HTTPException):
                while True:
                    self._step(self._deletions() if len(self.wanted) > self._most_pods else self._writes())
                    acknowledged.release()

        with ThreadPoolExecutor(1) as threads:
            writer = threads.submit(write)
            for _ in range(writes):
                while not acknowledged.acquire(timeout=1):
                    assert not writer.done(), writer.exception()
            self.said.append("cut")
            cut()
            writer.result()

    def booted(self) -> None:
        """Take what the API has for what was acknowledged, where that is not known, after everything was ended.

        :raises AssertionError: if the API does not have what it can have only.
        """
        listed = self._node.ask("GET", "/api/v1/pods")
        assert int(listed["metadata"]["resourceVersion"]) >= self._revision, "the API is back in time"
        if self._asked is not None:
            (name, label), self._asked = self._asked, None
            before = self.wanted.pop(name, None)
            found = {item["metadata"]["name"]: item for item in listed["items"]}.get(name)
            if found is not None and "deletionTimestamp" not in found["metadata"]:
                phases = RUNS if found["spec"]["restartPolicy"] == "Always" else SUCCEEDED
                has = found["metadata"].get("labels", {}).get("step")
                self.wanted[name] = Wanted(phases=phases, uid=found["metadata"]["uid"], label=has)
                assert before is None or (before.uid == found["metadata"]["uid"] and has in (before.label, label))
        for name, wanted in self.wanted.items():
            if wanted.phases == SUCCEEDED and name not in self._ended:
                wanted.phases = ENDED  # nobody knows whether it had ended, or how

    def settle(self) -> None:
        """Wait until every pod is as it is to be, and the node has no other."""
        said = f"{len(self.said)} steps of {self._seed}"
        try:
            self._node.until(self._is_there, f"settled after {said}: {self.said[-TOLD:]}")
        except AssertionError as error:
            pods = {item["metadata"]["name"]: item for item in self._node.pods()}
            raise AssertionError(f"{error}\nwanted: {self.wanted}\nthere: {json.dumps(pods)}") from None
        uids = {wanted.uid for wanted in self.wanted.values()}
        self._node.until(lambda: set(self._node.pod_directories()) == uids, f"no other pod on the node after {said}")
        print(f"{said}: settled, {len(self.wanted)} pods")

    def _is_there(self) -> bool:
        found = {item["metadata"]["name"]: item for item in self._node.pods()}
        if found.keys() != self.wanted.keys():
            return False
        if not all(wanted.is_there(found[name]) for name, wanted in self.wanted.items()):
            return False
        self._ended |= {name for name, wanted in self.wanted.items() if wanted.phases == SUCCEEDED}
        # What the API has of a pod may be from before everything was killed.
        return set(self._node.pods_with_processes()) == {
            wanted.uid for wanted in self.wanted.values() if wanted.phases == RUNS
        }

    # -- steps

    def _writes(self) -> list[tuple[Step, int]]:
        return [
            (self._apply, 10),
            (self._job, 4),
            (self._delete, 6),
            (self._force, 2),
            (self._replace, 2),
            (self._label, 4),
        ]

    def _deletions(self) -> list[tuple[Step, int]]:
        return [(self._delete, 1), (self._force, 1)]

    def _step(self, steps: list[tuple[Step, int]]) -> None:
        (step,) = self._random.choices([item for item, _ in steps], [weight for _, weight in steps])
        self.said.append(" ".join(map(str, step.args)) if isinstance(step, partial) else step.__name__)
        step()

    def _create(self, name: str, phases: frozenset[str], container: dict[str, Any], **spec: Any) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": self._image, **container}],
                **spec,
            },
        }
        self._asked = (name, None)
        (created,) = self._node.apply(document)
        self._asked = None
        self._revision = int(created["metadata"]["resourceVersion"])
        self.wanted[name] = Wanted(phases=phases, uid=created["metadata"]["uid"])

    def _name(self) -> str:
        self._count += 1
        return f"pod-{self._count}"

    def _apply(self, name: str = "") -> None:
        spec: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}], "restartPolicy": "Always"}
        if self._random.random() < 0.3:
            spec["hostUsers"] = False
        if self._random.random() < 0.3:
            spec["initContainers"] = [{"name": "init", "image": self._image, "command": ["true"]}]
        mounts = [{"name": "v", "mountPath": "/v"}]
        container = {"command": ["sh", "-c", SLEEPS], "volumeMounts": mounts}
        self._create(name or self._name(), RUNS, container, **spec)

    def _job(self) -> None:
        self._create(self._name(), SUCCEEDED, {"command": ["sleep", "0.2"]}, restartPolicy="Never")

    def _one(self, names: Iterable[str]) -> str:
        return self._random.choice(sorted(names) or [""])

    def _delete(self, **options: Any) -> str:
        name = self._one(self.wanted)
        if name:
            self._asked = (name, self.wanted[name].label)
            self._node.delete(name, **options)
            self._asked = None
            del self.wanted[name]
            self._ended.discard(name)
        return name

    def _force(self) -> None:
        self._delete(gracePeriodSeconds=0)

    def _replace(self) -> None:
        if name := self._delete(gracePeriodSeconds=0):
            self._apply(name)

    def _label(self) -> None:
        if name := self._one(name for name, wanted in self.wanted.items() if wanted.phases == RUNS):
            label = str(len(self.said))
            self._asked = (name, label)
            self._node.patch(name, {"metadata": {"labels": {"step": label}}})
            self._asked = None
            self.wanted[name].label = label

    def _pause(self) -> None:
        time.sleep(self._random.random())  # steps at every point of what the ones before have begun
