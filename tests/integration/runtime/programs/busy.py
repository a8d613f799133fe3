"""Waits for a line, then has three processes, with four, two and two threads."""

from __future__ import annotations

import os
import sys
import threading
import time

sys.stdin.readline()
there, tell = os.pipe()


def wait() -> None:
    os.write(tell, b"1")
    time.sleep(300)


for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
for _ in range(2):
    if os.fork() == 0:
        threading.Thread(target=wait, daemon=True).start()
        wait()
for _ in range(7):
    os.read(there, 1)
print("ready", flush=True)
wait()
