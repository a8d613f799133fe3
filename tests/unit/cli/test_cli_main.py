from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from podkeep.base import lockfile
from podkeep.base.errors import NotFound
from podkeep.cli import main
from podkeep.cli.core import node_report
from podkeep.cli.core.node_report import DaemonReport, NodeReport
from podkeep.cli.core.output import EXIT_CONFIGURATION, error_text
from podkeep.cli.core.verbs import LazyGroup

PODKEEP = str(Path(sys.executable).with_name("podkeep"))


def podkeep(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PODKEEP, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_lists_every_verb_and_imports_none() -> None:
    code = (
        "import sys\nfrom podkeep.cli.main import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        "    print('IMPORTED', [name for name in sys.modules if name.startswith('podkeep.') or name == 'grpc'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    for name, verb in main.VERBS.items():
        assert name in done.stdout
        assert verb.help in done.stdout
        assert f"'{verb.module}'" not in done.stdout
    assert "'grpc'" not in done.stdout


@pytest.mark.parametrize("name", main.VERBS)
def test_every_verb_can_be_imported_and_explains_itself(name: str) -> None:
    group = main.podkeep
    assert isinstance(group, LazyGroup)
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert command.name == name
    assert command.help


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu"], "No such command 'statsu'. Did you mean status?"),
        (["image", "lss"], "No such command 'lss'. Did you mean ls?"),
        (["xyz"], "No such command 'xyz'."),
    ],
)
def test_a_verb_that_there_is_not_is_told_with_the_one_that_may_be_meant(words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as told:
        main.podkeep.main(args=words, prog_name="podkeep", standalone_mode=False)
    assert told.value.format_message() == said


@pytest.mark.slow
def test_standard_output_may_be_closed() -> None:
    command = ["sh", "-c", 'exec "$0" --version >&-', PODKEEP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_closed_stream_is_no_number_for_what_is_opened_next() -> None:
    code = (
        "import os\nfrom podkeep.cli.main import main\ntry:\n    main(['--version'])\nfinally:\n"
        "    os.write(2, ' '.join(os.readlink(f'/proc/self/fd/{number}') for number in (0, 1)).encode())"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "/dev/null /dev/null")


def test_a_full_disk_behind_the_output_is_no_defect() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PODKEEP, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == main.EXIT_FAILED
    assert done.stderr == "podkeep: cannot write the output: No space left on device\n"


def test_unknown_verb_is_wrong_usage() -> None:
    done = podkeep("frobnicate")
    assert done.returncode == main.EXIT_USAGE
    assert "frobnicate" in done.stderr


@pytest.mark.slow
def test_error_is_one_line_and_a_hint_without_traceback(tmp_path: Path) -> None:
    done = podkeep("--config", str(tmp_path / "absent.toml"), "ps")
    assert done.returncode == EXIT_CONFIGURATION
    assert done.stderr == f"podkeep: {tmp_path}/absent.toml: no such configuration file\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "verb"),
    [
        ("node.nam=one", "node"),
        ("api.address=", "node"),
        ("agent.uid_mapping=nonsense", "node"),
        ("agent.feature_gates={Nonsense=true}", "agent"),
        ("agent.feature_gates={Nonsense=true}", "node"),
        ("api.feature_gates={Nonsense=true}", "node"),
        ("api.feature_gates={Nonsense=true}", "api"),
        ("runtime.pids_limit=-1", "runtime"),
        ("images.allowed_registries=['a b']", "runtime"),
        ("api.nam=one", "api"),
    ],
)
def test_a_daemon_whose_configuration_is_refused_ends_with_a_status_of_its_own(
    tmp_path: Path, setting: str, verb: str
) -> None:
    """By it systemd knows that starting the daemon again is of no use."""
    places = [
        part
        for key in ("node.run", "runtime.run", "runtime.root", "runtime.socket", "agent.root", "api.root")
        for part in ("--set", f"{key}={tmp_path / key}")
    ]
    done = podkeep("--set", "mountns.enabled=false", *places, "--set", setting, verb)
    assert done.returncode == EXIT_CONFIGURATION, done.stderr
    assert setting.partition("=")[0] in done.stderr


@pytest.mark.slow
def test_a_kubelet_configuration_that_is_refused_is_configuration(tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPod: 10\n")
    done = podkeep("agent", "--config", str(file))
    assert done.returncode == EXIT_CONFIGURATION
    assert done.stderr.startswith(f"podkeep: {file}: maxPod: unknown field\n")


@pytest.mark.slow
def test_configuration_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    config = tmp_path / "latin1.toml"
    config.write_bytes("# gr\u00fcn\n".encode("latin-1"))
    done = podkeep("--config", str(config), "ps")
    assert done.returncode == EXIT_CONFIGURATION
    assert done.stderr.startswith(f"podkeep: {config}: not UTF-8 text: ")


@pytest.mark.slow
def test_run_says_that_it_needs_root_before_it_does_anything(tmp_path: Path) -> None:
    config = tmp_path / "podkeep.toml"
    config.write_text(f'[runtime]\nroot = "{tmp_path}/root"\nrun = "{tmp_path}/run"\nsocket = "{tmp_path}/none.sock"\n')
    pod = (
        "{apiVersion: v1, kind: Pod, metadata: {name: web},"
        " spec: {containers: [{name: main, image: localhost/absent}]}}"
    )
    code = (
        "import os, sys; from podkeep.cli import main, run; import podkeep.api.manifest;"
        " os.geteuid() or os.setresuid(65534, 65534, 65534); main.main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(config), "run", "-"],
        input=pod,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == main.EXIT_FAILED
    assert done.stderr == "podkeep: `podkeep run` needs root\nhint: run it as root\n"
    assert sorted(tmp_path.iterdir()) == [config]


@pytest.mark.slow
def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    done = podkeep("--debug", "--config", str(tmp_path / "absent.toml"), "ps")
    assert done.returncode == EXIT_CONFIGURATION
    assert "Traceback" in done.stderr


@pytest.mark.slow
def test_verb_without_a_runtime_says_how_to_start_one(tmp_path: Path) -> None:
    config = tmp_path / "podkeep.toml"
    config.write_text(f'[runtime]\nsocket = "{tmp_path}/none.sock"\n')
    done = podkeep("ps", PODKEEP_CONFIG=str(config))
    assert done.returncode == main.EXIT_FAILED
    assert done.stderr == (
        f"podkeep: no runtime answers on {tmp_path}/none.sock: no such socket\n"
        f"hint: start it as root: podkeep --config {config} runtime\n"
    )


@pytest.mark.slow
def test_verbs_on_a_node_that_does_not_run_say_how_to_start_it(tmp_path: Path) -> None:
    """A runtime alone, or an API alone, would not run its pods; a socket may be left of one that was killed."""
    config, left = tmp_path / "podkeep.toml", tmp_path / "api.sock"
    config.write_text(
        f'[runtime]\nsocket = "{tmp_path}/none.sock"\n[agent]\nroot = "{tmp_path}/agent"\n'
        f'[api]\nroot = "{tmp_path}/api"\nunix_socket = "{left}"\n'
    )
    for file in (tmp_path / "agent/agent.lock", tmp_path / "api/api.db"):
        file.parent.mkdir()
        file.touch()
    hint = f"start it as root: podkeep --config {config} node"

    def said(*verb: str) -> str:
        done = podkeep(*verb, PODKEEP_CONFIG=str(config), KUBECONFIG="", HOME=str(tmp_path))
        return done.stderr.removesuffix(f"\nhint: {hint}\n")

    assert said("ps") == f"podkeep: no runtime answers on {tmp_path}/none.sock: no such socket"
    # What is meant for this node does not reach the cluster of a file that happens to be there.
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "contexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
    )
    assert said("delete", "pods", "--all") == f"podkeep: no API answers on {left}: no such socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    assert said("get", "pods") == f"podkeep: no API answers on {left}: Connection refused"


@pytest.mark.slow
def test_verbs_on_a_node_whose_daemons_are_down_say_that_it_starts_them_again(tmp_path: Path) -> None:
    config, runs = tmp_path / "podkeep.toml", tmp_path / "node"
    config.write_text(
        f'[runtime]\nsocket = "{tmp_path}/none.sock"\n[node]\nrun = "{runs}"\n'
        f'[api]\nunix_socket = "{tmp_path}/api.sock"\n'
    )
    runs.mkdir()
    down = tuple(DaemonReport(name=name, state="failed") for name in ("runtime", "api"))
    told = NodeReport(pid=1, runtime=f"{tmp_path}/none.sock", kubeconfig="", embedded=True, daemons=down)
    node_report.write(runs, told)
    held = lockfile.acquire(runs / node_report.LOCK)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "api.sock"))
    try:
        for verb in (("ps",), ("get", "pods")):
            done = podkeep(*verb, PODKEEP_CONFIG=str(config), KUBECONFIG="")
            assert done.stderr.endswith(
                "hint: the node that runs here starts it again by itself; `podkeep status` says how it is\n"
            )
    finally:
        os.close(held)


@pytest.mark.slow
def test_status_is_that_of_this_node_whatever_kubeconfig_names(tmp_path: Path) -> None:
    config, runs, other = tmp_path / "podkeep.toml", tmp_path / "node", tmp_path / "other.conf"
    config.write_text(
        f'[runtime]\nsocket = "{tmp_path}/none.sock"\n[node]\nrun = "{runs}"\n'
        f'[api]\nunix_socket = "{tmp_path}/api.sock"\n'
    )
    other.write_text(
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "contexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
    )
    runs.mkdir()
    serves = (DaemonReport(name="api", state="ready"),)
    told = NodeReport(pid=1, name="one", runtime=f"{tmp_path}/none.sock", kubeconfig="", embedded=True, daemons=serves)
    node_report.write(runs, told)
    held = lockfile.acquire(runs / node_report.LOCK)
    try:
        done = podkeep("status", PODKEEP_CONFIG=str(config), KUBECONFIG=str(other))
    finally:
        os.close(held)
    assert done.returncode == main.EXIT_FAILED
    assert done.stdout.startswith(
        f"node one: the API does not answer: no API answers on {tmp_path}/api.sock: no such socket\n"
    )


def test_each_problem_has_a_line() -> None:
    error = NotFound("first\nsecond", hint="do this")
    assert error_text(error) == "podkeep: first\npodkeep: second\nhint: do this"


@pytest.mark.slow
def test_reader_that_leaves_early_causes_no_noise() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [PODKEEP, "doctor"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writing)
    assert done.returncode == main.EXIT_FAILED
    assert done.stderr == ""


@pytest.mark.slow
def test_exec_does_not_mix_a_timeout_with_a_terminal() -> None:
    done = podkeep("exec", "-it", "--timeout", "3", "web", "--", "sh")
    assert done.returncode == main.EXIT_FAILED
    assert "--timeout does not go with -i or -t" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [("podkeep do", "doctor"), ("podkeep image l", "load")])
def test_completion(words: str, expected: str) -> None:
    done = podkeep(_PODKEEP_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert done.returncode == 0
    assert f"plain,{expected}" in done.stdout.splitlines()


@pytest.mark.slow
def test_doctor_reports_json() -> None:
    done = podkeep("doctor", "-o", "json")
    findings = json.loads(done.stdout)
    assert {"kernel", "crun", "seccomp profile"} <= {finding["name"] for finding in findings}
    assert done.returncode == (1 if any(finding["level"] == "missing" for finding in findings) else 0)
    assert all(finding["fix"] for finding in findings if finding["level"] != "ok")
