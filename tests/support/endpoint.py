"""A CRI socket under test, whoever serves it, and a client whose expectations are the same for all of them.

:class:`Endpoint` is what a conformance test may know of the runtime: nothing but where it listens. :class:`Node` is the
client: ``support.cri.Pods`` with images and the cgroup parent of the test run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, pod
from support.daemon import Daemon


@dataclass(frozen=True, kw_only=True, eq=False)
class Endpoint:
    """``resources`` returns what the runtime holds; two equal values mean that nothing leaked between them.

    ``pid`` is its process, for whoever looks at mounts: they are where it is, see :meth:`sees`. ``options`` of the
    command line make podkeep's agent a client of it.
    """

    name: str
    socket: str
    cgroup_parent: str
    pid: int
    options: tuple[str, ...]
    resources: Callable[[], object]

    @property
    def is_reference(self) -> bool:
        """Whether this is the runtime that tells whether the tests are right."""
        return self.name != "podkeep"

    def sees(self, path: Path) -> Path:
        """Return a directory as the runtime sees it, with what containers have mounted there."""
        return Path(f"/proc/{self.pid}/root{path}")

    def run_inside(self, *command: str | Path) -> None:
        """Run a command, which must succeed, in the runtime's mount namespace."""
        subprocess.run(["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", *command], check=True)


class Node(Pods):
    """A client of an endpoint; it removes the sandboxes and images it made when it is closed."""

    def __init__(self, endpoint: Endpoint, image: str) -> None:
        super().__init__(endpoint.socket, image)
        self.endpoint = endpoint
        self._pulled: list[str] = []

    def __exit__(self, *exception: Any) -> None:
        try:
            for sandbox in list(self._configs):
                self.remove(sandbox)
            for reference in self._pulled:  # after the containers that use them
                self.remove_image(reference)
        finally:
            super().__exit__(*exception)

    def run(self, config: api.PodSandboxConfig | None = None, *, handler: str = "") -> str:
        """Run a sandbox below the endpoint's cgroup parent, unless the configuration has another."""
        config = config or pod()
        config.linux.cgroup_parent = config.linux.cgroup_parent or self.endpoint.cgroup_parent
        return super().run(config, handler=handler)

    def forget(self, sandbox: str) -> None:
        """Leave a sandbox that the test removed by itself out of what is removed at the end."""
        self._configs.pop(sandbox, None)

    def refused(self, operation: Callable[[], object], *kinds: type[PodkeepError]) -> str:
        """Return the text of the error that ``operation`` must raise.

        Which class it has is the interface's only as far as clients look at it, and containerd answers most errors
        with the code UNKNOWN; so the class must be one of ``kinds`` unless the endpoint is the reference.
        """
        with pytest.raises(PodkeepError) as caught:
            operation()
        error = caught.value
        assert self.endpoint.is_reference or type(error) in kinds, f"{type(error).__name__}: {error}"
        return str(error)

    # images

    def fetch(self, reference: str) -> str:
        """Pull an image, to be removed when the client is closed, and return what the runtime calls it."""
        self._pulled.append(reference)
        request = api.PullImageRequest(image=api.ImageSpec(image=reference))
        return str(self.call("PullImage", request, service="images").image_ref)

    # what the runtime says of itself

    def runtime_status(self, *, verbose: bool = False) -> api.StatusResponse:
        """Return the runtime's status."""
        answer: api.StatusResponse = self.call("Status", api.StatusRequest(verbose=verbose))
        return answer

    def handler(self, name: str = "") -> api.RuntimeHandler:
        """Return a runtime handler; the default one has the empty name."""
        found = [item for item in self.runtime_status().runtime_handlers if item.name == name]
        assert len(found) == 1, f"handlers named {name!r}: {found}"
        return found[0]


class Attached(Daemon):
    """An endpoint in the place of a daemon that a test starts: verbs and agents with directories of their own use it.

    :param base: an empty directory of the test's own.
    """

    def __init__(self, endpoint: Endpoint, base: Path) -> None:
        super().__init__(base)
        self._endpoint = endpoint

    @property
    def pid(self) -> int:
        """The runtime's process."""
        return self._endpoint.pid

    def start(self) -> Daemon:
        """Do nothing: it serves."""
        return self

    def end(self) -> None:
        """Do nothing: it serves others."""

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of podkeep that uses the endpoint."""
        own = {"agent.root": self.base / "kubelet", "agent.pod_logs": self.base / "logs"}
        settings = [part for key, value in own.items() for part in ("--set", f"{key}={value}")]
        return [sys.executable, "-m", "podkeep", *self._endpoint.options, *settings, *arguments]
