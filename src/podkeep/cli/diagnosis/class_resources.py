"""Whether this machine can give the class resources that the configuration has. Looks only; silent without any."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base.errors import PodkeepError
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding

if TYPE_CHECKING:
    from podkeep.base.config import ClassResourcesConfig, Config, CustomType
    from podkeep.kernel.cgroup.cgroups import Cgroups

_PREFIX = "class resource"
_REFUSED = "the runtime does not start with this configuration"
_NOT_OFFERED = "pods that ask for its classes are refused"


def examine(config: Config) -> list[Finding]:
    classes = config.class_resources
    found = []
    if classes.rdt_config:
        file, mount, root = Path(classes.rdt_config), Path(classes.resctrl), Path(config.runtime.root)
        found.append(rdt(file, mount, root, filesystems=_filesystems()))
    if classes.blockio_config:
        found += _blockio(Path(classes.blockio_config))
    return [*found, *_custom(classes)]


def _filesystems() -> str:
    return Path("/proc/filesystems").read_text(encoding="ascii", errors="replace")


def rdt(file: Path, mount: Path, root: Path, *, filesystems: str) -> Finding:
    """Judge a file of cache and memory bandwidth classes against what resctrl says.

    :param root: the runtime's persistent directory, which says what groups are its own.
    :param filesystems: the file systems that the kernel knows, as ``/proc/filesystems``.
    """
    from podkeep.kernel.cgroup.resctrl import Resctrl
    from podkeep.runtime.class_resources.rdt import configuration, planning
    from podkeep.runtime.class_resources.rdt.groups import ControlGroups

    name, resctrl = f"{_PREFIX} rdt", Resctrl(mount)
    absence = planning.absence(resctrl)
    absent = absence.message if absence else ""
    try:
        plan = planning.plan(configuration.load(file), ControlGroups(resctrl, root))
    except PodkeepError as error:
        why = f"{_REFUSED}{f'; {absent}' if absent and absent not in error.message else ''}"
        return finding.failed(name, error, why=why, fix=f"podkeep classes check {file}")
    if absence and resctrl.is_mounted():
        return finding.warning(name, absent, why=_NOT_OFFERED, fix=absence.hint)
    if absent and "resctrl" in filesystems.split():
        return finding.warning(name, absent, why=_NOT_OFFERED, fix=f"mount -t resctrl resctrl {mount}")
    if absent:
        detail = "no resctrl: neither this kernel nor this processor can allocate caches or memory bandwidth"
        fix = (
            "on hardware that can: boot a kernel with CONFIG_X86_CPU_RESCTRL; else leave class_resources.rdt_config out"
        )
        return finding.warning(name, detail, why=_NOT_OFFERED, fix=fix)
    if plan.unavailable:
        detail = "; ".join(f"{class_name}: {why}" for class_name, why in plan.unavailable.items())
        return finding.warning(name, detail, why="these classes are not offered", fix=f"podkeep classes check {file}")
    return finding.ok(name, ", ".join(plan.classes) or "no classes")


def _blockio(file: Path) -> list[Finding]:
    from podkeep.kernel.cgroup.cgroups import Cgroups
    from podkeep.runtime.class_resources.blockio import configuration
    from podkeep.runtime.class_resources.blockio.devices import Devices
    from podkeep.runtime.class_resources.blockio.plugin import BlockIo
    from podkeep.runtime.class_resources.model import Level

    name, devices = f"{_PREFIX} blockio", Devices()
    try:
        classes = configuration.load(file)
        plugin = BlockIo(classes, Cgroups(), devices)
        offers, described = plugin.offers(), plugin.describe()["classes"]
    except PodkeepError as error:
        return [finding.failed(name, error, why=_REFUSED, fix=f"podkeep classes check {file}")]
    if not classes.classes:
        return [finding.warning(name, f"{file} has no classes", why="no pod can ask for any", fix=f"edit {file}")]
    if Level.CONTAINER not in offers:
        fix = "boot a kernel with CONFIG_BLK_CGROUP, or leave class_resources.blockio_config out"
        return [finding.warning(name, plugin.why_not(Level.CONTAINER), why=_NOT_OFFERED, fix=fix)]
    found = []
    for class_name, meaning in described.items():
        try:
            plugin.check(Level.CONTAINER, class_name)
        except PodkeepError as error:
            detail = error.message.removeprefix(f"{name}: ")
            found.append(finding.warning(name, detail, why="what asks for it is refused", fix=error.hint))
            continue
        fix = f"podkeep classes check {file}"
        for text in meaning.get("warnings", ()):
            found.append(finding.warning(name, f"{class_name}: {text}", why="the class limits less here", fix=fix))
    return found or [finding.ok(name, ", ".join(offers[Level.CONTAINER].classes))]


def _custom(classes: ClassResourcesConfig) -> list[Finding]:
    from podkeep.kernel.cgroup.cgroups import Cgroups
    from podkeep.runtime.class_resources.custom import plugin as custom
    from podkeep.runtime.class_resources.model import Level

    if not classes.types:
        return []
    cgroups = Cgroups()
    try:
        types = custom.load(classes, cgroups)
    except PodkeepError as error:
        return [finding.failed("class resources", error, why=_REFUSED, fix="podkeep config check")]
    found, files = [], _files_of_cgroups(cgroups)
    for item in types:
        name, offers = f"{_PREFIX} {item.name}", item.offers()
        if lacking := _lacking(classes.types[item.name], files):
            detail = f"cgroups of this machine, of version {cgroups.version}, have no {', '.join(lacking)}"
            fix = f'podkeep config show, and correct class_resources.types."{item.name}"'
            found.append(finding.warning(name, detail, why="what is put into such a class fails", fix=fix))
        elif offers:
            [*_, offer] = offers.values()
            found.append(finding.ok(name, ", ".join(offer.classes)))
        else:
            why = next(why for level in Level if (why := item.why_not(level)) and not why.startswith("it is for"))
            fix = f'fix that, or leave class_resources.types."{item.name}" out'
            found.append(finding.warning(name, why, why=_NOT_OFFERED, fix=fix))
    return found


def _files_of_cgroups(cgroups: Cgroups) -> frozenset[str]:
    """Return the names of the files that there are in cgroups below the root; none if there is no cgroup."""
    found: set[str] = set()
    for child in cgroups.children("/"):
        for directory in cgroups.directories(child):
            with suppress(OSError):  # it is in some hierarchies only, or goes
                found.update(os.listdir(directory))
    return frozenset(found)


def _lacking(definition: CustomType, files: Collection[str]) -> list[str]:
    """Return the files of the classes that no cgroup has, as far as one that has the file's controller tells."""
    controllers = {file.partition(".")[0] for file in files}
    wanted = {file for meaning in definition.classes.values() for file in meaning.cgroup}
    return sorted(file for file in wanted.difference(files) if file.partition(".")[0] in controllers)
