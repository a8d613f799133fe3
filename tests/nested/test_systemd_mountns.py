"""The container mount namespace under a real systemd: its service, drop-ins for daemons, restarts in either order.

Stand-ins for a kubelet and for CRI-O are small services that tell systemd when they are ready, and write down how they
were started and which signals came; podkeep's own runtime, pods and containerd are the real ones. Inode numbers of
namespaces are used again, so "the same namespace" is shown by a mount that was made in it: the mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.mountns import execstart, units
from podkeep.mountns.execstart import Entry
from support.images import busybox_layout
from support.nested.build import REPOSITORY
from support.nested.machine import Machine

pytestmark = pytest.mark.first  # the longest, and a worker keeps a file's tests
PIN = "/run/container-mount-namespace/mnt"
SERVICE = "container-mount-namespace.service"
MARK = "/mnt"
TIMEOUT_S = 400
"""For a verb of podkeep on an emulated machine that has little of a busy one."""

NOTIFIER = """\
#!/usr/bin/python3 -SE
import json, os, signal, socket, sys

def note(**what):
    with open(os.environ["NOTES"], "a") as notes:
        print(json.dumps(what), file=notes)

def noted(number, frame):
    note(signal=signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit()

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, noted)
note(argv=sys.argv[1:], cwd=os.getcwd(), pid=os.getpid())
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
    ready.connect(os.environ["NOTIFY_SOCKET"])
    ready.send(b"READY=1")
while True:
    signal.pause()
"""
KUBELET = """\
[Service]
Type=notify
NotifyAccess=main
Environment=NOTES=/run/kubelet.notes "ARGS=one two" EMPTY=
WorkingDirectory=/var/lib/kube let
ExecStart=/bin/false
ExecReload=kill -HUP $MAINPID
Restart=on-failure
RestartSec=0
"""
KUBEADM = """\
[Service]
ExecStart=
# What the kubelet of kubeadm has, and what systemd can do with a command line.
ExecStart=/usr/local/bin/notifier $ARGS $EMPTY ${ARGS} "100%% %n" 'a "b"' \\
    ; a comment
    \\x41 a\\ b $$HOME \\; end
"""
CRIO = """\
[Service]
Type=notify
Environment=NOTES=/run/crio.notes
ExecStart=/usr/local/bin/notifier
"""
SLOW = "[Service]\nTimeoutStartSec=infinity\nTimeoutStopSec=infinity\nWatchdogSec=0\n"
"""The machine is emulated."""
UNITS = "/etc/systemd/system"


class Node:
    """What the tests ask of the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def sh(self, command: str) -> str:
        """Run a command that must succeed, and return what it printed."""
        return self.machine.run(command, check=True, timeout=TIMEOUT_S).stdout.strip()

    def shows(self, unit: str, key: str) -> str:
        """Return a property of a unit."""
        return self.sh(f"systemctl show -P {key} {unit}")

    def pid(self, unit: str) -> str:
        """Return the main process of a service that runs."""
        assert self.shows(unit, "ActiveState") == "active"
        return self.shows(unit, "MainPID")

    def namespace(self, unit: str) -> str:
        """Return the mount namespace of a service's main process."""
        return self.sh(f"readlink /proc/{self.pid(unit)}/ns/mnt")

    def pinned(self) -> str:
        """Return the mount namespace that is pinned, or an empty text."""
        return self.machine.run(f"findmnt -n -o FSROOT --types nsfs --mountpoint {PIN}").stdout.strip()

    def mark(self) -> None:
        """Mount something inside."""
        self.sh(f"nsenterCmns mount -t tmpfs mark {MARK}")

    def is_marked(self, unit: str) -> bool:
        """Say whether a service's main process sees the mark."""
        return " - tmpfs mark " in self.sh(f"cat /proc/{self.pid(unit)}/mountinfo")

    def notes(self, unit: str) -> list[dict[str, object]]:
        """Return what a stand-in wrote down."""
        return [json.loads(line) for line in self.sh(f"cat /run/{unit}.notes").splitlines()]

    @contextmanager
    def installed(self, *options: str) -> Iterator[None]:
        """Have ``podkeep mountns install`` done, and everything as before afterwards."""
        try:
            self.sh(f"podkeep mountns install {' '.join(options)}")
            yield
        finally:
            # A podkeep.service that requires the service by itself would keep it.
            self.sh(f"systemctl stop kubelet crio {SERVICE}; rm -f {UNITS}/podkeep.service")
            self.sh("podkeep mountns uninstall")
            self._clear()

    @contextmanager
    def placed(self, *, keep: bool = False, daemons: Sequence[str] = ("kubelet", "crio")) -> Iterator[None]:
        """Have the same files as ``podkeep mountns install --without-podkeep`` writes, without podkeep's time."""
        pin, files = Path(PIN), [f"{UNITS}/{SERVICE}", str(units.HELPER)]
        self.machine.write(files[0], units.service(pin, podkeep=None, keep=keep))
        self.machine.write(files[1], units.helper(pin), 0o755)
        for name in (f"{daemon}.service" for daemon in daemons):
            unit = execstart.read(name, execstart.split(self.sh(f"systemctl cat {name}"), name))
            files.append(f"{UNITS}/{name}.d/{units.DROP_IN}")
            self.machine.write(files[-1], units.drop_in(unit, Entry(pin=pin)))
        self.sh("systemctl daemon-reload")
        try:
            yield
        finally:
            self.sh(f"systemctl stop {' '.join(daemons)} {SERVICE}; rm -f {' '.join(files)}; systemctl daemon-reload")
            self.sh(f"rmdir --ignore-fail-on-non-empty {' '.join(f'{UNITS}/{daemon}.service.d' for daemon in daemons)}")
            self._clear()

    @contextmanager
    def without_pods(self) -> Iterator[None]:
        """Leave no pod: a runtime does not start in a namespace without the mounts of those that run."""
        try:
            yield
        finally:
            self.machine.run("umount /srv/pod/up; podkeep rm pod", timeout=TIMEOUT_S)

    def _clear(self) -> None:
        """Remove what is kept, and see that nothing else is left."""
        kept = Path(PIN).parent
        self.sh(f"if findmnt {kept}; then umount -R {kept}; rm -r {kept}; fi >&2; systemctl reset-failed")
        self.sh("rm -f /run/kubelet.notes /run/crio.notes")
        left = f"ls -d {units.HELPER} {UNITS}/{SERVICE} {UNITS}/*.d/{units.DROP_IN} {kept}"
        assert self.machine.run(left).stdout == ""


