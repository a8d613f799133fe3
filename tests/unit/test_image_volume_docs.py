"""What docs/image-volumes.md tells people who look for the limits of image volumes, and for why one does not come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "image-volumes.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return " ".join(found[1].split())


@pytest.mark.requirement("V19")
def test_the_limits_are_documented() -> None:
    (limits,) = [line for line in PAGE.splitlines() if line.startswith("| how many |")]
    assert "not thousands" in limits
    assert "50 are tested" in limits
    assert "A volume is a directory" in limits
    assert "Other kinds of volumes keep their place" in limits


@pytest.mark.requirement("V11")
def test_expanded_sub_paths_are_documented() -> None:
    assert "| part of it | `subPath`, or `subPathExpr` with the container's variables." in PAGE


@pytest.mark.requirement("V101")
def test_what_to_do_about_failures_is_documented() -> None:
    text = section("When it fails")
    assert "A registry that is away looks like any failed pull: see the pod's events first." in text
    for reason in (
        "ErrImagePull",
        "RegistryUnavailable",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "CreateContainerError",
    ):
        assert f"`{reason}`" in text
