"""Static pods from files: the identity that they get, and what is no manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.manager import static_files
from podkeep.agent.manager.static_files import CONFIG_HASH, MAX_BYTES, StaticFiles
from podkeep.api import feature_gates
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument

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
    ((name, problem),) = files.problems().items()
    assert name == rf"{tmp_path}/\udcfd\n.json"
    assert problem.isprintable()