@pytest.fixture(scope="module")
def node(machine: Machine) -> Iterator[Node]:
    """The machine with a kubelet and CRI-O, of sorts."""
    files = {
        f"{UNITS}/kubelet.service": KUBELET,
        f"{UNITS}/kubelet.service.d/10-kubeadm.conf": KUBEADM,
        f"{UNITS}/crio.service": CRIO,
    }
    machine.write("/usr/local/bin/notifier", NOTIFIER, 0o755)
    for path, text in files.items():
        machine.write(path, text)
    machine.run("mkdir '/var/lib/kube let' && systemctl daemon-reload", check=True)
    yield Node(machine)
    machine.run("if mountpoint -q /run/netns; then umount /run/netns; fi", check=True)
    paths = " ".join((*files, "/usr/local/bin/notifier"))
    machine.run(f"rm {paths}; rmdir '/var/lib/kube let' {UNITS}/kubelet.service.d; systemctl daemon-reload", check=True)


FLAVOURS = pytest.mark.parametrize("flavour", ["--keep", "--without-podkeep"])
"""With podkeep and with util-linux alone; the latter's is torn down."""


@FLAVOURS
@pytest.mark.requirement("M1", "M2", "M4", "M6", "M7", "M10", "M11", "M13", "M15", "M16", "M33")
def test_a_daemon_starts_in_the_namespace(node: Node, flavour: str) -> None:
    node.sh("systemctl start kubelet && systemctl reload kubelet && systemctl stop kubelet")
    alone = node.notes("kubelet")
    node.sh("rm /run/kubelet.notes")
    host = node.sh("readlink /proc/1/ns/mnt")
    with node.installed(flavour):
        node.sh("systemctl start kubelet")
        for key, value in {
            "ActiveState": "active",
            "Type": "oneshot",
            "RemainAfterExit": "yes",
            "RuntimeDirectory": "container-mount-namespace",
        }.items():
            assert node.shows(SERVICE, key) == value, "starting the daemon alone starts the namespace first"
        assert SERVICE in node.shows("kubelet", "Requires").split()
        assert SERVICE in node.shows("kubelet", "After").split()
        assert node.pinned() == node.namespace("kubelet") != host
        assert set(node.sh("nsenterCmns findmnt -n -o PROPAGATION /").split(",")) == {"shared", "slave"}
        steps = node.sh(f"journalctl -b -o cat -u {SERVICE}")
        assert PIN in steps
        # The process that systemd knows is the daemon, started as ever: it says when it is ready, and gets signals.
        assert node.notes("kubelet")[0]["pid"] == int(node.pid("kubelet"))
        node.sh("systemctl reload kubelet && systemctl stop kubelet")
        inside = node.notes("kubelet")
        assert [{**note, "pid": 0} for note in inside] == [{**note, "pid": 0} for note in alone]
        assert [note["signal"] for note in inside[1:]] == ["SIGHUP", "SIGTERM"]
        # No process is inside, and it stays.
        assert node.machine.run(f"readlink /proc/[0-9]*/ns/mnt | grep -Fx '{node.pinned()}'").stdout == ""
        node.sh("mount -t tmpfs host /mnt")
        assert node.sh("nsenterCmns findmnt -n -o SOURCE /mnt; umount /mnt") == "host"
        node.sh(f"systemctl stop {SERVICE}")
        if flavour == "--without-podkeep":
            assert node.pinned() == ""
            assert node.machine.run(["test", "-e", str(Path(PIN).parent)]).returncode == 1
        else:
            assert node.pinned() != ""
    node.sh("systemctl start kubelet")
    assert node.namespace("kubelet") == host, "uninstalled, it is as it was"
    node.sh("systemctl stop kubelet; rm /run/kubelet.notes")


