"""``podkeep exec``: a command in a running container, its streams and its exit status."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from podkeep.base.errors import InvalidArgument, NotFound, PermissionDenied, PodkeepError, Unavailable
from podkeep.cli.core import connection
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_line
from podkeep.cli.pods.targets import Target, find_target, target_arguments

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import api_pb2


_NOT_FOUND = re.compile(r"executable file .*not found|no such file or directory", re.IGNORECASE)
_NOT_EXECUTABLE = re.compile(
    r"permission denied|not executable|is a directory|not a regular file|exec format error"
    r"|open executable: (?!no such file)",
    re.IGNORECASE,
)
"""What OCI runtimes say of a program that cannot be run; crun opens it, and says why that failed."""
_MAX_WORDS = 8192
"""Characters of such a line, with a path in it; the time of a search grows with the square of a line's length."""
_OCI_RUNTIME_FAILED = 255
NO_TERMINAL = "Unable to use a TTY - input is not a terminal or the right kind of file"
"""kubectl's words."""
NO_INPUT = "Unable to use a TTY - without -i nothing is typed into it"


class _Exec(click.Command):
    """Options of ours end where the command begins: at the first word after POD, or after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
        after = _words(parsed.get("argv"))
        before = args[: len(args) - len(after)]
        if after and "--" not in before:
            # What stands between POD and the command is ours; a command never begins with a dash.
            parsed, _, _ = self.make_parser(ctx).parse_args(list(after))
            words = [*_words(parsed.get("pod")), *_words(parsed.get("argv"))]
            ours = after[: len(after) - len(words)]
            if not words and ctx.resilient_parsing:
                return super().parse_args(ctx, args)  # an option's value is being completed
            args = [*(ours[:-1] if ours[-1:] == ["--"] else ours), *before, *words]
        return super().parse_args(ctx, args)


def _words(value: object) -> list[str]:
    """Return what a parser gives for an argument: a word, several, or something else if there is none."""
    if isinstance(value, str):
        return [value]
    return [str(word) for word in value] if isinstance(value, tuple | list) else []


@click.command(name="exec", cls=_Exec)
@target_arguments
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option("--timeout", type=click.IntRange(min=0), default=0, metavar="SECONDS", help="0, the default: none.")
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal; only with -i.")
@click.pass_context
@pass_invocation
def command(
    invocation: Invocation,
    ctx: click.Context,
    target: Target,
    argv: tuple[str, ...],
    timeout: int,
    stdin: bool,
    tty: bool,
) -> None:
    """Run a command in a container.

    Options after the first word of COMMAND are the command's. podkeep ends with the command's exit status, with 127 if
    there is no such program and 126 if it cannot be run; if podkeep is interrupted, the command is killed. With
    --timeout the output is shown when the command has ended.

    \b
    Examples:
      podkeep exec web ls -la
      podkeep exec -it web/main sh
      podkeep exec web -c main -- ls -la
    """
    if timeout and (stdin or tty):
        raise InvalidArgument("--timeout does not go with -i or -t", hint="interrupt the command instead")
    if tty and not stdin:
        # As kubectl has it: in a terminal into which nothing can be typed, a shell would wait for ever.
        echo_line(NO_INPUT, err=True)
        tty = False
    if stdin and tty and (sys.stdin is None or not sys.stdin.isatty()):
        # A terminal's end of input is a key, which nobody here can press: the command would wait for it for ever.
        echo_line(NO_TERMINAL, err=True)
        tty = False

    config = invocation.config
    if not timeout:
        ctx.exit(connection.run(invocation, lambda client: _stream(client, config, target, argv, stdin=stdin, tty=tty)))
    try:
        answer = connection.run(invocation, lambda client: _collect(client, config, target, argv, timeout))
    except PodkeepError as error:
        status = status_of_failure(error)
        if status is None:
            raise
        echo_line(f"podkeep: {error.message}", err=True)
        ctx.exit(status)
    sys.stdout.buffer.write(answer.stdout)
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(answer.stderr)
    sys.stderr.buffer.flush()
    ctx.exit(_status_of(answer))


async def _collect(
    client: CriClient, config: Config, target: Target, argv: tuple[str, ...], timeout: int
) -> api_pb2.ExecSyncResponse:
    from podkeep.cri.v1 import api_pb2

    found = await find_target(client, config, target, running=True)
    return await client.runtime.ExecSync(api_pb2.ExecSyncRequest(container_id=found.id, cmd=argv, timeout=timeout))


async def _stream(
    client: CriClient, config: Config, target: Target, argv: tuple[str, ...], *, stdin: bool, tty: bool
) -> int:
    from podkeep.cli.pods.stream_client import CommandClient
    from podkeep.cli.pods.terminal import converse
    from podkeep.cri.v1 import api_pb2

    found = await find_target(client, config, target, running=True)
    request = api_pb2.ExecRequest(container_id=found.id, cmd=argv, stdin=stdin, stdout=True, stderr=not tty, tty=tty)
    answer = await client.runtime.Exec(request)
    session = await CommandClient.connect(answer.url, config.streaming.tls_cert)
    try:
        return await converse(session, stdin=stdin, terminal=tty)
    except PodkeepError as error:
        if (status := status_of_failure(error)) is None:
            raise
        # An OCI runtime says it where the command would have written.
        said = session.last_words.decode(errors="replace").strip()
        if not said or said.splitlines()[-1] not in error.message:
            echo_line(f"podkeep: {error.message}", err=True)
        return status
    finally:
        await session.close()


def status_of_failure(error: PodkeepError) -> int | None:
    """Return the exit status that a shell gives to a program that could not be run; ``None``: it failed otherwise."""
    if isinstance(error, NotFound | PermissionDenied | Unavailable):
        return None  # of the container or the runtime
    return _status_of_words(error.message)


def _status_of_words(words: str) -> int | None:
    words = words[:_MAX_WORDS]
    if _NOT_EXECUTABLE.search(words):
        return 126
    return 127 if _NOT_FOUND.search(words) else None


def _status_of(answer: api_pb2.ExecSyncResponse) -> int:
    """Return the exit status of a command; an OCI runtime that could not run it ends with 255 and one line."""
    if answer.exit_code != _OCI_RUNTIME_FAILED or answer.stdout or len(answer.stderr) > _MAX_WORDS:
        return answer.exit_code
    said = answer.stderr.decode(errors="replace")
    if "executable" in said and said.count("\n") == 1:
        return _status_of_words(said) or answer.exit_code
    return answer.exit_code
