"""``podkeep doctor``: what this machine has and lacks, and the command that fixes it.

Owns: the order of the checks and the exit status. The checks are in ``podkeep.cli.diagnosis``.
"""

from __future__ import annotations

import os

import click

from podkeep.cli.core import output
from podkeep.cli.core.invocation import Invocation, pass_invocation


@click.command(name="doctor")
@output.output_option
@click.pass_context
@pass_invocation
def command(invocation: Invocation, ctx: click.Context, output: str) -> None:
    """Say what this machine lacks, and the command that fixes it.

    Ends with status 1 if something is missing without which pods do not run. Changes nothing.
    """
    _examine(invocation, ctx, form=output)


def _examine(invocation: Invocation, ctx: click.Context, *, form: str) -> None:
    from podkeep.cli.diagnosis import (
        class_resources,
        confinement,
        daemon,
        finding,
        firewall,
        machine,
        mounting,
        mountns,
        programs,
    )

    config = invocation.config
    findings = [*machine.examine(config), *confinement.examine(config), *programs.examine(config)]
    findings += class_resources.examine(config)
    if os.geteuid() == 0:
        # Before the process leaves the mount namespace that it was started in.
        findings += mountns.examine(invocation)
        # Before the runtime is asked: that starts gRPC's threads, and the probes need a process without any.
        findings += mounting.examine(config)
        findings += firewall.examine(config)
    findings += daemon.examine(invocation)
    if form == "json":
        output.echo_json([item.as_json() for item in findings])
    else:
        click.echo(finding.report(findings))
    ctx.exit(1 if any(item.level is finding.Level.MISSING for item in findings) else 0)
