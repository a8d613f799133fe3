"""Verbs on objects: which kind is meant, paths, conditions, tables, files; what is said of a pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.cli.objects import events, kinds, manifests, paths, tables, wait
from podkeep.cli.objects.describe import described, node_summary
from podkeep.cli.pods import verdicts
from podkeep.cli.run_on_node import exit_status

DISCOVERY = {
    "items": [
        {
            "metadata": {},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {
                            "resource": "pods",
                            "responseKind": {"kind": "Pod"},
                            "scope": "Namespaced",
                            "singularResource": "pod",
                            "shortNames": ["po"],
                            "categories": ["all"],
                            "verbs": ["list"],
                        },
                        {"resource": "nodes", "responseKind": {"kind": "Node"}, "scope": "Cluster"},
                        {
                            "resource": "events",
                            "responseKind": {"kind": "Event"},
                            "scope": "Namespaced",
                            "singularResource": "event",
                        },
                    ],
                }
            ],
        },
        {
            "metadata": {"name": "apps"},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {
                            "resource": "deployments",
                            "responseKind": {"kind": "Deployment"},
                            "scope": "Namespaced",
                            "singularResource": "deployment",
                            "shortNames": ["deploy"],
                        }
                    ],
                },
                {
                    "version": "v1beta1",
                    "resources": [{"resource": "deployments", "responseKind": {"kind": "Deployment"}}],
                },
            ],
        },
        {
            "metadata": {"name": "events.k8s.io"},
            "versions": [{"version": "v1", "resources": [{"resource": "events", "responseKind": {"kind": "Event"}}]}],
        },
    ]
}
KINDS = kinds.discovered(DISCOVERY)


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("po", "/api/v1/namespaces/x/pods"),
        ("Pod", "/api/v1/namespaces/x/pods"),
        ("pods.v1", "/api/v1/namespaces/x/pods"),
        ("node", "/api/v1/nodes"),
        ("deploy", "/apis/apps/v1/namespaces/x/deployments"),
        ("deployments.apps", "/apis/apps/v1/namespaces/x/deployments"),
        ("deployment.v1.apps", "/apis/apps/v1/namespaces/x/deployments"),
        ("events", "/api/v1/namespaces/x/events"),
        ("events.events.k8s.io", "/apis/events.k8s.io/v1/events"),
    ],
)
def test_named(word: str, path: str) -> None:
    assert kinds.named(KINDS, word).path("x") == path


@pytest.mark.parametrize(
    ("word", "hint"),
    [("bogus", "types are"), ("pods.apps", "did you mean pods?"), ("", "types are"), ("podz", "did you mean pod?")],
)
def test_no_such_kind(word: str, hint: str) -> None:
    with pytest.raises(NotFound, match="the server doesn't have a resource type") as caught:
        kinds.named(KINDS, word)
    assert caught.value.hint.startswith(hint)


def test_what_words_mean() -> None:
    def said(*words: str) -> list[tuple[str, tuple[str, ...]]]:
        return [(item.resource.name, item.names) for item in kinds.meant(KINDS, words)]

    assert said("pods") == [("pods", ())]
    assert said("pods,deploy") == [("pods", ()), ("deployments", ())]
    assert said("pod", "a", "b") == [("pods", ("a", "b"))]
    assert said("pod/a", "node/b") == [("pods", ("a",)), ("nodes", ("b",))]
    assert said("all") == [("pods", ())]
    for words in ((), ("pod/a", "b"), ("pod/",), ("/a",), ("pod/a/b",)):
        with pytest.raises((InvalidArgument, NotFound)):
            said(*words)


def test_kind_of_an_object() -> None:
    assert kinds.of_object(KINDS, "apps/v1", "Deployment").path("x", "y") == "/apis/apps/v1/namespaces/x/deployments/y"
    for version in ("v1", "apps/v9"):
        with pytest.raises(NotFound, match=f'no matches for kind "Deployment" in version "{version}"'):
            kinds.of_object(KINDS, version, "Deployment")
    with pytest.raises(NotFound) as caught:
        kinds.of_object(KINDS, "v1", "pod")
    assert caught.value.hint == "kinds have capital letters, this one is written Pod"


OBJECT = {
    "metadata": {"labels": {"a.b/c": "d"}},
    "status": {
        "phase": "Running",
        "n": 3,
        "flag": True,
        "none": None,
        "list": [{"type": "A", "v": 1}, {"type": "B", "v": 2}],
    },
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("{.status.phase}", ["Running"]),
        (".status.phase", ["Running"]),
        ("status.phase", ["Running"]),
        ("{$.status.n}", ["3"]),
        ("{.status.flag}", ["true"]),
        ("{.status.none}", ["<none>"]),
        ("{.status.list[1].v}", ["2"]),
        ("{.status.list[-1].type}", ["B"]),
        ("{.status.list[*].v}", ["1", "2"]),
        ('{.status.list[?(@.type=="A")].v}', ["1"]),
        (r"{.metadata.labels.a\.b/c}", None),
        ("{.metadata.labels['a.b/c']}", ["d"]),
        ("{.status.missing}", []),
        ("{.status.phase[0]}", []),
        ("{.status.list[9]}", []),
        ("", None),
        ("{range .items[*]}", None),
        ("{.a..b}", None),
    ],
)
def test_paths(path: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(InvalidArgument):
            paths.parse(path)
        return
    assert list(paths.texts(OBJECT, paths.parse(path))) == expected


def _conditions(**statuses: str) -> dict[str, Any]:
    items = [{"type": name, "status": status} for name, status in statuses.items()]
    return {"metadata": {"generation": 2}, "status": {"phase": "Running", "conditions": items}}


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("condition=Ready", _conditions(Ready="True"), True),
        ("condition=ready", _conditions(Ready="True"), True),
        ("condition=Ready", _conditions(Ready="False"), False),
        ("condition=Ready=False", _conditions(Ready="False"), True),
        ("condition=Ready", None, False),
        ("condition=Ready", {**_conditions(Ready="True"), "metadata": {"generation": 3}}, True),
        ("jsonpath={.status.phase}=Running", _conditions(), True),
        ("jsonpath='{.status.phase}'=Running", _conditions(), True),
        ("jsonpath={.status.phase}", _conditions(), True),
        ("jsonpath={.status.nothing}", _conditions(), False),
        ("jsonpath=.status.phase=Pending", _conditions(), False),
        ('jsonpath={.status.conditions[?(@.type=="Ready")].status}=True', _conditions(Ready="True"), True),
        ("delete", None, True),
        ("delete", _conditions(), False),
        ("create", _conditions(), True),
        ("create", None, False),
    ],
)
def test_conditions(text: str, value: dict[str, Any] | None, expected: bool) -> None:
    assert wait.condition(text)(value) is expected


def test_a_condition_of_an_older_generation_does_not_count() -> None:
    value = _conditions(Ready="True")
    value["status"]["observedGeneration"] = 1
    assert not wait.condition("condition=Ready")(value)


@pytest.mark.parametrize("text", ["", "condition=", "jsonpath", "ready", "jsonpath={.a}b"])
def test_no_condition(text: str) -> None:
    with pytest.raises(InvalidArgument):
        wait.condition(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("30s", 30.0), ("1m30s", 90.0), ("5", 5.0), ("0", 0.0), ("100ms", 0.1), ("-1s", 604800.0)]
)
def test_timeouts(text: str, expected: float) -> None:
    assert wait.seconds(text) == pytest.approx(expected)


def test_tables() -> None:
    table = {
        "columnDefinitions": [{"name": "Name"}, {"name": "Ready"}, {"name": "IP", "priority": 1}],
        "rows": [
            {"cells": ["web", True, "10.0.0.1"], "object": {"metadata": {"namespace": "shop"}}},
            {"cells": ["evil\x1b[2J\nline", None], "object": None},
        ],
    }
    printer = tables.Printer(wide=False, namespaces=True, prefix="pod/")
    assert printer.lines(table) == [
        "NAMESPACE   NAME                 READY",
        "shop        pod/web              true",
        "            pod/evil\\x1b[2J...   <none>",
    ]
    later = {"rows": [{"cells": ["db", False], "object": {"metadata": {"namespace": "shop"}}}]}
    assert printer.lines(later)[0].split() == ["shop", "pod/db", "false"], "no second header"
    assert tables.Printer(wide=True, namespaces=False).lines(table)[1].split() == ["web", "true", "10.0.0.1"]


def test_manifests(tmp_path: Path) -> None:
    one = tmp_path / "b.yaml"
    one.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: n}}\n"
    )
    (tmp_path / "a.json").write_text('{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}')
    (tmp_path / "ignored.txt").write_text("nothing")
    found = manifests.read([tmp_path])
    assert [(item.kind, item.namespace, item.name) for item in found] == [
        ("ConfigMap", "", "c"),
        ("Pod", "", "a"),
        ("Secret", "n", "s"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no objects"),
        ("just text", "an object was expected"),
        ("kind: Pod", "apiVersion is missing"),
        ("apiVersion: v1\nkind: Pod", "metadata.name is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: 3}", "metadata.name is missing"),
        ("apiVersion: v1\nkind: List\nitems: [3]", "an object was expected"),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        manifests.read([path])


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(InvalidArgument, match=r"/dev/zero: larger than 10 MiB"):
        manifests.read([Path("/dev/zero")])


def test_an_address_is_no_file_and_the_hint_says_so() -> None:
    with pytest.raises(InvalidArgument, match="No such file") as told:
        manifests.read([Path("https://k8s.example/pod.yaml")])
    assert "`curl -fsSL https://k8s.example/pod.yaml |`" in told.value.hint


def test_files_of_a_config_map_are_described_line_by_line() -> None:
    value = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "site", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "data": {"nginx.conf": "server {\n  listen 80;\n}\n", "revision": "1234567e8"},
    }
    text = "\n".join(described(value, [], "configmap", 0.0))
    assert "  nginx.conf: |\n    server {\n      listen 80;\n    }\n  revision: '1234567e8'\n" in text


def test_a_manifest_with_a_generated_name_is_for_what_creates(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nmetadata: {generateName: nightly-}")
    with pytest.raises(InvalidArgument, match=r"metadata\.name is missing") as told:
        manifests.read([path])
    assert told.value.hint == "only what is created can have a generateName: `kubectl create`"


def pod(phase: str = "Running", *, ready: bool = True, metadata: Any = None, **status: Any) -> dict[str, Any]:
    """Return a pod with that status."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": "u", **(metadata or {})},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": phase, "conditions": conditions, **status},
    }


