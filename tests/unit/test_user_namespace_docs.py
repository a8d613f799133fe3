"""docs/user-namespaces.md says what administrators must know; its commands are run by tests/integration/node."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TEXT = " ".join((DOCS / "user-namespaces.md").read_text().split()).replace("> ", "")


@pytest.mark.requirement("U19")
def test_whose_job_it_is_that_nodes_honour_the_field() -> None:
    assert "Every node has to honour the field, and to see to that is the administrator's job." in TEXT
    assert "there the pod's root is real root" in TEXT


@pytest.mark.requirement("U63")
def test_what_one_mapping_for_a_node_costs_and_what_it_does_not_need() -> None:
    assert "**This isolates pods from the machine, and not from each other.**" in TEXT
    assert (
        "dockerd knows a mapping for all containers as `userns-remap`. Nothing here needs it or reads its settings."
        in TEXT
    )


@pytest.mark.requirement("U127")
def test_what_is_not_claimed() -> None:
    assert "The runtime and the agent run as root. To run them without is not possible." in TEXT
    assert "podkeep does not run as another user" in (DOCS / "install.md").read_text()
    assert "`runAsUser` beyond them fails." in TEXT
