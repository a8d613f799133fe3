"""The settings of what one user, one namespace and the past may take of the API, named when it is too much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.api_client import ApiClient
from support.api_daemon import ApiDaemon

MAPS = "/api/v1/namespaces/default/configmaps"
MIB = "x" * (1_000 << 10)
MERGE = "application/merge-patch+json"
ANN = {"Impersonate_User": "ann"}
SETTINGS = {"max_user_watches": "32", "namespace_size_limit": "16Mi", "history_size_limit": "64Mi"}


@pytest.fixture
def api(tmp_path: Path, scratch_machine: None) -> Iterator[ApiDaemon]:
    options = [word for key, value in SETTINGS.items() for word in ("--set", f"api.{key}={value}")]
    with ApiDaemon(tmp_path, *options) as daemon:
        daemon.kubectl("create", "clusterrolebinding", "ann", "--clusterrole=edit", "--user=ann")
        yield daemon


def test_settings_are_the_limits_and_are_named(api: ApiDaemon) -> None:
    with closing(ApiClient(api.socket)) as client:
        for number in range(20):
            body = {"metadata": {"name": f"large-{number}"}, "data": {"x": MIB}}
            answer = client.ask("POST", MAPS, body, **ANN)
            if answer.status != 201:
                break
        assert (number, answer.status) == (16, 403)
        assert "namespace default may have 16 MiB (api.namespace_size_limit); delete some first" in answer.said
        first = client.ask("GET", f"{MAPS}/large-0").value["metadata"]["resourceVersion"]
        for number in range(80):
            patch = {"metadata": {"annotations": {"number": str(number)}}}
            assert client.ask("PATCH", f"{MAPS}/large-0", patch, media=MERGE).status == 200
        past = client.ask("GET", f"{MAPS}?resourceVersionMatch=Exact&resourceVersion={first}&limit=1")
        assert (past.status, past.value["reason"]) == (410, "Expired")
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
