"""A part of the suite with container mounts hidden and shown, compared test by test.

The whole is compared by ``make parity``; docs/conformance.md has its figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def start(mounts: ContainerMounts, results: Path) -> subprocess.Popen[str]:
    """Run the part in a process of its own, which makes a scratch machine of its own."""
    options = [container_mounts.OPTION, str(mounts), "--junit-xml", str(results), "-p", "no:cacheprovider", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *PART],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env=environment,
    )


@pytest.mark.first
@pytest.mark.requirement("M30", "M42")
def test_the_same_passes_and_what_differs_is_named(tmp_path: Path) -> None:
    runs = {mounts: start(mounts, tmp_path / f"{mounts}.xml") for mounts in ContainerMounts}
    try:
        said = {mounts: process.communicate(timeout=TIMEOUT_S)[0] for mounts, process in runs.items()}
    finally:
        for process in runs.values():
            process.terminate()
            process.wait(timeout=60)
    for mounts, process in runs.items():
        assert process.returncode == 0, f"{mounts}:\n{said[mounts]}"
    compared = subprocess.run(
        [sys.executable, REPOSITORY / "tools/compare_runs.py", *(tmp_path / f"{mounts}.xml" for mounts in runs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 0, compared.stdout
    declared = [line.split(": ")[1] for line in compared.stdout.splitlines() if line.startswith("declared: ")]
    assert declared == sorted(node.replace(".py::", "::").replace("/", ".") for node in DIFFER)
