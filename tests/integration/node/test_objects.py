"""What pods refer to, read with the rights of a node from a real API."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from podkeep.agent.objects import api_objects
from podkeep.agent.objects.api_objects import ROOT_CA, ApiObjects
from podkeep.api.decode import decode
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition, Unavailable
from podkeep.client import client as client_module
from podkeep.client import kubeconfig
from podkeep.client.client import Client, Patch
from podkeep.client.resources import (
    CONFIG_MAPS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RUNTIME_CLASSES,
    SECRETS,
    SERVICES,
)
from podkeep.client.settings import Settings
from support import forked
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

NODE = "n1"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("objects")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def node(api: ApiDaemon) -> Settings:
    """A client with a node's rights."""
    path = api.base / "node.conf"
    command = [sys.executable, "-m", "podkeep", "kubeconfig", "--root", str(api.root), "--file", str(path)]
    command += ["--user", f"system:node:{NODE}", "--group", "system:nodes", "--server", f"https://{api.address}"]
    forked.run(command, check=True, capture_output=True, env={**os.environ, "PODKEEP_CONFIG": os.devnull})
    return kubeconfig.load([path])


class Woken:
    """Notes which pods are woken."""

    def __init__(self) -> None:
        self.uids: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, uid: str) -> None:
        self.uids.append(uid)
        self._news.set()

    async def once(self) -> None:
        """Wait for one more."""
        while not self.uids:
            self._news.clear()
            await self._news.wait()
        self.uids.clear()


Body = Callable[[Client, ApiObjects, Woken], Awaitable[None]]


def run(api: ApiDaemon, node: Settings, body: Body) -> None:
    """Run a test with an administrator's client, and objects read by a node's."""

    async def main() -> None:
        root, client, woken = Client(kubeconfig.load([api.kubeconfig])), Client(node), Woken()
        objects = ApiObjects(client, woken)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if not (await root.list(NODES))["items"]:
                    await client.create(NODES, {"metadata": {"name": NODE}})
                await body(root, objects, woken)
        finally:
            await objects.close()
            await client.close()
            await root.close()

    asyncio.run(main())


