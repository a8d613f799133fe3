"""Classes of blockio on a live daemon, with real throttling on loop devices of the tests' own (KEP-3008, stories 2, 3).

What is measured is direct I/O in a container, as much as takes three seconds at the configured rate: the kernel lets a
tenth of a second's worth through at once, which is 3 % then. A rate is a ceiling, so no attempt may be more than
10 % above it; below it may be whoever the machine keeps waiting, so the best of some attempts counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.class_resources.blockio.limits import RATE_FILES_V1
from podkeep.runtime.class_resources.model import BLOCKIO
from support.cri import Pods, error_of
from support.daemon import Daemon
from support.loopdev import LoopDevice, attached, loop_device
from support.mortal import Mortal
from support.registry import Registry
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(
    Cgroups().version == 2, reason="this machine has cgroup version 2: see tests/nested/test_blockio_v2.py"
)

MIB = 1 << 20
READ_BPS, WRITE_BPS, READ_IOPS, WRITE_IOPS = RATE_FILES_V1.values()
ATTEMPTS = 4
TOLERANCE = 0.1
SECONDS = 3
NODE = "/dev/disk"
"""Of the loop device, inside containers."""

CLASSES = """\
Classes:
  gold:
    - Devices: [{disk}, {other}]
      ThrottleReadBps: 64Mi
  bronze:
    - Devices: [{disk}]
      ThrottleReadBps: 8Mi
      ThrottleWriteBps: 4Mi
  operations:
    - Devices: [{disk}]
      ThrottleReadIOPS: 500
      ThrottleWriteIOPS: 300
  missing:
    - Devices: [/dev/nothing-here*]
      ThrottleReadBps: 8Mi
  weighed:
    - Weight: 400
    - Devices: [{disk}]
      Weight: 700
  free:
"""


@dataclass
class Node:
    """A daemon of the test's own with two disks, and a client of it."""

    daemon: Daemon
    pods: Pods
    disk: LoopDevice
    other: LoopDevice
    file: Path

    def run(self, sandbox: str, name: str, class_name: str | None, *command: str) -> str:
        """Start a container with the disk and a class, and return its ID."""
        devices = [api.Device(container_path=NODE, host_path=self.disk.path, permissions="rw")]
        return self.pods.launch(sandbox, *command, name=name, devices=devices, class_resources=_classes(class_name))

    def change(self, container: str, class_name: str) -> None:
        """Change the class of a container."""
        classes = api.ContainerClassResources(classes={"blockio": class_name})
        request = api.UpdateContainerResourcesRequest(container_id=container, class_resources=classes)
        self.pods.call("UpdateContainerResources", request)

    def files(self, sandbox: str, container: str) -> dict[str, str]:
        """Return the container's limits that are set, by file."""
        path = f"{self.daemon.cgroup_parent}/pod-{sandbox}/{container}"
        found = {name: (Cgroups().read(path, name) or "").strip() for name in RATE_FILES_V1.values()}
        return {name: text for name, text in found.items() if text}


def _classes(class_name: str | None) -> api.ContainerClassResources | None:
    return None if class_name is None else api.ContainerClassResources(classes={"blockio": class_name})


@pytest.fixture(scope="module")
def disks(open_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoopDevice, LoopDevice]]:
    directories = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("disk")
    with loop_device(directories[0]) as disk, loop_device(directories[1]) as other:
        yield disk, other
    assert {disk.path, other.path}.isdisjoint(attached())


Disks = tuple[LoopDevice, LoopDevice]


def configured(daemon: Daemon, disks: Disks) -> Path:
    """Give a daemon the classes, and return their file."""
    disk, other = disks
    file = daemon.base / "blockio.yaml"
    file.write_text(CLASSES.format(disk=disk.path, other=other.path))
    daemon.extra += f'[class_resources]\nblockio_config = "{file}"\ncontainer_defaults = {{blockio = "gold"}}\n'
    daemon.write()
    return file


