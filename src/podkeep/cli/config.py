"""``podkeep config``: check a configuration file, and show what is in force."""

from __future__ import annotations

from pathlib import Path

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cli.invocation import Invocation, pass_invocation


@click.group(name="config")
def command() -> None:
    """Check and show the configuration."""


@command.command(name="check")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@pass_invocation
def check(invocation: Invocation, file: Path | None) -> None:
    """Say whether FILE (default: the file in force) is understood and can work, and what it names is there.

    Ends with status 1 at the first thing that would keep the runtime from serving, and says what to do.
    """
    if file is not None:
        invocation = Invocation(config_path=file, debug=invocation.debug, settings=invocation.settings)
    config = invocation.config
    from podkeep.api import feature_gates
    from podkeep.base.config import DEFAULT_PATH
    from podkeep.cli.diagnosis import class_resources, finding, programs
    from podkeep.runtime import settings

    path = invocation.config_path or DEFAULT_PATH
    try:
        feature_gates.read(config.agent.feature_gates)
        settings.check(config)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}", hint=error.hint) from error
    findings = [
        *programs.examine(config),
        *programs.examine_files(config),
        *class_resources.examine(config),
    ]
    for item in findings:
        if item.level is not finding.Level.OK:
            click.echo("\n".join(item.lines(len(item.name))))
    missing = [item.name for item in findings if item.level is finding.Level.MISSING]
    if missing:
        names = ", ".join(missing)
        raise FailedPrecondition(f"{path}: what it names is not there: {names}", hint="see the lines above")
    there = "in order" if path.exists() else "absent; every key has its default"
    click.echo(f"{path}: {there}")


@command.command(name="show")
@pass_invocation
def show(invocation: Invocation) -> None:
    """Print the configuration in force as TOML, with every default written out."""
    config = invocation.config
    from podkeep.base.config import to_toml

    click.echo(to_toml(config), nl=False)
