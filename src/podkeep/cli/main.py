"""The command ``podkeep``: global options, the list of verbs, and how errors look.

Owns: the list of verbs, one line per error, exit statuses (0 done, 1 failed, 2 wrong usage, 78 the configuration is
refused, 130 interrupted, or whatever a verb passes on, such as the status of a command it ran). Does not own: what
verbs do. A verb is a module of this package whose ``command`` is a click command; :data:`VERBS` lists it with its help.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from podkeep import __version__
from podkeep.base.errors import InvalidConfiguration, PodkeepError
from podkeep.base.text.redaction import redacted
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.core.output import EXIT_CONFIGURATION, EXIT_INTERRUPTED, echo_line, error_text
from podkeep.cli.core.verbs import LazyGroup, Verb

EXIT_FAILED = 1
EXIT_USAGE = 2
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

VERBS = {
    "agent": Verb("podkeep.cli.agent", "Run the pods that a Kubernetes API gives this node."),
    "api": Verb("podkeep.cli.api", "Serve the Kubernetes API."),
    "apply": Verb("podkeep.cli.objects.apply", "Make the objects in files true, in the Kubernetes API."),
    "artifact": Verb("podkeep.cli.images.artifact", "Publish OCI artifacts, and list what refers to an image."),
    "attach": Verb("podkeep.cli.pods.attach", "Show what a container writes, and write to it."),
    "classes": Verb("podkeep.cli.classes.command", "List QoS classes, change those of pods, check their files."),
    "config": Verb("podkeep.cli.diagnosis.config", "Check and show the configuration."),
    "cp": Verb("podkeep.cli.pods.cp", "Copy files into a container, or out of it."),
    "delete": Verb("podkeep.cli.objects.delete", "Delete objects of the Kubernetes API."),
    "describe": Verb("podkeep.cli.objects.describe", "Describe objects of the Kubernetes API, and what happened."),
    "doctor": Verb("podkeep.cli.diagnosis.doctor", "Say what this machine lacks, and the command that fixes it."),
    "events": Verb("podkeep.cli.objects.events", "Show events of the Kubernetes API."),
    "exec": Verb("podkeep.cli.pods.exec", "Run a command in a container."),
    "get": Verb("podkeep.cli.objects.get", "Show objects of the Kubernetes API."),
    "image": Verb("podkeep.cli.images.command", "Pull, list, save, check and remove images."),
    "kubeconfig": Verb("podkeep.cli.kubeconfig", "Print how kubectl gets at the Kubernetes API."),
    "logs": Verb("podkeep.cli.pods.logs", "Print the log of a container."),
    "mountns": Verb("podkeep.cli.mountns.command", "Look at the mounts of containers, hidden from the host."),
    "node": Verb("podkeep.cli.node.command", "Run this machine as a node: runtime, API and agent."),
    "port-forward": Verb("podkeep.cli.pods.port_forward", "Let local ports lead into a pod."),
    "ps": Verb("podkeep.cli.pods.ps", "List pods."),
    "rm": Verb("podkeep.cli.pods.rm", "Stop and remove pods."),
    "run": Verb("podkeep.cli.run", "Run the pods of a manifest until they end."),
    "runtime": Verb("podkeep.cli.runtime", "Serve the CRI socket."),
    "status": Verb("podkeep.cli.status", "Say how this node is: daemons, pods, and what is wrong."),
    "top": Verb("podkeep.cli.pods.top", "Show what pods use of CPU and memory."),
    "userns": Verb("podkeep.cli.userns.command", "List and check the user IDs of pods."),
    "wait": Verb("podkeep.cli.objects.wait", "Wait until a condition of objects holds."),
}


@click.command(
    cls=LazyGroup,
    verbs=VERBS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="podkeep", message="%(prog)s %(version)s")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="PODKEEP_CONFIG",
    help="Configuration file (default: /etc/podkeep/config.toml, which may be absent).",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one key of the configuration, such as mountns.enabled=false; wins over the file.",
)
@click.option("--debug", is_flag=True, help="Log what is done, and show where an error came from.")
@click.pass_context
def podkeep(ctx: click.Context, config_path: Path | None, settings: tuple[str, ...], debug: bool) -> None:
    """A Kubernetes node: runs pods, with user namespaces that hold."""
    if debug:
        from podkeep.base import log

        log.configure("debug", sys.stderr)
    ctx.obj = Invocation(config_path=config_path, debug=debug, settings=settings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit status.

    :param arguments: without the program's name; ``None``: those of this process.
    """
    _open_closed_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Behind the verb the word may be an option of the command that `podkeep exec` runs.
    debug = "--debug" in itertools.takewhile(lambda argument: argument not in VERBS, arguments)
    try:
        status = _status(podkeep.main(args=arguments, prog_name="podkeep", standalone_mode=False))
        # Flush here, where EPIPE sets the exit status; when the interpreter flushes at exit, it prints a traceback.
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        # Another one ends this process at once: Python would print where in its own end it came.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        status = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except PodkeepError as error:
        _explain(debug)
        click.echo(error_text(error), err=True)
        status = EXIT_CONFIGURATION if isinstance(error, InvalidConfiguration) else EXIT_FAILED
    except BrokenPipeError:
        # Whoever read our output has enough.
        status = EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the last boundary: one line for people, the traceback for --debug
        _explain(debug)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            echo_line(f"podkeep: cannot write {error.filename or 'the output'}: {error.strerror}", err=True)
        elif isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
            # An argument: what Python has for its bytes cannot be sent.
            echo_line(redacted(f"podkeep: {error.object[:200]!a} is not UTF-8"), err=True)
        else:
            echo_line(redacted(f"podkeep: {type(error).__name__}: {error}"), err=True)
            click.echo("hint: this is a defect of podkeep; run again with --debug to see where it is", err=True)
        status = EXIT_FAILED
    _give_up_output()
    sys.exit(status)


def _open_closed_streams() -> None:
    """Have a standard stream that was closed before this process began lead nowhere.

    Otherwise the next file or socket gets its number, and what is written to the stream. Python has ``None`` for it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))


def _give_up_output() -> None:
    """Have what could not be written go nowhere: Python writes it once more at exit, and prints a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(debug: bool) -> None:
    if debug:
        import traceback

        click.echo(redacted(traceback.format_exc()), err=True, nl=False)


def _status(result: Any) -> int:
    # With standalone_mode=False click returns the status of ctx.exit(), or else what the verb returned.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0
