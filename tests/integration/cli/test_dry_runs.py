"""Verbs that change objects, with a real API: ``--dry-run``, and what ``delete`` waits for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import forked
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api")) as daemon:
        daemon.kubectl("create", "configmap", "there")
        yield daemon


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "object.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}))
    return path


def podkeep(api: ApiDaemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "podkeep", *arguments],
        env={**os.environ, "PODKEEP_CONFIG": os.devnull, "KUBECONFIG": str(api.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("option", ["--dry-run", "--dry-run=server"])
def test_nothing_is_applied(api: ApiDaemon, file: Path, option: str) -> None:
    done = podkeep(api, "apply", option, "-f", str(file))
    assert (done.returncode, done.stdout) == (0, "configmap/new created (server dry run)\n"), done.stderr
    assert "new" not in api.kubectl("get", "configmaps", "-o", "name")


@pytest.mark.parametrize("options", [["-f", "FILE", "--dry-run"], ["configmap", "there", "--dry-run=server"]])
def test_nothing_is_deleted(api: ApiDaemon, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "there.json"
    path.write_text(api.kubectl("get", "configmap", "there", "-o", "json"))
    done = podkeep(api, "delete", *(str(path) if option == "FILE" else option for option in options))
    assert (done.returncode, done.stdout) == (0, "configmap/there deleted (server dry run)\n"), done.stderr
    assert "there" in api.kubectl("get", "configmaps", "-o", "name")


def test_with_none_it_is_done(api: ApiDaemon, file: Path) -> None:
    assert podkeep(api, "apply", "--dry-run=none", "-f", str(file)).stdout == "configmap/new created\n"
    assert podkeep(api, "delete", "--dry-run=none", "-f", str(file)).stdout == "configmap/new deleted\n"


def test_delete_says_what_it_waits_for(api: ApiDaemon, tmp_path: Path) -> None:
    path = tmp_path / "held.json"
    metadata = {"name": "held", "finalizers": ["example.com/first", "example.com/second"]}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
    assert podkeep(api, "apply", "-f", str(path)).returncode == 0
    done = podkeep(api, "delete", "configmap", "held", "--timeout=3s")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "configmap/held goes when this is done: example.com/first, example.com/second (--no-wait does not wait)\n"
        "podkeep: configmap/held is not gone after 3 s\n"
    )


@pytest.mark.parametrize("verb", ["apply", "delete"])
@pytest.mark.parametrize(
    ("value", "said"),
    [("client", "only the API knows what would be done; --dry-run=server asks it"), ("yes", "write --dry-run=server")],
)
def test_what_is_no_dry_run_is_refused(api: ApiDaemon, file: Path, verb: str, value: str, said: str) -> None:
    done = podkeep(api, verb, f"--dry-run={value}", "-f", str(file))
    assert done.returncode == 2
    assert said in done.stderr
