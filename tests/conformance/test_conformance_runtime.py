"""What a runtime says of itself: version, conditions, handlers, configuration."""

from __future__ import annotations

import pytest

from podkeep.base.errors import NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import pod
from support.endpoint import Node


def test_version_names_the_runtime_and_the_interface(node: Node) -> None:
    answer = node.call("Version", api.VersionRequest(version="v1"))
    assert answer.version == "0.1.0"  # of the kubelet's API, frozen long ago
    assert answer.runtime_name == node.endpoint.name
    assert answer.runtime_version
    assert answer.runtime_api_version == "v1"


def test_conditions_are_the_two_that_the_kubelet_waits_for(node: Node) -> None:
    conditions = {item.type: item for item in node.runtime_status().status.conditions}
    assert {"RuntimeReady", "NetworkReady"} <= set(conditions)
    for name in ("RuntimeReady", "NetworkReady"):
        assert conditions[name].status, conditions[name].message


def test_details_are_given_only_when_asked_for(node: Node) -> None:
    assert dict(node.runtime_status().info) == {}
    assert node.runtime_status(verbose=True).info


@pytest.mark.reference(unsupported="no list of handlers in Status")
def test_default_handler_is_listed_under_the_empty_name(node: Node) -> None:
    names = [item.name for item in node.runtime_status().runtime_handlers]
    assert names.count("") == 1
    assert len(names) == len(set(names))
    assert node.handler().features.user_namespaces


@pytest.mark.reference(unsupported="no features in Status")
def test_features_are_told(node: Node) -> None:
    assert node.runtime_status().features.supplemental_groups_policy


@pytest.mark.reference(unsupported="no RuntimeConfig")
def test_cgroup_driver_is_told(node: Node) -> None:
    answer = node.call("RuntimeConfig", api.RuntimeConfigRequest())
    assert answer.linux.cgroup_driver in {api.SYSTEMD, api.CGROUPFS}


def test_pod_cidr_can_be_told(node: Node) -> None:
    config = api.RuntimeConfig(network_config=api.NetworkConfig(pod_cidr=""))
    answer = node.call("UpdateRuntimeConfig", api.UpdateRuntimeConfigRequest(runtime_config=config))
    assert answer.ByteSize() == 0


def test_unknown_handler_is_refused(node: Node) -> None:
    message = node.refused(lambda: node.run(pod(), handler="no-such-handler"), NotFound)
    assert "no-such-handler" in message
    assert node.sandboxes() == []
