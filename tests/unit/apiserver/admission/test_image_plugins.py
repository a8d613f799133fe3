"""AlwaysPullImages and ImagePolicy: both look at every image, those of volumes too."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from podkeep.apiserver.admission.always_pull_images import AlwaysPullImages
from podkeep.apiserver.admission.attributes import AdmitAll, Operation
from podkeep.apiserver.admission.image_policy import ImagePolicy
from podkeep.apiserver.meta.status import StatusError
from podkeep.base.errors import InvalidArgument
from support.admission import admit, attributes


def pod(policy: str = "IfNotPresent", *, image: str = "a", volume: str = "v") -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "initContainers": [{"name": "i", "image": image, "imagePullPolicy": policy}],
            "containers": [{"name": "c", "image": image, "imagePullPolicy": policy}],
            "ephemeralContainers": [{"name": "e", "image": image, "imagePullPolicy": policy}],
            "volumes": [
                {"name": "d", "emptyDir": {}},
                {"name": "o", "image": {"reference": volume, "pullPolicy": policy}},
            ],
        },
    }


@pytest.mark.requirement("V14")
def test_every_image_is_pulled_and_another_policy_is_refused() -> None:
    told = admit(AlwaysPullImages(), attributes("pods", pod()))
    assert told.value == pod("Always")
    with pytest.raises(StatusError) as caught:
        AlwaysPullImages().validate(attributes("pods", pod("Never", image="new"), pod("Never")))
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
    assert caught.value.message == 'pods "web" is forbidden: ' + ", ".join(
        f'{path}: Unsupported value: "Never": supported values: "Always"'
        for path in (
            "spec.initContainers[0].imagePullPolicy",
            "spec.containers[0].imagePullPolicy",
            "spec.ephemeralContainers[0].imagePullPolicy",
            "spec.volumes[1].image.pullPolicy",
        )
    )


@pytest.mark.requirement("V15")
def test_an_update_with_no_new_image_is_not_looked_at() -> None:
    old = pod()
    labeled = copy.deepcopy(old)
    labeled["metadata"]["labels"] = {"a": "b"}
    assert admit(AlwaysPullImages(), attributes("pods", labeled, old)).value == labeled
    for changed in (pod(volume="w"), pod(image="b")):
        with pytest.raises(StatusError):
            AlwaysPullImages().validate(attributes("pods", changed, old))
    # The reference of a volume is no image of a container yet.
    assert admit(AlwaysPullImages(), attributes("pods", pod(volume="a"), old)).value == pod("Always", volume="a")


def test_ephemeral_containers_have_their_images_pulled() -> None:
    """Also one with an image that the pod has already; those that were there before the plugin stay as they are."""
    debugged = pod()
    debugged["spec"]["ephemeralContainers"].append({"name": "d", "image": "a", "imagePullPolicy": "Never"})
    refused = copy.deepcopy(debugged)
    told = admit(AlwaysPullImages(), attributes("pods", debugged, pod(), subresource="ephemeralcontainers"))
    assert told.value is not None
    new = {"name": "d", "image": "a", "imagePullPolicy": "Always"}
    assert told.value["spec"] == pod()["spec"] | {"ephemeralContainers": [*pod()["spec"]["ephemeralContainers"], new]}
    with pytest.raises(
        StatusError, match=r'spec\.ephemeralContainers\[1\]\.imagePullPolicy: Unsupported value: "Never"'
    ):
        AlwaysPullImages().validate(attributes("pods", refused, pod(), subresource="ephemeralcontainers"))


def test_subresources_and_other_kinds_are_not_looked_at() -> None:
    template = {"metadata": {"name": "p"}, "template": pod("Never")}
    assert admit(AlwaysPullImages(), attributes("podtemplates", copy.deepcopy(template))).value == template
    assert admit(AlwaysPullImages(), attributes("pods", pod(), subresource="status")).value == pod()
    admit(AlwaysPullImages(), attributes("pods", None, pod(), operation=Operation.DELETE))


def refusal(value: dict[str, Any], old: dict[str, Any] | None = None, resource: str = "pods", **more: Any) -> str:
    plugin = ImagePolicy(["registry.example:5000", "docker.io/library", "*.trusted.example/team/"])
    try:
        admit(plugin, attributes(resource, value, old, **more))
    except StatusError as error:
        return error.message.partition("which are not of an allowed registry: ")[2] or error.message
    return ""


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("sha256:0123456789ab", False),
        (f"sha256:{'0' * 64}", False),
        ("busybox", True),
        ("docker.io/library/busybox:1", True),
        ("index.docker.io/busybox", True),
        ("docker.io/other/busybox", False),
        ("docker.io/library-of-others/x", False),
        ("registry.example:5000/any/thing@sha256:" + "0" * 64, True),
        ("registry.example/any", False),
        ("registry.example:5000.evil.example/any", False),
        ("eu.trusted.example/team/x", True),
        ("a.eu.trusted.example/team/x", False),
        ("eu.trusted.example/teams/x", False),
        ("0" * 64, False),
        ("not an image", False),
        ("$(IMAGE)", False),
    ],
)
@pytest.mark.requirement("V16")
def test_only_allowed_registries(image: str, allowed: bool) -> None:
    good = pod(image="busybox", volume="busybox")
    for path, where in (
        (("initContainers", 0, "image"), "spec.initContainers[0].image"),
        (("containers", 0, "image"), "spec.containers[0].image"),
        (("ephemeralContainers", 0, "image"), "spec.ephemeralContainers[0].image"),
        (("volumes", 1, "image", "reference"), "spec.volumes[1].image.reference"),
    ):
        value = copy.deepcopy(good)
        owner: Any = value["spec"]
        for name in path[:-1]:
            owner = owner[name]
        owner[path[-1]] = image
        assert refusal(value) == ("" if allowed else f'{where}: "{image}"')


def test_templates_are_looked_at() -> None:
    value = {"metadata": {"name": "j"}, "spec": {"jobTemplate": {"spec": {"template": pod(image="x.example/a")}}}}
    assert refusal(value, resource="cronjobs").startswith(
        'spec.jobTemplate.spec.template.spec.initContainers[0].image: "x.example/a", '
    )
    assert refusal({"metadata": {"name": "c"}, "data": {}}, resource="configmaps") == ""


def test_what_an_object_has_already_stays() -> None:
    old = pod(image="x.example/a", volume="busybox")
    labeled = copy.deepcopy(old)
    labeled["metadata"]["labels"] = {"a": "b"}
    assert refusal(labeled, old) == ""
    debugged = copy.deepcopy(old)
    debugged["spec"]["ephemeralContainers"].append({"name": "d", "image": "x.example/b"})
    assert refusal(debugged, old, subresource="ephemeralcontainers") == (
        'spec.ephemeralContainers[1].image: "x.example/b"'
    )


def test_the_refusal_is_bounded() -> None:
    value = pod(image="busybox", volume="busybox")
    value["spec"]["containers"] = [{"name": "c", "image": "x.example/a"}] * 8
    assert refusal(value).endswith('spec.containers[4].image: "x.example/a" and 3 more')


def test_without_a_list_every_image_is_allowed() -> None:
    admit(ImagePolicy(), attributes("pods", pod(image="not an image")))
    assert isinstance(ImagePolicy(), AdmitAll)


@pytest.mark.parametrize("pattern", ["https://registry.example", "", "a//b", "-"])
def test_a_pattern_that_matches_nothing(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match="is not host"):
        ImagePolicy([pattern])
