"""Static pods from files: the identity that they get, and what is no manifest."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.manager import static_files
from podkeep.agent.manager.static_files import CONFIG_HASH, MAX_BYTES, StaticFiles
from podkeep.api import feature_gates
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument
from support.waiting import TIMEOUT_S

GATES = feature_gates.read({}, "agent")
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "main", "image": "busybox"}]},
}


def decoded(value: Any, name: str = "/m/web.json", node: str = "node-1") -> Pod:
    """Return the static pod of a manifest."""
    return static_files.decoded(json.dumps(value).encode(), name, node, GATES)


def test_the_identity_of_a_static_pod() -> None:
    """Name, UID, annotations and tolerations are those that a kubelet gives it."""
    pod = decoded(POD)
    metadata = pod.metadata
    assert (metadata.name, metadata.namespace, pod.spec.node_name) == ("web-node-1", "default", "node-1")
    assert metadata.annotations == {CONFIG_HASH: metadata.uid, "kubernetes.io/config.source": "file"}
    assert [(item.operator, item.effect) for item in pod.spec.tolerations] == [("Exists", "NoExecute")]
    assert pod.status.phase == "Pending"


def test_the_uid_follows_from_content_file_and_node() -> None:
    """The same file is the same pod; another content, file or node is another one. A UID that is given stays."""
    changed = json.loads(json.dumps(POD))
    changed["spec"]["containers"][0]["image"] = "busybox:2"
    uids = [decoded(POD), decoded(changed), decoded(POD, "/m/b.json"), decoded(POD, node="node-2")]
    assert len({pod.metadata.uid for pod in uids}) == 4
    assert decoded(POD).metadata.uid == uids[0].metadata.uid
    given = {**POD, "metadata": {"name": "web", "uid": "1-2-3"}}
    assert decoded(given).metadata.uid == "1-2-3"


@pytest.mark.parametrize(
    "value",
    [
        {**POD, "kind": "ConfigMap", "spec": None},
        {"apiVersion": "v1", "kind": "List", "items": [POD, {**POD, "metadata": {"name": "b"}}]},
        {**POD, "spec": {"containers": []}},
        {},
    ],
)
def test_what_is_no_static_pod_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        decoded(value)


def whole(own: dict[str, Any], *, limits: dict[str, str] | None = None, requests: dict[str, str] | None = None) -> Any:
    """Return a Pod with resources of its own and of its container."""
    resources = {"limits": limits or {}, "requests": requests or {}}
    container = {"name": "main", "image": "busybox", "resources": resources}
    return {**POD, "spec": {"resources": own, "containers": [container]}}


@pytest.mark.requirement("Q52")
@pytest.mark.parametrize(
    ("own", "container", "limits", "requests"),
    [
        (
            {"limits": {"cpu": "1", "memory": "64Mi"}},
            {},
            {"cpu": "1", "memory": "64Mi"},
            {"cpu": "1", "memory": "64Mi"},
        ),
        ({"requests": {"cpu": "1"}}, {"limits": {"cpu": "1"}}, {}, {"cpu": "1"}),
        (
            {"limits": {"cpu": "2"}},
            {"requests": {"cpu": "500m", "memory": "1Mi"}},
            {"cpu": "2"},
            {"cpu": "500m", "memory": "1Mi"},
        ),
        (
            {"limits": {"memory": "1Gi"}},
            {"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"memory": "1Mi"}},
            {"memory": "1Gi", "hugepages-2Mi": "4Mi"},
            {"memory": "1Mi", "hugepages-2Mi": "4Mi"},
        ),
    ],
)
def test_resources_of_a_static_pod_as_a_whole(
    own: dict[str, Any], container: dict[str, Any], limits: dict[str, str], requests: dict[str, str]
) -> None:
    """What is left out follows from the rest, as in kube-apiserver."""
    found = decoded(whole(own, **container)).spec.resources
    assert found is not None
    assert (found.limits, found.requests) == (limits, requests)


@pytest.mark.requirement("Q52")
@pytest.mark.parametrize(
    ("own", "container", "problem"),
    [
        (
            {"limits": {"ephemeral-storage": "1Gi"}},
            {},
            'spec.resources.limits[ephemeral-storage]: Unsupported value: "ephemeral-storage": supported values: "cpu",'
            ' "hugepages-", "memory"',
        ),
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            {},
            'spec.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"requests": {"cpu": "1"}},
            {"requests": {"cpu": "1500m"}},
            'spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container'
            " requests of 1500m",
        ),
        (
            {"limits": {"memory": "1Mi"}},
            {"limits": {"memory": "2Mi"}, "requests": {"memory": "1Mi"}},
            'spec.resources.containers[0][memory].limits: Invalid value: "2Mi": must be less than or equal to pod'
            " limits of 1Mi",
        ),
        (
            {"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}},
            {"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "4Mi"}},
            'spec.resources.requests[hugepages-2Mi]: Invalid value: "2Mi": must be greater than or equal to aggregate',
        ),
        ({"limits": {"hugepages-2Mi": "2Mi"}}, {}, "spec.resources: Forbidden: HugePages require cpu or memory"),
        (
            {"limits": {"cpu": "-1"}},
            {},
            'spec.resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0',
        ),
        (
            {"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}},
            {},
            "spec.resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"claims": [{"name": "gpu"}]},
            {},
            "spec.resources.claims: Forbidden: may not be set for a pod as a whole, only for its containers",
        ),
    ],
)
def test_resources_of_a_static_pod_as_a_whole_that_are_wrong(
    own: dict[str, Any], container: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        decoded(whole(own, **container))
    assert f": {problem}" in str(refused.value)


def looked(path: Path) -> list[str]:
    """Return the names of the pods that one look finds."""
    files = StaticFiles(path=path, node_name="n", gates=GATES, take=lambda _: None)
    files.look()
    return [pod.metadata.name for pod in files.pods()]


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    """Hidden files, directories, pipes, empty and huge files are left out; the others go on, and names are unique."""
    good = json.dumps(POD)
    (tmp_path / ".web.json.swp").write_text(good.replace("web", "hidden"))
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "below.json").write_text(good.replace("web", "below"))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "none")
    (tmp_path / "empty.json").write_text("\n")
    (tmp_path / "huge.json").write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "latin.json").write_bytes(b"\xff")
    (tmp_path / "b.json").write_text(good)
    (tmp_path / "a.json").write_text(good)
    (tmp_path / "c.json").write_text(good.replace('"web"', '"other"'))
    assert looked(tmp_path) == ["web-n", "other-n"]


def test_what_editors_leave_beside_a_manifest_is_no_manifest(tmp_path: Path) -> None:
    """What was not saved yet is not run, and who removes or renames a pod does not get it back from a backup."""
    good = json.dumps(POD)
    (tmp_path / "b.json").write_text(good)
    (tmp_path / "#b.json#").write_text(good.replace('"web"', '"unsaved"'))
    (tmp_path / "b.json~").write_text(good.replace('"web"', '"before"'))
    (tmp_path / "b.json.~1~").write_text(good.replace('"web"', '"long-before"'))
    (tmp_path / "#1").write_text(good.replace('"web"', '"other"'))
    assert looked(tmp_path) == ["other-n", "web-n"]


def test_files_beyond_the_limit_are_told_and_end_no_pod_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the order of their names, after those that were taken before: a directory lists its files in any order."""
    monkeypatch.setattr(static_files, "MAX_FILES", 3)
    files = StaticFiles(path=tmp_path, node_name="n", gates=GATES, take=lambda _: None)
    for name in "hbfd":
        (tmp_path / name).write_text(json.dumps(POD).replace('"web"', f'"{name}"'))
    (tmp_path / "a").mkdir()
    files.look()
    assert [pod.metadata.name for pod in files.pods()] == ["b-n", "d-n", "f-n"]
    left_out = "no more than 3 files of a directory are taken, and those after it are left out, too"
    assert files.problems() == {f"{tmp_path}/h": left_out}

    for name in "ca":
        (tmp_path / f"{name}.json").write_text(json.dumps(POD).replace('"web"', f'"{name}"'))
    assert not files.look()
    assert [pod.metadata.name for pod in files.pods()] == ["b-n", "d-n", "f-n"]
    assert files.problems() == {f"{tmp_path}/a.json": left_out}

    (tmp_path / "d").unlink()
    assert files.look()
    assert [pod.metadata.name for pod in files.pods()] == ["a-n", "b-n", "f-n"]
    for name in ("c.json", "h"):
        (tmp_path / name).unlink()
    assert not files.look()
    assert files.problems() == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"static pod {tmp_path}/{name} is left out: {left_out}" for name in ("h", "a.json", "c.json")
    ]


