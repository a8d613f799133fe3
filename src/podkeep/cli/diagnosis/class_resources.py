"""Whether this machine can give the class resources that the configuration has. Looks only; silent without any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base.errors import PodkeepError
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding

if TYPE_CHECKING:
    from podkeep.base.config import ClassResourcesConfig, Config

_PREFIX = "class resource"
_REFUSED = "the runtime does not start with this configuration"
_NOT_OFFERED = "pods that ask for its classes are refused"


def examine(config: Config) -> list[Finding]:
    """Look at every type that is configured."""
    classes = config.class_resources
    found = []
    if classes.rdt_config:
        found.append(rdt(Path(classes.rdt_config), Path(classes.resctrl), filesystems=_filesystems()))
    if classes.blockio_config:
        found += _blockio(Path(classes.blockio_config))
    return [*found, *_custom(classes)]


def _filesystems() -> str:
    return Path("/proc/filesystems").read_text(encoding="ascii", errors="replace")


def rdt(file: Path, mount: Path, *, filesystems: str) -> Finding:
    """Judge a file of cache and memory bandwidth classes against what resctrl says.

    :param filesystems: the file systems that the kernel knows, as ``/proc/filesystems``.
    """
    from podkeep.kernel.resctrl import Resctrl
    from podkeep.runtime.class_resources.rdt import allocation, configuration
    from podkeep.runtime.class_resources.rdt.hardware import Hardware, read

    name, resctrl, hardware = f"{_PREFIX} rdt", Resctrl(mount), Hardware()
    absent = ""
    try:
        resctrl.check()
    except PodkeepError as error:
        absent = error.message
    try:
        configured = configuration.load(file)
        if not absent:
            groups = ["", *sorted(resctrl.groups())]
            texts = [resctrl.schemata(group) for group in groups]
            maximum = resctrl.bandwidth_maximum()
            hardware = read(resctrl.info(), texts, mount_options=resctrl.options(), bandwidth_maximum=maximum)
        plan = allocation.plan(configured, hardware)
    except PodkeepError as error:
        why = f"{_REFUSED}{f'; {absent}' if absent and absent not in error.message else ''}"
        return finding.missing(name, error.message, why=why, mend=error.hint or f"podkeep classes check {file}")
    if absent and "resctrl" in filesystems.split():
        return finding.warning(name, absent, why=_NOT_OFFERED, mend=f"mount -t resctrl resctrl {mount}")
    if absent:
        detail = "no resctrl: neither this kernel nor this processor can allocate caches or memory bandwidth"
        mend = (
            "on hardware that can: boot a kernel with CONFIG_X86_CPU_RESCTRL; else leave class_resources.rdt_config out"
        )
        return finding.warning(name, detail, why=_NOT_OFFERED, mend=mend)
    if plan.unavailable:
        detail = "; ".join(f"{class_name}: {why}" for class_name, why in plan.unavailable.items())
        return finding.warning(name, detail, why="these classes are not offered", mend=f"podkeep classes check {file}")
    return finding.ok(name, ", ".join(plan.classes) or "no classes")


def _blockio(file: Path) -> list[Finding]:
    from podkeep.kernel.cgroups import Cgroups
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
        mend = error.hint or f"podkeep classes check {file}"
        return [finding.missing(name, error.message, why=_REFUSED, mend=mend)]
    if Level.CONTAINER not in offers:
        mend = "boot a kernel with CONFIG_BLK_CGROUP, or leave class_resources.blockio_config out"
        return [finding.warning(name, plugin.why_not(Level.CONTAINER), why=_NOT_OFFERED, mend=mend)]
    found = []
    weighted = [class_name for class_name, class_ in classes.classes.items() if class_.weighs]
    if weighted and "bfq" not in devices.schedulers():
        why = f"the weights of {', '.join(weighted)} have no effect, or their pods are refused"
        mend = "for a disk such as vda: modprobe bfq; echo bfq > /sys/block/vda/queue/scheduler"
        found.append(finding.warning(name, "no disk has the I/O scheduler bfq", why=why, mend=mend))
    for class_name, meaning in described.items():
        for text in meaning.get("warnings", ()):
            if "bfq" not in text:
                mend = f"podkeep classes check {file}"
                found.append(
                    finding.warning(name, f"{class_name}: {text}", why="the class limits less here", mend=mend)
                )
    return found or [finding.ok(name, ", ".join(offers[Level.CONTAINER].classes))]


def _custom(classes: ClassResourcesConfig) -> list[Finding]:
    from podkeep.kernel.cgroups import Cgroups
    from podkeep.runtime.class_resources import custom
    from podkeep.runtime.class_resources.model import Level

    try:
        types = custom.load(classes, Cgroups()) if classes.types else []
    except PodkeepError as error:
        mend = error.hint or "podkeep config check"
        return [finding.missing("class resources", error.message, why=_REFUSED, mend=mend)]
    found = []
    for item in types:
        name, offers = f"{_PREFIX} {item.name}", item.offers()
        if offers:
            [*_, offer] = offers.values()
            found.append(finding.ok(name, ", ".join(offer.classes)))
        else:
            why = next(why for level in Level if (why := item.why_not(level)) and not why.startswith("it is for"))
            mend = f'put it there, or leave class_resources.types."{item.name}" out'
            found.append(finding.warning(name, why, why=_NOT_OFFERED, mend=mend))
    return found
