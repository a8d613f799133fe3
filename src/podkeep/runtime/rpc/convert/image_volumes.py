"""Mounts of images: the ``image`` part of CRI's Mount to its record and back. Pure.

Every refusal starts with ``ImageVolumeMountFailed: ``, by which the kubelet knows failures of image volumes.
"""

from __future__ import annotations

from typing import NoReturn

from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import ImageID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.bundle.image_volumes import FAILED
from podkeep.runtime.model.records import VolumeImage
from podkeep.runtime.rpc.convert.checks import MAX_TEXT_BYTES, quote

MAX_SUB_PATH = 4096
"""Bytes of a path, as for the kernel (PATH_MAX)."""


def volume_image_record(field: str, mount: api.Mount) -> VolumeImage:
    """Return the image of a mount that has one (CRI: Mount.image).

    ``selinux_relabel`` is no error and does nothing: the content is shared and read-only, and gets its label from the
    mount. ``recursive_read_only`` holds for every image volume.

    :raises InvalidArgument: if it has no name, another field contradicts it, or the sub path could leave the image.
    """
    image = mount.image
    if not image.image:
        _refuse(f"{field}.image.image is required")
    for name in ("image", "user_specified_image"):
        text = getattr(image, name)
        if len(text.encode()) > MAX_TEXT_BYTES:
            _refuse(f"{field}.image.{name}: {quote(text)} has more than {MAX_TEXT_BYTES} bytes")
    if mount.host_path:
        _refuse(f"{field}: image and host_path exclude each other", "leave host_path empty")
    if not mount.readonly:
        _refuse(f"{field}.readonly: an image is mounted read-only, or not at all", "set readonly")
    if mount.propagation == api.PROPAGATION_BIDIRECTIONAL:
        _refuse(f"{field}.propagation: what is mounted in an image volume cannot reach the host", "leave it out")
    _check_sub_path(f"{field}.image_sub_path", mount.image_sub_path)
    return VolumeImage(
        reference=image.image, user_specified_image=image.user_specified_image, sub_path=mount.image_sub_path
    )


def _check_sub_path(field: str, path: str) -> None:
    if path.startswith("/"):
        _refuse(f"{field}: {quote(path)} is absolute", "write it relative to the image's root")
    if ".." in path.split("/"):
        _refuse(f"{field}: {quote(path)} holds '..'", "write it relative to the image's root")
    if "\0" in path:
        _refuse(f"{field}: {quote(path)} holds a NUL character")
    if len(path.encode()) >= MAX_SUB_PATH:
        _refuse(f"{field}: {quote(path)} is longer than a path can be")


def _refuse(message: str, hint: str = "") -> NoReturn:
    raise InvalidArgument(f"{FAILED}: {message}", hint=hint)


def volume_image_message(volume: VolumeImage, image_id: ImageID | None) -> api.ImageSpec:
    """Return the message of a mount's image.

    ``image`` is the ID, which the kubelet compares with Image.id so as not to remove what is in use; ``image_ref`` is
    what PullImage answered for it (KEP-5365).

    :param image_id: what the reference meant at creation; None: a record that does not say.
    """
    return api.ImageSpec(
        image=image_id or volume.reference,
        user_specified_image=volume.user_specified_image or volume.reference,
        image_ref=image_id or "",
    )