@pytest.fixture(scope="module")
def shared_node(open_directory: Path, registry: Registry, image: str, disks: Disks) -> Iterator[Node]:
    base = open_directory / f"blockio-{os.urandom(3).hex()}"
    base.mkdir()
    daemon = Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n')
    file = configured(daemon, disks)
    with daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        yield Node(daemon, pods, *disks, file)


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """A daemon that is not killed, and reads its files once."""
    with unchanged(shared_node):
        yield shared_node


@pytest.fixture
def own_node(mortal: Mortal, disks: Disks) -> Iterator[Node]:
    """A daemon of the test's own."""
    file = configured(mortal.daemon, disks)
    node = Node(mortal.daemon, mortal.start(), *disks, file)
    with unchanged(node):
        yield node


@contextmanager
def unchanged(node: Node) -> Iterator[None]:
    """Remove what was made, and check that nothing is left."""
    before, scheduler = node.daemon.resources(), node.disk.scheduler
    yield
    node.disk.schedule(scheduler)
    for sandbox in node.pods.sandboxes():
        node.pods.remove(sandbox.id)
    assert node.daemon.resources().after_a_restart() == before.after_a_restart()


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a container reads or writes directly, at most ``rate`` bytes in a second."""

    container: str
    rate: int
    write: bool = False
    block: int = 64 << 10

    def begin(self, pods: Pods, count: int) -> None:
        """Start to read or write ``count`` blocks."""
        ends = f"if=/dev/zero of={NODE} oflag=direct" if self.write else f"if={NODE} of=/dev/null iflag=direct"
        clock = "read now _ </proc/uptime; echo $now"
        script = f"{clock}; dd {ends} bs={self.block} count={count} 2>/dev/null && {clock}"
        pods.read(self.container, f"({script}) >/tmp/running 2>&1 </dev/null && mv /tmp/running /tmp/times &")

    def end(self, pods: Pods, count: int) -> float:
        """Wait, and return how many bytes there were in a second."""
        script = "until test -e /tmp/times; do sleep 0.05; done; cat /tmp/times; rm /tmp/times"
        started, ended = map(float, pods.read(self.container, script).split())
        return self.block * count / (ended - started)

    def measured(self, pods: Pods, count: int) -> float:
        """Return how many bytes in a second it is."""
        self.begin(pods, count)
        return self.end(pods, count)


def assert_throttled(pods: Pods, *loads: Load) -> None:
    """Measure, at the same time, that containers read or write at their rates."""
    attempts: dict[Load, list[float]] = {load: [] for load in loads}
    slow = list(loads)
    for _ in range(ATTEMPTS):
        counts = {load: SECONDS * load.rate // load.block for load in slow}
        for load, count in counts.items():
            load.begin(pods, count)
        for load, count in counts.items():
            attempts[load].append(load.end(pods, count))
        assert all(found[-1] <= load.rate * (1 + TOLERANCE) for load, found in attempts.items()), attempts
        slow = [load for load in slow if attempts[load][-1] < load.rate * (1 - TOLERANCE)]
        if not slow:
            return
    raise AssertionError(f"too slow: {attempts}")


# what is measured


@pytest.mark.requirement("Q11", "Q14")
def test_the_type_is_called_blockio(node: Node) -> None:
    resources = node.pods.call("Status", api.StatusRequest()).status.resources
    (offered,) = (known for known in resources.container_class_resources if known.Name == BLOCKIO)
    assert (BLOCKIO, offered.default_class) == ("blockio", "gold")
    assert {"bronze", "gold", "operations"} <= {known.Name for known in offered.classes}


@pytest.mark.requirement("Q44", "Q46", "Q50")
def test_a_rate_is_the_configured_one_within_a_tenth(node: Node) -> None:
    sandbox = node.pods.run()
    wanted = [
        ("bronze", False, 64 << 10, 8 * MIB),
        ("bronze", True, 64 << 10, 4 * MIB),
        ("operations", False, 4096, 500 * 4096),
        ("operations", True, 4096, 300 * 4096),
    ]
    loads = [
        Load(container=node.run(sandbox, f"c{number}", class_name), rate=rate, write=write, block=block)
        for number, (class_name, write, block, rate) in enumerate(wanted)
    ]
    assert_throttled(node.pods, *loads)


@pytest.mark.requirement("Q1", "Q44", "Q46", "Q92")
def test_story_2_a_background_task_does_not_disturb_others(node: Node) -> None:
    sandbox = node.pods.run()
    # Both write at the same time; the throttled one goes on as long as the other is measured.
    write = f"while :; do dd if=/dev/zero of={NODE} oflag=direct bs=64k count=256 2>/dev/null; done"
    background = node.run(sandbox, "background", "bronze", "sh", "-c", write)
    foreground = node.run(sandbox, "foreground", None)
    wait_for(lambda: written(node, sandbox, background) > 0, "the first write of the background task")
    before, started, rates = written(node, sandbox, background), time.monotonic(), []
    while time.monotonic() < started + SECONDS:
        rates.append(Load(container=foreground, rate=0, write=True).measured(node.pods, 960))
    took, done = time.monotonic() - started, written(node, sandbox, background) - before
    # A busy machine may stop the foreground for a while; that the disk was its own is shown by its best.
    assert max(rates) > 3 * 4 * MIB, rates
    assert 0 < done <= (took * (1 + TOLERANCE) + 0.2) * 4 * MIB, (done, took)


def written(node: Node, sandbox: str, container: str) -> int:
    """Return the bytes that a container wrote to the disk."""
    path = f"{node.daemon.cgroup_parent}/pod-{sandbox}/{container}"
    lines = (Cgroups().read(path, "blkio.throttle.io_service_bytes") or "").splitlines()
    return sum(int(line.split()[2]) for line in lines if line.startswith(f"{node.disk.number} Write"))


@pytest.mark.requirement("Q8", "Q48")
def test_a_change_of_class_counts_at_once_and_clears_old_entries(node: Node) -> None:
    sandbox = node.pods.run()
    container = node.run(sandbox, "one", "gold")
    number, other = node.disk.number, node.other.number
    assert sorted(node.files(sandbox, container)[READ_BPS].splitlines()) == sorted(
        [f"{number} {64 * MIB}", f"{other} {64 * MIB}"]
    )
    node.change(container, "bronze")
    assert node.files(sandbox, container) == {READ_BPS: f"{number} {8 * MIB}", WRITE_BPS: f"{number} {4 * MIB}"}
    assert node.pods.classes(container) == {"blockio": "bronze"}
    assert_throttled(node.pods, Load(container=container, rate=8 * MIB))
    node.change(container, "free")
    assert node.files(sandbox, container) == {}
    node.change(container, "default")
    assert node.pods.classes(container) == {"blockio": "gold"}


# story 3


class OwnDevices(Daemon):
    """A daemon on a node of its own: with a ``/dev`` where ``disk`` is known by ``model``, as udev names it."""

    disk = ""
    model = ""

    def command(self, *arguments: str) -> list[str]:
        """Return a command line in a mount namespace with that ``/dev``."""
        script = """