@pytest.mark.requirement("M8", "M13", "M29", "M35")
def test_restarts_of_daemons_and_of_the_namespace(node: Node) -> None:
    with node.placed():
        node.sh("systemctl start kubelet crio")
        node.mark()
        for command in (
            "systemctl restart kubelet",
            "systemctl restart crio",
            "kill -KILL $(systemctl show -P MainPID kubelet); systemctl restart kubelet",
        ):
            node.sh(command)
            assert node.is_marked("kubelet")
            assert node.is_marked("crio")
            assert node.namespace("kubelet") == node.namespace("crio") == node.pinned()
        before = {unit: node.pid(unit) for unit in ("kubelet", "crio")}
        node.sh(f"systemctl restart {SERVICE} && systemctl start kubelet crio")
        for unit, pid in before.items():
            assert node.pid(unit) != pid, "they follow: none is left in a namespace that nobody else can enter"
            assert node.namespace(unit) == node.pinned()
            assert not node.is_marked(unit), "it is a new namespace"


@pytest.mark.requirement("M36")
def test_a_service_that_keeps_the_namespace(node: Node) -> None:
    with node.placed(keep=True):
        node.sh("systemctl start kubelet")
        node.mark()
        node.sh(f"systemctl stop {SERVICE} && systemctl start kubelet")
        assert node.is_marked("kubelet")
        node.sh(f"systemctl restart {SERVICE} && systemctl start kubelet")
        assert node.is_marked("kubelet")
        assert node.namespace("kubelet") == node.pinned()


@pytest.mark.requirement("M16")
def test_a_masked_drop_in_switches_it_off_for_one_daemon(node: Node) -> None:
    with node.placed():
        drop_in = f"{UNITS}/kubelet.service.d/{units.DROP_IN}"
        node.sh(f"ln -sf /dev/null {drop_in} && systemctl daemon-reload && systemctl start kubelet crio")
        assert node.namespace("kubelet") == node.sh("readlink /proc/1/ns/mnt")
        assert node.namespace("crio") == node.pinned()
        node.sh(f"rm {drop_in}")


def test_a_daemon_does_not_start_where_the_namespace_cannot_be_made(node: Node) -> None:
    with node.placed():
        node.sh(f"mkdir -p {Path(PIN).parent} && mkdir {PIN}")
        assert node.machine.run("systemctl start kubelet").returncode != 0
        assert node.machine.run("cat /run/kubelet.notes").stdout == "", "not in the host's namespace either"
        node.sh(f"umount {Path(PIN).parent}; rm -r {Path(PIN).parent}")
        node.sh("systemctl start kubelet")
        assert node.namespace("kubelet") == node.pinned()


@pytest.mark.requirement("M15", "M18")
def test_containerd_is_wrapped_as_it_is(node: Node) -> None:
    node.machine.write(f"{UNITS}/containerd.service.d/50-slow.conf", SLOW)
    try:
        with node.placed(daemons=["containerd"]):
            node.sh("systemctl start containerd")
            pid = node.pid("containerd")
            assert node.sh(f"readlink /proc/{pid}/exe") == "/usr/bin/containerd"
            assert node.namespace("containerd") == node.pinned()
            node.sh("systemctl stop containerd")
            assert node.shows("containerd", "Result") == "success", "the signal to stop reached it"
    finally:
        node.sh(f"systemctl stop containerd; rm -r {UNITS}/containerd.service.d; systemctl daemon-reload")


