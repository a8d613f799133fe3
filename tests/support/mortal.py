"""A daemon for tests that kill it: started again and again on the same directories, and cleared at the end."""

from __future__ import annotations

from contextlib import ExitStack

from support.cri import Pods
from support.daemon import Daemon


class Mortal:
    """A daemon that a test kills and starts again, with a client that is made anew each time."""

    def __init__(self, daemon: Daemon, image: str) -> None:
        self.daemon = daemon
        self.client = Pods(daemon.socket, image)
        self._clients = ExitStack()

    def start(self, *, failpoints: str = "") -> Pods:
        """Start the daemon, with failpoints if given, and return a client with the image at hand."""
        self._clients.close()
        self.daemon.environment = {"PODKEEP_FAILPOINTS": failpoints}
        self.daemon.start()
        self.client = self.client.again()
        self.client.__enter__()
        self._clients.callback(self.client.close)
        self.client.pull()
        return self.client

    def close(self) -> None:
        """Remove every sandbox that the daemon shows, and end it."""
        try:
            if self.daemon.process is None or self.daemon.process.poll() is not None:
                self.start()
            for sandbox in self.client.sandboxes():
                self.client.remove(sandbox.id)
        finally:
            self._clients.close()
            self.daemon.end()
