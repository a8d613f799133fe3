"""Every list and map of a request has a bound, or a reason to have none here, whatever the protocol gets next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from runtime_values import sandbox_config as sandbox_record

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.rpc.convert.class_resources import class_names
from podkeep.runtime.rpc.convert.container import container_config
from podkeep.runtime.rpc.convert.counts import MOST, UNCOUNTED, check_counts
from podkeep.runtime.rpc.convert.sandbox import sandbox_config

REQUESTS = (
    api.RunPodSandboxRequest,
    api.CreateContainerRequest,
    api.UpdateContainerResourcesRequest,
    api.UpdatePodSandboxResourcesRequest,
    api.UpdatePodSandboxConfigRequest,
)
Path = tuple[str, ...]


def lists(message: Descriptor, path: Path = (), *, listed: bool = False) -> Iterator[tuple[str, Path, bool]]:
    """Yield the lists and maps of a message and of those in it: name, where it is, and whether that is in a list."""
    for field in message.fields:
        inner, here = field.message_type, (*path, field.name)
        if field.is_repeated:
            yield f"{message.name}.{field.name}", here, listed
        if inner is not None and not inner.GetOptions().map_entry:
            yield from lists(inner, here, listed=listed or field.is_repeated)


FOUND = [(name, request, path, listed) for request in REQUESTS for name, path, listed in lists(request.DESCRIPTOR)]
COUNTED = [(request, path, MOST[name]) for name, request, path, _ in FOUND if name in MOST]


def filled(request: Any, path: Path, count: int) -> Any:
    """Return a request with that many entries in one list, or map."""
    message = request()
    inner = message
    for name in path[:-1]:
        inner = getattr(inner, name)
    field = inner.DESCRIPTOR.fields_by_name[path[-1]]
    entries = getattr(inner, path[-1])
    if field.message_type is None:
        entries.extend(("x" if field.cpp_type == field.CPPTYPE_STRING else 1) for _ in range(count))
    elif field.message_type.GetOptions().map_entry:
        entries.update({str(number): "x" for number in range(count)})
    else:
        for _ in range(count):
            entries.add()
    return message


def test_every_list_of_a_request_has_a_bound_or_a_reason() -> None:
    assert MOST.keys() & UNCOUNTED.keys() == set()
    assert {name for name, *_ in FOUND} == MOST.keys() | UNCOUNTED.keys()
    # check_counts looks into no list, so what is in one would not be counted.
    assert [name for name, _, _, listed in FOUND if listed and name in MOST] == []


@pytest.mark.parametrize(("request_type", "path", "most"), COUNTED, ids=lambda value: str(value).rpartition(".")[2])
def test_one_entry_more_is_refused(request_type: Any, path: Path, most: int) -> None:
    check_counts("request", filled(request_type, path, most))
    with pytest.raises(InvalidArgument, match=f"{path[-1]}: {most + 1} entries; at most {most} are possible") as caught:
        check_counts("request", filled(request_type, path, most + 1))
    assert caught.value.message.startswith(".".join(("request", *path)))


def test_requests_are_counted_before_their_entries_are_looked_at() -> None:
    """None of these entries would be taken, so what refuses them is their number."""
    container = api.ContainerConfig(metadata=api.ContainerMetadata(name="a"), image=api.ImageSpec(image="b"))
    for field, most in (("mounts", 1024), ("devices", 256), ("CDI_devices", 256)):
        asked = api.ContainerConfig()
        asked.CopyFrom(container)
        for _ in range(most + 1):
            getattr(asked, field).add()
        with pytest.raises(InvalidArgument, match=rf"config\.{field}: {most + 1} entries; at most {most} are possible"):
            container_config(asked, sandbox_record())
    sandbox = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="a", uid="b"))
    sandbox.port_mappings.extend(api.PortMapping() for _ in range(16_385))
    with pytest.raises(InvalidArgument, match=r"config\.port_mappings: 16385 entries"):
        sandbox_config(sandbox, "", default_cgroup_parent="/a")
    with pytest.raises(InvalidArgument, match="class_resources: 1025 entries"):
        class_names("class_resources", {str(number): "" for number in range(1025)})


def test_cdi_devices_of_annotations_count_with_the_others() -> None:
    def asked(count: int) -> api.ContainerConfig:
        names = ",".join(f"vendor.example/net=n{number}" for number in range(count))
        return api.ContainerConfig(
            metadata=api.ContainerMetadata(name="a"),
            image=api.ImageSpec(image="b"),
            CDI_devices=[api.CDIDevice(name="vendor.example/gpu=all")],
            annotations={"cdi.k8s.io/a": names},
        )

    assert len(container_config(asked(255), sandbox_record()).cdi_devices) == 256
    with pytest.raises(InvalidArgument, match=r"CDI_devices, config\.annotations: 257 entries; at most 256"):
        container_config(asked(256), sandbox_record())
