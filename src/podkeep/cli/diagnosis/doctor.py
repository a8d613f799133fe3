"""``podkeep doctor``: what this machine has and lacks, and the command that fixes it.

Owns: the order of the checks and the exit status. The checks are the other modules of this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from podkeep.cli.diagnosis.finding import Finding


@click.command(name="doctor")
@forms.output_option
@click.pass_context
@pass_invocation
def command(invocation: Invocation, ctx: click.Context, output: str) -> None:
    """Say what this machine lacks, and the command that fixes it.

    Ends with status 1 if something is missing without which pods do not run. Changes nothing.
    """
    from podkeep.cli.diagnosis import finding

    findings = list(_examine(invocation))
    forms.show(output, findings, finding.report(findings))
    ctx.exit(1 if any(item.level is finding.Level.MISSING for item in findings) else 0)


def _examine(invocation: Invocation) -> Iterator[Finding]:
    from podkeep.cli.diagnosis import class_resources, daemon, machine, mounting, mountns, programs

    config = invocation.config
    yield from machine.examine(config)
    yield from programs.examine(config)
    yield from class_resources.examine(config)
    if os.geteuid() == 0:
        # Before the process leaves the mount namespace that it was started in.
        yield from mountns.examine(invocation)
        # Before the runtime is asked: that starts gRPC's threads, and the probes need a process without any.
        yield from mounting.examine(config)
        yield from machine.examine_firewall(config)
    yield from daemon.examine(invocation)