def _container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "restartCount": 2, **state}]}


WAITS = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
CRASHES = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no\n config"}},
}
WARNING = {
    "type": "Warning",
    "reason": "FailedMount",
    "message": "no such ConfigMap",
    "lastTimestamp": "2026-01-01T00:00:02Z",
}
UNHEALTHY = {
    "type": "Warning",
    "reason": "Unhealthy",
    "message": "Liveness probe failed: refused",
    "lastTimestamp": "2026-01-01T00:00:02Z",
    "involvedObject": {"fieldPath": "spec.containers{main}"},
}
LOST = {"state": {"terminated": {"exitCode": 255, "finishedAt": "2026-01-01T00:00:02Z"}}}
NO_SANDBOX = {**WARNING, "reason": "FailedCreatePodSandBox", "message": "no such handler"}
HOOK = {**UNHEALTHY, "reason": "FailedPostStartHook", "message": "PostStartHook failed"}
BACKOFF = {"type": "Warning", "reason": "BackOff", "message": "Back-off", "lastTimestamp": "2026-01-01T00:00:09Z"}
OLDER = {"type": "Warning", "reason": "Old", "message": "old", "lastTimestamp": "2026-01-01T00:00:01Z"}


@pytest.mark.parametrize(
    ("value", "happened", "state", "why"),
    [
        (pod(), [WARNING], "Running", ""),
        (pod("Succeeded"), [], "Completed", ""),
        (
            pod("Failed", reason="Evicted", message="The node was low on memory."),
            [],
            "Evicted",
            "The node was low on memory.",
        ),
        (
            pod("Failed", **_container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
            [],
            "Failed",
            "container main: OOMKilled, exit status 137",
        ),
        (
            pod("Failed", **_container(state={"terminated": {"exitCode": 137, "reason": "Error"}})),
            [HOOK],
            "Failed",
            "container main: exit status 137: FailedPostStartHook: PostStartHook failed",
        ),
        (
            pod(ready=False, **_container(state={"terminated": {"exitCode": 137, "reason": "Error"}})),
            [UNHEALTHY],
            "Error",
            "container main: exit status 137: Unhealthy: Liveness probe failed: refused",
        ),
        (pod("Pending", **_container(**WAITS)), [], "ImagePullBackOff", "container main: Back-off pulling image"),
        (
            pod(ready=False, **_container(**CRASHES)),
            [],
            "CrashLoopBackOff",
            "container main: back-off 10s; before: exit status 3: no config",
        ),
        (
            pod(ready=False, **_container(**CRASHES)),
            [BACKOFF, UNHEALTHY, {**UNHEALTHY, "involvedObject": {"fieldPath": "spec.containers{other}"}}],
            "CrashLoopBackOff",
            "container main: back-off 10s; before: exit status 3: no config: Unhealthy: Liveness probe failed: refused",
        ),
        (
            pod(
                ready=False,
                **_container(
                    **CRASHES | {"lastState": {"terminated": {"exitCode": 3, "startedAt": "2026-01-01T00:00:03Z"}}}
                ),
            ),
            [UNHEALTHY],
            "CrashLoopBackOff",
            "container main: back-off 10s; before: exit status 3",
        ),
        (pod(ready=False, **_container(**LOST)), [NO_SANDBOX], "Error", "FailedCreatePodSandBox: no such handler"),
        (
            pod(ready=False, **_container(**LOST)),
            [{**NO_SANDBOX, "lastTimestamp": "2026-01-01T00:00:01Z"}],
            "Error",
            "container main: exit status 255",
        ),
        (pod(ready=False), [], "NotReady", "not ready yet"),
        (
            pod("Pending", **_container(state={"waiting": {"reason": "ContainerCreating"}})),
            [OLDER, WARNING],
            "ContainerCreating",
            "FailedMount: no such ConfigMap",
        ),
        (
            {**pod("Pending"), "spec": {"nodeName": "one"}},
            [WARNING, {**BACKOFF, "reason": "FailedScheduling"}],
            "Pending",
            "FailedMount: no such ConfigMap",
        ),
        (pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), [], "Terminating", ""),
        (
            {
                "metadata": {},
                "status": {
                    "phase": "Pending",
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                    ],
                },
            },
            [],
            "Pending",
            "Unschedulable: 0/1 nodes",
        ),
        ({"metadata": {}}, [], "Pending", ""),
    ],
)
def test_verdict(value: dict[str, Any], happened: list[dict[str, Any]], state: str, why: str) -> None:
    assert verdicts.verdict(value, happened) == verdicts.Verdict(state=state, why=why)


