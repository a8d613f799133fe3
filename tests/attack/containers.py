"""Containers that change everything they can write, and all that a node is asked for and reads there.

The pods run one program (``programs/tamper.py``) and are restarted by the agent; a case is one thing that is asked of
the node, by its API, a kubelet's endpoints or podkeep's own verbs. Making a case is pure: the same source of chance
makes the same one. What the containers do meanwhile is not repeated by a seed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attack.calls import generator
from attack.node import MEMORY_BYTES, PYTHON, bad_records, resident
from attack.report import Report
from support.kubelet_client import Kubelet
from support.running_node import RunningNode

NAME = "containers"
SETTINGS = ('agent.container_log_max_size="1Mi"', "agent.port=10250")
"""Of the agent: the same port after a restart."""
ANSWER_S = 60.0
"""A limit against hanging, and no measure of speed."""
COPY_S = 3
LIFE_S = 4
"""Of a container, more or less."""
_PROGRAMS = Path(__file__).with_name("programs")
_POWERS: Mapping[str, Mapping[str, Any]] = {
    "mapped-root": {"hostUsers": False, "security": {"privileged": True}},
    "mapped": {"hostUsers": False, "security": {}},
    "user": {"hostUsers": True, "security": {"runAsUser": 1000}},
    "powerless": {"hostUsers": True, "security": {"capabilities": {"drop": ["ALL"]}}},
}
"""Who tampers: none of them may do harm as what the machine's kernel takes it for."""
_PODS = "/api/v1/namespaces/default/pods"
_ENDPOINTS = ("/stats/summary", "/metrics/cadvisor", "/metrics/resource", "/pods", "/healthz")
_MERGE, _STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
_CONTAINERS = ("main", "paths")
_WORDS = {"main": ("/data", "/config", "/secret", "/projected", "/shared", "/memory"), "paths": ("/s1", "/s2", "/s3")}
_OF_THE_MACHINE = ("/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/hostname", "/dev/null", "/dev/zero", "/dev/full")
_OF_A_COMMAND = re.compile(r"container not found|command |container \S+ of pod \S+ is [a-z]+, not running")
"""So begins what a kubelet says with code 500 of a command that could not be run, or failed. A container may have ended
since it was looked at."""
_TERMINAL = re.compile("[\x1b\x9b]")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that is asked; ``@NUMBER`` is a pod, ``@file`` a new file.

    :ivar do: a method of HTTP, ``kubelet``, ``verb``, ``replace`` or ``kill``.
    :ivar words: a path, the arguments of a verb, the pod that is replaced, or the daemon that is killed.
    """

    do: str
    words: tuple[str, ...]
    body: Any = None
    media: str = "application/json"

    @property
    def kind(self) -> str:
        """What is counted together."""
        return f"{self.do} {re.sub(r'@[0-9]+', '@', self.words[0].partition('?')[0])}"

    def text(self, why: str) -> str:
        """Return it as a file."""
        return json.dumps({"why": why, **asdict(self)}, indent=1) + "\n"


def make(rng: random.Random) -> Case:
    """Return a case."""
    makers = (_reading, _reading, _writing, _writing, _verb, _verb, _rare)
    return rng.choice(makers)(rng, f"@{rng.randrange(len(_POWERS))}", rng.choice(_CONTAINERS))


def _reading(rng: random.Random, pod: str, container: str) -> Case:
    more = rng.choice(("", "&previous=true", "&limitBytes=100", "&timestamps=true"))
    if rng.random() < 0.1:
        return Case(do="kubelet", words=(f"/run/default/{pod}/{container}?cmd=ls", "POST"))
    if rng.random() < 0.3:
        return Case(do="GET", words=(f"{_PODS}/{pod}/log?container={container}&tailLines=5{more}",))
    return Case(do="kubelet", words=(rng.choice(_ENDPOINTS), "GET"))


def _writing(rng: random.Random, pod: str, container: str) -> Case:
    value = str(rng.random())
    name = f"e{rng.randrange(1 << 30)}"
    debug = {
        "name": name,
        "image": "@image",
        "command": ["sh", "-c", "ls -R /d; sleep 1"],
        "volumeMounts": [{"name": "data", "mountPath": "/d"}],
        "targetContainerName": container,
    }
    memory = {"limits": {"memory": rng.choice(("300Mi", "310Mi", "400Mi"))}, "requests": {"memory": "50Mi"}}
    resized = {"spec": {"containers": [{"name": container, "resources": memory}]}}
    changes = (
        ("/api/v1/namespaces/default/configmaps/c", {"data": {"key": value, f"a{rng.randrange(3)}": value}}, _MERGE),
        ("/api/v1/namespaces/default/secrets/s", {"stringData": {"key": value}}, _MERGE),
        (f"{_PODS}/{pod}", {"metadata": {"annotations": {"n": value}}}, _MERGE),
        (f"{_PODS}/{pod}/resize", resized, _STRATEGIC),
        (f"{_PODS}/{pod}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debug]}}, _STRATEGIC),
    )
    path, body, media = rng.choices(changes, (4, 2, 4, 3, 1))[0]
    return Case(do="PATCH", words=(path,), body=body, media=media)


def _verb(rng: random.Random, pod: str, container: str) -> Case:
    verbs = (
        ("describe", "pod", pod),
        ("events",),
        ("status",),
        ("get", "pods", "-o", "wide"),
        ("ps", "-a"),
        ("top", "--containers"),
        ("logs", pod, "-c", container, "--tail=20"),
        ("cp", f"{pod}:{rng.choice(_WORDS[container])}", "@file", "-c", container),
    )
    return Case(do="verb", words=rng.choice(verbs))


def _rare(rng: random.Random, pod: str, _container: str) -> Case:
    if rng.random() < 0.3:
        return Case(do="kill", words=(rng.choice(("agent", "runtime", "api")),))
    return Case(do="replace", words=(pod,), body={"gracePeriodSeconds": rng.choice((0, 1))})


class Attacked:
    """A node with such pods. ``directory`` is the campaign's own and can be reached by pods."""

    def __init__(self, node: RunningNode, image: str, directory: Path) -> None:
        self.node, self.image, self.directory = node, image, directory
        self._canary = directory / "canary"
        self._pods: list[str] = []
        self._started = 0
        self._read: dict[str, int] = {}

    def start(self) -> None:
        """Make what the pods see, and start them."""
        (self._canary / "directory" / "deep").mkdir(parents=True)
        (self._canary / "file").write_text("secret")
        (self._canary / "file").chmod(0o600)
        shutil.copytree(_PROGRAMS, self.directory / "programs")
        (self.directory / "shared").mkdir(mode=0o777)
        self._as_it_was = self._seen()
        self.node.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"key": "v", "sub": "z"}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "v"}},
        )
        self._pods = [self._new(number) for number in range(len(_POWERS))]
        self._kubelet = Kubelet(self.node, self.directory, user="an-administrator", groups=("system:masters",))

    def send(self, case: Case, count: Callable[[str], None]) -> Iterator[tuple[str, str]]:
        """Do what a case asks for, and yield what must not be."""
        words = [self._meant(word) for word in case.words]
        if case.do == "kill":
            self.node.kill(words[0])
            self.node.until(lambda: self._kubelet.ask("/stats/summary")[0] == 200, "statistics of a node that is back")
            count(f"{case.kind} done")
        elif case.do == "replace":
            number = int(case.words[0][1:])
            self.node.delete(words[0], **case.body)
            self._pods[number] = self._new(number)
            count(f"{case.kind} done")
        elif case.do == "verb":
            yield from self._run(case, words, count)
        else:
            yield from self._ask(case, words[0], count)

    def wrong(self) -> Iterator[str]:
        """Yield what is wrong now and was not when this was asked last."""
        if (seen := self._seen()) != self._as_it_was:
            yield f"the machine was changed: {sorted(set(seen) ^ set(self._as_it_was))}"
        for name, text in (("runtime", self.node.daemon.log.read_text(errors="replace")), ("agent", self._agent())):
            read, end = self._read.get(name, 0), text.rfind("\n") + 1
            self._read[name] = end
            for said in bad_records(text[read:end]):
                yield f"the {name}'s log says: {said}"
        for name, pid in self._processes().items():
            if (found := resident(pid)) > MEMORY_BYTES:
                yield f"the {name} has {found >> 20} MiB resident"

    def memory(self) -> int:
        """Return the bytes of all daemons."""
        return sum(map(resident, self._processes().values()))

    def _processes(self) -> dict[str, int]:
        assert self.node.agent is not None
        return {"runtime": self.node.daemon.pid, "agent": self.node.agent.pid, "api": self.node.api.pid}

    def _agent(self) -> str:
        return "".join(self.node.log)

    def _seen(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        own = [self._canary, *self._canary.rglob("*")]
        for path in [*sorted(own), *map(Path, _OF_THE_MACHINE)]:
            stat = path.lstat()
            content = path.read_bytes() if path in own and path.is_file() else b""
            found.append((str(path), stat.st_mode, stat.st_uid, stat.st_gid, stat.st_size, content))
        return found

    def _meant(self, word: str) -> str:
        word = re.sub(r"@([0-9]+)", lambda found: self._pods[int(found[1])], word)
        return word.replace("@file", str(self.directory / f"copy{time.time_ns()}"))

    def _ask(self, case: Case, path: str, count: Callable[[str], None]) -> Iterator[tuple[str, str]]:
        body = json.dumps(case.body).replace("@image", self.image) if case.body is not None else None
        if case.do == "kubelet":
            status, said = self._kubelet.ask(path, case.words[1])
        else:
            with closing(self.node.connection()) as connection:
                answer = connection.ask(case.do, path, body, media=case.media)
            status, said = answer.status, answer.data.decode(errors="replace")
        count(f"{case.kind} {status}")
        if status >= 500 and not _OF_A_COMMAND.match(said):
            yield f"{case.kind} {status}", said[:600]
        elif status >= 400 and PYTHON.search(said):
            yield f"{case.kind} {status} as Python says it", said[:600]

    def _run(self, case: Case, words: list[str], count: Callable[[str], None]) -> Iterator[tuple[str, str]]:
        environment = {**os.environ, "KUBECONFIG": str(self.node.api.kubeconfig)}
        command = self.node.daemon.command(*words)
        if words[0] == "cp":  # of files as large as the containers say, which a person would end, too
            command = ["timeout", "--signal=INT", str(COPY_S), *command]
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            env=environment,
            timeout=ANSWER_S,
            encoding="utf-8",
            errors="replace",
        )
        count(f"{case.kind} {done.returncode}")
        if words[0] == "logs":  # as the container wrote it
            return
        if found := _TERMINAL.search(done.stdout + done.stderr):
            yield f"{case.kind} sends escape sequences", repr(found.string[:600])
        if "defect" in done.stderr or PYTHON.search(done.stderr):
            yield f"{case.kind} as Python says it", done.stderr[:600]
        if words[0] == "cp":
            shutil.rmtree(words[2], ignore_errors=True)

    def _new(self, number: int) -> str:
        self._started += 1
        kind = list(_POWERS)[number]
        name = f"{kind}-{self._started}"
        self.node.apply(self._manifest(name, kind, number))
        return name

    def _manifest(self, name: str, kind: str, number: int) -> dict[str, Any]:
        programs = {"usr": "/usr", "lib": "/lib", "lib64": "/lib64", "programs": str(self.directory / "programs")}
        paths = [{"name": item, "mountPath": f"/{item}", "readOnly": True} for item in programs]
        token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
        fields = ("labels", "annotations")
        items = [{"path": field, "fieldRef": {"fieldPath": f"metadata.{field}"}} for field in fields]
        sources = [{"configMap": {"name": "c"}}, {"downwardAPI": {"items": items}}, token]
        shared = {"path": str(self.directory / "shared" / f"d{number % 2}"), "type": "DirectoryOrCreate"}
        volumes: dict[str, dict[str, Any]] = {
            **{item: {"hostPath": {"path": path}} for item, path in programs.items()},
            "data": {"emptyDir": {}},
            "config": {"configMap": {"name": "c"}},
            "secret": {"secret": {"secretName": "s"}},
            "projected": {"projected": {"sources": sources}},
            "shared": {"hostPath": shared},
            "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "20Mi"}},
        }
        own = [{"name": item[1:], "mountPath": item} for item in _WORDS["main"]]
        sub_paths = [
            {"name": "data", "mountPath": "/s1", "subPath": "a"},
            {"name": "data", "mountPath": "/s2", "subPath": "sub/deep"},
            {"name": "data", "mountPath": "/s3", "subPathExpr": "$(POD)/b"},
            {"name": "config", "mountPath": "/s4", "subPath": "key"},
            {"name": "shared", "mountPath": "/s5", "subPath": "b"},
            {"name": "data", "mountPath": "/data"},
        ]
        containers = [
            self._container("main", kind, "/dev/termination-log", [*_WORDS["main"], "/tmp"], [*paths, *own]),
            self._container("paths", kind, "/data/end", ["/s1", "/s2", "/s3", "/s4", "/s5"], [*paths, *sub_paths]),
        ]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"x": "y"}, "annotations": {"n": "0"}},
            "spec": {
                "hostUsers": _POWERS[kind]["hostUsers"],
                "terminationGracePeriodSeconds": 1,
                "securityContext": {"fsGroup": 2000} if number % 2 else {},
                "containers": containers,
                "volumes": [{"name": item, **source} for item, source in volumes.items()],
            },
        }

    def _container(self, name: str, kind: str, end: str, tampered: list[str], mounts: list[Any]) -> dict[str, Any]:
        program = ["/usr/bin/python3", "/programs/tamper.py", f"{name}{self._started}", str(LIFE_S), str(self._canary)]
        return {
            "name": name,
            "image": self.image,
            "command": [*program, end, *tampered],
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "volumeMounts": mounts,
            "securityContext": _POWERS[kind]["security"],
            "terminationMessagePath": end,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {"limits": {"memory": "300Mi"}},
        }


