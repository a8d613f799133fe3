"""A part of the suite with container mounts shown where the suite has them hidden, and the other way round.

The whole is compared by ``make parity``; docs/conformance.md has its figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support import container_mounts
from support.container_mounts import DIFFER, ContainerMounts

REPOSITORY = Path(__file__).resolve().parents[3]
PART = (
    "tests/conformance/test_conformance_mounts.py",
    "tests/conformance/test_conformance_container.py",
    "tests/conformance/test_conformance_agent.py",
    "tests/integration/runtime/test_locked_mounts.py",
    *(
        f"tests/integration/agent/test_run_pods.py::test_{name}"
        for name in (
            "users_groups_and_files_of_a_pod_with_a_user_namespace",
            "init_containers_sidecars_and_output",
            "environment_command_and_hosts",
            "sub_paths_and_read_only_mounts",
            "a_volume_is_mounted_inside_another_that_is_read_only",
            "files_and_directories_of_volumes_are_mounted_inside_another_that_is_read_only",
            "kept_pods_stay_until_they_are_removed",
        )
    ),
)
"""Mounts of every kind, in user namespaces as well, the life of a container, and pods of ``podkeep run`` with files."""
TIMEOUT_S = 600.0


def run(mounts: ContainerMounts, results: Path) -> None:
    """Run the part in a process of its own, which makes a scratch machine of its own; all of it must pass."""
    options = [container_mounts.OPTION, str(mounts), "--junit-xml", str(results), "-p", "no:cacheprovider", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", *options, *PART]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.first
@pytest.mark.requirement("M30", "M42")
def test_the_same_passes_the_other_way_round(tmp_path: Path) -> None:
    """That it passes as the suite runs is what the suite says; what may differ is a list that names each test."""
    other = ContainerMounts.SHOWN if container_mounts.of_run() is ContainerMounts.HIDDEN else ContainerMounts.HIDDEN
    run(other, tmp_path / "other.xml")
    cases = ElementTree.parse(tmp_path / "other.xml").getroot().iter("testcase")
    # What failed or was skipped has an element that says why; an expected failure is a skip of sorts.
    ended = {f"{case.get('classname')}::{case.get('name')}": [child.tag for child in case] for case in cases}
    differ = {node.replace(".py::", "::").replace("/", ".") for node in DIFFER}
    assert differ <= set(ended)
    fail = differ if other is ContainerMounts.HIDDEN else set()
    assert {test: said for test, said in ended.items() if said} == {test: ["skipped"] for test in fail}
