"""Mirror pods: what is done about each, whatever happens to another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.manager.mirrors import MIRROR, Mirrors, mirror
from podkeep.agent.manager.static_files import decoded
from podkeep.api.feature_gates import FeatureGates
from podkeep.client.client import Client
from podkeep.client.settings import Settings
from support.waiting import TIMEOUT_S

MANIFEST = b"""
apiVersion: v1
kind: Pod
metadata: {name: new}
spec: {containers: [{name: main, image: i}]}
"""


PROBED = b"""
apiVersion: v1
kind: Pod
metadata: {name: new}
spec:
  containers:
  - name: main
    image: i
    livenessProbe: {tcpSocket: {port: 8080}}
    readinessProbe: {httpGet: {path: /, port: web}}
"""


def test_a_mirror_has_ports_as_its_manifest_has_them() -> None:
    """A number is no text: an API server takes a text for the name of a port, and refuses one without a letter."""
    (container,) = mirror(decoded(PROBED, "new.yaml", "n", FeatureGates()), "u")["spec"]["containers"]
    assert container["livenessProbe"]["tcpSocket"]["port"] == 8080
    assert container["readinessProbe"]["httpGet"]["port"] == "web"


class Server:
    """Refuses what is done to the pod ``kept-n`` the first time, and takes everything else."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.news = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = head.lower().partition("content-length:")[2].partition("\r\n")[0]
                sent = await reader.readexactly(int(size or 0))
                what = " ".join(head.split(" ", 2)[:2]).partition("?")[0]
                status, value = self._answer(what, json.loads(sent) if sent else {})
                self.asked.append(what)
                self.news.set()
                body = json.dumps(value).encode()
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    def _answer(self, what: str, sent: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if what.endswith("/kept-n") and what not in self.asked:
            return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "somebody keeps it"}
        return 200, {"metadata": {"name": "new-n", "namespace": "default", "uid": "u"}}

    async def until(self, *wanted: str) -> None:
        while not set(wanted) <= set(self.asked):
            self.news.clear()
            await self.news.wait()


def stored(name: str) -> dict[str, Any]:
    """Return a mirror for which there is no static pod."""
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": {MIRROR: "old"}}}


@pytest.mark.slow
def test_a_deletion_that_is_refused_holds_up_no_other_mirror_and_is_tried_again(tmp_path: Path) -> None:
    """Admission of a cluster may protect one; the next static pod is shown all the same."""
    kept, gone = (f"DELETE /api/v1/namespaces/default/pods/{name}" for name in ("kept-n", "old-n"))
    created = "POST /api/v1/namespaces/default/pods"

    async def main() -> list[str]:
        answering = Server()
        server = await asyncio.start_unix_server(answering.serve, tmp_path / "s")
        client = Client(Settings(server=f"unix://{tmp_path}/s"))
        mirrors = Mirrors(client, "n")
        mirrors.want([decoded(MANIFEST, "new.yaml", "n", FeatureGates())])
        mirrors.replaced([stored("kept-n"), stored("old-n")])
        running = asyncio.create_task(mirrors.run())
        try:
            async with asyncio.timeout(60):
                await answering.until(kept, gone, created)
                while answering.asked.count(kept) < 2:
                    answering.news.clear()
                    await answering.news.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()
            server.close()
        return answering.asked

    asked = asyncio.run(main())
    assert asked[:4] == [kept, gone, "GET /api/v1/nodes/n", created]
    assert asked.count(kept) >= 2


def test_no_mirror_is_deleted_before_the_files_have_been_read(tmp_path: Path) -> None:
    """An agent that starts may know the API's pods first: each mirror was deleted then, and made anew."""
    pod = decoded(MANIFEST, "new.yaml", "n", FeatureGates())
    there = {**stored("new-n"), "metadata": {**stored("new-n")["metadata"], "annotations": {MIRROR: pod.metadata.uid}}}
    answering = Server()

    async def main() -> None:
        server = await asyncio.start_unix_server(answering.serve, tmp_path / "s")
        client = Client(Settings(server=f"unix://{tmp_path}/s"))
        mirrors = Mirrors(client, "n")
        mirrors.replaced([there, stored("old-n")])
        running = asyncio.create_task(mirrors.run())
        try:
            # It has seen the news after two turns of the loop; what it began then is asked before what comes next.
            for _ in range(10):
                await asyncio.sleep(0)
            mirrors.want([pod])
            async with asyncio.timeout(TIMEOUT_S):
                await answering.until("DELETE /api/v1/namespaces/default/pods/old-n")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()
            server.close()

    asyncio.run(main())
    assert answering.asked == ["DELETE /api/v1/namespaces/default/pods/old-n"]


