from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.agent.user_namespaces.blocks import default_range
from podkeep.agent.user_namespaces.subordinate_ids import parse
from podkeep.base import config
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.diagnosis import daemon, finding, machine, mounting, programs
from podkeep.cli.diagnosis.finding import Level
from podkeep.cri.v1 import api_pb2
from podkeep.kernel.mount import mountinfo
from support.mountns import on_a_scratch_machine

PODKEEP = str(Path(sys.executable).with_name("podkeep"))


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("6.18.44", Level.OK),
        ("6.3.0-1-amd64", Level.OK),
        ("6.1.0-37-cloud-amd64", Level.WARNING),
        ("5.10.0", Level.MISSING),
        ("strange", Level.MISSING),
    ],
)
def test_kernel(release: str, level: Level) -> None:
    assert machine.kernel(release).level is level


@pytest.mark.parametrize(
    ("limit", "level"), [(None, Level.MISSING), (0, Level.MISSING), (109, Level.WARNING), (110, Level.OK)]
)
def test_user_namespaces(limit: int | None, level: Level) -> None:
    found = machine.user_namespaces(limit, 110)
    assert found.level is level
    assert ("sysctl -w user.max_user_namespaces=" in found.fix) == (limit in {0, 109})


@pytest.mark.parametrize(
    ("count", "level", "detail"),
    [
        (65536, Level.OK, "3 blocks of 65536 from 65536 on"),
        (
            65532 * 65536,
            Level.WARNING,
            "2 blocks of 65536 from 65536 on; 65532 blocks are left out, as /etc/subuid gives IDs to bob",
        ),
        (
            1 << 32,
            Level.MISSING,
            "0 blocks of 65536 from 65536 on; 65534 blocks are left out, as /etc/subuid gives IDs to bob",
        ),
    ],
)
def test_user_ids_that_users_leave_to_pods(count: int, level: Level, detail: str) -> None:
    granted = parse(f"bob:65536:{count}\n", "/etc/subuid")
    found = machine.user_ids(default_range(3).without(granted))
    assert (found.level, found.detail) == (level, detail)
    assert ("agent.max_pods is 3" in found.why) == ("/etc/subuid" in found.fix) == (level is not Level.OK)


def test_cgroups() -> None:
    needed = ["cpu", "memory", "pids"]
    assert machine.cgroup_layout(version=2, hybrid=False, controllers=needed).level is Level.OK
    hybrid = machine.cgroup_layout(version=1, hybrid=True, controllers=needed)
    assert hybrid.level is Level.OK
    assert "hides that tree" in hybrid.detail
    without = machine.cgroup_layout(version=2, hybrid=False, controllers=["cpu", "pids"])
    assert without.level is Level.WARNING
    assert "memory" in without.why


def test_other_facts() -> None:
    assert machine.forwarding(1).level is Level.OK
    assert machine.forwarding(0).fix == "sysctl -w net.ipv4.ip_forward=1"
    assert machine.user(1000).level is Level.MISSING
    assert machine.resources(frozenset()).level is Level.WARNING


def test_directory_that_pods_cannot_reach_into(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "run").mkdir(parents=True)
    closed.chmod(0o700)
    found = machine.directory("runtime.run", closed / "run" / "absent")
    assert found.level is Level.MISSING
    assert found.fix.endswith(f" {closed}")
    assert machine.directory("runtime.run", Path("/run/podkeep-absent")).level is Level.OK


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("crun version 1.8.1\ncommit: 123", "1.8.1"),
        ("nftables v1.0.6 (Lester Gooch #5)", "1.0.6"),
        ("usage: getsubids", "present, no version told"),
    ],
)
def test_version(said: str, version: str) -> None:
    assert programs.version(said) == version