def test_a_file_that_cannot_be_read_is_told_without_the_words_of_python(tmp_path: Path) -> None:
    (tmp_path / "memory.yaml").symlink_to("/proc/self/mem")
    files = StaticFiles(path=tmp_path, node_name="n", gates=GATES, take=lambda _: None)
    files.look()
    assert list(files.problems().values()) == ["Input/output error"]


def test_a_single_file_and_a_path_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "web.json").write_text(json.dumps(POD))
    assert looked(tmp_path / "web.json") == ["web-n"]
    assert looked(tmp_path / "none") == []


def test_a_look_says_whether_pods_changed(tmp_path: Path) -> None:
    """A file that is written again with the same content is no change; another pod, or none, is."""
    files = StaticFiles(path=tmp_path, node_name="n", gates=GATES, take=lambda _: None)
    assert not files.look()
    (tmp_path / "web.json").write_text(json.dumps(POD))
    assert files.look()
    os.utime(tmp_path / "web.json", ns=(1, 1))
    assert not files.look()
    (tmp_path / "web.json").write_text("no manifest")
    assert files.look()
    assert files.pods() == []


def test_what_is_wrong_is_known_until_the_file_is_right(tmp_path: Path) -> None:
    files = StaticFiles(path=tmp_path, node_name="n", gates=GATES, take=lambda _: None)
    (tmp_path / "web.json").write_text("no manifest")
    files.look()
    ((name, problem),) = files.problems().items()
    assert name == str(tmp_path / "web.json")
    assert problem != ""
    (tmp_path / "web.json").write_text(json.dumps(POD))
    files.look()
    assert files.problems() == {}


