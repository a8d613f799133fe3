"""``podkeep classes`` against a real daemon, with a type that only its configuration knows: a hook enforces it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.test_verbs import running_pod

from podkeep.kernel.cgroup.cgroups import Cgroups
from support.daemon import Daemon
from support.processes import write_script
from support.waiting import TIMEOUT_S

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "classes.yaml"
DOCUMENT = ROOT / "docs" / "class-resources.md"
DEMO = "vendor.example/demo"
SCRIPT = "sleep 1000"

PROGRAM = Path(__file__).with_name("programs") / "nice_hook.py"

CONFIG = """
[class_resources]
container_defaults = {{"{demo}" = "low"}}
[class_resources.types."{demo}"]
hook = "{hook}"
[class_resources.types."{demo}".classes.low]
parameters = {{nice = "3"}}
[class_resources.types."{demo}".classes.lower]
parameters = {{nice = "7"}}
[class_resources.types.tasks]
levels = ["container", "pod"]
[class_resources.types.tasks.classes.few]
cgroup = {{"pids.max" = "40"}}
[class_resources.types.tasks.classes.many]
cgroup = {{"pids.max" = "400"}}
[class_resources.types.fixed]
immutable = true
[class_resources.types.fixed.classes.a]
cgroup = {{"{cpu}" = "50"}}
[class_resources.types.fixed.classes.b]
cgroup = {{"{cpu}" = "60"}}
[class_resources.types.gone]
hook = "/nosuch/hook"
[class_resources.types.gone.classes.a]
"""


def manifest(image: str, classes: dict[str, str], pod_classes: dict[str, str]) -> str:
    container = {"name": "main", "image": image, "command": ["sh", "-c", SCRIPT], "resources": {"classes": classes}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    if pod_classes:
        spec["resources"] = {"classes": pod_classes}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})


@pytest.fixture
def demo(own_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon with types of its own configuration; what it holds is counted."""
    hook = own_daemon.base / "hook"
    write_script(hook, f"#!{sys.executable}\n{PROGRAM.read_text()}")
    cpu = "cpu.shares" if Cgroups().version == 1 else "cpu.weight"
    own_daemon.extra += CONFIG.format(demo=DEMO, hook=hook, cpu=cpu)
    own_daemon.write()
    with own_daemon:
        before = own_daemon.resources()
        yield own_daemon
        assert own_daemon.resources() == before


def run(daemon: Daemon, *arguments: str) -> str:
    done = daemon.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(daemon: Daemon) -> dict[str, Any]:
    report = json.loads(run(daemon, "classes", "-o", "json"))
    return report | {"by_name": {(item["name"], item["level"]): item for item in report["types"]}}


def calls(daemon: Daemon) -> list[str]:
    return (daemon.base / "calls").read_text().splitlines()


def first_process(daemon: Daemon) -> int:
    """Return the process of the one container."""
    found = Cgroups().processes(daemon.cgroup_parent, recursive=True)
    return min(pid for pid in found if _command(pid).startswith(("sh ", "sleep ")))


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def values(daemon: Daemon, name: str) -> set[str]:
    """Return what a file says in the cgroups of the daemon's pods and containers."""
    cgroups, found, todo = Cgroups(), set(), [daemon.cgroup_parent]
    while todo:
        path = todo.pop()
        todo += cgroups.children(path)
        found.add((cgroups.read(path, name) or "").strip())
    return found


