"""Removes a directory of a sandbox, and prints why that is refused.

clear.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from podkeep.base.errors import PodkeepError
from podkeep.runtime.lifecycle import sandbox_executor

try:
    sandbox_executor._clear(Path(sys.argv[1]))
except PodkeepError as error:
    print(error)
