"""Requests made by chance on a live daemon: it answers each with a code that fits, stays up and leaks nothing.

A run is the same every time. ``PODKEEP_GENERATED=500`` makes another and longer one, of that many examples, with
pytest's ``--hypothesis-seed=N`` to have it again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import podkeep.cri.transport as cri_transport

# isort: split
import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods
from support.daemon import Daemon
from support.generated import Maker, Scene, replaced, unary_rpcs

EXAMPLES = int(os.environ.get("PODKEEP_GENERATED", "0"))
DEADLINE_S = 30.0
MEMORY_BYTES = 400 << 20
RPCS = unary_rpcs()
MOSTLY = ("RunPodSandbox", "CreateContainer", "StartContainer", "UpdateContainerResources", "ExecSync")
PATHS = sorted(RPCS) + [path for path in sorted(RPCS) if path.rpartition("/")[2] in MOSTLY] * 6

Code = grpc.StatusCode
REFUSALS = frozenset(
    {
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.ALREADY_EXISTS,
        Code.FAILED_PRECONDITION,
        Code.UNIMPLEMENTED,
        Code.RESOURCE_EXHAUSTED,
    }
)
"""What a request may be refused with. INTERNAL means a defect, UNKNOWN that nobody thought of it."""
ALSO = {
    "PullImage": frozenset({Code.UNAVAILABLE, Code.PERMISSION_DENIED}),
    "ExecSync": frozenset({Code.DEADLINE_EXCEEDED}),
    "CheckpointContainer": frozenset({Code.DEADLINE_EXCEEDED}),
}
"""What else, by RPC: a registry that is not there, a command that takes too long."""


class Target:
    """A daemon with pods in every state, and what has happened to them."""

    def __init__(self, daemon: Daemon, image: str, scene: Scene) -> None:
        self.daemon, self.scene = daemon, scene
        self._pods = Pods(daemon.socket, image)
        self._image = image
        self._channel = grpc.insecure_channel(f"unix:{daemon.socket}", options=cri_transport.MESSAGE_LIMITS)
        self._numbers = itertools.count()
        self._own = ""

    def __enter__(self) -> Target:
        self._pods.__enter__()
        self._pods.pull()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.clear()  # also after a failure: containers outlive their daemon
        finally:
            self._channel.close()
            self._pods.close()

    def call(self, path: str, request: Message) -> grpc.StatusCode:
        """Send a request; the code of its answer."""
        answer = message_factory.GetMessageClass(RPCS[path].output_type)
        rpc = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            rpc(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            self.said = error.details()
            code: grpc.StatusCode = error.code()
            return code
        return Code.OK

    def names(self) -> Mapping[str, str]:
        """Return what the placeholders of requests stand for now; what is missing is made."""
        pods = self._pods
        sandboxes = {item.id: item.state for item in pods.sandboxes()}
        if sandboxes.get(self._own) != api.SANDBOX_READY:
            self._own = self._pod()
        ready = self._own
        other = next((item for item, state in sandboxes.items() if state == api.SANDBOX_READY), ready)
        containers = {item.state: item.id for item in pods.containers()}
        if api.CONTAINER_RUNNING not in containers:
            containers[api.CONTAINER_RUNNING] = pods.start(self._container(ready))
        if api.CONTAINER_CREATED not in containers:
            containers[api.CONTAINER_CREATED] = self._container(ready)
        stopped = next((item for item, state in sandboxes.items() if state == api.SANDBOX_NOTREADY), ready)
        return {
            "@sandbox": ready,
            "@other": other,
            "@stopped": stopped,
            "@container": containers[api.CONTAINER_RUNNING],
            "@created": containers[api.CONTAINER_CREATED],
            "@exited": containers.get(api.CONTAINER_EXITED, containers[api.CONTAINER_CREATED]),
            "@prefix": ready[:12],
            "@truncated": ready[:11],
            "@image": self._image,
            "@new": f"new{next(self._numbers)}",
        }

    def _pod(self) -> str:
        config = api.PodSandboxConfig()
        config.metadata.name = config.metadata.uid = f"own{next(self._numbers)}"
        config.metadata.namespace = "tests"
        config.linux.security_context.namespace_options.pid = api.CONTAINER
        return self._pods.run(config)

    def _container(self, sandbox: str) -> str:
        if not self._images():
            self._pods.pull()
        return self._pods.create(sandbox, name=f"own{next(self._numbers)}")

    def _images(self) -> list[api.Image]:
        spec = api.ImageSpec(image=self._image)
        request = api.ListImagesRequest(filter=api.ImageFilter(image=spec))
        return list(self._pods.call("ListImages", request, service="images").images)

    def check(self) -> None:
        """Check that the daemon is the same, alive and well."""
        process = self.daemon.process
        assert process is not None
        assert process.poll() is None, self.daemon.log.read_text()[-5000:]
        assert self.call("/runtime.v1.RuntimeService/Version", api.VersionRequest()) is Code.OK
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        assert resident < MEMORY_BYTES, f"{resident >> 20} MiB resident"

    def clear(self) -> None:
        """Remove every sandbox, with streams of any size."""
        for sandbox in self._pods.sandboxes():
            self._pods.remove(sandbox.id)


@pytest.fixture
def target(own_daemon: Daemon, image: str, open_directory: Path) -> Iterator[Target]:
    directory = open_directory / f"generated-{os.urandom(3).hex()}"
    directory.mkdir()
    scene = Scene(directory=directory, image=image, cgroup_parent=own_daemon.cgroup_parent)
    scene.prepare()
    own_daemon.start()
    with Target(own_daemon, image, scene) as target:
        yield target


def test_every_answer_fits_and_nothing_is_left(target: Target) -> None:
    maker = Maker(target.scene)
    before = target.daemon.resources()
    seen: set[tuple[str, grpc.StatusCode]] = set()

    @st.composite
    def calls(draw: DrawFn) -> list[tuple[str, Message]]:
        paths = draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=6))
        return [(path, maker.request(draw, RPCS[path])) for path in paths]

    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        database=None,
        # To make a failing example small takes minutes, so it is done in the longer runs alone.
        phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def run(requests: list[tuple[str, Message]]) -> None:
        for path, generated in requests:
            request = replaced(generated, target.names())
            code = target.call(path, request)
            rpc = path.rpartition("/")[2]
            seen.add((rpc, code))
            if code is not Code.OK:
                allowed = REFUSALS | ALSO.get(rpc, frozenset())
                assert code in allowed, f"{rpc}: {code.name}: {target.said}\n{str(request)[:2000]}"
        target.clear()
        target.check()

    run()
    target.clear()
    assert target.daemon.resources() == before
    assert list((target.scene.directory / "outside").iterdir()) == []
    assert {code for _, code in seen} >= {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND}
