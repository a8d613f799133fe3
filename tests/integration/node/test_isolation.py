"""What a user namespace keeps from a pod: each attack succeeds as real root, and fails with ``hostUsers: false``.

The same program, the same privileged pod otherwise: so that a failure is the user namespace's doing (KEP-127, stories 1
to 5). How each attack ended is kept for docs/isolation.md, as is that of the nested machine (test_isolation_v2.py).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import isolation
from support.attacked import ONE_MAPPING, SETTINGS, Machine, attacked, made
from support.attacks import Who, outcomes, wrong
from support.isolation import Place
from support.running_node import RunningNode


@pytest.fixture
def machine(open_directory: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with files, a disk, a key and a socket that are root's."""
    with attacked(open_directory / os.urandom(4).hex(), tmp_path) as machine:
        yield machine


def require(who: Who, found: dict[str, str]) -> None:
    """Keep how attacks ended, and fail if one ended otherwise than it must, or than docs/isolation.md says."""
    ended = outcomes(found)
    isolation.keep(Place.HERE, platform.release(), {who: ended})
    assert wrong(who, found) == []
    assert isolation.differences(who, ended) == []


@pytest.mark.requirement("U87", "U88", "U89", "U90", "U123", "U125")
def test_attacks(own_node: RunningNode, image: str, machine: Machine) -> None:
    """What root of the machine may do, root of a pod may not; and nothing has changed by the attempts."""
    with own_node as node:
        ended = {who: made(node, image, machine, who) for who in (Who.ROOT, Who.BLOCK)}
    for who, found in ended.items():
        require(who, found)


@pytest.mark.requirement("U119")
def test_attacks_with_one_mapping(own_node: RunningNode, image: str, machine: Machine) -> None:
    """The machine is as safe as with a block for each pod; pods are the same users for each other."""
    own_node.settings, own_node.options = SETTINGS, ONE_MAPPING
    with own_node as node:
        found = made(node, image, machine, Who.NODE)
    require(Who.NODE, found)