def test_a_long_reason_is_seen_to_be_cut() -> None:
    why = verdicts.verdict(pod("Failed", reason="Evicted", message="so " * 500), []).why
    assert why.endswith("so so so …")
    assert len(why) < 320


def test_the_first_line_of_a_description_says_why() -> None:
    lines = list(described(pod("Pending", **_container(**WAITS)), [], "pod", 0))
    assert lines[0] == "pod/web in default: ImagePullBackOff: container main: Back-off pulling image"


def test_a_description_has_as_much_of_a_long_message_as_people_read() -> None:
    ended = {"state": {"terminated": {"reason": "Error", "exitCode": 3, "message": "so\n" * 1365}}}
    text = "\n".join(described(pod("Running", **_container(**ended)), [], "pod", 0))
    assert "exit status 3: so so so" in text
    assert "so s…" in text
    assert len(text) < 2000


def test_the_first_line_of_a_description_says_that_an_object_is_being_deleted() -> None:
    value = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Bound"},
    }
    assert next(described(value, [], "pvc", 0)).startswith("pvc/data in default: Terminating, ")


def test_a_description_of_a_static_pod_has_what_it_asks_for_as_a_whole_and_no_account() -> None:
    value = pod()
    value["spec"]["resources"] = {"limits": {"memory": "64Mi", "cpu": "1"}}
    lines = list(described(value, [], "pod", 0))
    assert next(line.split(maxsplit=1) for line in lines if line.startswith("Limits")) == [
        "Limits:",
        "cpu 1, memory 64Mi",
    ]
    assert not [line for line in lines if line.startswith("Account")]


