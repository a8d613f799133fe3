"""The settings of what one user, one namespace and the past may take of the API, named when it is too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.waiting import wait_for

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
MIB = "x" * (1_000 << 10)
MERGE = "application/merge-patch+json"
ANN = {"Impersonate_User": "ann"}
TOO_OLD = "The resourceVersion for the provided list is too old."
INCONSISTENT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
SETTINGS = {
    "max_user_watches": "32",
    "namespace_size_limit": "16Mi",
    "history_size_limit": "64Mi",
    "terminated_pod_gc_threshold": "2",
}


@pytest.fixture
def api(tmp_path: Path, scratch_machine: None) -> Iterator[ApiDaemon]:
    options = [word for key, value in SETTINGS.items() for word in ("--set", f"api.{key}={value}")]
    with ApiDaemon(tmp_path, *options) as daemon:
        daemon.kubectl("create", "clusterrolebinding", "ann", "--clusterrole=edit", "--user=ann")
        yield daemon


def _change_often(client: ApiClient) -> None:
    """Write more than what is kept of the past."""
    for number in range(80):
        patch = {"metadata": {"annotations": {"number": str(number)}}}
        assert client.ask("PATCH", f"{MAPS}/large-0", patch, media=MERGE).status == 200


def test_clients_whose_past_is_given_up_are_told_as_by_kube_apiserver_and_go_on(api: ApiDaemon) -> None:
    """Reasons and texts are those of storage/etcd3/errors.go and of the watch cache."""
    with closing(ApiClient(api.socket)) as client:
        for name in ("a", "b", "large-0"):
            value = {"metadata": {"name": name}, "data": {"x": MIB if name == "large-0" else ""}}
            assert client.ask("POST", MAPS, value).status == 201
        chunk = client.ask("GET", f"{MAPS}?limit=1").value["metadata"]
        first, token = chunk["resourceVersion"], chunk["continue"]
        _change_often(client)
        exact = client.ask("GET", f"{MAPS}?resourceVersionMatch=Exact&resourceVersion={first}")
        assert (exact.status, exact.value["code"], exact.value["reason"]) == (410, 410, "Expired")
        assert exact.value["message"] == TOO_OLD
        expired = client.ask("GET", f"{MAPS}?limit=500&continue={token}")
        assert (expired.status, expired.value["reason"], expired.value["message"]) == (410, "Expired", INCONSISTENT)
        again = expired.value["metadata"]["continue"]
        said = api.kubectl("get", "--raw", f"{MAPS}?limit=500&continue={token}", status=1)
        assert said == f"Error from server (Expired): {INCONSISTENT}\n"
        rest = client.ask("GET", f"{MAPS}?limit=500&continue={again}")
        # All that comes after the first chunk, as it is now.
        names = {item["metadata"]["name"] for item in rest.value["items"]}
        assert {"b", "large-0"} <= names
        assert "a" not in names
        with closing(ApiClient(api.socket)) as watching:
            (event,) = watching.watch(f"{MAPS}?watch=true&resourceVersion={first}")
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert re.fullmatch(rf"too old resource version: {first} \(\d+\)", event["object"]["message"])
    assert api.kubectl("get", "configmaps", "--chunk-size=1", "-o", "name").count("configmap/") == len(names) + 1


def test_settings_are_the_limits_and_are_named(api: ApiDaemon) -> None:
    with closing(ApiClient(api.socket)) as client:
        for number in range(20):
            body = {"metadata": {"name": f"large-{number}"}, "data": {"x": MIB}}
            answer = client.ask("POST", MAPS, body, **ANN)
            if answer.status != 201:
                break
        assert (number, answer.status) == (16, 403)
        assert "namespace default may have 16 MiB (api.namespace_size_limit); delete some first" in answer.said
        _change_often(client)
    with ExitStack() as held:
        for _ in range(32):
            watching = held.enter_context(closing(ApiClient(api.socket)))
            watching.request("GET", f"{MAPS}?watch=true", headers={"Impersonate-User": "ann"})
            assert held.enter_context(watching.getresponse()).status == 200
        refused = held.enter_context(closing(ApiClient(api.socket))).ask("GET", f"{MAPS}?watch=true", **ANN)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert refused.said.endswith(" One user has at most 32 at a time (api.max_user_watches).")
    api.stop()
    assert len([line for line in api.log if "(api.history_size_limit)" in line]) == 1


def test_the_oldest_pods_that_have_ended_are_deleted(api: ApiDaemon) -> None:
    """Nobody deletes them otherwise, and each is in the memory of the API and of its node's agent."""
    with closing(ApiClient(api.socket)) as client:
        for number in range(4):
            pod = {"metadata": {"name": f"p{number}"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            assert client.ask("POST", PODS, pod).status == 201
        for number in range(4):
            # Of the same second, the names decide.
            failed = {"status": {"phase": "Failed"}}
            assert client.ask("PATCH", f"{PODS}/p{number}/status", failed, media=MERGE).status == 200

        def names() -> list[str]:
            return [item["metadata"]["name"] for item in client.ask("GET", PODS).value["items"]]

        wait_for(lambda: len(names()) == 2, "the others to go")
        ended = names()
        assert client.ask("POST", PODS, pod | {"metadata": {"name": "runs"}}).status == 201
        assert names() == [*ended, "runs"]