def test_a_file_with_the_pod_of_another_is_told_until_that_is_gone(tmp_path: Path) -> None:
    files = StaticFiles(path=tmp_path, node_name="n", gates=GATES, take=lambda _: None)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(json.dumps(POD))
    files.look()
    assert len(files.pods()) == 1
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    assert files.problems() == {str(second): f"its pod default/web-n is that of {first}, too"}
    first.unlink()
    files.look()
    assert files.problems() == {}
    assert len(files.pods()) == 1


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A file with a name that is no UTF-8 is a pod of its own; what is wrong with one is told in printable text."""
    for name in (b"\xff.json", b"\xfe.json"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text(json.dumps(POD))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfd\n.json")).write_text("no pod")
    files = StaticFiles(path=tmp_path, node_name="node-1", gates=GATES, take=lambda _: None)
    assert files.look()
    assert [pod.metadata.name for pod in files.pods()] == ["web-node-1"]
    (pod,) = files.pods()
    assert pod.metadata.uid == decoded(POD, os.fsdecode(os.fsencode(tmp_path) + b"/\xfe.json")).metadata.uid
    assert files.problems().keys() == {rf"{tmp_path}/\udcfd\n.json", rf"{tmp_path}/\udcff.json"}
    assert all(problem.isprintable() for problem in files.problems().values())


def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path) -> None:
    """It is part of an event, of a status and of a line of the log, which name the file."""
    file = tmp_path / "web.json"
    file.write_text(json.dumps({**POD, "spec": {"containers": [{"name": "A_"}, {"name": "B_"}]}}))
    files = StaticFiles(path=tmp_path, node_name="n", gates=GATES, take=lambda _: None)
    files.look()
    (problem,) = files.problems().values()
    assert problem.count("; document 1 (Pod default/web): ") >= 1
    assert "\n" not in problem
    assert str(file) not in problem


class Looking(StaticFiles):
    """Counts how often the path was looked at."""

    looks: threading.Semaphore

    def look(self) -> bool:
        try:
            return super().look()
        finally:
            self.looks.release()


def test_a_path_that_cannot_be_read_at_the_start_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The static pods of the agent before run: they were ended, as if the path had been empty."""
    monkeypatch.setattr(static_files, "LOOK_S", 0)
    path, manifests, taken = tmp_path / "path", tmp_path / "manifests", list[list[str]]()
    manifests.mkdir()
    (manifests / "web.json").write_text(json.dumps(POD))
    path.symlink_to(path)
    came = asyncio.Event()

    def take(pods: Sequence[Pod]) -> None:
        taken.append([pod.metadata.name for pod in pods])
        came.set()

    async def main() -> None:
        files = Looking(path=path, node_name="n", gates=GATES, take=take)
        files.looks = threading.Semaphore(0)
        running = asyncio.create_task(files.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for _ in range(2):  # at the second look, what the first one found was taken
                    await asyncio.to_thread(files.looks.acquire, timeout=TIMEOUT_S)
                (tmp_path / "new").symlink_to(manifests)
                (tmp_path / "new").rename(path)
                await came.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    assert taken == [["web-n"]]
