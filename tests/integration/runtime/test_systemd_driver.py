"""The systemd cgroup driver, with a real systemd: as PID 1 of namespaces of its own, on the version 2 tree."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup import systemd
from podkeep.kernel.mount import mounts
from podkeep.kernel.process import procfs
from podkeep.runtime.cgroup_driver import slices
from support import cgroup2, processes
from support.cri import Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.waiting import wait_for

SYSTEMD = "/lib/systemd/systemd"
NEEDED = {name: shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") for name in ("runc", "dbus-daemon")}
MISSING = [name for name, path in NEEDED.items() if path is None] + ([] if Path(SYSTEMD).exists() else [SYSTEMD])
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

POD = "kubepods-burstable-podab_cd.slice"
UNITS = {
    "dbus.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n",
    "dbus.service": (
        "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\nAfter=dbus.socket\n"
        "[Service]\nExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile"
        " --systemd-activation\n"
    ),
    "trial.service": (
        "[Unit]\nDefaultDependencies=no\nRequires=dbus.service\nAfter=dbus.service\n[Service]\nKillMode=process\n"
        "Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "ExecStartPre=-/bin/umount --lazy /proc/sys\nStandardOutput=append:{log}\nStandardError=append:{log}\n"
        "ExecStart={command}\n"
    ),
    "trial.target": "[Unit]\nDefaultDependencies=no\nWants=dbus.socket dbus.service trial.service\n",
}
BOOT = Path(__file__).with_name("programs") / "boot_systemd.sh"


class SystemdMachine(Daemon):
    """A daemon that is a service of a systemd of its own; files and the network are the scratch machine's."""

    cgroup: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that boots systemd with the daemon as a service."""
        units = self.base / "units"
        units.mkdir()
        (self.base / "console").touch()
        values = {"command": " ".join(super().command(*arguments)), "log": str(self.log)}
        for name, text in UNITS.items():
            (units / name).write_text(text.format(**values))
        script = 'echo $$ >"$1/cgroup.procs" && shift && exec unshare -C -p -f --kill-child --mount-proc sh "$@"'
        spaces = ["unshare", "-m", "-u", "-i", "--propagation", "private"]
        return [*spaces, "sh", "-c", script, "sh", *map(str, (self.cgroup, BOOT, self.base, SYSTEMD))]

    def stop(self) -> int:
        """End the daemon as systemd would, then its systemd and everything in it."""
        assert self.process is not None
        for item in processes.find_by_argument(str(self.config)):
            procfs.kill(item, signal.SIGTERM)
            assert procfs.wait(item, 30)
        self.process.kill()
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def machine(open_directory: Path, registry: Any) -> Iterator[SystemdMachine]:
    """A running daemon with the systemd driver, and the root of its cgroups."""
    base = open_directory / f"systemd-{os.urandom(3).hex()}"
    base.mkdir()
    machine = SystemdMachine(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n')
    text = machine.config.read_text()
    settings = (
        f'cgroup_driver = "systemd"\ndefault_handler = "runc"\n[runtime.handlers.runc]\npath = "{NEEDED["runc"]}"\n'
    )
    machine.config.write_text(text.replace("[network]", f"{settings}[network]", 1))
    with tempfile.TemporaryDirectory() as tree:
        cgroup2.mount(tree)
        machine.cgroup = Path(tree) / f"pktest-systemd-{machine.token}"
        machine.cgroup.mkdir()
        try:
            with machine:
                yield machine
            wait_for(lambda: not (machine.cgroup / "cgroup.events").read_text().startswith("populated 1"), "the end")
        finally:
            for directory, _, _ in os.walk(machine.cgroup, topdown=False):
                with suppress(FileNotFoundError):
                    os.rmdir(directory)
            mounts.unmount(tree, lazy=True)


@pytest.fixture
def client(machine: SystemdMachine, image: str) -> Iterator[Pods]:
    """A client of it; afterwards its pods are gone."""
    with Pods(machine.socket, image) as pods:
        pods.pull()
        yield pods


def members(cgroup: Path) -> int:
    """Return how many processes are in a cgroup itself."""
    return len((cgroup / "cgroup.procs").read_text().split())


@pytest.mark.parametrize("pid", [api.POD, api.CONTAINER])
@pytest.mark.parametrize("parent", [POD, systemd.expand(POD), ""])
def test_pods_are_slices_and_containers_are_scopes(
    machine: SystemdMachine, client: Pods, parent: str, pid: api.NamespaceMode.ValueType
) -> None:
    sandbox = client.run(pod(options=namespaces(pid=pid), cgroup_parent=parent))
    container = client.launch(sandbox)
    above = POD if parent else systemd.slice_of_path(machine.cgroup_parent)
    top = machine.cgroup / slices.sandbox_path(above, sandbox).strip("/")
    scope = machine.cgroup / slices.container_cgroup(above, sandbox, container).path.strip("/")
    assert scope.parent == top
    assert (members(top.parent), members(top), members(scope)) == (0, 0, 1)
    infra = machine.cgroup / slices.infra_cgroup(above, sandbox).path.strip("/")
    assert infra.exists() == (pid == api.POD)
    if pid == api.POD:
        assert members(infra) == 1
    assert client.read(container, "echo inside") == "inside"
    assert [item.attributes.id for item in stats(client)] == [container]
    client.stop(container)
    client.remove_container(container)
    assert not scope.exists()
    client.remove(sandbox)
    assert not top.exists()
    assert top.parent.exists()


def stats(client: Pods) -> list[api.ContainerStats]:
    """Return the statistics of all containers."""
    return list(client.call("ListContainerStats", api.ListContainerStatsRequest()).stats)


def test_what_does_not_end_by_itself_is_ended(machine: SystemdMachine, client: Pods) -> None:
    sandbox = client.run(pod(cgroup_parent=POD))
    client.launch(sandbox, "sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000")
    top = machine.cgroup / slices.sandbox_path(POD, sandbox).strip("/")
    assert top.exists()
    client.remove(sandbox)
    assert not top.exists()


def test_a_path_is_refused(client: Pods) -> None:
    assert "systemd" in error_of(lambda: client.run(pod(cgroup_parent="/kubepods/pod1")), InvalidArgument)
    assert client.sandboxes() == []


def test_the_driver_is_told(client: Pods) -> None:
    assert client.call("RuntimeConfig", api.RuntimeConfigRequest()).linux.cgroup_driver == api.SYSTEMD


def test_a_container_that_cannot_be_made_leaves_no_scope(machine: SystemdMachine, client: Pods) -> None:
    sandbox = client.run(pod(cgroup_parent=POD))
    top = machine.cgroup / slices.sandbox_path(POD, sandbox).strip("/")
    before = sorted(path.name for path in top.iterdir() if path.is_dir())
    with pytest.raises(Exception, match="no/such"):
        client.create(sandbox, "/no/such/program")
    assert sorted(path.name for path in top.iterdir() if path.is_dir()) == before