@pytest.mark.requirement("Q2", "Q13", "Q94")
def test_a_type_of_the_configuration_is_discovered_assigned_and_enforced(
    demo: Daemon, image: str, tmp_path: Path
) -> None:
    offered = listed(demo)["by_name"][DEMO, "container"]
    assert ([item["name"] for item in offered["classes"]], offered["mutable"]) == (["low", "lower"], True)
    assert offered["default"] == "low"
    assert not listed(demo)["by_name"]["fixed", "container"]["mutable"]
    with running_pod(demo, tmp_path / "pod.json", manifest(image, {DEMO: "low", "tasks": "many"}, {"tasks": "few"})):
        process = first_process(demo)
        assert os.getpriority(os.PRIO_PROCESS, process) == 3
        assert {"40", "400"} <= values(demo, "pids.max")
        users = {(item["name"], item["level"]): item["classes"] for item in listed(demo)["types"]}
        assert {"name": "low", "users": ["default/web/main"]} in users[DEMO, "container"]
        assert {"name": "few", "users": ["default/web"]} in users["tasks", "pod"]
        assert [call.split()[0] for call in calls(demo)] == ["apply", "verify"]
        told = json.loads((demo.base / "told-apply").read_text())
        [documented] = [json.loads(text) for text in example("json")]
        assert {key: type(value) for key, value in told.items()} == {
            key: type(value) for key, value in documented.items()
        }
    assert calls(demo)[-1].startswith("release default/web/main low")


@pytest.mark.requirement("Q2", "Q94", "Q17")
def test_classes_are_changed_and_what_happened_is_said(demo: Daemon, image: str, tmp_path: Path) -> None:
    pod = manifest(image, {DEMO: "low", "fixed": "a"}, {"tasks": "few"})
    with running_pod(demo, tmp_path / "pod.json", pod):
        process = first_process(demo)
        changed = run(demo, "classes", "set", "web/main", f"{DEMO}=lower", "tasks=many")
        assert changed == (
            f"default/web/main: {DEMO}=lower (was low)\ndefault/web/main: tasks=many (was in no class)\n"
        )
        assert os.getpriority(os.PRIO_PROCESS, process) == 7
        assert run(demo, "classes", "set", "default/web/main", "tasks=many") == (
            "default/web/main: tasks=many already\n"
        )
        assert run(demo, "classes", "set", "web", "tasks=many") == "default/web: tasks=many (was few)\n"
        assert "40" not in values(demo, "pids.max")
        again = json.loads(run(demo, "classes", "set", "-o", "json", "web", "tasks=many"))
        assert again["before"]["tasks"] == again["classes"]["tasks"] == "many"
        for words, said in (
            (["web/main", f"{DEMO}=nosuch"], f"class resource {DEMO}: no class 'nosuch'"),
            (["web/main", "nosuch=a"], "class resource nosuch: "),
            (["web/main", "gone=a"], "its hook /nosuch/hook is not there"),
            (["web/main", "fixed=b"], "class resource fixed: the class of a container is immutable"),
            (["web", f"{DEMO}=low"], "offered for containers only\nhint: name the container: web/NAME"),
            (["nosuch", "tasks=few"], "no pod nosuch in namespace default"),
            (
                ["default/web", "tasks=few"],
                "no pod default in namespace default\nhint: for pod web as a whole: -n default web",
            ),
            (["default/other", "tasks=few"], "no pod default in namespace default\nhint: `podkeep ps -a`"),
            (["web/nosuch", "tasks=few"], "pod web has no container nosuch"),
        ):
            done = demo.run("classes", "set", *words)
            assert (done.returncode, done.stdout) == (1, "")
            assert said in done.stderr
        assert os.getpriority(os.PRIO_PROCESS, process) == 7


def test_a_container_that_ended_has_no_class_to_change(demo: Daemon, image: str, tmp_path: Path) -> None:
    pod = json.loads(manifest(image, {}, {}))
    setup = {"name": "setup", "image": image, "command": ["true"], "resources": {"classes": {"tasks": "few"}}}
    pod["spec"]["initContainers"] = [setup]
    with running_pod(demo, tmp_path / "pod.json", json.dumps(pod)):
        done = demo.run("classes", "set", "web/setup", "tasks=many")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("podkeep: container default/web/setup has ended: it is in no class any more\n")


