"""The container mount namespace can be pinned whichever CPU made the namespace it is pinned in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTER = """
import os, sys
from pathlib import Path
from podkeep.mountns import container_mounts

allowed = os.sched_getaffinity(0)
before = os.stat("/proc/self/ns/mnt").st_ino
origin = container_mounts.enter(Path(sys.argv[1]))
assert os.stat("/proc/self/ns/mnt").st_ino != before, "it did not move"
assert os.fstat(origin).st_ino == before
assert os.sched_getaffinity(0) == allowed
print(os.stat("/proc/self/ns/mnt").st_ino, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")
@pytest.mark.parametrize("cpu", sorted(os.sched_getaffinity(0)))
def test_the_namespace_is_pinned_in_one_made_on_any_cpu(tmp_path: Path, cpu: int) -> None:
    every = ",".join(map(str, os.sched_getaffinity(0)))
    script = f'mount --make-rshared / && exec taskset -c {every} "$@"'
    made_on_cpu = ["taskset", "-c", str(cpu), "unshare", "--mount", "--", "sh", "-c", script, "sh"]
    command = [*made_on_cpu, sys.executable, "-c", ENTER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        inside = process.stdout.readline().strip()
        process.communicate("")
    assert process.returncode == 0
    assert inside.isdigit()
