"""The standing campaign (``make attack``): its corpus of what once did harm, or could have, and its first requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import attack
from attack.campaign import CAMPAIGNS, POOLS, problems, run
from attack.node import Hostile, Node
from support.daemon import Daemon
from support.registry import Registry

CORPUS = Path(attack.__file__ or "").parent / "corpus"
FILES = sorted(CORPUS.glob("*/*.json"))


@pytest.fixture(scope="module")
def node(open_directory: Path, registry: Registry, image: str) -> Iterator[Node]:
    """A daemon with pods in every state; afterwards it holds what it held before them."""
    token = os.urandom(3).hex()
    base, own = open_directory / f"attacked-{token}", open_directory / f"attack-{token}"
    base.mkdir()
    own.mkdir()
    with Hostile() as hostile:
        daemon = Daemon(base, extra=Node.settings(registry.host, hostile.host), settings=Node.SETTINGS)
        with daemon, Node(daemon, image, own, hostile) as node:
            before = node.held()
            yield node
            node.clear()
            assert node.left(before, threads=POOLS) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_in_the_corpus_does_no_harm(node: Node, path: Path) -> None:
    campaign = CAMPAIGNS[path.parent.name]
    assert list(problems(node, campaign, campaign.read(path))) == []


def test_requests_made_by_chance_are_answered_with_codes_that_fit(node: Node) -> None:
    report = run(node, "requests", seed=7, numbers=range(100))
    assert report.findings == {}
    assert {name.rpartition(" ")[2] for name in report.answers} >= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
