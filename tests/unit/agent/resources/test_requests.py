"""What the containers of a pod need together."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest

from podkeep.agent.resources import requests
from support.pods import container, pod

SIDECAR = {"restartPolicy": "Always"}


def _slowly(inits: list[dict[str, Any]]) -> dict[str, int]:
    """Return the same, by what runs at each moment."""
    moments: list[list[dict[str, Any]]] = [[item for item in inits if "restartPolicy" in item]]
    for index, item in enumerate(inits):
        moments.append([*(before for before in inits[:index] if "restartPolicy" in before), item])
    found: dict[str, int] = {}
    for moment in moments:
        asked = [
            (name, requests.amount(name, text)) for one in moment for name, text in one["resources"]["requests"].items()
        ]
        for name in dict(asked):
            found[name] = max(found.get(name, 0), sum(amount for other, amount in asked if other == name))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_init_containers_run_one_after_the_other_beside_the_sidecars_before_them(seed: int) -> None:
    chance = random.Random(seed)
    inits = [
        container(
            f"i{number}",
            requests=" ".join(f"{name}={chance.randrange(5)}" for name in chance.sample(("cpu", "memory", "a/b"), 2)),
            **(SIDECAR if chance.random() < 0.5 else {}),
        )
        for number in range(6)
    ]
    assert requests.aggregate(pod(init=inits), "requests") == _slowly(inits)


@pytest.mark.parametrize("last", [SIDECAR, {}])
def test_very_many_sidecars_are_looked_at_once(last: dict[str, str]) -> None:
    """A pod with 5,000 sidecars that ask for 70,000 resources kept the agent's loop busy for a minute each time."""
    inits = [container(f"i{number}", requests=f"a/b{number}=1", **SIDECAR) for number in range(100)]
    inits += [container(f"j{number}", requests=f"a/c{number}=1", **last) for number in range(100)]
    made = pod(init=inits)
    calls = 0

    def count(_frame: FrameType, event: str, called: object) -> None:
        nonlocal calls
        calls += event == "c_call" and called is max
        calls += event == "call" and _frame.f_code is requests._add.__code__

    sys.setprofile(count)
    try:
        found = requests.aggregate(made, "requests")
    finally:
        sys.setprofile(None)
    assert len(found) == 200
    assert calls <= 2 * len(inits)