@pytest.mark.slow
def test_program_that_is_not_there(tmp_path: Path) -> None:
    absent = config.RuntimeConfig(
        conmon=str(tmp_path / "conmon"), catatonit=str(tmp_path / "catatonit"), seccomp_profile=str(tmp_path / "s.json")
    )
    found = {item.name: item for item in programs.examine(config.Config(runtime=absent))}
    assert found["crun"].level is Level.OK
    assert found["conmon"].level is Level.MISSING
    assert found["conmon"].fix == "install it, or set runtime.conmon to where it is"
    assert found["catatonit"].level is Level.WARNING
    assert found["seccomp profile"].level is Level.MISSING


@pytest.mark.slow
def test_asking_for_versions_leaves_nothing(tmp_path: Path) -> None:
    # crun makes its directory of states whatever it is asked; and a handler's own directory is the runtime's to make.
    body = """
    from podkeep.base.config import Config
    from podkeep.cli.diagnosis import programs
    before = sorted(Path("/run").iterdir())
    assert "crun" in {item.name for item in programs.examine(Config())}
    assert sorted(Path("/run").iterdir()) == before
    """
    on_a_scratch_machine(tmp_path, body)


def test_every_default_path_has_a_package() -> None:
    runtime = config.RuntimeConfig()
    for path in (runtime.handlers["crun"].path, runtime.conmon, runtime.catatonit, runtime.seccomp_profile):
        assert programs.fix(path, "key").startswith("apt-get install ")
    assert programs.fix("/opt/conmon", "runtime.conmon") == "install it, or set runtime.conmon to where it is"


def test_only_the_default_handler_is_required(tmp_path: Path) -> None:
    handlers = {name: config.HandlerConfig(path=str(tmp_path / name)) for name in ("crun", "kata")}
    used = programs.programs(config.Config(runtime=config.RuntimeConfig(handlers=handlers)))
    assert {Path(item.path).name for item in used if item.required} == {"crun", "conmon", "nft"}


def test_handlers() -> None:
    features = api_pb2.RuntimeHandlerFeatures(user_namespaces=True)
    assert daemon.of_handler(api_pb2.RuntimeHandler(name="", features=features)).level is Level.OK
    other = daemon.of_handler(api_pb2.RuntimeHandler(name="runc"))
    assert (other.level, other.fix) == (Level.WARNING, "use a handler whose OCI runtime maps mounts, such as crun")
    known = daemon.of_handler(api_pb2.RuntimeHandler(name="crun"), "it may not; hint: let it")
    assert known.detail == "user_namespaces: no, recursive_read_only_mounts: no: it may not"
    assert known.fix == "let it"
    for text in ("", "{", "[]", '{"crun": {"why_not": 5}}'):  # of another runtime
        assert daemon._reasons(text) == {}
    broken = api_pb2.RuntimeCondition(type="NetworkReady", reason="NoBridge", message="it broke")
    network = daemon.of_condition(broken)
    assert network.level is Level.MISSING
    assert network.detail == "NoBridge: it broke"
    apart = daemon.of_condition(
        api_pb2.RuntimeCondition(type="MountNamespaceInSync", reason="Mismatch", message="apart; hint: a; then b")
    )
    assert (apart.level, apart.detail, apart.fix) == (Level.WARNING, "Mismatch: apart", "a; then b")


def test_report() -> None:
    found = [
        finding.ok("crun", "1.8.1"),
        finding.missing("conmon", "absent", why="needed", fix="apt-get install conmon"),
    ]
    assert finding.report(found) == [
        "ok       crun    1.8.1",
        "missing  conmon  absent",
        "                 why: needed",
        "                 fix: apt-get install conmon",
        "1 ok, 0 warning, 1 missing",
    ]


def test_existing_parent(tmp_path: Path) -> None:
    assert mounting.existing_parent(tmp_path / "a" / "b") == tmp_path
    assert mounting.existing_parent(tmp_path) == tmp_path


