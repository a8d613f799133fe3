"""Waits for a line, then has some ten processes and threads at a time, none of them for long."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

sys.stdin.readline()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    threading.Thread(target=time.sleep, args=(0.03,)).start()
    if os.fork() == 0:
        time.sleep(0.05)
        os._exit(0)
    time.sleep(0.005)
