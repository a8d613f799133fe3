"""Mounts and devices: CRI messages to records and back. Pure but for looking at host paths of mounts, which blocks."""

from __future__ import annotations

import posixpath

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import ImageID
from podkeep.cri import id_mappings
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.files import openat
from podkeep.runtime.model import records
from podkeep.runtime.model.records import Propagation
from podkeep.runtime.rpc.convert.checks import enum_value, path_text, quote
from podkeep.runtime.rpc.convert.image_volumes import volume_image_message, volume_image_record
from podkeep.runtime.rpc.convert.namespaces import id_map


def mount_record(number: int, mount: api.Mount) -> records.Mount:
    field = f"config.mounts[{number}]"
    if not mount.container_path.startswith("/"):
        raise InvalidArgument(f"{field}.container_path: {quote(mount.container_path)} is not absolute")
    path_text(f"{field}.container_path", mount.container_path)
    if posixpath.normpath(mount.container_path).strip("/") == "":
        raise InvalidArgument(f"{field}.container_path: nothing can be mounted over the container's root")
    # The kubelet sends image_sub_path with every subPath, also of volumes that are no images; host_path includes it.
    image = volume_image_record(field, mount) if mount.HasField("image") else None
    if mount.recursive_read_only and image is None:
        _check_recursive_read_only(field, mount)
    return records.Mount(
        container_path=mount.container_path,
        host_path="" if image else _host_path(field, mount),
        readonly=mount.readonly,
        recursive_read_only=mount.recursive_read_only,
        selinux_relabel=mount.selinux_relabel,
        propagation=enum_value(f"{field}.propagation", Propagation, mount.propagation),
        idmap=id_map(mount.uidMappings, mount.gidMappings) if mount.uidMappings or mount.gidMappings else None,
        image=image,
    )


def _check_recursive_read_only(field: str, mount: api.Mount) -> None:
    """Check what CRI asks of such a mount (Mount.recursive_read_only; KEP-3857)."""
    if not mount.readonly:
        raise InvalidArgument(f"{field}.recursive_read_only: the mount is not readonly", hint="set readonly as well")
    if mount.propagation != Propagation.PRIVATE.value:
        raise InvalidArgument(
            f"{field}.recursive_read_only: what is mounted below later would be writable with a propagation other than"
            " PROPAGATION_PRIVATE"
        )


def _host_path(field: str, mount: api.Mount) -> str:
    """Return the path on the machine without symbolic links."""
    if not mount.host_path.startswith("/"):
        raise InvalidArgument(f"{field}.host_path: {quote(mount.host_path)} is not absolute")
    path_text(f"{field}.host_path", mount.host_path)
    try:
        path = openat.resolved(mount.host_path)
    except OSError as error:
        raise InvalidArgument(f"{field}.host_path: {quote(mount.host_path)}: {error.strerror}") from error
    # A link of a pod may lead to a name that no record could hold.
    return path_text(f"{field}.host_path", path)


def mount_message(mount: records.Mount, image_id: ImageID | None = None) -> api.Mount:
    """Return the message of a mount, as ContainerStatus echoes it; ``image_id`` is what its image is, if it has one."""
    return api.Mount(
        container_path=mount.container_path,
        host_path=mount.host_path,
        readonly=mount.readonly,
        recursive_read_only=mount.recursive_read_only,
        selinux_relabel=mount.selinux_relabel,
        propagation=api.MountPropagation.ValueType(mount.propagation),
        uidMappings=id_mappings.messages(mount.idmap.uids) if mount.idmap else (),
        gidMappings=id_mappings.messages(mount.idmap.gids) if mount.idmap else (),
        image=volume_image_message(mount.image, image_id) if mount.image else None,
        image_sub_path=mount.image.sub_path if mount.image else "",
    )


def device_record(number: int, device: api.Device) -> records.Device:
    field, permissions = f"config.devices[{number}]", device.permissions or "rwm"
    for path in (device.container_path, device.host_path):
        if not path.startswith("/"):
            raise InvalidArgument(f"{field}: {quote(path)} is not absolute")
        path_text(field, path)
    if ".." in device.container_path.split("/") or not device.container_path.strip("/."):
        raise InvalidArgument(f"{field}.container_path: {quote(device.container_path)} is no path of a device")
    if not set(permissions) <= set("rwm") or len(permissions) > 3:
        raise InvalidArgument(f"{field}.permissions: {quote(permissions)}", hint="write some of r, w and m")
    return records.Device(container_path=device.container_path, host_path=device.host_path, permissions=permissions)
