"""Runtime handlers: which OCI runtimes there are and what each can really do.

Owns: the table from the configuration and the probe of user namespaces. A handler's word is not trusted (Debian's runc
1.1.5 reads ``mounts[].uidMappings`` and ignores it): the probe has it create a container with an idmapped mount and
looks at the owner that the mounted file has inside. A handler of virtual machines is taken at the configuration's
word: it counts as one with user namespaces, since the machine does what they are for, and is given none.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from podkeep.base import failpoints
from podkeep.base.config import HandlerConfig
from podkeep.base.errors import FailedPrecondition, InvalidConfiguration, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID, HandlerName
from podkeep.base.text.printable import quoted
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.files import openat
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.namespace import namespaces
from podkeep.kernel.namespace.idmap import block
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.lifecycle.strays import kill_strays
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.oci.compose import Config, compose, joining, mapped, mounting, oci_mappings, only_program
from podkeep.runtime.oci.driver import Driver, Handler
from podkeep.runtime.oci.mounts import OciMount, bind

log = logging.getLogger(__name__)

# The first IDs that are nobody's of the machine.
_PROBE_HOST_ID = 65536
_PROBE_IDMAP = block(_PROBE_HOST_ID, 65536)
_SHOWN = 5


class Features(FrozenStruct, kw_only=True):
    """CRI: RuntimeHandlerFeatures; ``why_not`` says why user namespaces do not work, ``why_writable`` why mounts that
    are to be read-only with all that lies below are not.
    """

    user_namespaces: bool
    recursive_read_only_mounts: bool = False
    why_not: str = ""
    why_writable: str = ""


class HandlerTable:
    """The handlers by name; the empty name is the default one."""

    def __init__(self, drivers: Mapping[HandlerName, Driver], default: HandlerName) -> None:
        """Use these handlers.

        :raises InvalidConfiguration: if the default is not among them.
        """
        if default not in drivers:
            raise InvalidConfiguration(
                f"runtime.default_handler: {default!r} is not in runtime.handlers", hint="add it, or name one of them"
            )
        self._drivers = dict(drivers)
        self.default = default
        self.features: dict[HandlerName, Features] = {}

    @classmethod
    def from_config(
        cls,
        handlers: Mapping[str, HandlerConfig],
        default: str,
        *,
        conmon: str,
        layout: Layout,
        systemd_cgroup: bool = False,
    ) -> HandlerTable:
        """Return the table that ``[runtime.handlers]`` describes.

        :raises InvalidConfiguration: if the default is not among them.
        """
        drivers = {}
        for name, config in handlers.items():
            root = Path(config.root) if config.root else layout.handler_root(HandlerName(name))
            handler = Handler(
                name=HandlerName(name),
                path=config.path,
                root=root,
                options=config.options,
                annotations=config.annotations,
                privileged_without_host_devices=config.privileged_without_host_devices,
                is_virtual_machine=config.kind == "vm",
            )
            drivers[handler.name] = Driver(handler=handler, conmon=conmon, systemd_cgroup=systemd_cgroup)
        return cls(drivers, HandlerName(default))

    def driver(self, name: HandlerName) -> Driver:
        """Return the driver of a handler.

        :raises NotFound: if there is none of that name.
        """
        driver = self._drivers.get(name or self.default)
        if driver is None:
            raise NotFound(
                f"runtime handler {quoted(name)} is not configured",
                hint=f"configured: {', '.join(sorted(self._drivers))} (runtime.handlers)",
            )
        return driver

    def is_virtual_machine(self, name: HandlerName) -> bool:
        """Return whether a handler's pods are virtual machines; false for one that is not configured."""
        driver = self._drivers.get(name or self.default)
        return driver is not None and driver.handler.is_virtual_machine

    def features_of(self, name: HandlerName) -> Features:
        """Return what the probe found out about a handler."""
        return self.features[name or self.default]

    def require_user_namespaces(self, name: HandlerName) -> None:
        """Check that a handler can run a pod in a user namespace.

        :raises FailedPrecondition: if it cannot (KEP-127: never run such a pod without).
        """
        features = self.features_of(name)
        if not features.user_namespaces:
            raise FailedPrecondition(
                f"user namespaces is not supported by the runtime handler {name or self.default!r}: {features.why_not}",
                hint="`podkeep doctor` says what is missing",
            )

    def require_recursive_read_only(self, name: HandlerName) -> None:
        """Check that a handler keeps everything below a mount read-only (KEP-3857).

        :raises FailedPrecondition: if it does not; the text begins as the kubelet expects it (cri-api, pkg/errors).
        """
        features = self.features_of(name)
        if not features.recursive_read_only_mounts:
            raise FailedPrecondition(
                f"RROUnsupported: runtime handler {name or self.default!r} does not support recursive read-only mounts:"
                f" {features.why_writable}"
            )

    def probe(self, probe: Probe) -> None:
        """Find out what every handler can do; blocks for about 40 ms each."""
        for name, driver in self._drivers.items():
            driver.handler.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            why_not = why_writable = ""
            try:
                if driver.handler.is_virtual_machine:
                    log.info("handler %s runs virtual machines: pods have no user namespace beside them", name)
                elif probe.why_no_rootfs:
                    raise FailedPrecondition(probe.why_no_rootfs)
                else:
                    _require_passage(probe.layout.root)
                    _require_passage(probe.layout.run)
                    probe.check_idmap(driver)
            except (PodkeepError, OSError) as error:
                # Noted and not raised: pods that do not ask for it run with this handler all the same.
                why_not = _with_hint(str(error))
                log.warning("handler %s cannot run pods in user namespaces: %s", name, why_not)
            try:
                probe.check_recursive_read_only(driver)
            except (PodkeepError, OSError) as error:
                why_writable = str(error)
                log.warning("handler %s cannot keep what lies below a mount read-only: %s", name, error)
            self.features[name] = Features(
                user_namespaces=not why_not,
                recursive_read_only_mounts=not why_writable,
                why_not=why_not,
                why_writable=why_writable,
            )


