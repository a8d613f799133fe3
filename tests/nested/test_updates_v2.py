"""UpdateContainerResources and UpdatePodSandboxResources with cgroup version 2: the tests of version 1, in the nested
machine, whose Python runs them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.nested.build import REPOSITORY
from support.nested.machine import Machine

pytestmark = pytest.mark.first  # long, and with a machine of its own
MODULE = f"{REPOSITORY}/tests/integration/runtime/test_runtime_updates.py"
CHOSEN = (
    "test_limits_grow_and_shrink",
    "test_swap_is_limited_apart",
    "test_cpus",
    "test_a_limit_below_what_is_used_takes_everything_back",
    "test_the_cgroup_of_a_sandbox_is_limited",
    "test_memory_that_runs_out_is_the_reason_of_the_end",
)
LONGEST_S = 900
"""What is emulated is some twenty times slower."""


def test_updates_mean_the_same_as_with_version_1(boot: Callable[..., Machine]) -> None:
    machine = boot(cpus=2)  # of which one can be taken away
    assert machine.run("nproc").stdout == "2\n"
    python, configuration = f"{REPOSITORY}/.venv/bin/python", f"--config-file={REPOSITORY}/pyproject.toml"
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={REPOSITORY}", configuration]
    tests = [f"{MODULE}::{name}" for name in CHOSEN]
    done = machine.run([python, "-m", "pytest", *options, *tests], timeout=LONGEST_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CHOSEN)} passed" in done.stdout
