"""Runs a command, which must succeed, and prints the most memory that it had resident, in KiB.

peak_memory.py COMMAND...
"""

from __future__ import annotations

import resource
import subprocess
import sys

subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
