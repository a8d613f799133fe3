"""Pods on a machine that is systemd's, with cgroup v2 alone and Debian's kernel: both cgroup drivers, as a service."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest

from support.images import busybox_layout
from support.nested.machine import Machine

pytestmark = pytest.mark.first  # the longest, and a worker keeps a file's tests
IMAGE = "localhost/busybox:nested"
CONFIG = "/etc/podkeep/config.toml"
UNIT = "/etc/systemd/system/podkeep.service"
UID = "1234-56"
TIMEOUT_S = 400
"""For what takes ten seconds on an idle machine."""

SETTINGS = """\
[runtime]
cgroup_driver = "{driver}"
[runtime.handlers.crun]
path = "/usr/bin/crun"
[runtime.handlers.runc]
path = "/usr/bin/runc"
"""
PLACES = {
    "cgroupfs": f"/podkeep/pod{UID}/pod-*/*",
    "systemd": f"/podkeep.slice/podkeep-pod{UID.replace('-', '_')}.slice/podkeep-pod*.slice/podkeep-*.scope",
}
"""Of the one container of a Guaranteed pod."""

SHOW = """\
echo "cgroup $(cat /proc/self/cgroup)"
echo "memory $(cat /sys/fs/cgroup/memory.max)"
echo "cpu $(cat /sys/fs/cgroup/cpu.max)"
echo "profile $(cat /proc/self/attr/current)"
echo "first $(awk '{print $2}' /proc/self/uid_map)"
exit 7
"""

UPDATE = """\
import asyncio, sys
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api

async def update():
    async with CriClient("/run/podkeep/podkeep.sock") as client:
        listed = await client.runtime.ListContainers(api.ListContainersRequest())
        resources = api.LinuxContainerResources(memory_limit_in_bytes=int(sys.argv[1]))
        container = listed.containers[0].id
        await client.runtime.UpdateContainerResources(
            api.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        )

asyncio.run(update())
"""
"""Sets the memory limit of the one container, in bytes, as a kubelet does."""


def manifest(script: str, *, mounts: Sequence[Mapping[str, str]] = (), security: object = None, **spec: object) -> str:
    """Return a pod whose container runs ``script``; JSON is YAML."""
    container = {
        "name": "c",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
        "volumeMounts": list(mounts),
        "securityContext": security or {},
    }
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "uid": UID}, "spec": whole})


class Service:
    """podkeep as a service of the nested machine."""

    def __init__(self, machine: Machine, driver: str) -> None:
        self.machine = machine
        self.driver = driver

    def left(self) -> dict[str, list[str]]:
        """Return what pods may leave behind, by kind."""
        commands = {
            "mounts": "cut -d' ' -f5 /proc/1/mountinfo",
            "hidden": "nsenter --mount=/run/container-mount-namespace/mnt cut -d' ' -f5 /proc/thread-self/mountinfo"
            " | grep -v /layers/",
            "cgroups": "find /sys/fs/cgroup -mindepth 2 -type d -path '*podkeep*' ! -path '*/podkeep.service*'",
            "units": "systemctl list-units --plain --no-legend 'podkeep*.scope' 'podkeep-*.slice' | cut -d' ' -f1",
            "failed": "systemctl --failed --plain --no-legend",
            "links": "ip -o link show type veth",
            "monitors": "pgrep conmon",
        }
        return {name: self.machine.run(command).stdout.splitlines() for name, command in commands.items()}

    def main_pid(self) -> str:
        """Return the process of the service."""
        return self.machine.run("systemctl show -p MainPID --value podkeep", check=True).stdout.strip()


@pytest.fixture(scope="module", params=["cgroupfs", "systemd"])
def service(
    request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A running service with an image; what it makes on the machine is removed."""
    layout = busybox_layout(tmp_path_factory.mktemp("nested") / "busybox", name=IMAGE)
    machine.put(layout.path, "/root/busybox")
    machine.write(CONFIG, SETTINGS.format(driver=request.param))
    machine.write(UNIT, machine.podkeep("runtime", "unit").stdout)
    machine.write(f"{UNIT}.d/slow.conf", f"[Service]\nTimeoutStartSec={TIMEOUT_S}\nWatchdogSec={TIMEOUT_S}\n")
    machine.podkeep("mountns", "install", "podkeep")
    try:
        machine.run("systemctl daemon-reload && systemctl start podkeep", timeout=TIMEOUT_S, check=True)
        machine.podkeep("image", "load", "--quiet", "/root/busybox", timeout=TIMEOUT_S)
        yield Service(machine, request.param)
    finally:
        machine.run("journalctl --unit podkeep --no-pager --output cat >/dev/ttyS0")
        machine.run("systemctl stop podkeep container-mount-namespace", timeout=TIMEOUT_S)
        machine.run(["rm", "-rf", CONFIG, UNIT, f"{UNIT}.d", "/root/busybox", "/root/pod.json"])
        machine.podkeep("mountns", "uninstall", check=False)
        machine.run("systemctl daemon-reload")


