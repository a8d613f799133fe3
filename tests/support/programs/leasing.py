"""Takes a lease on a file (fcntl(2), F_SETLEASE), prints ``!``, and keeps it until its standard input ends.

leasing.py FILE
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys

signal.signal(signal.SIGIO, signal.SIG_IGN)  # who opens the file asks for the lease to be given back
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.write(1, b"!")
sys.stdin.read()
