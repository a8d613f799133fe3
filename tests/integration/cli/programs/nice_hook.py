"""The hook of a class resource of the tests' own: the nice value of a container's processes.

Beside it are ``calls`` (a line for each call) and what it was told last for each verb (``told-VERB``); it fails if
there is ``broken-VERB``.
"""

import json
import os
import sys
from pathlib import Path

told = json.load(sys.stdin)
here = Path(__file__).resolve().parent
with (here / "calls").open("a") as calls:
    print(sys.argv[1], told["name"], told["class"], told["previousClass"], file=calls)
(here / f"told-{sys.argv[1]}").write_text(json.dumps(told))
if sys.argv[1] == "release":  # a value ends with its process
    sys.exit()
if (here / f"broken-{sys.argv[1]}").exists():
    sys.exit("the demo is broken")
wanted = int(told["parameters"].get("nice", 0))
cgroup = Path(told["cgroupPaths"].get("pids") or told["cgroupPaths"]["unified"])
processes = [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
if sys.argv[1] == "apply":
    for pid in processes:
        os.setpriority(os.PRIO_PROCESS, pid, wanted)
elif sys.argv[1] == "verify":
    has = os.getpriority(os.PRIO_PROCESS, told["pid"])
    if has != wanted:
        sys.exit(f"process {told['pid']} has nice {has} and not {wanted}")