def test_doctor_knows_the_machine(machine: Machine) -> None:
    done = machine.podkeep("--set", 'runtime.cgroup_driver="systemd"', "doctor", timeout=TIMEOUT_S, check=False)
    words = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:1].strip()]
    findings = {level: [rest for first, rest in words if first == level] for level in ("ok", "warning", "missing")}
    for name, text in {"cgroups": "version 2", "cgroup driver": "systemd", "AppArmor": "enabled"}.items():
        assert [rest for rest in findings["ok"] if rest.startswith(f"{name} ") and text in rest], done.stdout
    # Linux 6.3 has it.
    assert [rest[: rest.index("  ")] for rest in findings["missing"]] == ["idmapped tmpfs"]
    assert done.returncode == 1


@pytest.mark.parametrize("handler", ["crun", "runc"])
def test_a_pod_runs_and_leaves_nothing(service: Service, handler: str) -> None:
    before = service.left()
    service.machine.write("/root/pod.json", manifest(SHOW, runtimeClassName=handler))
    done = service.machine.podkeep("run", "/root/pod.json", timeout=TIMEOUT_S, check=False)
    assert done.returncode == 7, done.stderr
    shown = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert shown == {
        "cgroup": "0::/",
        "memory": "67108864",
        "cpu": "50000 100000",
        "profile": "podkeep-default (enforce)",
        "first": "0",
    }
    assert service.left() == before


