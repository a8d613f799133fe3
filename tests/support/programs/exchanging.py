"""Exchanges two names for each other (RENAME_EXCHANGE) as often as it can, for as long as its parent lives.

exchanging.py NAME OTHER

Prints ``!`` when it is about to begin.
"""

from __future__ import annotations

import ctypes
import os
import sys

AT_FDCWD, RENAME_EXCHANGE = -100, 2

exchange, (name, other) = ctypes.CDLL(None).renameat2, map(os.fsencode, sys.argv[1:])
parent = os.getppid()
os.write(1, b"!")
while os.getppid() == parent:
    exchange(AT_FDCWD, name, AT_FDCWD, other, RENAME_EXCHANGE)
