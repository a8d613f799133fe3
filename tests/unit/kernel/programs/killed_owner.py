"""Starts a process that makes namespaces, prints its process ID, and is killed."""

from __future__ import annotations

import os
import signal

from podkeep.kernel.namespace.namespaces import NamespaceHelper

server = NamespaceHelper()
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
