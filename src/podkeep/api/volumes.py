"""Volume sources of the Pod API (v1.VolumeSource and what it holds).

Owns the field names and types of all of them, also of those this version does not carry out: a field must be
known to be refused by name."""

from __future__ import annotations

from typing import Literal

import msgspec

from podkeep.api.meta import LabelSelector, ObjectMeta
from podkeep.api.scalars import Int32, Int64, Quantity
from podkeep.api.structs import ApiStruct

HostPathType = Literal[
    "", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"
]
PullPolicy = Literal["Always", "Never", "IfNotPresent"]


class KeyToPath(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    path: str = ""
    mode: Int32 | None = None
    user: Int64 | None = None


class LocalObjectReference(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class ObjectFieldSelector(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    field_path: str = ""


class ResourceFieldSelector(ApiStruct, frozen=True, kw_only=True):
    container_name: str = ""
    resource: str = ""
    divisor: Quantity = ""


class HostPathVolumeSource(ApiStruct, frozen=True, kw_only=True):
    path: str = ""
    type: HostPathType | None = None


class EmptyDirVolumeSource(ApiStruct, frozen=True, kw_only=True):
    medium: str = ""
    size_limit: Quantity | None = None
    mode: Int32 | None = None


class GCEPersistentDiskVolumeSource(ApiStruct, frozen=True, kw_only=True):
    pd_name: str = ""
    fs_type: str = ""
    partition: Int32 = 0
    read_only: bool = False


class AWSElasticBlockStoreVolumeSource(ApiStruct, frozen=True, kw_only=True):
    volume_id: str = ""
    fs_type: str = ""
    partition: Int32 = 0
    read_only: bool = False


class GitRepoVolumeSource(ApiStruct, frozen=True, kw_only=True):
    repository: str = ""
    revision: str = ""
    directory: str = ""


class SecretVolumeSource(ApiStruct, frozen=True, kw_only=True):
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None
    default_user: Int64 | None = None


class NFSVolumeSource(ApiStruct, frozen=True, kw_only=True):
    server: str = ""
    path: str = ""
    read_only: bool = False


class ISCSIVolumeSource(ApiStruct, frozen=True, kw_only=True):
    target_portal: str = ""
    iqn: str = ""
    lun: Int32 = 0
    iscsi_interface: str = ""
    fs_type: str = ""
    read_only: bool = False
    portals: tuple[str, ...] = ()
    chap_auth_discovery: bool = False
    chap_auth_session: bool = False
    secret_ref: LocalObjectReference | None = None
    initiator_name: str | None = None


class GlusterfsVolumeSource(ApiStruct, frozen=True, kw_only=True):
    endpoints: str = ""
    path: str = ""
    read_only: bool = False


class PersistentVolumeClaimVolumeSource(ApiStruct, frozen=True, kw_only=True):
    claim_name: str = ""
    read_only: bool = False


class RBDVolumeSource(ApiStruct, frozen=True, kw_only=True):
    monitors: tuple[str, ...] = ()
    image: str = ""
    fs_type: str = ""
    pool: str = ""
    user: str = ""
    keyring: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False


class FlexVolumeSource(ApiStruct, frozen=True, kw_only=True):
    driver: str = ""
    fs_type: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False
    options: dict[str, str] = msgspec.field(default_factory=dict)


class CinderVolumeSource(ApiStruct, frozen=True, kw_only=True):
    volume_id: str = ""
    fs_type: str = ""
    read_only: bool = False
    secret_ref: LocalObjectReference | None = None


class CephFSVolumeSource(ApiStruct, frozen=True, kw_only=True):
    monitors: tuple[str, ...] = ()
    path: str = ""
    user: str = ""
    secret_file: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False


class FlockerVolumeSource(ApiStruct, frozen=True, kw_only=True):
    dataset_name: str = ""
    dataset_uuid: str = ""


class DownwardAPIVolumeFile(ApiStruct, frozen=True, kw_only=True):
    path: str = ""
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: Int32 | None = None
    user: Int64 | None = None


class DownwardAPIVolumeSource(ApiStruct, frozen=True, kw_only=True):
    items: tuple[DownwardAPIVolumeFile, ...] = ()
    default_mode: Int32 | None = None
    default_user: Int64 | None = None


class FCVolumeSource(ApiStruct, frozen=True, kw_only=True):
    target_wwns: tuple[str, ...] = ()
    lun: Int32 | None = None
    fs_type: str = ""
    read_only: bool = False
    wwids: tuple[str, ...] = ()


class AzureFileVolumeSource(ApiStruct, frozen=True, kw_only=True):
    secret_name: str = ""
    share_name: str = ""
    read_only: bool = False


class ConfigMapVolumeSource(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None
    default_user: Int64 | None = None


class VsphereVirtualDiskVolumeSource(ApiStruct, frozen=True, kw_only=True):
    volume_path: str = ""
    fs_type: str = ""
    storage_policy_name: str = ""
    storage_policy_id: str = ""


class QuobyteVolumeSource(ApiStruct, frozen=True, kw_only=True):
    registry: str = ""
    volume: str = ""
    read_only: bool = False
    user: str = ""
    group: str = ""
    tenant: str = ""


class AzureDiskVolumeSource(ApiStruct, frozen=True, kw_only=True):
    disk_name: str = ""
    disk_uri: str = ""
    caching_mode: str | None = None
    fs_type: str | None = None
    read_only: bool | None = None
    kind: str | None = None


class PhotonPersistentDiskVolumeSource(ApiStruct, frozen=True, kw_only=True):
    pd_id: str = ""
    fs_type: str = ""


class SecretProjection(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class DownwardAPIProjection(ApiStruct, frozen=True, kw_only=True):
    items: tuple[DownwardAPIVolumeFile, ...] = ()


class ConfigMapProjection(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class ServiceAccountTokenProjection(ApiStruct, frozen=True, kw_only=True):
    audience: str = ""
    expiration_seconds: Int64 | None = None
    path: str = ""
    user: Int64 | None = None


class ClusterTrustBundleProjection(ApiStruct, frozen=True, kw_only=True):
    name: str | None = None
    signer_name: str | None = None
    label_selector: LabelSelector | None = None
    optional: bool | None = None
    path: str = ""
    user: Int64 | None = None


class PodCertificateProjection(ApiStruct, frozen=True, kw_only=True):
    signer_name: str = ""
    key_type: str = ""
    max_expiration_seconds: Int32 | None = None
    credential_bundle_path: str = ""
    key_path: str = ""
    certificate_chain_path: str = ""
    user_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    user: Int64 | None = None


class VolumeProjection(ApiStruct, frozen=True, kw_only=True):
    secret: SecretProjection | None = None
    downward_api: DownwardAPIProjection | None = None
    config_map: ConfigMapProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None
    cluster_trust_bundle: ClusterTrustBundleProjection | None = None
    pod_certificate: PodCertificateProjection | None = None


class ProjectedVolumeSource(ApiStruct, frozen=True, kw_only=True):
    sources: tuple[VolumeProjection, ...] = ()
    default_mode: Int32 | None = None
    default_user: Int64 | None = None


class PortworxVolumeSource(ApiStruct, frozen=True, kw_only=True):
    volume_id: str = ""
    fs_type: str = ""
    read_only: bool = False


class ScaleIOVolumeSource(ApiStruct, frozen=True, kw_only=True):
    gateway: str = ""
    system: str = ""
    secret_ref: LocalObjectReference | None = None
    ssl_enabled: bool = False
    protection_domain: str = ""
    storage_pool: str = ""
    storage_mode: str = ""
    volume_name: str = ""
    fs_type: str = ""
    read_only: bool = False


class StorageOSVolumeSource(ApiStruct, frozen=True, kw_only=True):
    volume_name: str = ""
    volume_namespace: str = ""
    fs_type: str = ""
    read_only: bool = False
    secret_ref: LocalObjectReference | None = None


class CSIVolumeSource(ApiStruct, frozen=True, kw_only=True):
    driver: str = ""
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: dict[str, str] = msgspec.field(default_factory=dict)
    node_publish_secret_ref: LocalObjectReference | None = None


class TypedLocalObjectReference(ApiStruct, frozen=True, kw_only=True):
    api_group: str | None = None
    kind: str = ""
    name: str = ""


class TypedObjectReference(ApiStruct, frozen=True, kw_only=True):
    api_group: str | None = None
    kind: str = ""
    name: str = ""
    namespace: str | None = None


class VolumeResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    limits: dict[str, Quantity] = msgspec.field(default_factory=dict)
    requests: dict[str, Quantity] = msgspec.field(default_factory=dict)


class PersistentVolumeClaimSpec(ApiStruct, frozen=True, kw_only=True):
    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeResourceRequirements = VolumeResourceRequirements()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    data_source: TypedLocalObjectReference | None = None
    data_source_ref: TypedObjectReference | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimTemplate(ApiStruct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolumeSource(ApiStruct, frozen=True, kw_only=True):
    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class ImageVolumeSource(ApiStruct, frozen=True, kw_only=True):
    reference: str = ""
    pull_policy: PullPolicy | None = None


class Volume(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    host_path: HostPathVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    git_repo: GitRepoVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    iscsi: ISCSIVolumeSource | None = None
    glusterfs: GlusterfsVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    rbd: RBDVolumeSource | None = None
    flex_volume: FlexVolumeSource | None = None
    cinder: CinderVolumeSource | None = None
    cephfs: CephFSVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = None
    fc: FCVolumeSource | None = None
    azure_file: AzureFileVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    scale_io: ScaleIOVolumeSource | None = None
    storageos: StorageOSVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    image: ImageVolumeSource | None = None