def doctor(directory: Path, *wrapper: str, root: Path | None = None) -> dict[str, dict[str, str]]:
    """Run the verb with the runtime's root in ``root`` or ``directory`` and return the findings by name."""
    path = directory / "podkeep.toml"
    path.write_text(f'[runtime]\nroot = "{root or directory}/root"\nsocket = "{directory}/none.sock"\n')
    argv = [*wrapper, PODKEEP, "--config", str(path), "doctor", "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return {item["name"]: item for item in json.loads(done.stdout)}


@pytest.mark.slow
def test_idmapped_mounts_are_tried_and_leave_nothing(tmp_path: Path) -> None:
    before = mountinfo.read()
    found = doctor(tmp_path)
    assert found[f"idmapped mount in {tmp_path}"]["level"] == "ok"
    assert found["root file systems"]["level"] == "ok"
    assert found["root file systems"]["detail"].startswith("idmapped; mounting 16 files took: idmapped ")
    assert re.search(r"metacopy [0-9.]+ ms, copy [0-9.]+ ms$", found["root file systems"]["detail"])
    assert found["idmapped tmpfs"]["level"] == "ok"
    assert mountinfo.read() == before
    assert [path.name for path in tmp_path.iterdir()] == ["podkeep.toml"]


@pytest.mark.slow
def test_file_system_that_cannot_be_idmapped_is_found(tmp_path: Path) -> None:
    ramfs = tmp_path / "ramfs"
    ramfs.mkdir()
    mount = 'mount -t ramfs none "$1" && shift && exec "$@"'
    found = doctor(tmp_path, "unshare", "--mount", "sh", "-c", mount, "sh", str(ramfs), root=ramfs)
    refused = found[f"idmapped mount in {ramfs}"]
    assert refused["level"] == "missing"
    assert "EINVAL" in refused["detail"]
    assert "ext4" in refused["fix"]
    assert found["root file systems"]["level"] in {"missing", "warning"}
    assert "idmapped" in found["root file systems"]["detail"]
    assert "EINVAL" in found["root file systems"]["detail"]
    assert found["idmapped tmpfs"]["level"] == "ok"


@pytest.mark.parametrize(
    ("seconds", "asked", "stays", "expedited", "said"),
    [
        (0.0001, True, True, False, "favordynmods is in force, until the next boot"),
        (0.0001, False, False, False, "favordynmods is in force, while a hierarchy is mounted with it"),
        (0.0001, False, False, True, "in 0.1 ms: /sys/kernel/rcu_expedited ends the wait for RCU"),
        (0.0117, True, True, False, "in 11.7 ms; the runtime sets favordynmods when it starts"),
        (0.0117, False, True, True, "runtime.favordynmods = true ends that, for the whole machine and until its next"),
    ],
)
def test_how_long_a_process_takes_to_enter_a_cgroup(
    seconds: float, asked: bool, stays: bool, expedited: bool, said: str
) -> None:
    found = machine.cgroup_moves(seconds, asked=asked, stays=stays, expedited=expedited)
    assert found.level is Level.OK
    assert said in found.detail


def test_a_machine_on_which_nothing_serves_can_be_a_node_or_a_runtime(tmp_path: Path) -> None:
    api, agent = tmp_path / "api", tmp_path / "agent"
    settings = (f"runtime.socket={tmp_path / 'none.sock'}", f"api.root={api}", f"agent.root={agent}")
    podkeep = f"podkeep {' '.join(f'--set {setting}' for setting in settings)}"

    def fix() -> str:
        (found,) = daemon.examine(Invocation(config_path=None, debug=False, settings=settings))
        return found.fix

    assert fix() == (
        f"{podkeep} node (a Kubernetes node: runtime, API and agent),"
        f" or {podkeep} runtime (the runtime alone, as for a kubelet)"
    )
    for directory, name in ((api, "api.db"), (agent, "agent.lock")):
        directory.mkdir()
        (directory / name).touch()
    assert fix() == f"{podkeep} node", "it has pods, which a runtime alone would not run"