def test_events_of_a_static_pod_name_its_own_uid_and_not_its_mirrors() -> None:
    assert verdicts.uid_of_events(pod()) == "u"
    assert verdicts.uid_of_events(pod(metadata={"annotations": {"kubernetes.io/config.mirror": "h"}})) == "h"


def test_a_description_of_a_secret_shows_no_value() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"password": "c3dvcmRmaXNo"}}
    text = "\n".join(described(secret, [], "secret", 0))
    assert "password: 12 characters of base64" in text
    assert "c3dvcmRmaXNo" not in text


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({}, "NotReady: its kubelet has said nothing"),
        (
            {
                "spec": {"unschedulable": True},
                "status": {
                    "conditions": [
                        {"type": "DiskPressure", "status": "True"},
                        {"type": "Ready", "status": "False", "message": "no runtime"},
                    ]
                },
            },
            "NotReady: no runtime, DiskPressure, SchedulingDisabled",
        ),
    ],
)
def test_node_summary(node: dict[str, Any], said: str) -> None:
    assert node_summary(node) == said


def test_events_tell_how_often_they_were_seen() -> None:
    event = {
        "metadata": {},
        "count": 3,
        "firstTimestamp": "1970-01-01T00:00:10Z",
        "lastTimestamp": "1970-01-01T00:01:40Z",
        "involvedObject": {"kind": "Pod", "name": "web"},
    }
    assert events.seen(event, 130) == "30s (x3 over 2m)"
    assert events.object_of(event) == "pod/web"
    assert events.seen({"metadata": {}}, 0) == "<unknown>"


def _ended(name: str, code: int, at: str) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at}}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Succeeded", "initContainerStatuses": [_ended("sidecar", 137, "1")]}, 0),
        ({"phase": "Failed", "containerStatuses": [_ended("a", 3, "2"), _ended("b", 4, "1")]}, 4),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": [_ended("sidecar", 137, "1")],
                "containerStatuses": [_ended("a", 2, "9")],
            },
            2,
        ),
        ({"phase": "Failed", "reason": "Evicted"}, 1),
        ({}, 0),
    ],
)
def test_exit_status_of_a_run(status: dict[str, Any], expected: int) -> None:
    spec = {"initContainers": [{"name": "sidecar", "restartPolicy": "Always"}]}
    assert exit_status([{"spec": spec, "status": status}]) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_in_any_encoding_of_yaml(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: é}}\n", encoding=encoding)
    assert [item.value["metadata"] for item in manifests.read([file])] == [{"name": "web", "labels": {"a": "é"}}]


def test_half_a_character_of_utf_16_is_told_with_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes("a: b".encode("utf-16")[:-1])
    with pytest.raises(InvalidArgument, match=r"f.yaml: not UTF-16(-LE)? text: truncated data at byte 8"):
        manifests.text_of(file)