def test_a_child_for_which_memory_runs_out_ends_its_container(service: Service) -> None:
    """As with a kubelet on cgroup version 2, unless it is told otherwise; else nobody would learn of it."""
    before = service.left()
    script = "dd if=/dev/zero of=/dev/null bs=256M; echo survived"
    service.machine.write("/root/pod.json", manifest(script))
    done = service.machine.podkeep("run", "/root/pod.json", timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (137, "")
    assert done.stderr.splitlines()[-1] == "podkeep: container c ended with exit status 137: OOMKilled"
    single = ("--set", "agent.single_process_oom_kill=true")
    done = service.machine.podkeep(*single, "run", "/root/pod.json", timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n")
    assert service.left() == before


HELD_UP = """
podkeep run /root/pod.json >/root/out 2>&1 &
run=$!
until [ -e /root/go/waits ]; do :; done
monitor=$(pgrep conmon)
scope=$(find /sys/fs/cgroup -type d -name 'podkeep-*.scope')
kill -STOP $monitor
: >/root/go/now
while [ -e $scope ]; do :; done
kill -CONT $monitor
wait $run
code=$?
cat /root/out
rm -rf /root/go /root/out
exit $code
"""


@pytest.mark.parametrize("service", ["systemd"], indirect=True)
def test_memory_that_ran_out_is_told_when_systemd_has_removed_its_count(service: Service) -> None:
    """conmon, which is held up, and then the runtime find no scope any more."""
    before = service.left()
    script = "echo > /go/waits; until [ -e /go/now ]; do :; done; dd if=/dev/zero of=/dev/null bs=256M"
    go = {"name": "go", "hostPath": {"path": "/root/go", "type": "DirectoryOrCreate"}}
    mounts = [{"name": "go", "mountPath": "/go"}]
    service.machine.write("/root/pod.json", manifest(script, volumes=[go], mounts=mounts))
    done = service.machine.run(HELD_UP, timeout=TIMEOUT_S)
    last = "podkeep: container c ended with exit status 137: OOMKilled"
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (137, [last]), done.stdout
    assert service.left() == before


@pytest.mark.parametrize("service", ["cgroupfs"], indirect=True)
def test_a_pod_in_a_user_namespace(service: Service) -> None:
    before = service.left()
    service.machine.write("/root/pod.json", manifest(SHOW, hostUsers=False))
    done = service.machine.podkeep("run", "/root/pod.json", timeout=TIMEOUT_S, check=False)
    assert done.returncode == 7, done.stderr
    shown = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert int(shown["first"]) >= 65536
    assert (shown["memory"], shown["profile"]) == ("67108864", "podkeep-default (enforce)")
    assert service.left() == before


IN_MEMORY: Mapping[str, Mapping[str, object]] = {
    "memory": {"emptyDir": {"medium": "Memory"}},
    "key": {"secret": {"secretName": "key"}},
    "downward": {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    "projected": {"projected": {"sources": [{"secret": {"name": "key"}}]}},
}


@pytest.mark.requirement("U74", "U85")
@pytest.mark.parametrize("service", ["cgroupfs"], indirect=True)
def test_a_volume_in_memory_cannot_be_mapped_before_linux_6_3(service: Service) -> None:
    """Each kind fails a pod that has nothing else, and no container runs without the mapping."""
    before = service.left()
    secret = json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "data": {"k": "eA=="}})
    for name, source in IN_MEMORY.items():
        mounts, volumes = [{"name": name, "mountPath": "/v"}], [{"name": name} | dict(source)]
        whole = manifest("echo ran", hostUsers=False, volumes=volumes, mounts=mounts)
        service.machine.write("/root/pod.json", f"{secret}\n---\n{whole}")
        done = service.machine.podkeep("run", "/root/pod.json", timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stdout) == (1, ""), name
        refused = rf"failed to set MOUNT_ATTR_IDMAP on \S*/{name}: invalid argument \(maybe the source filesystem"
        assert re.search(refused, done.stderr), done.stderr
    assert service.left() == before


@pytest.mark.requirement("U86")
@pytest.mark.parametrize("service", ["cgroupfs"], indirect=True)
def test_only_apparmors_profile_keeps_from_mounting_in_a_user_namespace(service: Service) -> None:
    before = service.left()
    script = "mkdir /mnt; mount -t tmpfs none /mnt && echo mounted; cat /proc/self/attr/current"
    found = {}
    for kind in ("RuntimeDefault", "Unconfined"):
        security = {"capabilities": {"add": ["SYS_ADMIN"]}, "appArmorProfile": {"type": kind}}
        service.machine.write("/root/pod.json", manifest(script, hostUsers=False, security=security))
        done = service.machine.podkeep("run", "/root/pod.json", timeout=TIMEOUT_S, check=False)
        found[kind] = done.stdout.splitlines()
    assert found == {"RuntimeDefault": ["podkeep-default (enforce)"], "Unconfined": ["mounted", "unconfined"]}
    assert service.left() == before


def test_a_pod_survives_that_systemd_reloads_and_restarts_the_runtime(service: Service) -> None:
    machine, before, main_pid = service.machine, service.left(), service.main_pid()
    place = f"/sys/fs/cgroup{PLACES[service.driver]}"
    machine.write("/root/pod.json", manifest("while :; do sleep 1; done"))
    machine.run("systemd-run --unit=run-one --collect podkeep run /root/pod.json", check=True)
    # Its command runs, and so its limits are set.
    running = f"grep -qsx sh $(find {place} -name cgroup.procs -exec sed 's,.*,/proc/&/comm,' {{}} +) /dev/null"
    machine.run(f"until {running}; do sleep 0.2; done 2>/dev/null", timeout=TIMEOUT_S, check=True)
    # crun with systemd has a cgroup below the scope: what counts is where the process is.
    pid = machine.run(
        f"find {place} -name cgroup.procs -exec cat {{}} + | sort -n | head -n 1", check=True
    ).stdout.strip()
    own = f"/sys/fs/cgroup$(cut -d: -f3 /proc/{pid}/cgroup)"
    look = f"cat {own}/memory.max {own}/cpu.max /proc/{pid}/comm"
    expected = "67108864\n50000 100000\nsh\n"
    assert machine.run(look).stdout == expected
    # systemd looks after the cgroups of its units when it reads them again.
    machine.run("systemctl daemon-reload", check=True)
    assert machine.run(look).stdout == expected
    # What is changed counts where the process is, and systemd leaves it so.
    machine.run([sys.executable, "-c", UPDATE, str(128 << 20)], timeout=TIMEOUT_S, check=True)
    expected = expected.replace("67108864", "134217728")
    assert machine.run(look).stdout == expected
    machine.run("systemctl daemon-reload", check=True)
    assert machine.run(look).stdout == expected
    # Nobody is left who would end the pod because the runtime does not answer.
    machine.run("systemctl kill --signal=KILL run-one", check=True)
    machine.run("systemctl restart podkeep", timeout=TIMEOUT_S, check=True)
    assert service.main_pid() != main_pid
    assert machine.run(look).stdout == expected
    machine.podkeep("rm", "--grace-period", "0", "one", timeout=TIMEOUT_S)
    machine.run("systemctl reset-failed run-one")
    assert service.left() == before
