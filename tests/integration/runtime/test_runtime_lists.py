"""Lists: filters, the streaming forms, and lists that are too large for one message."""

from __future__ import annotations

from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, pod


def test_streams_have_what_the_lists_have(pods: Pods) -> None:
    first, second = pods.run(pod("one", labels={"a": "1"})), pods.run(pod("two", labels={"a": "2"}))
    main = pods.launch(first, labels={"b": "1"})
    other = pods.create(second)
    for chosen in ({}, {"id": first[:10]}, {"label_selector": {"a": "2"}}, {"label_selector": {"a": "3"}}):
        wanted = api.PodSandboxFilter(**chosen)
        messages = pods.collect("StreamPodSandboxes", api.StreamPodSandboxesRequest(filter=wanted))
        assert [item for message in messages for item in message.pod_sandboxes] == pods.sandboxes(**chosen)
    running = api.ContainerStateValue(state=api.CONTAINER_RUNNING)
    for chosen, ids in (
        ({}, [main, other]),
        ({"id": main}, [main]),
        ({"pod_sandbox_id": second}, [other]),
        ({"state": running}, [main]),
        ({"label_selector": {"b": "1"}}, [main]),
        ({"label_selector": {"b": "1"}, "pod_sandbox_id": second}, []),
        ({"id": "no-such-container"}, []),
    ):
        wanted_containers = api.ContainerFilter(**chosen)
        messages = pods.collect("StreamContainers", api.StreamContainersRequest(filter=wanted_containers))
        found = [item for message in messages for item in message.containers]
        assert found == pods.containers(**chosen)
        assert [item.id for item in found] == ids


def test_images_are_streamed(pods: Pods) -> None:
    listed = pods.call("ListImages", api.ListImagesRequest(), service="images").images
    messages = pods.collect("StreamImages", api.StreamImagesRequest(), service="images")
    assert [image for message in messages for image in message.images] == list(listed)
    wanted = api.ImageFilter(image=api.ImageSpec(image=pods.image))
    (message,) = pods.collect("StreamImages", api.StreamImagesRequest(filter=wanted), service="images")
    assert [image.id for image in message.images] == [pods.pull()]
    nothing = api.ImageFilter(image=api.ImageSpec(image="no.such/image"))
    assert pods.collect("StreamImages", api.StreamImagesRequest(filter=nothing), service="images") == []


def test_a_list_that_no_message_holds_is_shortened_or_streamed(pods: Pods) -> None:
    # Any pod's author may use the prefix of the kubelet's own annotations.
    options = {"io.kubernetes.big": "x" * 1_000_000}
    made = [pods.run(pod(f"big{number}", annotations=options)) for number in range(17)]
    listed = pods.sandboxes()
    assert [item.id for item in listed] == made
    assert [dict(item.annotations) for item in listed] == [{}] * 17
    messages = pods.collect("StreamPodSandboxes", api.StreamPodSandboxesRequest())
    assert [item.id for message in messages for item in message.pod_sandboxes] == made
    assert len(messages) == 17
    assert [dict(message.pod_sandboxes[0].annotations) for message in messages] == [options] * 17
    assert [item.id for item in pods.sandboxes(id=made[0])] == made[:1]