def _with_hint(reason: str) -> str:
    """Return why a handler cannot make a container in a user namespace, with what to do if it cannot mount /proc there.

    The kernel lets a user namespace mount it only if the mounts below the one that is here hide nothing of it
    (mount_namespaces(7), ``mount_too_revealing`` in fs/namespace.c); its error says nothing of that.
    """
    if "proc" not in reason or os.strerror(errno.EPERM).lower() not in reason.lower():
        return reason
    below = [quoted(entry.mount_point) for entry in mountinfo.under("/proc") if entry.mount_point != "/proc"]
    if not below:
        return reason
    points = ", ".join(below[:_SHOWN])
    return f"{reason}; hint: unmount what is mounted below /proc before the runtime starts: {points}"


def _require_passage(directory: Path) -> None:
    """Check that a pod's root, nobody on the machine, can pass through every directory above its files.

    :raises FailedPrecondition: naming the first directory that lets only its owner through.
    """
    for parent in (*reversed(directory.parents), directory):
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise FailedPrecondition(
                f"{directory} is below {parent}, through which others may not pass", hint=f"chmod o+x {parent}"
            )


class Probe(FrozenStruct, kw_only=True):
    """Tries what a handler claims. ``program`` is a static program for the probe's container; it is never run."""

    layout: Layout
    helper: NamespaceHelper
    cgroups: Cgroups
    cgroup_parent: str
    program: str
    why_no_rootfs: str = ""
    """Why images cannot be given the owners of a pod, whatever the handler; empty if they can."""

    def check_idmap(self, driver: Driver) -> None:
        """Have a container created with an idmapped mount, and check from outside whose the mounted file is.

        :raises PodkeepError: saying what does not work.
        """
        # The name is always the same, so that what a killed daemon left is found.
        container = ContainerID(f"probe-{driver.handler.name}")
        bundle, source = self.layout.run / container, self.layout.root / container
        self._remove(driver, container)
        # Who is in the probe's user namespace has to pass.
        bundle.mkdir(mode=0o711)
        source.mkdir(mode=0o755)
        try:
            rootfs, pin = bundle / "rootfs", bundle / "user"
            rootfs.mkdir()
            os.chown(rootfs, _PROBE_HOST_ID, _PROBE_HOST_ID)
            with openat.closing(self.helper.user_namespace(_PROBE_IDMAP)) as fd:
                namespaces.pin(fd, pin)
                # First without the handler, so that what the kernel or the file system refuses is not put down to it.
                os.close(mounts.clone_tree(source, idmap_userns=fd))
            mount: OciMount = {
                "destination": "/probe",
                "type": "bind",
                "source": str(source),
                "options": ["bind"],
                "uidMappings": oci_mappings(_PROBE_IDMAP.uids),
                "gidMappings": oci_mappings(_PROBE_IDMAP.gids),
            }
            (bundle / "config.json").write_text(json.dumps(self._config(container, rootfs, mount, pin)))
            process = driver.create_detached(container, bundle)
            failpoints.reach("handlers.probe")
            # Seen from the machine, root's directory belongs to the pod's root if it is idmapped, and to root if not.
            if os.stat(f"/proc/{process.pid}/root/probe").st_uid != _PROBE_HOST_ID:
                raise FailedPrecondition(
                    f"{driver.handler.path} ignores mounts[].uidMappings", hint="use crun, or runc 1.2 or newer"
                )
        finally:
            self._remove(driver, container)

    def check_recursive_read_only(self, driver: Driver) -> None:
        """Have a container created with a mount that has another one below, and check from outside what is writable.

        The runtime makes the copy read-only itself (``staging.py``); the handler must bring all of it inside, as it is.

        :raises PodkeepError: saying what does not work.
        """
        container = ContainerID(f"probe-{driver.handler.name}")
        bundle = self.layout.run / container
        self._remove(driver, container)
        bundle.mkdir(mode=0o711)
        try:
            rootfs, tree, copy = (bundle / name for name in ("rootfs", "tree", "copy"))
            for directory in (rootfs, tree, copy):
                directory.mkdir()
            mounts.tmpfs(tree)
            (tree / "below").mkdir()
            mounts.tmpfs(tree / "below")
            mounts.bind(tree, copy, recursive=True, readonly=True)
            mount = bind("/probe", str(copy), "rprivate", "ro")
            (bundle / "config.json").write_text(json.dumps(self._config(container, rootfs, mount, None)))
            process = driver.create_detached(container, bundle)
            failpoints.reach("handlers.probe-read-only")
            inside = Path(f"/proc/{process.pid}/root/probe")
            # Each tmpfs has a device number of its own: with the same one nothing is mounted below.
            if (inside / "below").stat().st_dev == inside.stat().st_dev:
                raise FailedPrecondition(f"{driver.handler.path} leaves out what is mounted below a bind mount")
            if not all(os.statvfs(path).f_flag & os.ST_RDONLY for path in (inside, inside / "below")):
                raise FailedPrecondition(f"{driver.handler.path} makes what is mounted below a bind mount writable")
        finally:
            self._remove(driver, container)

    def _remove(self, driver: Driver, container: ContainerID) -> None:
        bundle, source = self.layout.run / container, self.layout.root / container
        kill_strays(driver, container)
        driver.delete(container)
        for name in ("copy", "tree"):
            mounts.unmount(bundle / name, lazy=True)
        namespaces.unpin(bundle / "user")
        for directory in (bundle, source):
            remove_tree(directory)
        cgroup = self._cgroup(container).path
        if self.cgroups.exists(cgroup):
            self.cgroups.kill(cgroup)
            self.cgroups.remove(cgroup)

    def _cgroup(self, container: ContainerID) -> slices.CgroupName:
        return slices.direct_cgroup(self.cgroup_parent, container)

    def _config(self, container: ContainerID, rootfs: Path, mount: OciMount, userns: Path | None) -> Config:
        return compose(
            only_program(self.program, "/program", rootfs=str(rootfs), cgroup=self._cgroup(container).oci),
            joining({"pid": "", "mount": ""} if userns is None else {"user": str(userns), "pid": "", "mount": ""}),
            mapped(None if userns is None else _PROBE_IDMAP),
            mounting(mount),
        )
