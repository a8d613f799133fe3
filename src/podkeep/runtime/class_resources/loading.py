"""From the configuration to the types of class resources.

Owns: which types there are, and what stands for those that the configuration leaves out. Each type reads what is its
own. Nothing is made or changed: that is the registry's ``start`` and ``replace``. Called when the daemon starts and
for a reload; :func:`check` also by ``podkeep config check``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from podkeep.base.config import ClassResourcesConfig
from podkeep.base.errors import InvalidArgument
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources import oom, qos
from podkeep.runtime.class_resources.catalog import Catalog
from podkeep.runtime.class_resources.custom import plugin as custom
from podkeep.runtime.class_resources.model import BLOCKIO, OOM, QOS, RDT, RDT_NOTES, ClassResource, Level
from podkeep.runtime.class_resources.oom import Oom
from podkeep.runtime.class_resources.qos import Qos
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.oci.confinement import oom_score_floor

log = logging.getLogger(__name__)

_DISABLED = {
    RDT: "RDT is disabled: class_resources.rdt_config names no file",
    BLOCKIO: "blockio is disabled: class_resources.blockio_config names no file",
    OOM: "class_resources.oom has no classes",
}


def check(config: ClassResourcesConfig) -> None:
    """Check what does not depend on the machine; reads the files that the configuration names.

    :raises InvalidArgument: naming the key, or the file and the line.
    """
    oom.check(config.oom)
    custom.check(config)
    named = _named(config)
    for level, defaults in ((Level.CONTAINER, config.container_defaults), (Level.POD, config.pod_defaults)):
        for name, class_name in defaults.items():
            _check_default(level, name, class_name, named)


def _named(config: ClassResourcesConfig) -> dict[str, tuple[frozenset[Level], Collection[str]]]:
    """Return by type for which levels it can be, and its classes, whatever this machine has of them.

    :raises InvalidArgument: naming a file and its line.
    """
    both, containers = frozenset(Level), frozenset({Level.CONTAINER})
    named: dict[str, tuple[frozenset[Level], Collection[str]]] = {QOS: (both, qos.CLASSES)}
    if config.oom:
        named[OOM] = (containers, config.oom)
    for name, item in config.types.items():
        named[name] = (frozenset(map(Level, item.levels)), item.classes)
    # Imported where they are needed: most daemons have neither, and are small and start at once.
    if config.rdt_config:
        from podkeep.runtime.class_resources.rdt import configuration as rdt

        named[RDT] = (containers, rdt.load(Path(config.rdt_config)).classes)
    if config.blockio_config:
        from podkeep.runtime.class_resources.blockio import configuration as blockio

        named[BLOCKIO] = (both, blockio.load(Path(config.blockio_config)).classes)
    return named


def _check_default(
    level: Level, name: str, class_name: str, named: Mapping[str, tuple[frozenset[Level], Collection[str]]]
) -> None:
    key = f"class_resources.{level.value}_defaults.{name}"
    if name not in named:
        if name not in _DISABLED:
            raise InvalidArgument(f"{key}: there is no type {name!r}", hint=f"there are: {', '.join(sorted(named))}")
        return
    levels, classes = named[name]
    if level not in levels:
        [other] = levels
        raise InvalidArgument(f"{key}: the type is for {other.value}s only")
    if class_name not in classes:
        raise InvalidArgument(f"{key}: there is no class {class_name!r}", hint=f"there are: {', '.join(classes)}")


def load(config: ClassResourcesConfig, *, cgroups: Cgroups, root: Path, systemd: bool = False) -> ClassResources:
    """Return the types of a configuration, which are not in force yet.

    :param root: the runtime's persistent directory.
    :param systemd: the cgroups of pods are slices of systemd's.
    :raises InvalidArgument: naming the key, or the file and the line.
    :raises PodkeepError: if a type needs what the machine does not have, and its file says that it must.
    """
    check(config)
    types: list[ClassResource] = [Qos()]
    if config.oom:
        floor = oom_score_floor(procfs.capability_bounding_set())
        types.append(Oom(config.oom, cgroups=cgroups, floor=floor))
    types += custom.load(config, cgroups)
    types += _load_files(config, cgroups, root, systemd=systemd)
    present = {item.name for item in types}
    disabled = {name: reason for name, reason in _DISABLED.items() if name not in present}
    loaded = ClassResources(types, config.container_defaults, config.pod_defaults, disabled=disabled)
    _warn_of_defaults(loaded.catalog)
    return loaded


def _load_files(config: ClassResourcesConfig, cgroups: Cgroups, root: Path, *, systemd: bool) -> list[ClassResource]:
    found: list[ClassResource | None] = []
    # What an earlier configuration made must be given back, too.
    if config.rdt_config or (root / RDT_NOTES).exists():
        from podkeep.runtime.class_resources.rdt import plugin as rdt

        found.append(rdt.load(config, cgroups, root))
    if config.blockio_config:
        from podkeep.runtime.class_resources.blockio import plugin as blockio

        found.append(blockio.load(config, cgroups, systemd=systemd))
    return [item for item in found if item is not None]


def _warn_of_defaults(catalog: Catalog) -> None:
    """Say which default this machine cannot give: whoever asks for it is refused."""
    for level, defaults in catalog.defaults.items():
        for name, class_name in defaults.items():
            if not catalog.has(level, name, class_name):
                why = catalog.why_not(level, name) or f"{level.value}s cannot have {class_name} here"
                log.warning("class_resources.%s_defaults.%s has no effect: %s", level.value, name, why)
