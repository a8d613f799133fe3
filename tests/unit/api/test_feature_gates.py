"""Feature gates: known names alone, defaults, and who asks which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from podkeep.api import feature_gates
from podkeep.api.feature_gates import CLASS_RESOURCES, KNOWN, FeatureGates
from podkeep.base.errors import InvalidArgument

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.mark.requirement("Q25", "Q81")
@pytest.mark.parametrize(
    ("given", "enabled"), [({}, True), ({"ClassResources": False}, False), ({"ClassResources": True}, True)]
)
def test_a_gate_is_what_the_configuration_says_or_its_default(given: dict[str, bool], enabled: bool) -> None:
    assert feature_gates.read(given, "agent").enabled(CLASS_RESOURCES) is enabled
    assert FeatureGates(given=given).enabled(CLASS_RESOURCES) is enabled


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"ClassResource": True}, "unrecognized feature gate: ClassResource", "did you mean ClassResources?"),
        ({"classresources": True}, "unrecognized feature gate: classresources", "did you mean ClassResources?"),
        (
            {"B": True, "ClassResource": True, "ImageVolum": True},
            "unrecognized feature gate: B, ClassResource, ImageVolum",
            "did you mean ClassResources and ImageVolume?",
        ),
        (
            {"Z": True, "ClassResources": True, "B": False},
            "unrecognized feature gate: B, Z",
            "known: ClassResources, DisableHostUserNamespaceDefaulting, ImageVolume, UserNamespaceSupport,"
            " UserNamespacesSupport",
        ),
    ],
)
def test_a_gate_that_is_not_known_is_an_error(given: dict[str, bool], message: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        feature_gates.read(given, "agent")
    assert (caught.value.message, caught.value.hint) == (f"agent.feature_gates: {message}", hint)


@pytest.mark.requirement("Q81")
def test_every_gate_is_documented_with_its_default_and_who_asks_it() -> None:
    text = DOCUMENT.read_text().partition("### Feature gates")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (on|off) \| (.*?) \| .+ \|$", text, flags=re.MULTILINE)
    assert {name: (default == "on", asked.split(", ")) for name, default, asked in rows} == {
        gate.name: (gate.default, [f"`{component}`" for component in gate.components]) for gate in KNOWN
    }