new=$1 disk=$2 model=$3; shift 3
mkdir -p "$new" && mount -t tmpfs -o mode=755 dev "$new" || exit
for node in null zero full random urandom tty fuse loop-control; do cp -a /dev/$node "$new" || exit; done
cp -a "$disk" "$new" && mkdir -p "$new"/pts "$new"/shm "$new"/net "$new"/disk/by-id || exit
mount --rbind /dev/pts "$new"/pts && mount --rbind /dev/shm "$new"/shm && ln -s pts/ptmx "$new"/ptmx || exit
ln -s "../../${disk##*/}" "$new/disk/by-id/nvme-${model}_S4E1" && mount --rbind "$new" /dev && exec "$@"
"""
        own = ["unshare", "-m", "--propagation", "slave", "sh", "-c", script, "sh", str(self.base / "dev")]
        return [*own, self.disk, self.model, *super().command(*arguments)]


BY_MODEL = """\
Classes:
  throttled:
    - Devices: [/dev/disk/by-id/nvme-ACME_SSD_900_*]
      ThrottleReadBps: 16Mi
    - Devices: [/dev/disk/by-id/nvme-ACME_SSD_100_*]
      ThrottleReadBps: 4Mi
"""


@pytest.mark.requirement("Q45", "Q47")
@pytest.mark.parametrize(("model", "rate"), [("ACME_SSD_900", 16 * MIB), ("ACME_SSD_100", 4 * MIB)])
def test_story_3_a_daemon_set_is_throttled_by_the_model_of_the_disk(
    open_directory: Path, registry: Registry, image: str, tmp_path: Path, model: str, rate: int
) -> None:
    file, base = tmp_path / "blockio.yaml", open_directory / os.urandom(4).hex()
    file.write_text(BY_MODEL)
    base.mkdir()
    with loop_device(tmp_path) as disk:
        extra = f'[registries."{registry.host}"]\ninsecure = true\n[class_resources]\nblockio_config = "{file}"\n'
        daemon = OwnDevices(base, extra=extra)
        daemon.disk, daemon.model = disk.path, model
        mortal = Mortal(daemon, image)
        try:
            node = Node(daemon, mortal.start(), disk, disk, file)
            sandbox = node.pods.run()
            container = node.run(sandbox, "one", "throttled")
            assert node.files(sandbox, container) == {READ_BPS: f"{disk.number} {rate}"}
            assert_throttled(node.pods, Load(container=container, rate=rate))
        finally:
            mortal.close()


# what is written


@pytest.mark.requirement("Q4", "Q44")
def test_the_class_is_in_the_oci_configuration_and_in_force_before_the_program_runs(node: Node) -> None:
    sandbox = node.pods.run()
    devices = [api.Device(container_path=NODE, host_path=node.disk.path, permissions="rw")]
    container = node.pods.create(sandbox, name="one", devices=devices, class_resources=_classes("bronze"))
    expected = {READ_BPS: f"{node.disk.number} {8 * MIB}", WRITE_BPS: f"{node.disk.number} {4 * MIB}"}
    assert node.files(sandbox, container) == expected
    config = json.loads((node.daemon.layout.run / "containers" / container / "config.json").read_text())
    major, minor = map(int, node.disk.number.split(":"))
    assert config["linux"]["resources"]["blockIO"] == {
        "throttleReadBpsDevice": [{"major": major, "minor": minor, "rate": 8 * MIB}],
        "throttleWriteBpsDevice": [{"major": major, "minor": minor, "rate": 4 * MIB}],
    }
    node.pods.start(container)
    assert node.files(sandbox, container) == expected


@pytest.mark.requirement("Q44", "Q50")
def test_weights(node: Node) -> None:
    node.disk.schedule("bfq")
    sandbox = node.pods.run()
    container = node.run(sandbox, "one", "weighed")
    path = f"{node.daemon.cgroup_parent}/pod-{sandbox}/{container}"
    assert Cgroups().read(path, "blkio.bfq.weight") == "400\n"
    assert Cgroups().read(path, "blkio.bfq.weight_device") == f"default 400\n{node.disk.number} 700\n"
    node.change(container, "free")
    assert Cgroups().read(path, "blkio.bfq.weight_device") == "default 100\n"


@pytest.mark.requirement("Q45")
def test_a_device_that_is_missing_is_a_warning(node: Node) -> None:
    sandbox = node.pods.run()
    container = node.run(sandbox, "one", "missing")
    assert node.files(sandbox, container) == {}
    assert "class missing: line 14: /dev/nothing-here* matches no block device" in node.daemon.log.read_text()


@pytest.mark.requirement("Q5", "Q83")
def test_classes_that_are_refused(node: Node) -> None:
    sandbox = node.pods.run()
    before = node.daemon.resources()
    message = error_of(lambda: node.pods.create(sandbox, class_resources=_classes("nosuch")), InvalidArgument)
    assert "class resource blockio: " in message
    assert "nosuch" in message
    assert node.daemon.resources() == before


@pytest.mark.requirement("Q6", "Q49")
def test_pods_are_not_throttled_by_version_1(node: Node) -> None:
    answer = node.pods.call("Status", api.StatusRequest())
    offered = {
        level: {item.Name: [class_.Name for class_ in item.classes] for item in items}
        for level, items in (
            ("container", answer.status.resources.container_class_resources),
            ("pod", answer.status.resources.pod_class_resources),
        )
    }
    assert offered["container"]["blockio"] == ["bronze", "free", "gold", "missing", "operations", "weighed"]
    assert offered["pod"]["blockio"] == ["free", "weighed"]


@pytest.mark.requirement("Q16", "Q48")
def test_limits_survive_a_killed_daemon_and_are_put_back(own_node: Node, mortal: Mortal) -> None:
    node = own_node
    sandbox = node.pods.run()
    container = node.run(sandbox, "one", "bronze")
    expected = node.files(sandbox, container)
    node.daemon.kill()
    path = f"{node.daemon.cgroup_parent}/pod-{sandbox}/{container}"
    Cgroups().write(path, READ_BPS, f"{node.disk.number} 0")
    Cgroups().write(path, READ_IOPS, f"{node.disk.number} 7")
    node.pods = mortal.start()
    assert node.files(sandbox, container) == expected
    assert node.pods.classes(container) == {"blockio": "bronze"}


# the file


@pytest.mark.requirement("Q48")
def test_a_reload_gives_those_in_a_class_its_new_meaning(own_node: Node) -> None:
    node = own_node
    sandbox = node.pods.run()
    container = node.run(sandbox, "one", "bronze")
    expected = node.files(sandbox, container)
    text = node.file.read_text()
    # Mistakes change nothing.
    for line, mistake in enumerate(("Wait: 50", "ThrottleReadBps: fast", "Devices: [relative]"), 3):
        node.file.write_text("Classes:\n  bronze:\n" + "\n" * (line - 3) + f"  - {mistake}\n")
        node.daemon.hang_up()
        wait_for(partial(_logged, node.daemon, f"{node.file}:{line}: "), "the refusal")
        assert node.files(sandbox, container) == expected
    assert node.files(sandbox, node.run(sandbox, "two", "bronze")) == expected
    node.file.write_text(text.replace("ThrottleWriteBps: 4Mi", "ThrottleWriteIOPS: 20"))
    node.daemon.hang_up()
    number = node.disk.number
    expected = {READ_BPS: f"{number} {8 * MIB}", WRITE_IOPS: f"{number} 20"}
    wait_for(lambda: node.files(sandbox, container) == expected, "the reload")


def _logged(daemon: Daemon, text: str) -> bool:
    return text in daemon.log.read_text()


def test_a_daemon_does_not_start_with_a_mistake(own_daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "blockio.yaml"
    file.write_text("Classes:\n  c:\n  - Wait: 50\n")
    own_daemon.extra += f'[class_resources]\nblockio_config = "{file}"\n'
    own_daemon.write()
    ended = own_daemon.run("runtime")
    assert ended.returncode != 0
    assert f"{file}:3: Classes.c[0].Wait" in ended.stderr


def test_without_a_file_there_is_no_blockio(daemon: Daemon, pods: Pods) -> None:
    sandbox = pods.run()
    message = error_of(lambda: pods.create(sandbox, class_resources=_classes("gold")), FailedPrecondition)
    assert "class resource blockio: blockio is disabled" in message
