"""Black-box tests of CRI: they know a runtime by its socket alone.

``--cri-endpoint=podkeep`` (the default) runs them against a daemon of this source tree, ``--cri-endpoint=containerd``
against Debian's containerd, to show that the tests are right where both should agree. What the reference lacks or does
wrong is said by the mark ``reference``:

    @pytest.mark.reference(unsupported="...")   it has no such feature: the test is skipped there
    @pytest.mark.reference(differs="...")       it is known to do otherwise: the test must fail there
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import container_mounts, forked, reference, scratch
from support.container_mounts import ContainerMounts
from support.daemon import Daemon
from support.endpoint import Endpoint, Node
from support.images import busybox_layout, file
from support.registry import Registry

OPTION = "--cri-endpoint"
ENDPOINTS = ("podkeep", "containerd")
BCRYPT_OF_SECRET = "$2b$04$HaBX7kZuW/ID3OJNAR4XPeVTxebPbJZm59xYFPz22L0pQ7GgCNVYW"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, choices=ENDPOINTS, default="podkeep", help="which runtime the conformance tests talk to")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(OPTION, "podkeep") == "podkeep":
        container_mounts.mark_differing(items)
        return
    for item in items:
        for mark in item.iter_markers("reference"):
            if reason := mark.kwargs.get("unsupported"):
                item.add_marker(pytest.mark.skip(reason=f"containerd 1.6: {reason}"))
            if reason := mark.kwargs.get("differs"):
                item.add_marker(pytest.mark.xfail(reason=f"containerd 1.6: {reason}", strict=True))


@pytest.fixture(scope="session")
def workplace() -> Iterator[Path]:
    """A directory in the scratch machine that pods, whose root may not be root outside, can reach into."""
    scratch.enter()
    forked.begin()
    with tempfile.TemporaryDirectory(prefix="podkeep-cri-", dir="/var/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="session")
def registry(workplace: Path) -> Iterator[Registry]:
    """A docker-registry inside the scratch machine."""
    with Registry(workplace / "registry") as running:
        yield running


@pytest.fixture(scope="session")
def private_registry(workplace: Path) -> Iterator[Registry]:
    """A docker-registry that asks for a name and a password: user, secret."""
    with Registry(workplace / "private-registry", htpasswd=f"user:{BCRYPT_OF_SECRET}\n") as running:
        yield running


@pytest.fixture(scope="session")
def busybox(registry: Registry, workplace: Path) -> str:
    """Reference of the image that containers use unless a test says otherwise.

    ``/bin/busybox-setuid`` is a busybox that runs as root whoever starts it.
    """
    program = Path("/bin/busybox").read_bytes()
    passwd = "root::0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
    layers = [[file("bin/busybox-setuid", program, 0o4755), file("etc/passwd", passwd)]]
    return registry.push(busybox_layout(workplace / "busybox", layers=layers), "busybox:1")


Endpoints = Callable[[ContainerMounts], Endpoint]


@pytest.fixture(scope="session")
def endpoints(
    request: pytest.FixtureRequest, workplace: Path, registry: Registry, private_registry: Registry
) -> Iterator[Endpoints]:
    """The runtime under test, hiding mounts of containers or not; the reference cannot hide them."""
    extra = "".join(f'[registries."{item.host}"]\ninsecure = true\n' for item in (registry, private_registry))
    with ExitStack() as running:

        @functools.cache
        def start(mounts: ContainerMounts) -> Endpoint:
            base = workplace / f"podkeep-{mounts}"
            base.mkdir()
            daemon = running.enter_context(Daemon(base, extra=extra, mounts=mounts))
            return Endpoint(
                name="podkeep",
                socket=daemon.socket,
                cgroup_parent=daemon.cgroup_parent,
                pid=daemon.pid,
                options=("--config", str(daemon.config)),
                resources=daemon.resources,
            )

        @functools.cache
        def start_reference() -> Endpoint:
            scratch.detach_unified()
            missing = reference.missing_packages()
            assert not missing, f"run `tools/setup reference`, or apt-get install {' '.join(missing)}"
            pause = registry.push(reference.pause_layout(workplace / "pause"), "pause:1")
            base = workplace / "containerd"
            base.mkdir()
            containerd = running.enter_context(reference.Containerd(base, pause_image=pause))
            settings = {
                "runtime.socket": containerd.socket,
                "runtime.cgroup_parent": containerd.cgroup_parent,
                "mountns.enabled": "false",
            }
            return Endpoint(
                name="containerd",
                socket=containerd.socket,
                cgroup_parent=containerd.cgroup_parent,
                pid=containerd.pid,
                options=tuple(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
                resources=containerd.resources,
            )

        is_podkeep = request.config.getoption(OPTION, "podkeep") == "podkeep"
        yield start if is_podkeep else lambda _: start_reference()


@pytest.fixture
def endpoint(endpoints: Endpoints, mounts_of_containers: ContainerMounts) -> Endpoint:
    """The runtime under test."""
    return endpoints(mounts_of_containers)


@pytest.fixture(scope="session")
def with_image(busybox: str) -> Callable[[Endpoint], str]:
    """Return the reference of the usual image, after the runtime has pulled it."""

    @functools.cache
    def pull(endpoint: Endpoint) -> str:
        with Node(endpoint, busybox) as client:
            client.pull()
        return busybox

    return pull


@pytest.fixture
def image(endpoint: Endpoint, with_image: Callable[[Endpoint], str]) -> str:
    """The usual image, pulled."""
    return with_image(endpoint)


@pytest.fixture
def node(endpoint: Endpoint, image: str) -> Iterator[Node]:
    """A client; afterwards its pods and images are gone and the runtime holds what it held before."""
    before = endpoint.resources()
    with Node(endpoint, image) as client:
        yield client
    assert endpoint.resources() == before


@pytest.fixture
def host_directory(workplace: Path) -> Iterator[Path]:
    """An empty directory of the host that containers may be given, whatever user they run as."""
    with tempfile.TemporaryDirectory(dir=workplace) as name:
        Path(name).chmod(0o777)
        yield Path(name)
