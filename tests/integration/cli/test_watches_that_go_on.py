"""``-w`` of verbs on objects goes on where the API does not know any more what followed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO

import pytest

from support.api_client import ApiClient
from support.api_daemon import ApiDaemon

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api"), "--set", "api.history=1") as daemon:
        yield daemon


@contextmanager
def watching(api: ApiDaemon, *arguments: str) -> Iterator[IO[str]]:
    """Run a verb, and give what it writes."""
    command = [sys.executable, "-m", "podkeep", *arguments, "-w", "--kubeconfig", str(api.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


def test_one_object_that_was_written_long_ago(api: ApiDaemon) -> None:
    with closing(ApiClient(api.socket)) as client:
        old = client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "old"}}).value["metadata"]["resourceVersion"]
        client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "new"}})
        past = f"{CONFIG_MAPS}?watch=true&timeoutSeconds=1&resourceVersion={old}"
        while b'"code":410' not in client.ask("GET", past).data:
            pass
    with watching(api, "get", "configmap", "old") as lines:
        assert lines.readline().split() == ["NAME", "DATA", "AGE"]
        assert lines.readline().split()[:2] == ["old", "0"]
        api.kubectl("patch", "configmap", "old", "-p", json.dumps({"data": {"a": "b"}}))
        assert lines.readline().split()[:2] == ["old", "1"]
