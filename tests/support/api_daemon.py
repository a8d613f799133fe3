"""A real ``podkeep api`` with directories and a port of its own, and kubectl as its client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from support import forked
from support.waiting import TIMEOUT_S

_PLACES = re.compile(r"serving the API on unix://(\S+) and https://(\S+)")


class ApiDaemon:
    """Start it as a context manager; ``base`` is an empty directory of the test's own."""

    def __init__(self, base: Path, *options: str) -> None:
        self.base, self.options = base, options
        self.socket = base / "api.sock"
        self.root = base / "api"
        self.address = ""
        self.environment: dict[str, str] = {}
        """Variables of its own."""
        self.log: list[str] = []
        """What it wrote since it served."""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ApiDaemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        command = [sys.executable, "-m", "podkeep", *self.options, "api", "--root", str(self.root)]
        command += ["--unix-socket", str(self.socket), "--address", self.address or "127.0.0.1:0"]
        environment = {**os.environ, "PODKEEP_CONFIG": os.devnull, **self.environment}
        self.process = forked.start(command, env=environment)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if match := _PLACES.search(line):
                self.address = match[2]
                break
        else:
            raise AssertionError(f"podkeep api ended: {''.join(said)}")
        # What it writes from now on is read as well, so that it never waits.
        self._reader = threading.Thread(target=self.log.extend, args=[self.process.stderr])
        self._reader.start()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, and wait for that."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(TIMEOUT_S)
            self._reader.join(TIMEOUT_S)
            self.process = None

    @property
    def pid(self) -> int:
        """Its process, which must have been started."""
        assert self.process is not None
        return self.process.pid

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.root / "admin.conf"

    def kubectl(self, *arguments: str, stdin: str = "", status: int | None = 0, edit: str = "") -> str:
        """Run kubectl as the administrator, and return what it wrote; standard error too if it must fail.

        :param status: how it must end; None: in any way.
        :param edit: a sed script that ``kubectl edit`` gets as its editor.
        """
        home = self.base / "home"
        home.mkdir(exist_ok=True)
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(home)}
        if edit:
            environment["KUBE_EDITOR"] = f"sed -i {edit}"
        done = subprocess.run(
            ["kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )
        assert status is None or done.returncode == status, (done.stdout, done.stderr)
        return done.stdout + (done.stderr if status != 0 else "")
