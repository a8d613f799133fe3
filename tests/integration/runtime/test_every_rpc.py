"""Bad requests for every RPC of CRI: empty, unknown and shortened IDs, fields of ten megabytes, broken names.

The tables are complete: a new RPC fails the first test until it is in them. The ``daemon`` fixture counts what the
daemon holds before and after each test.
"""

from __future__ import annotations

from typing import Any

import pytest

import podkeep.cri.transport  # noqa: F401 - before grpc

# isort: split
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from podkeep.base.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    ResourceExhausted,
    Unimplemented,
)
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Pods, pod

METHODS: dict[str, MethodDescriptor] = {
    method.name: method for service in api.DESCRIPTOR.services_by_name.values() for method in service.methods
}
IMAGES = {method.name for method in api.DESCRIPTOR.services_by_name["ImageService"].methods}
ENDLESS = {"GetContainerEvents"}
"""A stream that ends with its client alone."""

ANSWERED = {
    "Version", "Status", "RuntimeConfig", "UpdateRuntimeConfig", "ListPodSandbox", "StreamPodSandboxes",
    "ListContainers", "StreamContainers", "ListContainerStats", "StreamContainerStats", "ListPodSandboxStats",
    "StreamPodSandboxStats", "ListMetricDescriptors", "ListPodSandboxMetrics", "StreamPodSandboxMetrics", "ListImages",
    "StreamImages", "ImageFsInfo",
}  # fmt: skip
"""RPCs whose empty request is complete."""
BY_POD = {
    "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "UpdatePodSandboxResources", "PortForward",
    "PodSandboxStats", "UpdatePodSandboxConfig",
}  # fmt: skip
BY_CONTAINER = {
    "StartContainer", "StopContainer", "RemoveContainer", "ContainerStatus", "UpdateContainerResources",
    "ReopenContainerLog", "CheckpointContainer", "ExecSync", "Exec", "Attach", "ContainerStats",
}  # fmt: skip
IDEMPOTENT = {"StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer"}
"""RPCs for which what is not there is as it should be."""
OTHERS = {"RunPodSandbox", "CreateContainer", "ImageStatus", "PullImage", "RemoveImage"}

UNKNOWN_ID = "0123456789abcdef" * 4
REFUSALS = (AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unimplemented)


def empty(rpc: str) -> Any:
    """Return the empty request of an RPC."""
    return message_factory.GetMessageClass(METHODS[rpc].input_type)()


def called(pods: Pods, rpc: str, request: Any) -> object:
    """Return the answer of an RPC, a list of messages of a stream, or its error."""
    service = "images" if rpc in IMAGES else "runtime"
    if not METHODS[rpc].server_streaming:
        return pods.call_all([(rpc, request)], service=service)[0]
    try:
        return pods.collect(rpc, request, service=service)
    except PodkeepError as error:
        return error


def identified(rpc: str, text: str) -> Any:
    """Return a request about ``text`` that is sound otherwise."""
    request = empty(rpc)
    setattr(request, "pod_sandbox_id" if rpc in BY_POD else "container_id", text)
    if rpc == "PortForward":
        request.port.append(80)
    if rpc in {"ExecSync", "Exec"}:
        request.cmd.append("true")
    if rpc in {"Exec", "Attach"}:
        request.stdout = True
    if rpc == "CheckpointContainer":
        request.location = "/no/such/directory/archive.tar"
    return request


def test_every_rpc_is_in_a_table() -> None:
    tables = [ANSWERED, BY_POD, BY_CONTAINER, OTHERS, ENDLESS]
    assert sorted(METHODS) == sorted(rpc for table in tables for rpc in table)


@pytest.mark.parametrize("rpc", sorted(set(METHODS) - ENDLESS))
def test_empty_request(pods: Pods, rpc: str) -> None:
    answer = called(pods, rpc, empty(rpc))
    if rpc in ANSWERED:
        assert not isinstance(answer, Exception), repr(answer)
    else:
        assert type(answer) is InvalidArgument, repr(answer)
        assert "\n" not in str(answer)
    assert (pods.sandboxes(), pods.containers()) == ([], [])


