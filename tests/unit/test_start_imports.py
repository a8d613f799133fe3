"""What processes import that are started again and again: verbs, and the workers that make keys and certificates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from podkeep.base.spawn import own_command

VERBS = {
    "get": "podkeep.cli.main, podkeep.cli.objects.get, podkeep.client.client",
    "apply": "podkeep.cli.main, podkeep.cli.objects.apply, podkeep.client.client",
    "ps": "podkeep.cli.main, podkeep.cli.pods.ps, podkeep.cri.client",
    "run": "podkeep.cli.main, podkeep.cli.run, podkeep.agent.node, podkeep.agent.pod.worker",
}
UNUSED = {
    "get": {"grpc", "google.protobuf", "shutil", "tempfile", "yaml"},
    "apply": {"grpc", "google.protobuf", "shutil", "tempfile"},
    "ps": {"h11", "shutil", "tempfile", "yaml"},
    "run": {"h11", "podkeep.client"},
}
"""Each is two hundredths or more of what the verb costs."""
WORKERS = ("podkeep.agent.certificates.worker", "podkeep.apiserver.server.certificate_worker")
SHOWN = "print(*(name for name, module in sys.modules.items() if module is not None))"


def loaded(words: list[str]) -> set[str]:
    return set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_imports_nothing_that_it_does_not_use(verb: str) -> None:
    found = loaded([sys.executable, "-c", f"import sys, {VERBS[verb]}; {SHOWN}"])
    assert set(VERBS[verb].split(", ")) <= found
    assert UNUSED[verb] & found == set()


@pytest.mark.parametrize("module", WORKERS)
def test_a_worker_imports_nothing_that_it_does_not_use(module: str) -> None:
    *words, boot = own_command(module)
    found = loaded([*words, boot.replace("main()", SHOWN)])
    assert module in found
    assert {"asyncio", "logging", "podkeep.base.spawn", "subprocess", "tempfile"} & found == set()
