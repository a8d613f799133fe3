"""Completion of types and names of objects in a shell, with a real API."""

from __future__ import annotations

import json
import os
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
        daemon.kubectl("create", "configmap", "red")
        daemon.kubectl("create", "configmap", "green")
        daemon.kubectl("create", "clusterrole", "hostile$(id)", "--verb=get", "--resource=pods")
        daemon.kubectl("create", "clusterrole", "hostile:not", "--verb=get", "--resource=pods")
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "--all"}}
        daemon.kubectl("create", "-f", "-", stdin=json.dumps(role))
        daemon.kubectl("create", "namespace", "shop")
        daemon.kubectl("create", "configmap", "-n", "shop", "priced")
        yield daemon


def completed(kubeconfig: Path, *words: str) -> set[str]:
    """Return what a shell is offered for the last of ``words``."""
    done = forked.run(
        [sys.executable, "-m", "podkeep"],
        env={
            **os.environ,
            "PODKEEP_CONFIG": os.devnull,
            "KUBECONFIG": str(kubeconfig),
            "_PODKEEP_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("podkeep", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stderr == ""
    return {line.partition(",")[2] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize("verb", ["get", "describe", "delete", "wait"])
def test_types_and_names(api: ApiDaemon, verb: str) -> None:
    assert completed(api.kubeconfig, verb, "po") == {"pods", "poddisruptionbudgets", "podtemplates"}
    assert {"red", "green"} <= completed(api.kubeconfig, verb, "configmap", "")
    assert completed(api.kubeconfig, verb, "configmap", "green", "r") == {"red"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cm/r"], {"cm/red"}),
        (["cm/red", "cm/g"], {"cm/green"}),
        (["cm/red", "serv"], {"services/", "serviceaccounts/"}),
        (["pods,confi"], {"pods,configmaps"}),
        (["-n", "shop", "cm", "p"], {"priced"}),
        (["namespace", "sh"], {"shop"}),
        (["nothing", ""], set()),
        (["selfsubjectr"], set()),
    ],
)
def test_forms_of_a_name(api: ApiDaemon, words: list[str], expected: set[str]) -> None:
    assert completed(api.kubeconfig, "get", *words) == expected


def test_no_name_is_offered_that_a_shell_would_execute(api: ApiDaemon) -> None:
    assert completed(api.kubeconfig, "get", "clusterrole", "hostile") == {"hostile:not"}


def test_no_name_is_offered_that_is_an_option(api: ApiDaemon) -> None:
    """Taken from the shell, it would delete all."""
    offered = completed(api.kubeconfig, "delete", "clusterrole", "")
    assert "hostile:not" in offered
    assert "--all" not in offered


def test_without_an_api_nothing_is_offered_and_nothing_said(tmp_path: Path) -> None:
    assert completed(tmp_path / "none", "get", "po") == set()