@pytest.mark.parametrize("rpc", sorted(BY_POD | BY_CONTAINER))
@pytest.mark.parametrize("text", [UNKNOWN_ID, "0", "a\nb", "../../etc", "\0"], ids=ascii)
def test_unknown_id(pods: Pods, rpc: str, text: str) -> None:
    answer = called(pods, rpc, identified(rpc, text))
    if rpc in IDEMPOTENT:
        assert not isinstance(answer, Exception), repr(answer)
    else:
        assert type(answer) is NotFound, repr(answer)
        assert "\n" not in str(answer)


@pytest.mark.parametrize("length", [1, 3, 11])
def test_truncated_id_is_unknown(pods: Pods, length: int) -> None:
    """Nothing prints fewer than twelve characters of an ID: fewer are a mistake, whatever else begins with them."""
    sandbox = pods.run()
    container = pods.launch(sandbox)
    before = [(item.id, item.state) for item in (*pods.sandboxes(), *pods.containers())]
    for rpc in sorted(BY_POD | BY_CONTAINER):
        text = (sandbox if rpc in BY_POD else container)[:length]
        answer = called(pods, rpc, identified(rpc, text))
        if rpc in IDEMPOTENT:
            assert not isinstance(answer, Exception), f"{rpc}: {answer!r}"
        else:
            assert type(answer) is NotFound, f"{rpc}: {answer!r}"
        assert [(item.id, item.state) for item in (*pods.sandboxes(), *pods.containers())] == before, rpc


@pytest.mark.parametrize(
    ("rpc", "field"),
    sorted(
        (rpc, item.name)
        for rpc, method in METHODS.items()
        for item in method.input_type.fields
        if rpc not in ENDLESS and item.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
    ),
)
def test_field_of_ten_megabytes(pods: Pods, rpc: str, field: str) -> None:
    request = empty(rpc)
    text = "x" * 10_000_000
    if METHODS[rpc].input_type.fields_by_name[field].is_repeated:
        getattr(request, field).append(text)
    else:
        setattr(request, field, text)
    answer = called(pods, rpc, request)
    assert not isinstance(answer, Exception) or type(answer) in REFUSALS, repr(answer)[:500]
    assert len(str(answer)) < 10_000 or not isinstance(answer, Exception)
    assert (pods.sandboxes(), pods.containers()) == ([], [])


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_map_of_ten_megabytes(pods: Pods, field: str) -> None:
    """Both would be in every list."""
    config, big = pod(), {"big": "x" * 10_000_000}
    getattr(config, field).update(big)
    answers = [called(pods, "RunPodSandbox", api.RunPodSandboxRequest(config=config))]
    answers.append(called(pods, "CreateContainer", pods.create_request(pods.run(), **{field: big})))
    for answer in answers:
        assert type(answer) is InvalidArgument, repr(answer)[:500]
        assert str(answer).startswith(f"config.{field}: ")
        assert len(str(answer)) < 10_000
    assert pods.containers() == []


@pytest.mark.parametrize("rpc", sorted(rpc for rpc in ANSWERED if "filter" in METHODS[rpc].input_type.fields_by_name))
@pytest.mark.parametrize("text", [UNKNOWN_ID, "a\nb", "x" * 1_000_000], ids=["unknown", "newline", "long"])
def test_filter_that_nothing_fits(pods: Pods, rpc: str, text: str) -> None:
    pods.launch(pods.run())
    request = empty(rpc)
    if rpc in IMAGES:
        request.filter.image.image = text
    else:
        request.filter.id = text
    answer = called(pods, rpc, request)
    assert not isinstance(answer, Exception), repr(answer)[:500]
    for message in answer if isinstance(answer, list) else [answer]:
        assert message.ByteSize() == 0


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *((field, name) for field in ("name", "uid", "namespace") for name in ("a\nb", "a\0b", "a/b", " ", ".", "..")),
        *((field, "") for field in ("name", "uid")),
    ],
    ids=ascii,
)
def test_metadata_of_a_sandbox(pods: Pods, field: str, name: str) -> None:
    config = pod()
    setattr(config.metadata, field, name)
    answer = called(pods, "RunPodSandbox", api.RunPodSandboxRequest(config=config))
    assert type(answer) is InvalidArgument, repr(answer)[:500]
    assert str(answer).startswith(f"config.metadata.{field}: " if name else "config.metadata: ")
    assert pods.sandboxes() == []