def test_files_of_a_unit_are_found_as_systemd_finds_them(node: Node) -> None:
    """Of every service there is, and of some made to be difficult."""
    machine = node.machine
    odd = {
        f"{UNITS}/odd-one.service": "[Service]\nExecStart=/bin/true\n",
        f"{UNITS}/odd-.service.d/30.conf": "[Service]\nNice=1\n",
        f"{UNITS}/odd-one.service.d/20.conf": "[Service]\nNice=2\n",
        "/run/systemd/system/odd-one.service.d/20.conf": "[Service]\nNice=3\n",
        "/run/systemd/system/odd-one.service.d/Z.conf": "[Service]\nNice=3\n",
        "/run/systemd/system/odd-one.service.d/40.conf": "[Service]\nNice=3\n",
        "/run/systemd/system/service.d/10.conf": "[Unit]\n# every service\n",
        "/run/systemd/system/odd-.service.d/10.conf": "[Service]\nNice=4\n",
    }
    for path, text in odd.items():
        machine.write(path, text)
    masked = f"{UNITS}/odd-one.service.d/40.conf"
    node.sh(f"ln -s /dev/null {masked}; ln -s odd-one.service {UNITS}/odd-alias.service; systemctl daemon-reload")
    script = """
import pathlib, subprocess
from podkeep.mountns import unitfiles
directories = [pathlib.Path(name) for name in ("/etc/systemd/system", "/usr/lib/systemd/system")]
names = sorted({path.name for directory in directories for path in directory.glob("[!@]*.service")} - {"odd-.service"})
names = [name for name in names if "@" not in name]
keys = ["FragmentPath", "DropInPaths", "LoadState"]
shown = subprocess.run(["systemctl", "show", "-p", ",".join(keys), *names], capture_output=True, text=True, check=True)
for name, block in zip(names, shown.stdout.split("\\n\\n"), strict=True):
    known = dict(line.split("=", 1) for line in block.splitlines() if line)
    parts = unitfiles.parts(pathlib.Path("/"), name)
    found = [part.path for part in parts or []]
    if known["LoadState"] == "masked":
        assert parts == [], (name, parts)
        continue
    fragment = str(pathlib.Path(known["FragmentPath"]).resolve())
    paths = [path for path in known["DropInPaths"].split() if pathlib.Path(path).stat().st_size]  # not masked
    assert found == [fragment, *paths], (name, found, known)
print(len(names))
"""
    try:
        assert int(node.sh(f"{REPOSITORY}/.venv/bin/python -c '{script}'")) > 20
    finally:
        directories = f"{UNITS}/odd-one.service.d {UNITS}/odd-.service.d /run/systemd/system/*.d"
        node.sh(f"rm -r {directories} {UNITS}/odd-*.service; systemctl daemon-reload")


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  hostNetwork: true
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:latest
    imagePullPolicy: Never
    command:
    - sh
    - -c
    - exec 3<>/v/in; echo started >/v/out; while read -r _ <&3; do cat /v/up/word /m/word >/v/out; done
    volumeMounts:
    - {name: v, mountPath: /v, mountPropagation: HostToContainer}
    - {name: m, mountPath: /m}
  volumes:
  - {name: v, hostPath: {path: /srv/pod}}
  - {name: m, emptyDir: {medium: Memory}}