def run(
    node: RunningNode,
    image: str,
    directory: Path,
    seed: int,
    numbers: Iterable[int],
    keep: Path | None,
    say: Callable[[str], None],
) -> Report:
    """Do the cases that have these numbers on a node that runs, and remove everything."""
    report = Report(NAME, seed)
    before = node.daemon.resources().after_a_restart()
    attacked = Attacked(node, image, directory)
    attacked.start()
    for number in numbers:
        case = make(generator(seed, NAME, number))
        try:
            problems = [*attacked.send(case, lambda word: report.answers.update([word]))]
        except (OSError, AssertionError, subprocess.TimeoutExpired) as error:
            problems = [(case.kind, f"{type(error).__name__}: {error}")]
        for where, said in (*problems, *(("afterwards", said) for said in attacked.wrong())):
            if report.find(f"{NAME}/{number}", where, said):
                say(f"{NAME}/{number}: {where}: {said[:600]}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{NAME}-{seed}-{number}.json").write_text(case.text(f"{where}: {said}"[:2000]))
        report.cases += 1
    try:
        node.require_nothing_left(before)
    except AssertionError as error:
        report.find(f"{NAME}/0", "left behind", str(error))
    for said in attacked.wrong():
        report.find(f"{NAME}/0", "afterwards", said)
    report.memory.append(attacked.memory() >> 20)
    return report
