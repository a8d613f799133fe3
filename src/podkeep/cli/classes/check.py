"""``podkeep classes check``: what a file of classes would mean on this machine. Needs no runtime.

Owns: telling the two kinds of files apart, and asking the type that one is for. Does not own: what a file means or how
that is drawn (``runtime/class_resources/{rdt,blockio}/explain.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.runtime.class_resources.yamlfile import Node

RDT, BLOCKIO = "rdt", "blockio"


@click.command(name="check", short_help="Explain a file of rdt or blockio classes.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--resctrl",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where resctrl is mounted (default: class_resources.resctrl of the configuration).",
)
@forms.output_option
@pass_invocation
def check(invocation: Invocation, file: Path, resctrl: Path | None, output: str) -> None:
    """Say what FILE would mean on this machine: partitions and masks of caches, or limits of disks.

    Ends with status 1 if the runtime would refuse it. Nothing is changed, and no runtime has to run. What belongs into
    the configuration itself, such as types of your own, `podkeep config check` looks at.
    """
    from podkeep.runtime.class_resources import yamlfile

    kind = kind_of(yamlfile.load(file))
    if kind == RDT:
        config = invocation.config
        mount = resctrl or Path(config.class_resources.resctrl)
        lines, meaning = _rdt(file, mount, Path(config.runtime.root))
    else:
        lines, meaning = _blockio(file)
    forms.show(output, {"file": file, "type": kind, **meaning}, lines)


def kind_of(tree: Node) -> str:
    """Return the type that a file of classes is for, by its outermost keys.

    :raises InvalidArgument: if they are neither's.
    """
    keys = {key.lower() for key in tree.entries()} if tree.is_mapping else set()
    if keys & {"partitions", "options", "kubernetes"}:
        return RDT
    if "classes" in keys:
        return BLOCKIO
    raise tree.error(
        "neither classes of rdt nor of blockio", hint="the former has `partitions:`, the latter `classes:` outermost"
    )


def _blockio(file: Path) -> tuple[list[str], dict[str, Any]]:
    from podkeep.kernel.cgroup.cgroups import Cgroups
    from podkeep.runtime.class_resources.blockio import configuration, explain
    from podkeep.runtime.class_resources.blockio.devices import Devices
    from podkeep.runtime.class_resources.blockio.plugin import BlockIo

    meaning = BlockIo(configuration.load(file), Cgroups(), Devices()).describe()
    return explain.explain(meaning), meaning


def _rdt(file: Path, mount: Path, root: Path) -> tuple[list[str], dict[str, Any]]:
    """:param root: the runtime's persistent directory, which says what groups are its own."""
    from podkeep.kernel.cgroup.resctrl import Resctrl
    from podkeep.runtime.class_resources.rdt import configuration, explain, planning
    from podkeep.runtime.class_resources.rdt.groups import ControlGroups

    configured = configuration.load(file)
    resctrl = Resctrl(mount)
    count = len(configured.classes)
    head = f"{file}: rdt, {count} {'class' if count == 1 else 'classes'}"
    plan = planning.plan(configured, ControlGroups(resctrl, root))
    if absent := planning.absence(resctrl):
        lines = [head, f"not offered on this machine: {absent.message}"]
        if absent.hint:
            lines.append(f"hint: {absent.hint}")
        return lines, {**explain.describe(plan), "whyNot": absent.message}
    return [head, *explain.explain(plan)], explain.describe(plan)
