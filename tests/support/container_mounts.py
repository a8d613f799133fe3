"""Whether the daemons under test hide their container mounts from the scratch machine (the default) or show them.

``--container-mounts`` says it for a whole run, and every test must end in the same way in both (M30, M42). Owns: the
setting of the run, and the list of the tests that must not (:data:`DIFFER`). What is hidden or shown of a test whose
very subject is one of the two is said by its mark, ``container_mounts("shown", reason="...")``: it holds in both runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

OPTION = "--container-mounts"
MARK = "container_mounts"


class ContainerMounts(StrEnum):
    """Where mounts that are made for containers are seen."""

    HIDDEN = "hidden"
    """In the runtime's mount namespace: ``mountns.enabled``, the default."""
    SHOWN = "shown"
    """On the machine: the runtime is in its mount namespace."""


HIDDEN = ContainerMounts.HIDDEN
SHOWN = ContainerMounts.SHOWN

DIFFER: Mapping[str, str] = {
    "tests/conformance/test_conformance_mounts.py::test_propagation_to_the_machine": (
        "M41: that the machine does not see what containers mount is what hiding is for"
    ),
}
"""Node ID and reason of the tests that pass when container mounts are shown, and must fail when they are hidden."""

_run = [HIDDEN]


def decide(value: str) -> None:
    """Set what holds for this run; before any test is collected."""
    _run[0] = ContainerMounts(value)


def of_run() -> ContainerMounts:
    """Return what holds for tests that say nothing of it."""
    return _run[0]


def of_test(item: pytest.Item) -> ContainerMounts:
    """Return what holds for a test.

    :raises pytest.UsageError: for a mark without a reason.
    """
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return of_run()
    if not mark.kwargs.get("reason"):
        raise pytest.UsageError(f"{item.nodeid}: the mark {MARK} needs a reason")
    return ContainerMounts(*mark.args)


def mark_differing(items: list[pytest.Item]) -> None:
    """Say of the tests of :data:`DIFFER` that they must fail where mounts are hidden."""
    for item in items:
        if of_test(item) is HIDDEN and (reason := DIFFER.get(item.nodeid)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
