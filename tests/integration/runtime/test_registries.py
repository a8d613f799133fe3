"""Which registries a runtime asks, and with whose credentials, over CRI."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, PermissionDenied, RegistryUnavailable
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, error_of
from support.daemon import Daemon
from support.images import Layout, busybox_layout
from support.processes import write_script
from support.registry import Answer, HostileRegistry, free_port
from support.waiting import wait_for

BASIC = f"Basic {base64.b64encode(b'me:sEcReT-of-mine').decode()}"


def private(_path: str, headers: Mapping[str, str]) -> Answer | None:
    """Ask for the one name and password."""
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}
    return None if headers.get("Authorization") == BASIC else Answer(status=401, headers=challenge)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The busybox image."""
    return busybox_layout(tmp_path_factory.mktemp("registries") / "layout")


@pytest.fixture
def client(own_daemon: Daemon) -> Iterator[Pods]:
    """A client of a daemon that the test starts."""
    with Pods(own_daemon.socket, "") as client:
        yield client


def pull(client: Pods, name: str, **auth: str) -> str:
    request = api.PullImageRequest(image=api.ImageSpec(image=name))
    if auth:
        request.auth.CopyFrom(api.AuthConfig(**auth))
    answer: api.PullImageResponse = client.call("PullImage", request, service="images")
    return answer.image_ref


@pytest.mark.requirement("V18")
def test_registries_that_are_not_allowed_are_refused_until_they_are(
    own_daemon: Daemon, client: Pods, layout: Layout
) -> None:
    with HostileRegistry(layout) as registry:
        written = own_daemon.config.read_text()
        insecure = f'[registries."{registry.host}"]\ninsecure = true\n'
        own_daemon.config.write_text(f'{written}\n{insecure}[images]\nallowed_registries = ["registry.example"]\n')
        own_daemon.start()
        said = error_of(lambda: pull(client, f"{registry.host}/app:v1"), PermissionDenied)
        assert f"images of {registry.host}/app may not be pulled to this node" in said
        assert "images.allowed_registries" in said
        assert registry.requests == []
        own_daemon.config.write_text(f'{written}\n{insecure}[images]\nallowed_registries = ["{registry.host}"]\n')
        assert own_daemon.process is not None
        own_daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "applied: images.allowed_registries" in own_daemon.log.read_text(), "the reload")
        assert pull(client, f"{registry.host}/app:v1") == layout.image_id


@pytest.mark.requirement("V29", "V30")
def test_credentials_of_the_node_and_of_the_request(
    own_daemon: Daemon, client: Pods, layout: Layout, tmp_path: Path
) -> None:
    version = "credentialprovider.kubelet.k8s.io/v1"
    with HostileRegistry(layout, private) as registry:
        said = {
            "kind": "CredentialProviderResponse",
            "apiVersion": version,
            "cacheKeyType": "Registry",
            "auth": {registry.host: {"username": "me", "password": "sEcReT-of-mine"}},
        }
        plugin = tmp_path / "plugins/mine"
        plugin.parent.mkdir()
        write_script(plugin, f"#!/bin/sh\necho '{json.dumps(said)}'\n")
        provider = {
            "name": "mine",
            "apiVersion": version,
            "matchImages": [f"{registry.host}/team"],
            "defaultCacheDuration": "1h",
        }
        config = {"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]}
        (tmp_path / "plugins.json").write_text(json.dumps(config))
        own_daemon.config.write_text(
            f"""{own_daemon.config.read_text()}
[registries."{registry.host}"]
insecure = true
[images]
credential_providers = "{tmp_path}/plugins.json"
credential_provider_dir = "{plugin.parent}"
"""
        )
        own_daemon.start()
        assert pull(client, f"{registry.host}/team/app:v1") == layout.image_id
        assert pull(client, f"{registry.host}/team/app:v1") == layout.image_id
        error_of(lambda: pull(client, f"{registry.host}/other/app:v1"), PermissionDenied)
        mine = {"username": "me", "password": "sEcReT-of-mine"}
        assert pull(client, f"{registry.host}/other/app:v1", **mine) == layout.image_id
        error_of(lambda: pull(client, f"{registry.host}/o/p:v1", **mine, server_address="r.example"), PermissionDenied)
        wrong = {"username": "me", "password": "sEcReT-of-yours"}
        error_of(lambda: pull(client, f"{registry.host}/team/app:v1", **wrong), PermissionDenied)
        error_of(lambda: pull(client, f"{registry.host}/team/app:v1", auth="rubbish"), InvalidArgument)
    log = own_daemon.log.read_text()
    assert "sEcReT" not in log
    assert BASIC.partition(" ")[2] not in log


def test_every_server_is_named_when_none_answers(own_daemon: Daemon, client: Pods) -> None:
    mirror, registry = (f"127.0.0.1:{free_port()}" for _ in range(2))
    text = f'[registries."{registry}"]\nmirrors = ["http://{mirror}"]\n'
    own_daemon.config.write_text(f"{own_daemon.config.read_text()}\n{text}")
    own_daemon.start()
    said = error_of(lambda: pull(client, f"{registry}/app:v1"), RegistryUnavailable)
    assert said.startswith(f"RegistryUnavailable: {registry}: cannot connect to {registry}: connection refused")
    assert f"{mirror}: cannot connect to {mirror}: connection refused" in said
    assert "check that it runs" in said


@pytest.mark.requirement("V18")
def test_the_event_of_a_pod_says_that_its_image_is_not_allowed(own_daemon: Daemon, tmp_path: Path) -> None:
    own_daemon.config.write_text(
        f'{own_daemon.config.read_text()}\n[images]\nallowed_registries = ["registry.example"]\n'
    )
    own_daemon.start()
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "web", "image": "evil.example/app:v1"}]},
    }
    (tmp_path / "pod.json").write_text(json.dumps(document))
    done = own_daemon.run("run", str(tmp_path / "pod.json"))
    assert done.returncode == 1
    assert 'Failed to pull image "evil.example/app:v1": ' in done.stderr
    assert "images of evil.example/app may not be pulled to this node" in done.stderr
