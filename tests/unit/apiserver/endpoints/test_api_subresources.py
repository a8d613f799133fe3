"""Scale, binding and eviction, over a real store; what budgets say of evictions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from podkeep.apiserver.endpoints import evictions
from podkeep.apiserver.meta.status import StatusError
from support.api_calls import MERGE, Api, run

PODS = "/api/v1/namespaces/default/pods"
APPS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
NOW = "2026-11-23T06:00:00Z"
SCALE_TO_ZERO = {
    "apiVersion": "autoscaling/v1",
    "kind": "Scale",
    "metadata": {"name": "web"},
    "spec": {"replicas": 0},
}


def _pod(name: str = "p", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}


def _deployment() -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": _pod()["spec"]}
    return {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


async def _created(api: Api, path: str, value: dict[str, Any]) -> dict[str, Any]:
    answer = await api.call("POST", path, value)
    assert answer.status == 201, answer.body
    found: dict[str, Any] = answer.value
    return found


def test_replicas_are_changed_by_scale(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _created(api, APPS, _deployment())
        scale = (await api.call("GET", f"{APPS}/web/scale")).value
        assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 1})
        scaled = await api.call("PUT", f"{APPS}/web/scale", {**scale, "spec": {"replicas": 2}})
        assert (scaled.status, scaled.value["spec"]) == (200, {"replicas": 2})
        old = await api.call("PUT", f"{APPS}/web/scale", {**scale, "spec": {"replicas": 3}})
        assert (old.status, old.value["reason"]) == (409, "Conflict")
        patched = await api.call("PATCH", f"{APPS}/web/scale", {"spec": {"replicas": 4}}, content_type=MERGE)
        assert patched.value["spec"] == {"replicas": 4}
        found = (await api.call("GET", f"{APPS}/web")).value
        assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (4, 3)
        assert [entry.get("subresource") for entry in found["metadata"]["managedFields"]] == [None, "scale"]
        wrong = await api.call("PATCH", f"{APPS}/web/scale", {"spec": {"replicas": -1}}, content_type=MERGE)
        assert (wrong.status, "must be greater than or equal to 0" in wrong.message) == (422, True)
        typed = await api.call("PATCH", f"{APPS}/web/scale", {"spec": {"replicas": "x"}}, content_type=MERGE)
        assert typed.status == 422

    run(tmp_path, test)


def test_replicas_are_applied_by_scale(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _created(api, APPS, _deployment())
        path, apply = f"{APPS}/web/scale", "application/apply-patch+yaml"
        config = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 3}}
        answer = await api.call("PATCH", f"{path}?fieldManager=one&force=true", config, content_type=apply)
        assert (answer.status, answer.value["kind"], answer.value["spec"]) == (200, "Scale", {"replicas": 3})
        found = (await api.call("GET", f"{APPS}/web")).value
        (entry,) = [item for item in found["metadata"]["managedFields"] if item["manager"] == "one"]
        assert (entry["operation"], entry["subresource"]) == ("Apply", "scale")
        assert entry["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
        assert found["spec"]["replicas"] == 3
        other = config | {"spec": {"replicas": 5}}
        taken = await api.call("PATCH", f"{path}?fieldManager=two", other, content_type=apply)
        assert (taken.status, taken.value["details"]["causes"][0]["field"]) == (409, ".spec.replicas")
        forced = await api.call("PATCH", f"{path}?fieldManager=two&force=true", other, content_type=apply)
        assert forced.value["spec"] == {"replicas": 5}
        wrong = await api.call("PATCH", f"{path}?fieldManager=one", config | {"kind": "Deployment"}, content_type=apply)
        assert wrong.status == 400
        less = config | {"spec": {"replicas": -1}}
        assert (await api.call("PATCH", f"{path}?fieldManager=one", less, content_type=apply)).status == 422

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "content_type", "body"),
    [
        ("PUT", "application/json", SCALE_TO_ZERO),
        ("PATCH", MERGE, {"spec": {"replicas": 0}}),
        ("PATCH", "application/strategic-merge-patch+json", {"spec": {"replicas": 0}}),
        ("PATCH", "application/json-patch+json", [{"op": "replace", "path": "/spec/replicas", "value": 0}]),
        ("PATCH", "application/apply-patch+yaml", SCALE_TO_ZERO),
    ],
)
def test_a_scale_may_be_zero(tmp_path: Path, method: str, content_type: str, body: Any) -> None:
    """In a Scale it is left out; in what is scaled it stays, where it is a pointer."""

    async def test(api: Api) -> None:
        await _created(api, APPS, _deployment())
        path = f"{APPS}/web/scale?fieldManager=one" + ("&force=true" if "apply" in content_type else "")
        scaled = await api.call(method, path, body, content_type=content_type)
        assert scaled.status == 200
        assert (await api.call("GET", f"{APPS}/web")).value["spec"]["replicas"] == 0

    run(tmp_path, test)


def test_scaling_what_an_earlier_release_stored_drops_its_zeros(tmp_path: Path) -> None:
    async def first(api: Api) -> None:
        created = await _created(api, APPS, _deployment())
        (stored,) = api.store.snapshot("apps/deployments").items
        await api.store.put(stored.key, created | {"spec": created["spec"] | {"paused": False}}, stored)

    async def then(api: Api) -> None:
        assert (await api.call("GET", f"{APPS}/web")).value["spec"]["paused"] is False
        assert (await api.call("PUT", f"{APPS}/web/scale", SCALE_TO_ZERO)).status == 200
        spec = (await api.call("GET", f"{APPS}/web")).value["spec"]
        assert "paused" not in spec
        assert spec["replicas"] == 0

    run(tmp_path, first)
    run(tmp_path, then)


def test_a_pod_is_bound_once(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _created(api, PODS, _pod())
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
        bound = await api.call("POST", f"{PODS}/p/binding", binding)
        assert (bound.status, bound.value["status"]) == (201, "Success")
        assert (await api.call("GET", f"{PODS}/p")).value["spec"]["nodeName"] == "n"
        again = await api.call("POST", f"{PODS}/p/binding", binding)
        assert (again.status, 'is already assigned to node "n"' in again.message) == (409, True)
        other = await api.call("POST", "/api/v1/namespaces/default/bindings", {**binding, "metadata": {"name": "q"}})
        assert other.status == 404

    run(tmp_path, test)


def test_a_pod_that_waits_is_evicted_whatever_its_budget_says(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await _created(api, PODS, _pod())
        old = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "p"}}
        assert (await api.call("POST", f"{PODS}/p/eviction?dryRun=All", old)).status == 201
        evicted = await api.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        assert (evicted.status, evicted.value["status"]) == (201, "Success")
        assert (await api.call("GET", f"{PODS}/p")).status == 404
        gone = await api.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        assert gone.status == 404

    run(tmp_path, test)


def test_a_budget_is_charged_for_an_eviction(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for name in ("p", "q"):
            await _created(api, PODS, _pod(name, app="web"))
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            changed = await api.call("PATCH", f"{PODS}/{name}/status", {"status": status}, content_type=MERGE)
            assert changed.status == 200, changed.body
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        await _created(api, BUDGETS, {"metadata": {"name": "b"}, "spec": spec})
        # No controller runs here.
        refused = await api.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        assert (refused.status, refused.headers["Retry-After"]) == (429, ["10"])
        allowed = {
            "observedGeneration": 1,
            "disruptionsAllowed": 1,
            "currentHealthy": 2,
            "desiredHealthy": 1,
            "expectedPods": 2,
        }
        await api.call("PATCH", f"{BUDGETS}/b/status", {"status": allowed}, content_type=MERGE)
        assert (await api.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})).status == 201
        status = (await api.call("GET", f"{BUDGETS}/b")).value["status"]
        assert (status["disruptionsAllowed"], status["disruptedPods"].keys()) == (0, {"p"})
        refused = await api.call("POST", f"{PODS}/q/eviction", {"metadata": {"name": "q"}})
        assert refused.message == "Cannot evict pod as it would violate the pod's disruption budget."
        assert (await api.call("GET", f"{PODS}/q")).status == 200

    run(tmp_path, test)


def _budget(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "b", "generation": 1}, "spec": {}, "status": {"observedGeneration": 1, **status}}


@pytest.mark.parametrize(
    ("budget", "code", "why"),
    [
        (_budget(observedGeneration=0), 429, "The disruption budget b is still being processed by the server."),
        (
            _budget(disruptionsAllowed=0, currentHealthy=1, desiredHealthy=2),
            429,
            "The disruption budget b needs 2 healthy pods and has 1 currently",
        ),
        (
            _budget(disruptionsAllowed=0, currentHealthy=3, desiredHealthy=2),
            429,
            "The disruption budget b does not allow evicting pods currently",
        ),
        (
            _budget(
                disruptionsAllowed=0,
                conditions=[
                    {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no scale"}
                ],
            ),
            429,
            "The disruption budget b does not allow evicting pods currently because it failed sync: no scale",
        ),
    ],
)
def test_a_budget_says_why_it_allows_nothing(budget: dict[str, Any], code: int, why: str) -> None:
    with pytest.raises(StatusError) as refused:
        evictions.charged(budget, "p", NOW)
    assert refused.value.code == code
    assert refused.value.details["causes"] == [{"reason": "DisruptionBudget", "message": why}]


def test_the_last_disruption_is_noted_as_such() -> None:
    charged = evictions.charged(_budget(disruptionsAllowed=1), "p", NOW)
    assert charged["status"]["conditions"][0]["reason"] == "InsufficientPods"
    assert charged["status"]["disruptedPods"] == {"p": NOW}


@pytest.mark.slow
def test_others_have_their_turn_while_many_budgets_are_looked_at(tmp_path: Path) -> None:
    """All those of a namespace were decoded at once: hundreds of large ones kept everybody waiting for seconds."""

    async def test(api: Api) -> None:
        await _created(api, PODS, _pod())
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await api.call("PATCH", f"{PODS}/p/status", {"status": status}, content_type=MERGE)
        for number in range(30):
            spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "other"}}}
            await _created(api, BUDGETS, {"metadata": {"name": f"b{number}"}, "spec": spec})
        evicting = asyncio.ensure_future(api.call("POST", f"{PODS}/p/eviction?dryRun=All", {"metadata": {"name": "p"}}))
        turns = 0
        while not evicting.done():
            turns += 1
            await asyncio.sleep(0)
        assert (await evicting).status == 201
        assert turns >= 30

    run(tmp_path, test)


def test_a_pod_with_two_budgets_cannot_be_evicted() -> None:
    budgets = [{"spec": {"selector": {"matchLabels": {"a": "b"}}}}] * 2
    with pytest.raises(StatusError, match="more than one PodDisruptionBudget"):
        evictions.budget_of({"metadata": {"labels": {"a": "b"}}}, budgets)


def test_reviews_answer_in_their_status(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        who = await _created(api, "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        assert who["status"]["userInfo"]["username"] == "kubernetes-admin"
        token = await _created(api, "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}})
        assert "authenticated" not in token["status"]
        question = {"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}}}
        answer = await _created(api, "/apis/authorization.k8s.io/v1/subjectaccessreviews", question)
        assert answer["status"] == {"allowed": False}

    run(tmp_path, test)


def test_tokens_are_refused_where_there_are_none(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts/default/token"
        assert (await api.call("POST", path, {})).status == 501

    run(tmp_path, test)


def test_a_local_review_is_of_the_namespace_of_its_request(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        path = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews"
        attributes = {"verb": "get", "resource": "pods", "namespace": "default"}
        question: dict[str, Any] = {"spec": {"user": "ann", "resourceAttributes": attributes}}
        answer = await _created(api, path, question)
        assert (answer["status"], answer["metadata"]["namespace"]) == ({"allowed": False}, "default")
        other = await api.call("POST", path, {**question, "metadata": {"namespace": "other"}})
        assert (other.status, other.value["message"]) == (
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        )
        elsewhere = {"spec": {"user": "ann", "resourceAttributes": {**attributes, "namespace": "other"}}}
        wrong = await api.call("POST", path, elsewhere)
        assert [cause["field"] for cause in wrong.value["details"]["causes"]] == ["spec.resourceAttributes.namespace"]

    run(tmp_path, test)
