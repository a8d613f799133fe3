"""Probes and hooks of a manifest: the same rules, in the same words, as kube-apiserver has for them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from podkeep.api import manifest
from podkeep.api.containers import HTTPGetAction
from podkeep.base.errors import InvalidArgument
from unit.apiserver.kinds import pod_steps

FIELDS = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def is_about_handlers(case: dict[str, Any]) -> bool:
    """Return whether a recorded case is about probes and hooks, whose types a manifest's decoder takes."""
    return any(field in str(case["change"]) for field in FIELDS) and "FTP" not in str(case["change"])


CASES = [case for case in pod_steps.cases("pod_creations") if case["errors"] and is_about_handlers(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_what_kube_apiserver_refuses(case: dict[str, Any]) -> None:
    expected = {text for text in case["errors"] if any(f".{field}" in text.split(": ")[0] for field in FIELDS)}
    document = pod_steps.changed(pod_steps.POD, case["change"]) | {"apiVersion": "v1", "kind": "Pod"}
    if "ephemeralContainers" in str(case["change"]):
        expected = set()  # refused as a whole
    found: set[str] = set()
    try:
        manifest.parse(yaml.safe_dump(document), source="f.yaml")
    except InvalidArgument as error:
        found = {line.split("): ", 1)[1] for line in error.message.split("\n")}
    assert expected <= found


def test_there_are_cases() -> None:
    assert len(CASES) > 15


def test_defaults() -> None:
    probes = {name: {"httpGet": {"port": "web"}} for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    hooks = {"postStart": {"httpGet": {"port": 80}}, "preStop": {"sleep": {"seconds": 0}}}
    document = pod_steps.changed(pod_steps.POD, {"spec.containers.0.lifecycle": hooks}) | {
        "apiVersion": "v1",
        "kind": "Pod",
    }
    document["spec"]["containers"][0] |= probes
    (found,) = manifest.parse(yaml.safe_dump(document), source="f.yaml").pods
    container = found.spec.containers[0]
    for probe in (container.liveness_probe, container.readiness_probe, container.startup_probe):
        assert probe is not None
        assert (probe.timeout_seconds, probe.period_seconds) == (1, 10)
        assert (probe.success_threshold, probe.failure_threshold) == (1, 3)
        assert probe.http_get == HTTPGetAction(port="web", path="/", scheme="HTTP")
    assert container.lifecycle is not None
    assert container.lifecycle.post_start is not None
    assert container.lifecycle.post_start.http_get == HTTPGetAction(port=80, path="/", scheme="HTTP")
