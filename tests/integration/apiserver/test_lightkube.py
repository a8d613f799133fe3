"""``podkeep api`` through lightkube, a client that shares no code with kubectl."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

from support.api_daemon import ApiDaemon


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[Client]:
    with ApiDaemon(tmp_path_factory.mktemp("api")) as daemon:
        config = KubeConfig.from_file(daemon.kubeconfig)
        yield Client(config=config, namespace="default", field_manager="lightkube", trust_env=False)


def test_create_patch_watch_delete(client: Client) -> None:
    made = client.create(ConfigMap(metadata=ObjectMeta(name="one", labels={"a": "b"}), data={"x": "1"}))
    assert made.metadata is not None
    assert made.metadata.uid
    patched = client.patch(ConfigMap, "one", {"data": {"y": "2"}}, patch_type=PatchType.MERGE)
    assert patched.data == {"x": "1", "y": "2"}
    operations = [{"op": "remove", "path": "/data/x"}]
    assert client.patch(ConfigMap, "one", operations, patch_type=PatchType.JSON).data == {"y": "2"}
    client.delete(ConfigMap, "one")
    events = client.watch(ConfigMap, labels={"a": "b"}, resource_version=made.metadata.resourceVersion)
    assert [next(events)[0] for _ in range(3)] == ["MODIFIED", "MODIFIED", "DELETED"]
    with pytest.raises(ApiError) as caught:
        client.get(ConfigMap, "one")
    assert caught.value.status.code == 404


def test_apply(client: Client) -> None:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}), spec=PodSpec(containers=[Container(name="c", image="c:1")])
    )
    web = Deployment(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=DeploymentSpec(selector=LabelSelector(matchLabels={"app": "web"}), template=template, replicas=2),
    )
    assert client.apply(web).metadata.generation == 1  # type: ignore[union-attr]
    assert web.spec is not None
    web.spec.replicas = 3
    assert client.apply(web).metadata.generation == 2  # type: ignore[union-attr]
    web.spec.replicas = 4
    with pytest.raises(ApiError) as caught:
        client.apply(web, field_manager="other")
    assert caught.value.status.code == 409
    assert client.apply(web, field_manager="other", force=True).spec.replicas == 4  # type: ignore[union-attr]
    assert [item.metadata.name for item in client.list(Deployment) if item.metadata] == ["web"]
