"""Makes children (``child``) and threads (``thread``) and ends its last child (``end``), line by line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def say(word: object) -> None:
    print(word, flush=True)


def wait(begun: threading.Event, done: threading.Event) -> None:
    begun.set()
    done.wait()


say(os.getpid())
children = []
for line in sys.stdin:
    what = line.strip()
    if what == "child":
        children.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE))
        say(children[-1].pid)
    elif what == "end":
        children[-1].communicate()
        say("ended")
    elif what == "thread":
        begun, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=wait, args=(begun, done), daemon=True)
        thread.start()
        begun.wait()
        say(thread.native_id)
