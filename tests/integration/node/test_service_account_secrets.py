"""Pull secrets of service accounts, for images and for image volumes of a private registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.conftest import BCRYPT_OF_SECRET, LOGIN
from agent.manifests import image_volume, mount, pod, pull_secret, shell
from node.test_image_volume_gate import reasons
from node.test_pod_volumes import log_of

from support.images import busybox_layout, directory, file, layers_layout
from support.registry import Registry
from support.running_node import RunningNode


@pytest.mark.requirement("V29")
def test_the_secrets_of_its_service_account_are_a_pods(own_node: RunningNode, tmp_path: Path) -> None:
    """The pod names none. Before its account has one, neither image can be pulled."""
    with Registry(tmp_path / "private", htpasswd=f"user:{BCRYPT_OF_SECRET}\n") as private:
        program = private.push(busybox_layout(tmp_path / "busybox"), "team/busybox:1", headers=LOGIN)
        layers = [[directory("dir"), file("dir/file", "in dir\n")], [file("file", "data\n")]]
        data = private.push(layers_layout(tmp_path / "data", layers), "team/data:1", headers=LOGIN)
        own_node.daemon.extra += f'[registries."{private.host}"]\ninsecure = true\n'
        own_node.daemon.write()
        with own_node as node:
            container = shell(program, "cat /volume/file; sleep 1000", volumeMounts=[mount()])
            node.apply(pod(container, name="before", volumes=[image_volume(data)], restartPolicy="Always"))
            node.until(lambda: "Failed" in reasons(node, "before"), "the refusal")
            node.apply(pull_secret("login", private.host))
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            change = {"imagePullSecrets": [{"name": "login"}]}
            node.ask("PATCH", account, change, media="application/merge-patch+json")
            node.apply(pod(container, name="after", volumes=[image_volume(data)], restartPolicy="Always"))
            assert node.running("after")["spec"]["imagePullSecrets"] == [{"name": "login"}]
            assert node.until(lambda: log_of(node, "after"), "the content") == "data"
            found = node.get("before")
            assert found is not None
            assert found["status"]["phase"] == "Pending"