@pytest.mark.requirement("Q2", "Q79")
def test_default_is_the_class_that_the_node_chose(demo: Daemon, image: str, tmp_path: Path) -> None:
    with running_pod(demo, tmp_path / "pod.json", manifest(image, {DEMO: "lower"}, {})):
        process = first_process(demo)
        assert os.getpriority(os.PRIO_PROCESS, process) == 7
        changed = run(demo, "classes", "set", "web/main", f"{DEMO}=default")
        assert changed == f"default/web/main: {DEMO}=low (was lower)\n"
        assert os.getpriority(os.PRIO_PROCESS, process) == 3


def test_a_hook_that_says_no_is_the_error_and_nothing_is_left(demo: Daemon, image: str, tmp_path: Path) -> None:
    (demo.base / "broken-apply").touch()
    path = tmp_path / "pod.json"
    path.write_text(manifest(image, {DEMO: "low"}, {}))
    done = demo.run("run", str(path))
    assert done.returncode != 0
    assert f"class resource {DEMO}: the hook {demo.base}/hook (apply) failed: the demo is broken" in done.stderr
    first, *others = [call.split()[0] for call in calls(demo)]
    assert (first, set(others)) == ("apply", {"release"})


def test_what_is_not_in_force_does_not_start(demo: Daemon, image: str, tmp_path: Path) -> None:
    (demo.base / "broken-verify").touch()
    path = tmp_path / "pod.json"
    path.write_text(manifest(image, {DEMO: "low"}, {}))
    done = demo.run("run", str(path))
    assert done.returncode != 0
    assert "(verify) failed: the demo is broken" in done.stderr
    assert calls(demo)[-1].startswith("release")


@pytest.mark.requirement("Q16")
def test_a_restart_knows_who_is_in_which_class(demo: Daemon, image: str, tmp_path: Path) -> None:
    with running_pod(demo, tmp_path / "pod.json", manifest(image, {DEMO: "lower", "tasks": "few"}, {})):
        process = first_process(demo)
        demo.kill()
        os.setpriority(os.PRIO_PROCESS, process, 9)
        demo.start()
        assert os.getpriority(os.PRIO_PROCESS, process) == 7
        offered = listed(demo)["by_name"]
        assert {"name": "lower", "users": ["default/web/main"]} in offered[DEMO, "container"]["classes"]
        assert {"name": "few", "users": ["default/web/main"]} in offered["tasks", "container"]["classes"]
    run(demo, "rm", "--all", "--grace-period", "0")  # what ran it may have ended when the daemon was gone
    assert calls(demo)[-1].startswith("release default/web/main lower")


def test_a_reload_gives_running_containers_what_their_class_means_now(demo: Daemon, image: str, tmp_path: Path) -> None:
    def reload(before: str, after: str, said: str) -> None:
        count = demo.log.read_text().count(said)
        demo.config.write_text(demo.config.read_text().replace(before, after))
        os.kill(demo.pid, signal.SIGHUP)
        deadline = time.monotonic() + TIMEOUT_S
        while demo.log.read_text().count(said) == count:
            assert time.monotonic() < deadline, demo.log.read_text()
            time.sleep(0.01)

    with running_pod(demo, tmp_path / "pod.json", manifest(image, {DEMO: "low", "tasks": "few"}, {"tasks": "many"})):
        process = first_process(demo)
        assert {"40", "400"} <= values(demo, "pids.max")
        reload('"40"', '"45"', "read again")
        assert {"45", "400"} <= values(demo, "pids.max")
        reload('nice = "3"', 'nice = "4"', "read again")
        assert os.getpriority(os.PRIO_PROCESS, process) == 4
        (demo.base / "broken-apply").touch()
        reload('"45"', '"50"', "the demo is broken")
        assert {"45", "400"} <= values(demo, "pids.max")  # as before, since another type could not follow
        (demo.base / "broken-apply").unlink()


