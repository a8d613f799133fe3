"""Image volumes in the Pod API (KEP-4639, Kubernetes API)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument

EXAMPLE = """
apiVersion: v1
kind: Pod
metadata:
  name: example-pod
spec:
  volumes:
  - name: oci-volume
    image:
      reference: "example.com/my-image:latest"
      pullPolicy: IfNotPresent
  containers:
  - name: my-container
    image: busybox
    volumeMounts:
    - mountPath: /data
      name: oci-volume
"""


def problems(*volumes: dict[str, Any], **mount: str) -> list[str]:
    document = yaml.safe_load(EXAMPLE)
    if volumes:
        document["spec"]["volumes"] = [{"name": "oci-volume"} | volume for volume in volumes]
    document["spec"]["containers"][0]["volumeMounts"][0].update(mount)
    with pytest.raises(InvalidArgument) as caught:
        manifest.parse(json.dumps(document), source="f")
    return [line.split("): ", 1)[1] for line in caught.value.message.split("\n")]


@pytest.mark.requirement("V1")
def test_the_example() -> None:
    (pod,) = manifest.parse(EXAMPLE, source="f").pods
    (volume,) = pod.spec.volumes
    assert volume.name == "oci-volume"
    assert volume.image is not None
    assert (volume.image.reference, volume.image.pull_policy) == ("example.com/my-image:latest", "IfNotPresent")


@pytest.mark.requirement("V2")
@pytest.mark.parametrize("image", [{}, {"reference": ""}, {"pullPolicy": "Never"}])
def test_the_reference_is_required(image: dict[str, str]) -> None:
    assert problems({"image": image}) == ["spec.volumes[0].image.reference: Required value"]


@pytest.mark.requirement("V3")
def test_other_pull_policies() -> None:
    assert problems({"image": {"reference": "i", "pullPolicy": "Sometimes"}}) == [
        'spec.volumes[0].image.pullPolicy: Unsupported value: "Sometimes": supported values: "Always", '
        '"IfNotPresent", "Never"'
    ]


@pytest.mark.parametrize("policy", ["Always", "IfNotPresent", "Never"])
def test_pull_policies(policy: str) -> None:
    (pod,) = manifest.parse(EXAMPLE.replace("IfNotPresent", policy), source="f").pods
    assert pod.spec.volumes[0].image is not None
    assert pod.spec.volumes[0].image.pull_policy == policy


@pytest.mark.requirement("V5")
def test_a_volume_is_of_one_type() -> None:
    assert problems({"image": {"reference": "i"}, "emptyDir": {}}) == [
        "spec.volumes[0].image: Forbidden: may not specify more than 1 volume type"
    ]


@pytest.mark.requirement("V10", "V11")
def test_a_sub_path_and_an_expanded_one_exclude_each_other() -> None:
    assert problems(subPath="dir", subPathExpr="$(DIR)") == [
        'spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: "$(DIR)": '
        "subPathExpr and subPath are mutually exclusive"
    ]


@pytest.mark.requirement("V6")
@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump])
def test_nothing_is_lost_on_the_way(dump: Any) -> None:
    (pod,) = manifest.parse(EXAMPLE, source="f").pods
    encoded = msgspec.json.encode(pod)
    (again,) = manifest.parse(dump(json.loads(encoded)), source="f").pods
    assert again == pod
    assert msgspec.json.decode(encoded, type=Pod) == pod
    assert json.loads(encoded)["spec"]["volumes"] == [
        {"name": "oci-volume", "image": {"reference": "example.com/my-image:latest", "pullPolicy": "IfNotPresent"}}
    ]