async def bound(root: Client, name: str, **spec: Any) -> Pod:
    """Make a pod that is bound to the node, and return it as it is then."""
    whole = {"nodeName": NODE, "containers": [{"name": "c", "image": "x"}], **spec}
    made = await root.create(PODS, {"metadata": {"name": name}, "spec": whole}, "default")
    return decode(Pod, made, FieldErrors())


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def test_no_pod_and_no_namespace_takes_all_that_a_node_may_watch(
    api: ApiDaemon, node: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pod that referred to 2,048 ConfigMaps kept its node from learning of pods, and of their deletion."""
    for name, most in (("OF_POD", 4), ("OF_NAMESPACE", 6), ("OF_ALL", 8)):
        monkeypatch.setattr(api_objects, f"MOST_{name}", most)
    monkeypatch.setattr(api_objects, "FEW_OF_NAMESPACE", 1)

    def volumes(first: int, count: int) -> list[dict[str, Any]]:
        numbers = range(first, first + count)
        return [{"name": f"v{n}", "configMap": {"name": f"cm{n}", "optional": True}} for n in numbers]

    async def body(root: Client, objects: ApiObjects, woken: Woken) -> None:
        async def read(name: str, namespace: str, volumes: list[dict[str, Any]]) -> str:
            pod = await bound(root, name, volumes=volumes, automountServiceAccountToken=False)
            pod = structs.replace(pod, metadata=structs.replace(pod.metadata, namespace=namespace))
            try:
                await objects.read(pod)
            except FailedPrecondition as error:
                return error.message
            return ""

        too_many = "the pod refers to {} {}; at most 4 are possible"
        assert await read("many-1", "default", volumes(0, 5)) == too_many.format(5, "ConfigMaps and Secrets")
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claims = [{"name": f"v{n}", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}} for n in range(5)]
        assert await read("many-2", "default", claims) == too_many.format(5, "claims")
        tokens = [{"serviceAccountToken": {"path": f"t{n}", "audience": f"a{n}"}} for n in range(5)]
        projected = [{"name": "v", "projected": {"sources": tokens}}]
        assert await read("many-3", "default", projected) == too_many.format(5, "tokens")
        assert not await read("many-4", "default", volumes(0, 4))
        assert not await read("many-5", "default", volumes(2, 4))
        why = await read("many-6", "default", volumes(6, 1))
        assert "namespace default on this node refer to 7 ConfigMaps and Secrets" in why
        why = await read("many-7", "another", volumes(0, 3))
        assert "the pods of this node refer to 9 ConfigMaps and Secrets" in why
        assert not await read("many-8", "another", volumes(0, 2))
        assert not await read("many-9", "a-third", volumes(0, 1))

    run(api, node, body)


def test_config_maps_and_secrets_are_followed_for_as_long_as_a_pod_refers_to_them(
    api: ApiDaemon, node: Settings
) -> None:
    async def body(root: Client, objects: ApiObjects, woken: Woken) -> None:
        await root.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"k": "v"}}, "default")
        volumes = [{"name": "m", "configMap": {"name": "m"}}, {"name": "s", "secret": {"secretName": "s"}}]
        pod = await bound(root, "refers", volumes=volumes)
        other = await bound(root, "refers-too", volumes=volumes)
        sources = await objects.read(pod)
        await objects.read(other)
        assert not sources.failures
        assert sources.secret("default", "s") == {"k": b"v"}
        assert ("default", "m") not in sources.config_maps
        await root.create(CONFIG_MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}}, "default")
        await woken.once()
        assert (await objects.read(pod)).config_map("default", "m") == {"a": b"1"}
        assert ("default", "m") not in sources.config_maps, "a snapshot does not change"
        await root.patch(CONFIG_MAPS, "m", {"binaryData": {"b": "aGk="}}, "default")
        await woken.once()
        assert (await objects.read(pod)).config_map("default", "m") == {"a": b"1", "b": b"hi"}
        objects.release(other)
        await root.delete(CONFIG_MAPS, "m", "default")
        await woken.once()
        assert ("default", "m") not in (await objects.read(pod)).config_maps
        objects.release(pod)
        # The one of all pods of the namespace is still followed for a while: the next pod begins sooner.
        assert [name for _, _, name in objects._watched] == [ROOT_CA]

    run(api, node, body)


def test_the_next_pod_of_a_namespace_needs_no_new_watch_of_its_authority(
    api: ApiDaemon, node: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        pods = [await bound(root, f"in-turn-{number}") for number in range(3)]
        key = ("configmaps", "default", ROOT_CA)
        followed = []
        for pod in pods:
            assert ("default", ROOT_CA) in (await objects.read(pod)).config_maps
            followed.append(objects._watched[key])
            objects.release(pod)
        assert followed[0] is followed[1] is followed[2]
        # One that cannot be followed at the moment is asked for anew: what is known of it may be old.
        followed[0].reflector.error = Unavailable("the watch has ended")
        assert ("default", ROOT_CA) in (await objects.read(pods[0])).config_maps
        assert objects._watched[key] is not followed[0]
        monkeypatch.setattr(api_objects, "LINGER_S", 0.0)
        task = objects._watched[key].task
        objects.release(pods[0])
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert not objects._watched

    run(api, node, body)


def test_a_token_is_bound_to_the_pod_and_kept(api: ApiDaemon, node: Settings) -> None:
    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        projected = {
            "sources": [{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 7200}}]
        }
        pod = await bound(root, "token", volumes=[{"name": "t", "projected": projected}])
        sources = await objects.read(pod)
        token = sources.token("vault", 7200)
        claims = claims_of(token)
        assert claims["aud"] == ["vault"]
        assert claims["kubernetes.io"]["pod"] == {"name": "token", "uid": pod.metadata.uid}
        assert claims["exp"] - claims["iat"] == 7200
        # The one that admission gives every pod, beside it.
        assert len(sources.tokens) == 2
        assert (await objects.read(pod)).token("vault", 7200) == token
        objects.release(pod)
        assert (await objects.read(pod)).token("vault", 7200) != token

    run(api, node, body)


def test_why_a_token_is_not_to_be_had(api: ApiDaemon, node: Settings) -> None:
    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        # Without any pod of this account the node may not even ask.
        await bound(root, "has-token")
        pod = await bound(root, "no-token")
        await root.delete(PODS, "no-token", "default", grace=0)
        sources = await objects.read(pod)
        (failure,) = (why for key, why in sources.failures.items() if key.startswith("token/"))
        assert failure == 'pods "no-token" not found'

    run(api, node, body)


def test_a_claim_is_read_with_its_volume(api: ApiDaemon, node: Settings, tmp_path: Path) -> None:
    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        claim = {**spec, "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}}
        await root.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "c"}, "spec": claim}, "default")
        pod = await bound(root, "claims", volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}])
        first = (await objects.read(pod)).claim("default", "c")
        assert first.claim is not None
        assert first.volume is None
        ref = {"namespace": "default", "name": "c"}
        volume = {**spec, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(tmp_path)}, "claimRef": ref}
        await root.create(PERSISTENT_VOLUMES, {"metadata": {"name": "pv"}, "spec": volume})
        phase = [{"op": "add", "path": "/status/phase", "value": "Bound"}]
        await root.patch(PERSISTENT_VOLUME_CLAIMS, "c", phase, "default", kind=Patch.JSON, subresource="status")
        found = (await objects.read(pod)).claim("default", "c")
        assert found.volume is not None
        assert found.volume["spec"]["hostPath"]["path"] == str(tmp_path)

    run(api, node, body)


def test_runtime_classes_and_services(api: ApiDaemon, node: Settings) -> None:
    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        await root.create(RUNTIME_CLASSES, {"metadata": {"name": "sandboxed"}, "handler": "kata"})
        await root.create(SERVICES, {"metadata": {"name": "tea"}, "spec": {"ports": [{"port": 80}]}}, "default")
        pod = await bound(root, "class", runtimeClassName="sandboxed")
        sources = await objects.read(pod)
        classes = objects.runtime_classes
        assert classes.handler(pod) == "kata"
        with pytest.raises(FailedPrecondition, match=r'runtimeclass\.node\.k8s\.io "gone" not found'):
            classes.handler(decode(Pod, {"spec": {"runtimeClassName": "gone"}}, FieldErrors()))
        assert sources.known_services()["default", "tea"]["spec"]["ports"][0]["port"] == 80

    run(api, node, body)


def test_services_of_others_may_be_many_and_large(
    api: ApiDaemon, node: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 64 MiB of Services in any namespace no pod of any node could be started."""
    monkeypatch.setattr(client_module, "MAX_BODY_BYTES", 64 << 10)

    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        notes = {"annotations": {"a": "x" * 20_000}, "labels": {"test": "large"}}
        for index, address in enumerate([{}, *[{"clusterIP": "None"}] * 4]):
            spec = {"ports": [{"port": 80, "name": "http", "targetPort": 8080}], **address}
            await root.create(SERVICES, {"metadata": {"name": f"large-{index}", **notes}, "spec": spec}, "default")
        sources = await objects.read(await bound(root, "many-services"))
        found = {name: item for (_, name), item in sources.known_services().items() if name.startswith("large-")}
        assert found == {
            "large-0": {
                "metadata": {"namespace": "default", "name": "large-0"},
                "spec": {
                    "clusterIP": found["large-0"]["spec"]["clusterIP"],
                    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                },
            }
        }

    run(api, node, body)


def test_a_service_that_gets_an_address_and_loses_it(api: ApiDaemon, node: Settings) -> None:
    async def body(root: Client, objects: ApiObjects, _: Woken) -> None:
        pod = await bound(root, "turning")
        given = {"type": "ExternalName", "externalName": "tea.example"}
        await root.create(SERVICES, {"metadata": {"name": "turning"}, "spec": given}, "default")

        async def known(*, there: bool) -> None:
            while True:
                found = (await objects.read(pod)).known_services()
                if (("default", "turning") in found) is there:
                    return

        await known(there=False)
        spec = {"type": "ClusterIP", "externalName": None, "ports": [{"port": 80}]}
        await root.patch(SERVICES, "turning", {"spec": spec}, "default", kind=Patch.MERGE)
        await known(there=True)
        back = {"type": "ExternalName", "externalName": "tea.example", "clusterIP": None, "clusterIPs": None}
        await root.patch(SERVICES, "turning", {"spec": back}, "default", kind=Patch.MERGE)
        await known(there=False)

    run(api, node, body)


def test_without_an_api_a_snapshot_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        client = Client(Settings(server=f"unix://{tmp_path}/none.sock"))
        objects = ApiObjects(client)
        value = {
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"volumes": [{"name": "m", "configMap": {"name": "m"}}], "containers": []},
        }
        sources = await objects.read(decode(Pod, value, FieldErrors()))
        await objects.close()
        await client.close()
        assert sources.failures["configmap/m"] == (
            "failed to sync configmap cache: timed out waiting for the condition"
        )

    asyncio.run(main())