class Cluster(Server):
    """Has a Node, and pods by their names; ``owners`` are the UIDs of the Nodes that mirrors were made with."""

    def __init__(self) -> None:
        super().__init__()
        self.node_uid = "first"
        self.loses_answers = False
        self.pods: dict[str, dict[str, Any]] = {}
        self.owners: list[str] = []

    def _answer(self, what: str, sent: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        method, path = what.split(" ")
        if "/nodes/" in path and self.node_uid:
            return 200, {"metadata": {"name": "n", "uid": self.node_uid}}
        if method == "GET":
            found = self.pods.get(path.rpartition("/")[2])
            return (200, found) if found else (404, {"kind": "Status", "reason": "NotFound", "message": "not found"})
        if sent["metadata"]["name"] in self.pods:
            return 409, {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "it exists"}
        metadata = {**sent["metadata"], "uid": f"mirror-{len(self.owners)}"}
        self.owners.append(metadata["ownerReferences"][0]["uid"])
        self.pods[metadata["name"]] = made = {**sent, "metadata": metadata}
        if self.loses_answers:
            raise ConnectionAbortedError
        return 201, made


@asynccontextmanager
async def mirroring(
    tmp_path: Path, server: Server, refused: Callable[[Mapping[str, str]], None] = lambda _: None
) -> AsyncIterator[Mirrors]:
    """The mirrors of a node with one static pod, of which the API has none so far.

    :param refused: is told why there is none.
    """
    listening = await asyncio.start_unix_server(server.serve, tmp_path / "s")
    client = Client(Settings(server=f"unix://{tmp_path}/s"))
    mirrors = Mirrors(client, "n", refused)
    mirrors.want([decoded(MANIFEST, "new.yaml", "n", FeatureGates())])
    mirrors.replaced([])
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield mirrors
    finally:
        await client.close()
        listening.close()


def test_a_mirror_belongs_to_the_node_that_there_is_by_now(tmp_path: Path) -> None:
    """A Node that was deleted and made again has another UID, and the API refuses mirrors of the old one."""
    cluster = Cluster()

    async def main() -> None:
        async with mirroring(tmp_path, cluster) as mirrors:
            await mirrors._reconcile()
            cluster.node_uid = "second"
            # As a collector of garbage does once the Node is another one.
            mirrors.deleted(cluster.pods.pop("new-n"))
            await mirrors._reconcile()

    asyncio.run(main())
    assert cluster.owners == ["first", "second"]


@pytest.mark.parametrize(
    "other",
    [
        {"metadata": {"name": "new-n", "namespace": "default", "uid": "other"}, "spec": {}},
        # A node called new-n has a static pod whose name is that of this one's with the node's.
        {
            "metadata": {"name": "new-n", "namespace": "default", "uid": "other", "annotations": {MIRROR: "hash"}},
            "spec": {"nodeName": "new-n"},
        },
    ],
)
def test_a_mirror_whose_name_is_that_of_another_pod_is_made_once_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: dict[str, Any]
) -> None:
    """It is tried again also without news: the watch of a node's pods does not tell of a pod that has no node."""
    cluster = Cluster()
    cluster.pods["new-n"] = other

    async def main() -> float | None:
        async with mirroring(tmp_path, cluster) as mirrors:
            wait = await mirrors._reconcile()
            assert cluster.owners == []
            mirrors.deleted(cluster.pods.pop("new-n"))
            await mirrors._reconcile()
            return wait

    wait = asyncio.run(main())
    assert wait is not None
    assert wait > 0
    (record,) = caplog.records
    assert "pod default/new-n: the API has another pod of that name" in record.getMessage()
    assert cluster.owners == ["first"]


def test_what_was_done_after_all_has_not_failed_any_more(tmp_path: Path) -> None:
    """The answer was lost, and the watch tells of the mirror: the agent then tried again without a pause for ever."""
    cluster = Cluster()
    cluster.loses_answers = True

    async def main() -> list[float | None]:
        async with mirroring(tmp_path, cluster) as mirrors:
            first = await mirrors._reconcile()
            mirrors.changed(cluster.pods["new-n"])
            return [first, await mirrors._reconcile()]

    first, second = asyncio.run(main())
    assert first is not None
    assert first > 0
    assert second is None


def test_why_a_static_pod_has_no_mirror_is_told_until_it_has_one(tmp_path: Path) -> None:
    """A user sees a static pod without one nowhere; that the API is away, or has no Node yet, is told elsewhere."""
    cluster = Cluster()
    cluster.node_uid = ""
    cluster.pods["new-n"] = {"metadata": {"name": "new-n", "namespace": "default", "uid": "other"}, "spec": {}}
    told: list[Mapping[str, str]] = []

    async def main() -> None:
        async with mirroring(tmp_path, cluster, told.append) as mirrors:
            await mirrors._reconcile()
            assert told == []
            cluster.node_uid = "first"
            for _ in range(2):
                mirrors._failures.clear()  # as if it had waited
                await mirrors._reconcile()
            mirrors.deleted(cluster.pods.pop("new-n"))
            await mirrors._reconcile()

    asyncio.run(main())
    problem = "the API has another pod of that name; hint: delete it, or rename the static pod"
    assert told == [{"default/new-n": problem}, {}]
