"""The CRI of podkeep is upstream's, name by name and number by number, plus exactly the additions written here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from podkeep.cri.v1 import api_pb2, podkeep_pb2
from support import cri_v1

REPOSITORY = Path(__file__).resolve().parents[2]

ADDITIONS = {
    "rpc RuntimeService.UpdatePodSandboxConfig(UpdatePodSandboxConfigRequest) UpdatePodSandboxConfigResponse",
    "message UpdatePodSandboxConfigRequest",
    "field UpdatePodSandboxConfigRequest.pod_sandbox_id = 1 string",
    "field UpdatePodSandboxConfigRequest.config = 2 PodSandboxConfig",
    "message UpdatePodSandboxConfigResponse",
    "message ContainerClassResources",
    "field ContainerClassResources.classes = 1 map<string, string>",
    "message PodClassResources",
    "field PodClassResources.class = 1 map<string, string>",
    "message ResourcesInfo",
    "field ResourcesInfo.pod_class_resources = 1 repeated ClassResourceInfo",
    "field ResourcesInfo.container_class_resources = 2 repeated ClassResourceInfo",
    "message ClassResourceInfo",
    "field ClassResourceInfo.Name = 1 string",
    "field ClassResourceInfo.classes = 2 repeated ClassResourceClassInfo",
    "field ClassResourceInfo.immutable = 3 bool",
    "field ClassResourceInfo.default_class = 4 string",
    "message ClassResourceClassInfo",
    "field ClassResourceClassInfo.Name = 1 string",
    "field ContainerConfig.class_resources = 3008 ContainerClassResources",
    "field UpdateContainerResourcesRequest.class_resources = 5 ContainerClassResources",
    "field PodSandboxConfig.class_resources = 10 PodClassResources",
    "field RuntimeStatus.resources = 2 ResourcesInfo",
}


def _file(descriptor: FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto.FromString(descriptor.serialized_pb)


def test_the_interface_is_upstreams_plus_the_listed_additions() -> None:
    upstream = cri_v1.listed()
    assert len([line for line in upstream if line.startswith("rpc ")]) == 41
    assert not ADDITIONS & upstream
    ours = cri_v1.describe(_file(api_pb2.DESCRIPTOR))
    assert ours - upstream == ADDITIONS
    assert upstream - ours == set()


def test_the_package_is_upstreams() -> None:
    assert api_pb2.DESCRIPTOR.package == "runtime.v1"


def test_the_listing_rebuilds_into_the_same_lines() -> None:
    pool = cri_v1.build(cri_v1.listed())
    rebuilt = cri_v1.describe(_file(pool.FindFileByName("listing.proto")))
    without_rpcs = {line for line in cri_v1.listed() if not line.startswith("rpc ")}
    assert rebuilt == {line.removesuffix(" redacted").removesuffix(" deprecated") for line in without_rpcs}


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        pytest.param("IDMapping", "host_id", 1, marks=pytest.mark.requirement("U20")),
        pytest.param("IDMapping", "container_id", 2, marks=pytest.mark.requirement("U20")),
        pytest.param("IDMapping", "length", 3, marks=pytest.mark.requirement("U20")),
        pytest.param("UserNamespace", "mode", 1, marks=pytest.mark.requirement("U21")),
        pytest.param("UserNamespace", "uids", 2, marks=pytest.mark.requirement("U21")),
        pytest.param("UserNamespace", "gids", 3, marks=pytest.mark.requirement("U21")),
        pytest.param("NamespaceOption", "userns_options", 5, marks=pytest.mark.requirement("U21")),
        pytest.param("Mount", "uidMappings", 6, marks=pytest.mark.requirement("U24")),
        pytest.param("Mount", "gidMappings", 7, marks=pytest.mark.requirement("U24")),
        pytest.param("StatusResponse", "runtime_handlers", 3, marks=pytest.mark.requirement("U25")),
        pytest.param("RuntimeHandler", "name", 1, marks=pytest.mark.requirement("U25")),
        pytest.param("RuntimeHandler", "features", 2, marks=pytest.mark.requirement("U25")),
        pytest.param("RuntimeHandlerFeatures", "user_namespaces", 2, marks=pytest.mark.requirement("U25")),
        pytest.param("ClassResourceInfo", "Name", 1, marks=pytest.mark.requirement("Q12")),
        pytest.param("ClassResourceInfo", "classes", 2, marks=pytest.mark.requirement("Q12")),
        pytest.param("ClassResourceClassInfo", "Name", 1, marks=pytest.mark.requirement("Q12")),
        pytest.param("ClassResourceInfo", "immutable", 3, marks=pytest.mark.requirement("Q13")),
        pytest.param("ClassResourceInfo", "default_class", 4, marks=pytest.mark.requirement("Q79")),
        pytest.param("RuntimeStatus", "resources", 2, marks=pytest.mark.requirement("Q11")),
        pytest.param("ResourcesInfo", "pod_class_resources", 1, marks=pytest.mark.requirement("Q11")),
        pytest.param("ResourcesInfo", "container_class_resources", 2, marks=pytest.mark.requirement("Q11")),
        pytest.param("ContainerConfig", "class_resources", 3008, marks=pytest.mark.requirement("Q7")),
        pytest.param("ContainerClassResources", "classes", 1, marks=pytest.mark.requirement("Q7")),
        pytest.param("UpdateContainerResourcesRequest", "class_resources", 5, marks=pytest.mark.requirement("Q8")),
        pytest.param("PodSandboxConfig", "class_resources", 10, marks=pytest.mark.requirement("Q10")),
        pytest.param("PodClassResources", "class", 1, marks=pytest.mark.requirement("Q10")),
        pytest.param("UpdatePodSandboxConfigRequest", "pod_sandbox_id", 1, marks=pytest.mark.requirement("Q17")),
        pytest.param("UpdatePodSandboxConfigRequest", "config", 2, marks=pytest.mark.requirement("Q17")),
        pytest.param("Mount", "image", 9),
        pytest.param("Mount", "image_sub_path", 10),
    ],
)
def test_a_number_that_requirements_name(message: str, field: str, number: int) -> None:
    assert api_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name[field].number == number


@pytest.mark.requirement("U20")
@pytest.mark.parametrize(
    ("message", "data"),
    [
        # The bytes as the wire format spells them: tag = number << 3 | type, then a varint or a length.
        (
            api_pb2.IDMapping(host_id=65536, container_id=1, length=65536),
            bytes.fromhex("08 808004 10 01 18 808004"),
        ),
        (
            api_pb2.NamespaceOption(
                userns_options=api_pb2.UserNamespace(
                    mode=api_pb2.POD,
                    uids=[api_pb2.IDMapping(host_id=131072, length=10)],
                    gids=[api_pb2.IDMapping(host_id=7, container_id=5, length=1)],
                )
            ),
            bytes.fromhex("2a 10 12 06 08 808008 18 0a 1a 06 08 07 10 05 18 01"),
        ),
        (
            api_pb2.Mount(uidMappings=[api_pb2.IDMapping(length=1)], gidMappings=[api_pb2.IDMapping(length=2)]),
            bytes.fromhex("32 02 18 01 3a 02 18 02"),
        ),
        (
            api_pb2.RuntimeHandler(name="", features=api_pb2.RuntimeHandlerFeatures(user_namespaces=True)),
            bytes.fromhex("12 02 10 01"),
        ),
    ],
)
def test_the_bytes_are_those_of_the_wire_format(message: Message, data: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == data
    assert type(message).FromString(data) == message


def test_podkeeps_own_service() -> None:
    assert cri_v1.describe(_file(podkeep_pb2.DESCRIPTOR)) == {
        "rpc Node.LoadImage(LoadImageRequest) LoadImageResponse",
        "rpc Node.SaveImages(SaveImagesRequest) SaveImagesResponse",
        "rpc Node.DescribeImages(DescribeImagesRequest) stream ImageDescription",
        "rpc Node.RemoveImageName(RemoveImageNameRequest) RemoveImageNameResponse",
        "rpc Node.PruneImages(PruneImagesRequest) PruneImagesResponse",
        "rpc Node.VerifyImages(VerifyImagesRequest) stream VerifyEvent",
        "rpc Node.WatchPulls(WatchPullsRequest) stream PullProgress",
        "rpc Node.ListPodUIDs(ListPodUIDsRequest) ListPodUIDsResponse",
        "rpc Node.Shutdown(ShutdownRequest) ShutdownResponse",
        "message OpenFile",
        "field OpenFile.pid = 1 int32",
        "field OpenFile.descriptor = 2 int32",
        "field OpenFile.device = 3 uint64",
        "field OpenFile.inode = 4 uint64",
        "field OpenFile.name = 5 string",
        "message LoadImageRequest",
        "field LoadImageRequest.path = 1 string",
        "field LoadImageRequest.file = 2 OpenFile",
        "message LoadImageResponse",
        "field LoadImageResponse.image_refs = 1 repeated string",
        "message SaveImagesRequest",
        "field SaveImagesRequest.images = 1 repeated string",
        "field SaveImagesRequest.target = 2 OpenFile",
        "message SaveImagesResponse",
        "field SaveImagesResponse.bytes = 1 int64",
        "message DescribeImagesRequest",
        "field DescribeImagesRequest.images = 1 repeated string",
        "field DescribeImagesRequest.documents = 2 bool",
        "message ImageDescription",
        "field ImageDescription.id = 1 string",
        "field ImageDescription.kind = 2 string",
        "field ImageDescription.artifact_type = 3 string",
        "field ImageDescription.repo_tags = 4 repeated string",
        "field ImageDescription.repo_digests = 5 repeated string",
        "field ImageDescription.size = 6 int64",
        "field ImageDescription.shared_size = 7 int64",
        "field ImageDescription.pulled_at = 8 int64",
        "field ImageDescription.pinned = 9 bool",
        "field ImageDescription.users = 10 repeated ImageUser",
        "field ImageDescription.documents = 11 repeated ImageDocument",
        "field ImageDescription.layers = 12 repeated ImageLayer",
        "message ImageUser",
        "field ImageUser.container_id = 1 string",
        "field ImageUser.container_name = 2 string",
        "field ImageUser.pod_namespace = 3 string",
        "field ImageUser.pod_name = 4 string",
        "field ImageUser.volume = 5 bool",
        "message ImageDocument",
        "field ImageDocument.role = 1 string",
        "field ImageDocument.digest = 2 string",
        "field ImageDocument.data = 3 bytes",
        "message ImageLayer",
        "field ImageLayer.id = 1 string",
        "field ImageLayer.kind = 2 string",
        "field ImageLayer.driver = 3 string",
        "field ImageLayer.bytes = 4 int64",
        "field ImageLayer.inodes = 5 int64",
        "field ImageLayer.images = 6 int32",
        "field ImageLayer.title = 7 string",
        "message RemoveImageNameRequest",
        "field RemoveImageNameRequest.image = 1 string",
        "message RemoveImageNameResponse",
        "field RemoveImageNameResponse.untagged = 1 repeated string",
        "field RemoveImageNameResponse.removed = 2 string",
        "field RemoveImageNameResponse.reclaimed_bytes = 3 int64",
        "message PruneImagesRequest",
        "field PruneImagesRequest.all = 1 bool",
        "field PruneImagesRequest.pulled_before = 2 int64",
        "field PruneImagesRequest.dry_run = 3 bool",
        "message PruneImagesResponse",
        "field PruneImagesResponse.images = 1 repeated ImageDescription",
        "field PruneImagesResponse.reclaimed_bytes = 2 int64",
        "message VerifyImagesRequest",
        "field VerifyImagesRequest.images = 1 repeated string",
        "field VerifyImagesRequest.repair = 2 bool",
        "message VerifyEvent",
        "field VerifyEvent.progress = 1 VerifyProgress",
        "field VerifyEvent.damage = 2 VerifyDamage",
        "field VerifyEvent.summary = 3 VerifySummary",
        "message VerifyProgress",
        "field VerifyProgress.done = 1 int64",
        "field VerifyProgress.total = 2 int64",
        "message VerifyDamage",
        "field VerifyDamage.object = 1 string",
        "field VerifyDamage.problem = 2 string",
        "field VerifyDamage.images = 3 repeated string",
        "field VerifyDamage.names = 4 repeated string",
        "field VerifyDamage.repaired = 5 bool",
        "field VerifyDamage.kept = 6 string",
        "message VerifySummary",
        "field VerifySummary.images = 1 int32",
        "field VerifySummary.layers = 2 int32",
        "field VerifySummary.documents = 3 int32",
        "field VerifySummary.bytes = 4 int64",
        "field VerifySummary.damages = 5 int32",
        "field VerifySummary.unchecked = 6 int32",
        "message WatchPullsRequest",
        "field WatchPullsRequest.image = 1 string",
        "message PullProgress",
        "field PullProgress.image = 1 string",
        "field PullProgress.digest = 2 string",
        "field PullProgress.phase = 3 string",
        "field PullProgress.done = 4 int64",
        "field PullProgress.total = 5 int64",
        "message ListPodUIDsRequest",
        "message ListPodUIDsResponse",
        "field ListPodUIDsResponse.uids = 1 repeated string",
        "field ShutdownRequest.if_idle = 1 bool",
        "message ShutdownRequest",
        "message ShutdownResponse",
    }


@pytest.mark.slow
def test_the_stubs_are_what_the_protos_generate(tmp_path: Path) -> None:
    assert importlib.util.find_spec("grpc_tools"), "grpcio-tools is missing; install the dev extra"
    script = REPOSITORY / "tools" / "proto.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True, capture_output=True)
    fresh = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "podkeep/cri/v1").iterdir()}
    stored = {
        path.name: path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "src/podkeep/cri/v1").iterdir()
        if "_pb2" in path.name
    }
    assert sorted(fresh) == sorted(stored)
    stale = [name for name in fresh if fresh[name] != stored[name]]
    assert stale == [], "run `make proto` and commit the result (the tool versions are pinned in pyproject.toml)"
