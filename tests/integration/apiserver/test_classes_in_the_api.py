"""Class resources (KEP-3008) in a running API: scheduler, quota and its status, and all of that with the gate off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.api_client import Answer, ApiClient
from support.api_daemon import ApiDaemon
from support.waiting import wait_for

OFF = ("--set", "api.feature_gates.ClassResources=false")
PODS = "/api/v1/namespaces/default/pods"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
MERGE = "application/merge-patch+json"
RDT = "rdt.resources.alpha.kubernetes.io"
OFFERS = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "podClassResources": [{"name": "net", "classes": ["fast"]}],
    "containerClassResources": [{"name": "rdt", "classes": ["gold", "silver"], "immutable": True}],
}


@pytest.fixture
def api(tmp_path: Path, scratch_machine: None) -> ApiDaemon:
    """An API, not started."""
    return ApiDaemon(tmp_path)


def ask(api: ApiDaemon, method: str, path: str, body: Any = None, media: str = "application/json") -> Answer:
    client = ApiClient(api.socket)
    try:
        return client.ask(method, path, body, media=media)
    finally:
        client.close()


def until(api: ApiDaemon, path: str, condition: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
    """Return an object once ``condition`` holds for it."""

    def look() -> dict[str, Any] | None:
        value: dict[str, Any] = ask(api, "GET", path).value
        return value if condition(value) else None

    found = wait_for(look, lambda: f"{what}: {ask(api, 'GET', path).value}")
    assert found is not None
    return found


def nodes(api: ApiDaemon) -> None:
    """Make two nodes that take pods, of which one offers classes."""
    for name, status in (("bare", {"conditions": OFFERS["conditions"]}), ("rich", OFFERS)):
        made = ask(api, "POST", "/api/v1/nodes", {"metadata": {"name": name}})
        assert made.status == 201, made.said
        room = {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "100"}}
        written = ask(api, "PATCH", f"/api/v1/nodes/{name}/status", {"status": status | room}, MERGE)
        assert written.status == 200, written.said
        untainted = ask(api, "PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)
        assert untainted.status == 200, untainted.said


def pod(
    name: str, pod_class: str = "", container_class: str = "", annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "registry.test/image:1"}
    if container_class:
        container["resources"] = {"classes": {"rdt": container_class}}
    spec: dict[str, Any] = {"containers": [container], "automountServiceAccountToken": False}
    if pod_class:
        spec["resources"] = {"classes": {"net": pod_class}}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


def placed(api: ApiDaemon, name: str) -> str:
    """Return the node of a pod, once the scheduler has decided; a text about why there is none."""

    def decided(value: dict[str, Any]) -> bool:
        return any(item["type"] == "PodScheduled" for item in value.get("status", {}).get("conditions", ()))

    value = until(api, f"{PODS}/{name}", decided, "scheduled")
    (said,) = [item for item in value["status"]["conditions"] if item["type"] == "PodScheduled"]
    node: str = value["spec"].get("nodeName") or said["message"]
    return node


def listed(quota: dict[str, Any]) -> Any:
    """Return the classes of containers in the status of a quota."""
    return quota.get("status", {}).get("containerClassResources")


@pytest.mark.requirement("Q64", "Q67", "Q81", "Q91")
def test_the_scheduler(api: ApiDaemon) -> None:
    """Status of nodes as they report it; pods go where all their classes are, and wait where they are nowhere."""
    with api:
        nodes(api)
        status = ask(api, "GET", "/api/v1/nodes/rich").value["status"]
        assert {key: status[key] for key in OFFERS if key != "conditions"} == {
            key: value for key, value in OFFERS.items() if key != "conditions"
        }
        for number in range(4):
            for name, value in (
                (f"both-{number}", pod(f"both-{number}", "fast", "gold")),
                (f"noted-{number}", pod(f"noted-{number}", annotations={f"{RDT}/default": "silver"})),
            ):
                made = ask(api, "POST", PODS, value)
                assert made.status == 201, made.said
                assert placed(api, name) == "rich"
        assert ask(api, "POST", PODS, pod("nowhere", "slow")).status == 201
        assert "2 node(s) didn't offer class slow of class resource net to pods" in placed(api, "nowhere")
        assert ask(api, "PATCH", "/api/v1/nodes/bare/status", {"status": {"podClassResources": [
            {"name": "net", "classes": ["slow"]}
        ]}}, MERGE).status == 200  # fmt: skip
        moved = until(api, f"{PODS}/nowhere", lambda value: value["spec"].get("nodeName"), "the class that came")
        assert moved["spec"]["nodeName"] == "bare"


@pytest.mark.requirement("Q70", "Q71", "Q72", "Q81", "Q91")
def test_quota(api: ApiDaemon) -> None:
    """Fields and annotations alike; the controller writes into the status what the quota allows, and follows it."""
    allowed = [{"name": "rdt", "classes": ["silver"]}]
    with api:
        quota = {"metadata": {"name": "q"}, "spec": {"containerClassResources": allowed}}
        made = ask(api, "POST", QUOTAS, quota)
        assert made.status == 201, made.said
        until(
            api,
            f"{QUOTAS}/q",
            lambda value: value.get("status", {}).get("containerClassResources") == allowed,
            "status",
        )
        for refused in (pod("a", container_class="gold"), pod("a", annotations={f"{RDT}/default": "gold"})):
            answer = ask(api, "POST", PODS, refused)
            assert answer.status == 403
            assert "exceeded class quota: q, requested: rdt=gold for container main" in answer.said
        assert ask(api, "POST", PODS, pod("a", container_class="silver")).status == 201
        more = [{"name": "rdt", "classes": ["silver", "gold"]}]
        assert ask(api, "PATCH", f"{QUOTAS}/q", {"spec": {"containerClassResources": more}}, MERGE).status == 200
        until(api, f"{QUOTAS}/q", lambda value: listed(value) == more, "a status that follows")
        assert ask(api, "POST", PODS, pod("b", container_class="gold")).status == 201


@pytest.mark.requirement("Q61", "Q69", "Q75", "Q81")
def test_with_the_gate_off(api: ApiDaemon) -> None:
    """Stored classes stay, over updates too; new ones are refused; scheduler and quota pass over what is there."""
    with api:
        nodes(api)
        quota = {"metadata": {"name": "q"}, "spec": {"containerClassResources": [{"name": "rdt", "classes": ["gold"]}]}}
        assert ask(api, "POST", QUOTAS, quota).status == 201
        assert ask(api, "POST", PODS, pod("old", "fast", "gold")).status == 201
        assert ask(api, "POST", PODS, pod("waits", "slow")).status == 201
        assert "didn't offer class slow" in placed(api, "waits")
        before = {name: ask(api, "GET", f"{PODS}/{name}").value["spec"] for name in ("old", "waits")}
        api.stop()
        api.options = OFF
        api.start()
        labelled = ask(api, "PATCH", f"{PODS}/old", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        assert labelled.status == 200, labelled.said
        assert labelled.value["spec"]["resources"] == before["old"]["resources"]
        assert labelled.value["spec"]["containers"] == before["old"]["containers"]
        for refused in (pod("new", "fast"), pod("new", container_class="gold")):
            answer = ask(api, "POST", PODS, refused)
            assert answer.status == 422
            assert "the feature gate ClassResources is off" in answer.said
        noted = ask(api, "POST", PODS, pod("new", annotations={f"{RDT}/default": "silver"}))
        assert noted.status == 201, noted.said
        assert placed(api, "new") in {"bare", "rich"}
        moved = until(api, f"{PODS}/waits", lambda value: value["spec"].get("nodeName"), "scheduled without the class")
        assert moved["spec"]["resources"] == before["waits"]["resources"]


@pytest.mark.requirement("Q81")
def test_the_gate_changes_nothing_for_who_does_not_use_it(api: ApiDaemon) -> None:
    found = []
    with api:
        nodes(api)
        for options in ((), OFF):
            api.stop()
            api.options = options
            api.start()
            name = f"plain-{len(options)}"
            assert ask(api, "POST", PODS, pod(name)).status == 201
            assert placed(api, name) in {"bare", "rich"}
            spec = ask(api, "GET", f"{PODS}/{name}").value["spec"]
            del spec["nodeName"]
            found.append(spec)
    assert found[0] == found[1]
