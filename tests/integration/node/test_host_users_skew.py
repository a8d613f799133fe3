"""API server and agent of which one is older than ``pod.spec.hostUsers`` (KEP-127, version skew)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from node.test_user_namespace_gate import IDENTITY, containers, is_block, mapping, mapping_of, recreate, runs

from support.api_client import Answer, ApiClient
from support.older import HOST_USERS, without
from support.running_node import RunningNode

PODS = "/api/v1/namespaces/default/pods"
UNKNOWN = 'unknown field "spec.hostUsers"'


@pytest.fixture
def older(open_directory: Path, own_node: RunningNode) -> dict[str, str]:
    """What processes have in their environment that do not know the field."""
    return without(HOST_USERS, own_node.daemon.base)


def create(node: RunningNode, document: dict[str, Any], validation: str) -> Answer:
    """Ask for a pod, with that field validation."""
    document["spec"] |= {"nodeName": node.name, "automountServiceAccountToken": False}
    client = ApiClient(node.api.socket)
    try:
        return client.ask("POST", f"{PODS}?fieldValidation={validation}", document)
    finally:
        client.close()


@pytest.mark.requirement("U7")
def test_an_api_server_that_does_not_know_the_field(
    own_node: RunningNode, older: dict[str, str], image: str, tmp_path: Path
) -> None:
    """It drops the field, or refuses the pod where that is asked for; clients and the agent live with either."""
    directory = own_node.daemon.base / "manifests"
    directory.mkdir()
    own_node.settings += (f"agent.static_pod_path={directory}",)
    own_node.api.environment = older
    file = tmp_path / "own.json"
    with own_node as node:
        refused = create(node, runs(image, "own", hostUsers=False), "Strict")
        assert refused.status == 400
        assert UNKNOWN in refused.said
        assert node.get("own") is None
        for validation in ("Ignore", "Warn"):
            name = validation.lower()
            created = create(node, runs(image, name, hostUsers=False), validation)
            assert created.status == 201
            assert (UNKNOWN in created.headers.get("Warning", "").replace("\\", "")) is (validation == "Warn")
            assert "hostUsers" not in created.value["spec"]
            assert mapping_of(node, image, name) == IDENTITY

        file.write_text(json.dumps(runs(image, "kubectl", hostUsers=False)))
        # Before 1.25 kubectl looks itself, and says it of the type; it knows no `--validate=warn` then.
        assert re.search('unknown field "(spec[.])?hostUsers"', node.api.kubectl("create", "-f", str(file), status=1))
        assert "created" in node.api.kubectl("create", "--validate=false", "-f", str(file))
        node.delete("kubectl")

        (directory / "static.json").write_text(json.dumps(runs(image, "static", hostUsers=False)))
        assert "hostUsers" not in node.running(f"static-{node.name}")["spec"]
        assert is_block(mapping(node, image, containers(node, image)[f"static-{node.name}"])), "as the file says"
        (directory / "static.json").unlink()
        node.until(lambda: f"static-{node.name}" not in containers(node, image), "the static pod gone")

        node.api.stop()
        node.api.environment = {}
        node.api.start()
        assert mapping_of(node, image, "warn") == IDENTITY
        recreate(node, runs(image, "warn", hostUsers=False))
        assert is_block(mapping_of(node, image, "warn"))


@pytest.mark.requirement("U94")
def test_an_agent_that_does_not_know_the_field(own_node: RunningNode, older: dict[str, str], image: str) -> None:
    """It runs the pod in the machine's user namespace, without a word; a newer one leaves that pod as it is."""
    own_node.environment = older
    with own_node as node:
        node.apply(runs(image, "own", hostUsers=False))
        found = node.running("own")
        assert found["spec"]["hostUsers"] is False
        assert mapping_of(node, image, "own") == IDENTITY
        assert {event["type"] for event in node.events("own")} == {"Normal"}

        node.end_agent()
        node.environment = {}
        node.start_agent()
        assert node.running("own")["status"]["containerStatuses"] == found["status"]["containerStatuses"]
        assert mapping_of(node, image, "own") == IDENTITY
        recreate(node, runs(image, "own", hostUsers=False))
        assert is_block(mapping_of(node, image, "own"))
