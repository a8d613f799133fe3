"""Volumes made of images (KEP-4639, CRI: Mount.image): which image a mount means, and its mount for a container.

Owns: the lookup, the rules of sub paths, the mount and its flags. Does not own: requests (``rpc/convert/``), when a
mount is made and undone (``container_executor.py``), or the layers (``images``).

Nothing of it lives outside a container. An image volume is an overlay of the image's layers, which are on disk once
and shared by all; it is mounted beside the container's bundle while the OCI runtime creates the container, and
unmounted as soon as the container has its own copy of the mount. So it ends with the container's mount namespace, and
what a killed daemon leaves is beside a bundle that a record names. Which images are in use is read off the records.

It has no upper directory, and its superblock belongs to the machine's user namespace: no capability inside makes it
writable. ``noexec`` is a flag of the mount and no such boundary: who has CAP_SYS_ADMIN inside can take it off, as it
can copy a program elsewhere. In a pod with a user namespace of its own the files are the pod's, as those of its root
file system are (``image_layers.py``).
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from podkeep.base import failpoints
from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.images.formats.image import Image
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Resolve
from podkeep.kernel.mount import mounts, overlay
from podkeep.kernel.mount.mounts import MountAttr
from podkeep.runtime.bundle.image_layers import ImageLayers, Wanted
from podkeep.runtime.bundle.staging import Staging
from podkeep.runtime.model.records import Container, ContainerConfig, Sandbox, VolumeImage
from podkeep.runtime.oci.mounts import StagedMount

FAILED = "ImageVolumeMountFailed"
"""How the message of every failure starts: the kubelet tells them by it (cri-api, pkg/errors)."""


class Policy(FrozenStruct, kw_only=True):
    """``noexec``: no program can be run in place. ``files``: a sub path may name a file."""

    noexec: bool = True
    files: bool = False

    @property
    def attrs(self) -> MountAttr:
        """What the mount has beside being read-only."""
        return MountAttr.NOSUID | MountAttr.NODEV | (MountAttr.NOEXEC if self.noexec else MountAttr.NONE)

    @property
    def options(self) -> tuple[str, ...]:
        """The same as OCI mount options."""
        return ("nosuid", "nodev", "noexec") if self.noexec else ("nosuid", "nodev")


def find_images(config: ContainerConfig, find: Callable[[str], Image | None]) -> dict[int, Image]:
    """Return the images of a container's image volumes by the number of the mount; nothing is pulled.

    :raises NotFound: naming the first that is not here.
    """
    found = {}
    for number, mount in enumerate(config.mounts):
        if mount.image is None:
            continue
        image = find(mount.image.reference)
        if image is None:
            raise NotFound(
                f"{FAILED}: config.mounts[{number}]: image {mount.image.reference!r} is not here",
                hint="pull it: `podkeep image pull IMAGE`",
            )
        found[number] = image
    return found


class ImageVolumes(FrozenStruct, kw_only=True):
    """Mounts images. Blocks, as ``image_layers`` does."""

    layers: ImageLayers
    staging: Staging
    policy: Policy = Policy()

    def planned(self, container: Container) -> dict[int, StagedMount]:
        """Return a container's image volumes, where its other staged mounts are, by the mount's number; pure."""
        return {
            number: StagedMount(source=self.staging.location(container, str(number)), options=self.policy.options)
            for number, mount in enumerate(container.config.mounts)
            if mount.image is not None
        }

    def stage(
        self,
        container: Container,
        sandbox: Sandbox,
        images: Mapping[int, Image],
        planned: Mapping[int, StagedMount],
        *,
        label: str = "",
        given_up: threading.Event,
    ) -> float:
        """Mount the image volumes that :meth:`planned` returned; others may be among ``planned``.

        A volume belongs to whom its own mappings say, and without any to the pod, as the root file system does.

        :param images: what :func:`find_images` returned.
        :param given_up: set by another thread when they are not wanted any more.
        :returns: the seconds that it took to give them the owners that are wanted.
        :raises PodkeepError: if one cannot be mounted; what is mounted then, ``Staging.unstage`` takes away.
        """
        seconds = 0.0
        for number, image in images.items():
            self.staging.directory(container, sandbox)
            mount = container.config.mounts[number]
            assert mount.image is not None
            idmap = mount.idmap or sandbox.config.namespaces.userns
            wanted = Wanted(
                container=container.id,
                idmap=idmap,
                userns=partial(self.staging.userns, sandbox, idmap),
                at=Path(planned[number].source),
                given_up=given_up,
            )
            seconds += self.mount(mount.image, image, wanted, label=label)
        return seconds

    def mount(self, volume: VolumeImage, image: Image, wanted: Wanted, *, label: str = "") -> float:
        """Mount ``image``, or what ``volume`` wants of it, at ``wanted.at``, which is made.

        :param wanted: whose the files are inside.
        :param label: SELinux label of every file; empty: this machine has none. The files on disk keep theirs.
        :returns: the seconds that it took to give it the owners that are wanted.
        :raises InvalidArgument: if the sub path does not lead to something that may be mounted.
        :raises PodkeepError: if it cannot be mounted; what is mounted there then is the caller's to undo.
        """
        with _naming(volume):
            wanted.at.mkdir()
            # Two layers at least: overlayfs refuses a single lower directory without an upper one.
            with self.layers.lowers(image, wanted, at_least=2) as lowers:
                overlay.overlay_readonly(
                    lowers.fds, wanted.at, attrs=self.policy.attrs, context=label, flags=lowers.flags
                )
            failpoints.reach("image_volume.mounted")
            if volume.sub_path:
                narrow(wanted.at, volume, files=self.policy.files)
        return lowers.seconds


def narrow(target: Path, volume: VolumeImage, *, files: bool) -> None:
    """Have ``target``, at which an image is mounted, show what the sub path names instead of the whole image.

    :raises InvalidArgument: if the sub path does not lead to something that may be mounted.
    """
    with openat.closing(_open_sub_path(target, volume)) as found:
        kind = os.fstat(found).st_mode
        check_kind(volume, kind, files=files)
        # Of the directory itself: no path is resolved twice. It keeps the flags of the mount it is taken from.
        with openat.closing(mounts.clone_tree(found)) as part:
            mounts.unmount(target, lazy=True)
            failpoints.reach("image_volume.narrowing")
            if not stat.S_ISDIR(kind):
                # The mount point has to be of the same kind as what is mounted on it (mount(2), ENOTDIR).
                target.rmdir()
                target.touch()
            mounts.attach(part, target)


def _open_sub_path(top: Path, volume: VolumeImage) -> int:
    # As in a chroot: symbolic links, absolute ones as well, stay inside the image.
    rules = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS | Resolve.NO_XDEV
    with openat.closing(os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        try:
            return openat.openat2(root, os.fsencode(volume.sub_path), os.O_PATH, rules)
        except KernelCallError as error:
            raise InvalidArgument(
                f"sub path {volume.sub_path!r} of image {volume.reference}: {os.strerror(error.errno)}",
                hint="name a directory of the image",
            ) from error


def check_kind(volume: VolumeImage, mode: int, *, files: bool) -> None:
    """Check that something with this ``st_mode`` may be the sub path of a volume.

    :raises InvalidArgument: if it is neither a directory nor, with ``files``, a regular file.
    """
    if stat.S_ISDIR(mode) or (files and stat.S_ISREG(mode)):
        return
    what = f"sub path {volume.sub_path!r} of image {volume.reference} is no directory"
    if stat.S_ISREG(mode):
        raise InvalidArgument(what, hint="mount the directory it is in, or set runtime.image_volume_files")
    raise InvalidArgument(what, hint="mount the directory it is in")


@contextmanager
def _naming(volume: VolumeImage) -> Iterator[None]:
    """Have every error start with what the kubelet looks for."""
    try:
        yield
    except (InvalidArgument, NotFound, FailedPrecondition) as error:
        raise type(error)(f"{FAILED}: {error.message}", hint=error.hint) from error
    except PodkeepError as error:
        raise FailedPrecondition(f"{FAILED}: image {volume.reference}: {error.message}", hint=error.hint) from error
    except OSError as error:
        raise FailedPrecondition(f"{FAILED}: image {volume.reference}: {error}") from error
