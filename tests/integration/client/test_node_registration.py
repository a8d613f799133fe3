"""Registering a Node with a real API that knows it already."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from podkeep.agent.node_status.reporter import NodeReporter, NodeSettings, Sensors
from podkeep.agent.node_status.runtime_state import RuntimeState
from podkeep.agent.runtime_status import RuntimeStatus
from podkeep.client import kubeconfig
from podkeep.client.client import Client
from podkeep.client.recorder import Recorder
from podkeep.client.resources import NODES, Resource
from podkeep.client.settings import Settings
from podkeep.cri.client import CriClient
from support import forked
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

_GROUP = "rbac.authorization.k8s.io"
ROLE = {
    "metadata": {"name": "keeps-nodes"},
    "rules": [{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "list", "watch", "patch"]}],
}
BINDING = {
    "metadata": {"name": "keeps-nodes"},
    "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": "keeps-nodes"},
    "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": "keeper"}],
}
LABELS = {"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux"}


def keeper(api: ApiDaemon) -> Settings:
    """Settings of a user who may keep Nodes and make none."""
    path = api.base / "keeper.conf"
    command = [sys.executable, "-m", "podkeep", "kubeconfig", "--root", str(api.root), "--file", str(path)]
    command += ["--user", "keeper", "--server", f"https://{api.address}"]
    forked.run(command, check=True, capture_output=True, env={**os.environ, "PODKEEP_CONFIG": os.devnull})
    return kubeconfig.load([path])


def reporter(client: Client, place: Path) -> NodeReporter:
    cri = CriClient(str(place / "no.sock"))
    runtime = RuntimeState(cri, RuntimeStatus(cri))
    sensors = Sensors(capacity=dict, allocatable=dict)
    settings = NodeSettings(name="n1", labels=LABELS)
    return NodeReporter(client, settings, runtime, sensors, Recorder(client, "kubelet", "n1"), lambda _: None)


def test_a_node_that_may_not_be_made_may_be_there(tmp_path: Path) -> None:
    """As with a kubelet: an administrator made the Node, and the node's own user may not."""

    async def registered(api: ApiDaemon) -> None:
        admin, own = Client(kubeconfig.load([api.kubeconfig])), Client(keeper(api))
        try:
            for name, kind, value in (
                ("clusterroles", "ClusterRole", ROLE),
                ("clusterrolebindings", "ClusterRoleBinding", BINDING),
            ):
                await admin.create(Resource(name=name, kind=kind, group=_GROUP, namespaced=False), value)
            await admin.create(NODES, {"metadata": {"name": "n1"}})
            async with asyncio.timeout(TIMEOUT_S):
                await reporter(own, tmp_path).register()
            node = await admin.get(NODES, "n1")
            assert LABELS.items() <= node["metadata"]["labels"].items()
        finally:
            await admin.close()
            await own.close()

    with ApiDaemon(tmp_path) as api:
        asyncio.run(registered(api))
