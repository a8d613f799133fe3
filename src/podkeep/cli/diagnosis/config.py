"""``podkeep config``: check a configuration file, and show what is in force."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import raise_last

if TYPE_CHECKING:
    from podkeep.base.config import Config


@click.group(name="config")
def command() -> None:
    """Check and show the configuration."""


@command.command(name="check")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@pass_invocation
def check(invocation: Invocation, file: Path | None) -> None:
    """Say whether FILE (default: the file in force) is understood and can work, and what it names is there.

    Every problem is told, with the file or the setting that it comes from, its key and what to do. Ends with status 1
    if the runtime, the agent or the API would not serve with it.
    """
    if file is not None:
        invocation = Invocation(config_path=file, debug=invocation.debug, settings=invocation.settings)
    from podkeep.base.config import DEFAULT_PATH, attributed, read
    from podkeep.cli.diagnosis import class_resources, finding, machine, programs

    path = invocation.config_path or DEFAULT_PATH
    config, problems = read(invocation.config_path, invocation.settings)
    found = _found(config)

    def found_with(some: Sequence[str]) -> list[InvalidArgument]:
        return _found(read(invocation.config_path, some)[0])

    # A value that cannot be read is told by its key; what cannot work with it is the same problem.
    unread = [problem for problem in found if not any(f": {_key(problem)}: " in known.message for known in problems)]
    problems += [attributed(problem, str(path), invocation.settings, found_with) for problem in unread]
    findings = [
        *programs.examine(config, holes=False),
        *programs.examine_files(config),
        *machine.unwritable(config),
        # Whoever looks for what is named there takes it for granted that it can be understood.
        *([] if any("class_resources" in problem.message for problem in found) else class_resources.examine(config)),
    ]
    for item in findings:
        if item.level is not finding.Level.OK:
            click.echo("\n".join(item.lines(len(item.name))))
    raise_last(problems)
    missing = [item.name for item in findings if item.level is finding.Level.MISSING]
    if missing:
        names = ", ".join(missing)
        raise FailedPrecondition(
            f"{path}: what it names is not there, or cannot be used: {names}", hint="see the lines above"
        )
    there = "in order" if path.exists() else "absent; every key has its default"
    click.echo(f"{path}: {there}")


def _found(config: Config) -> list[InvalidArgument]:
    """Return what the daemons could not work with."""
    from podkeep.agent.daemon import settings as agent_settings
    from podkeep.api import feature_gates
    from podkeep.apiserver.admission import chain
    from podkeep.apiserver.admission.pod_security import plugin as pod_security
    from podkeep.base.config import problems_of
    from podkeep.runtime.daemon import settings

    return [
        *settings.problems(config),
        *agent_settings.problems(config),
        *problems_of(lambda: feature_gates.read(config.api.feature_gates, "api")),
        *problems_of(lambda: chain.chosen(config.api.enable_admission_plugins, config.api.disable_admission_plugins)),
        *problems_of(lambda: pod_security.configuration(config.api.admission.pod_security)),
    ]


def _key(problem: InvalidArgument) -> str:
    return problem.message.partition(": ")[0]


@command.command(name="show")
@pass_invocation
def show(invocation: Invocation) -> None:
    """Print the configuration in force as TOML, with every default written out."""
    config = invocation.config
    from podkeep.base.config import to_toml

    click.echo(to_toml(config), nl=False)