def example(language: str) -> list[str]:
    """Return what is written in the documentation in a language."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


@pytest.mark.requirement("Q78", "Q94")
@pytest.mark.skipif(Cgroups().version != 1, reason="the documentation shows a machine with cgroup version 1")
def test_the_documentation_begins_with_what_is_so(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    config, (file, pod, *_), console = example("toml")[0], example("yaml"), example("console")
    path = own_daemon.base / "blockio.yaml"
    path.write_text(file)
    own_daemon.extra += config.replace("/etc/podkeep/blockio.yaml", str(path))
    own_daemon.write()
    document = yaml.safe_load(pod)
    document |= {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    document["spec"]["containers"][0] |= {"image": image, "command": ["sh", "-c", SCRIPT]}
    document["spec"]["terminationGracePeriodSeconds"] = 0
    # A device and its scheduler are this machine's; everything else is said here, too.
    shown = [line for line in console[0].splitlines()[1:] if "/dev/" not in line]
    checked = own_daemon.run("classes", "check", str(path), check=True).stdout
    assert [line for line in shown if line.replace("/etc/podkeep/blockio.yaml", str(path)) not in checked] == []
    with own_daemon, running_pod(own_daemon, tmp_path / "pod.json", json.dumps(document)):
        listed_, _, changed = console[1].partition("# podkeep classes set ")
        table = run(own_daemon, "classes").splitlines()
        rows = [line.split() for line in table]
        wanted = [line.split() for line in listed_.splitlines()[1:] if line != "..."]
        assert [row for row in wanted if row not in rows] == []
        assert [row for row in rows if row[0] in {"blockio", "oom"}] == wanted[1:5]
        words, _, answer = changed.partition("\n")
        assert run(own_daemon, "classes", "set", *words.split()) == answer


@pytest.mark.requirement("Q78")
def test_the_example_is_so(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("localhost/busybox:demo", image).replace("imagePullPolicy: Never", "")
    comment = [line.removeprefix("#").removeprefix("   ") for line in text.splitlines() if line.startswith("#")]
    start = comment.index("[class_resources]")
    own_daemon.extra += "\n".join(comment[start : comment.index("", start)])
    own_daemon.write()
    with own_daemon, running_pod(own_daemon, tmp_path / "pod.yaml", text, name="classes") as runner:
        assert {"20", "2000"} <= values(own_daemon, "pids.max")
        changed = run(own_daemon, "classes", "set", "classes/show", "tasks=many")
        assert changed == "default/classes/show: tasks=many (was few)\n"
        assert "20" not in values(own_daemon, "pids.max")
        run(own_daemon, "exec", "classes", "--", "touch", "/tmp/done")
        output, _ = runner.communicate(timeout=TIMEOUT_S)
        assert runner.returncode == 0
        assert b"oom_score_adj: 1000" in output


def test_the_table_and_why_a_type_is_not_offered(demo: Daemon) -> None:
    lines = run(demo, "classes").splitlines()
    assert lines[0].split() == ["TYPE", "LEVEL", "CLASS", "DEFAULT", "MUTABLE", "USED", "BY"]
    assert [DEMO, "container", "low", "yes", "yes", "-"] in [line.split() for line in lines]
    assert ["fixed", "container", "a", "-", "no", "-"] in [line.split() for line in lines]
    assert "not offered: gone for containers: its hook /nosuch/hook is not there" in lines
    assert lines[-1].startswith("not configured: blockio, oom, rdt")
    why = {(item["name"], item["level"]): item["why"] for item in listed(demo)["not_offered"]}
    assert why["gone", "container"] == "its hook /nosuch/hook is not there"
    assert why[DEMO, "pod"] == "it is for containers only"


def test_the_shell_completes_targets_and_classes(demo: Daemon, image: str, tmp_path: Path) -> None:
    def complete(*words: str) -> list[str]:
        environment = os.environ | {
            "_PODKEEP_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["podkeep", "--config", str(demo.config), "classes", "set", *words]),
            "COMP_CWORD": str(4 + len(words)),
        }
        command = [str(Path(sys.executable).parent / "podkeep")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]

    with running_pod(demo, tmp_path / "pod.json", manifest(image, {}, {})):
        assert complete("w") == ["web", "web/main"]
        assert complete("web/main", "ta") == ["tasks=few", "tasks=many"]
        assert complete("web/main", "fixed") == []
        assert complete("web", DEMO) == []