"""


@pytest.fixture
def runtime(node: Node, tmp_path: Path) -> Iterator[Node]:
    """podkeep's runtime as a service, with an image, and a pod's description in /root/pod.yaml."""
    machine = node.machine
    archive = busybox_layout(tmp_path / "image", name="localhost/busybox:latest").tar(tmp_path / "busybox.tar")
    machine.put(archive, "/root/busybox.tar")
    machine.write("/root/pod.yaml", POD)
    machine.write(f"{UNITS}/podkeep.service.d/50-slow.conf", SLOW)
    node.sh(f"mkdir /srv/pod && mkfifo /srv/pod/in /srv/pod/out && rm -f {UNITS}/podkeep.service")
    yield node
    node.machine.run("systemctl stop podkeep agent", timeout=TIMEOUT_S)
    node.sh(f"rm -rf {UNITS}/podkeep.service {UNITS}/podkeep.service.d /srv/pod /root/busybox.tar /root/pod.yaml")
    node.sh("systemctl daemon-reload; systemctl reset-failed")


def ask(node: Node) -> str:
    """Have the pod tell what it sees."""
    return node.sh("echo >/srv/pod/in; cat /srv/pod/out")


@pytest.mark.requirement("M8", "M12", "M13", "M16", "M19", "M21", "M23", "M27", "M36", "M37")
def test_a_pod_outlives_restarts_and_the_host_sees_none_of_its_mounts(runtime: Node) -> None:
    node = runtime
    node.sh(f"podkeep runtime unit >{UNITS}/podkeep.service")
    with node.installed(), node.without_pods():
        node.sh("systemctl start podkeep && podkeep image load /root/busybox.tar")
        assert node.namespace("podkeep") == node.pinned()
        host = node.sh("cat /proc/1/mountinfo").splitlines()
        node.sh("systemd-run --unit=agent podkeep run /root/pod.yaml && cat /srv/pod/out")
        assert node.sh("cat /proc/1/mountinfo").splitlines() == host, "not one line more"
        inside = node.sh("nsenterCmns cat /proc/self/mountinfo")
        assert "/volumes/kubernetes.io~empty-dir/m" in inside
        # What the host mounts now is seen in the pod; the agent's mount, too.
        node.sh("mkdir /srv/pod/up && mount -t tmpfs up /srv/pod/up && echo from the host >/srv/pod/up/word")
        volume = next(line.split()[4] for line in inside.splitlines() if "kubernetes.io~empty-dir/m" in line)
        node.sh(f"echo from the agent | nsenterCmns tee {volume}/word")
        assert ask(node) == "from the host\nfrom the agent"
        first = node.pid("podkeep")
        node.sh("systemctl restart podkeep")
        assert ask(node) == "from the host\nfrom the agent"
        second = node.pid("podkeep")
        # The service restarts, and the runtime with it: but the namespace is kept, because the pod is in it.
        node.sh(f"systemctl restart {SERVICE} && systemctl start podkeep")
        assert len({first, second, node.pid("podkeep")}) == 3
        assert node.namespace("podkeep") == node.pinned()
        assert volume in node.sh(f"cat /proc/{node.pid('podkeep')}/mountinfo"), "it is the same one"
        assert ask(node) == "from the host\nfrom the agent"
        removed = node.machine.run("podkeep rm pod", timeout=TIMEOUT_S)
        assert removed.returncode == 0, removed.stderr + node.sh("journalctl --no-pager -u agent -u podkeep")
        node.sh(f"umount /srv/pod/up && systemctl stop {SERVICE}")
        assert node.shows("podkeep", "ActiveState") == "inactive"
        assert node.pinned() == "", "nobody needs it any more"


@pytest.mark.requirement("M12")
def test_the_agent_runs_by_its_unit_as_it_is(runtime: Node) -> None:
    """In the namespace of the runtime, which its unit starts as well, without a drop-in of either."""
    node = runtime
    node.sh(f"podkeep runtime unit >{UNITS}/podkeep.service; podkeep agent unit >{UNITS}/podkeep-agent.service")
    try:
        with node.installed(), node.without_pods():
            node.sh("systemd-run --unit=podkeep-api --service-type=notify podkeep api")
            node.sh("systemctl start podkeep-agent")
            assert node.namespace("podkeep-agent") == node.namespace("podkeep") == node.pinned()
            assert "podkeep-agent" not in node.sh(f"ls -d {UNITS}/*.service.d")
            node.sh("podkeep image load /root/busybox.tar && podkeep apply -f /root/pod.yaml && cat /srv/pod/out")
            assert "/volumes/kubernetes.io~empty-dir/m" in node.sh("nsenterCmns cat /proc/self/mountinfo")
            assert "/volumes/kubernetes.io~empty-dir/m" not in node.sh("cat /proc/1/mountinfo")
            node.sh("podkeep delete pod pod")
    finally:
        node.machine.run("systemctl stop podkeep-agent podkeep-api", timeout=TIMEOUT_S)
        node.sh(f"rm -rf {UNITS}/podkeep-agent.service /var/lib/podkeep/api; systemctl daemon-reload")


@pytest.mark.requirement("M16")
def test_switched_off_the_host_sees_the_mounts(runtime: Node) -> None:
    node = runtime
    node.machine.write("/etc/podkeep/config.toml", "[mountns]\nenabled = false\n")
    try:
        with node.without_pods():
            node.sh(f"podkeep runtime unit >{UNITS}/podkeep.service && systemctl daemon-reload")
            node.sh("systemctl start podkeep && podkeep image load /root/busybox.tar")
            assert node.namespace("podkeep") == node.sh("readlink /proc/1/ns/mnt")
            node.sh("systemd-run --unit=agent podkeep run /root/pod.yaml && cat /srv/pod/out")
            assert "/volumes/kubernetes.io~empty-dir/m" in node.sh("cat /proc/1/mountinfo")
            assert node.machine.run("podkeep mountns install").returncode != 0
    finally:
        node.sh("rm -r /etc/podkeep")
