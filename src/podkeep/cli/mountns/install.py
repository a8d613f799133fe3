"""``podkeep mountns install``, ``uninstall`` and ``machine-config``: systemd starts daemons in the namespace.

Owns: what people type and read. Does not own: the files (``mountns.installation``, ``mountns.machine_config``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.mountns import namespace

if TYPE_CHECKING:
    from podkeep.mountns.installation import Report

_HOST = Path("/")


def _root_option(function: Any) -> Any:
    return click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        default=_HOST,
        metavar="DIRECTORY",
        help="Root directory of another machine, such as an image of one.",
    )(function)


@click.command(name="install", short_help="Have systemd start daemons in the namespace.")
@click.argument("units", nargs=-1, metavar="[UNIT]...")
@click.option("--keep", is_flag=True, help="Stopping the service leaves the namespace, and starting finds it again.")
@click.option("--without-podkeep", is_flag=True, help="Make the service work with util-linux alone.")
@_root_option
@forms.output_option
@pass_invocation
def install(
    invocation: Invocation, units: tuple[str, ...], keep: bool, without_podkeep: bool, root: Path, output: str
) -> None:
    """Have systemd start daemons in the namespace.

    Writes container-mount-namespace.service, which makes the namespace, a drop-in for each UNIT (default: podkeep,
    kubelet, crio and containerd, as far as they are there; containerd only beside a kubelet), and
    /usr/local/bin/nsenterCmns, with which those enter who have no podkeep. Starts and stops nothing: remove the pods of
    the node first (`kubectl drain`), then restart the daemons as it says at the end. Can be repeated, and has to be
    when the command of a unit changes.
    """
    namespace.require_root("install")
    from podkeep.mountns import installation

    if not invocation.config.mountns.enabled:
        raise FailedPrecondition(
            "mountns.enabled is false: a runtime that systemd starts in the namespace would refuse to run",
            hint="set it to true, or leave it out",
        )
    request = installation.Request(
        pin=namespace.pin_of_services(invocation),
        podkeep=None if without_podkeep else _podkeep(invocation, root),
        root=root,
        units=units,
        keep=keep,
    )
    report = installation.install(request)
    forms.show(output, report, _lines(report))


@click.command(name="uninstall", short_help="Remove what `install` wrote.")
@_root_option
@forms.output_option
def uninstall(root: Path, output: str) -> None:
    """Remove what `install` wrote, unless somebody changed it, or a unit that stays does not start without it.

    Starts and stops nothing. What the daemons mount is seen on the host again once they are restarted as it says at the
    end; but podkeep's own runtime hides its mounts by itself, unless mountns.enabled is false.
    """
    namespace.require_root("uninstall")
    from podkeep.mountns import installation

    report = installation.uninstall(root)
    forms.show(output, report, _lines(report))


@click.command(name="machine-config", short_help="Print the same as an OpenShift MachineConfig.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE...")
@click.option("--role", default="worker", show_default=True, help="Machine config pool that gets it.")
@click.option("--keep", is_flag=True, help="Stopping the service leaves the namespace.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@pass_invocation
def machine_config(invocation: Invocation, files: tuple[Path, ...], role: str, keep: bool, output: str) -> None:
    """Print what `install` writes as a MachineConfig object of OpenShift.

    Each FILE is a unit as the nodes have it, and has its name: on a node, `systemctl cat kubelet.service
    >kubelet.service`, and the same with crio.service.
    """
    from podkeep.base.text.yaml_text import to_yaml
    from podkeep.mountns import execstart, machine_config

    entry = execstart.Entry(pin=namespace.pin_of_services(invocation))
    rendered = machine_config.render(role, entry, dict(map(_unit, files)), keep=keep)
    if output == "json":
        forms.echo_json(rendered)
    else:
        click.echo(to_yaml(rendered), nl=False)


def _unit(path: Path) -> tuple[str, str]:
    if path.suffix != ".service":
        raise InvalidArgument(f"{path}: the name is no service's", hint="name it as the unit: kubelet.service")
    try:
        return path.name, path.read_text(errors="surrogateescape")
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error


def _podkeep(invocation: Invocation, root: Path) -> tuple[str, ...] | None:
    """Return the command that starts this podkeep on the machine at ``root``; None if it has none there."""
    from podkeep.cli.core.background import program

    command = (*program(), *invocation.global_options())
    there = PurePath(command[0]).relative_to("/")
    return command if os.access(root / there, os.X_OK) else None


def _lines(report: Report) -> Iterator[str]:
    for verb, paths in (("wrote", report.written), ("kept", report.unchanged), ("removed", report.removed)):
        yield from (f"{verb} {path}" for path in paths)
    yield from report.notes
    if command := report.restart_command():
        yield f"next, without pods on this node: {command}"
    elif not (report.written or report.unchanged or report.removed):
        yield "nothing to do"
