"""Groups of verbs that import a verb's module only when that verb is asked for. Used by ``main`` and ``image``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from podkeep.base.frozen import FrozenStruct

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Resolved: TypeAlias = tuple[str | None, click.Command | None, list[str]]


class Verb(FrozenStruct):
    """Where a verb is written, and its line in the help of its group, known without importing it."""

    module: str
    help: str


class LazyGroup(click.Group):
    """A group that imports a verb when it is invoked, and lists and completes verbs without importing any.

    :param verbs: by name; each module's ``command`` is the click command.
    """

    def __init__(self, *args: Any, verbs: Mapping[str, Verb], **options: Any) -> None:
        super().__init__(*args, **options)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb ``cmd_name``; ``None`` if there is no such verb."""
        verb = self._verbs.get(cmd_name)
        if verb is None:
            return None
        return cast(click.Command, importlib.import_module(verb.module).command)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> _Resolved:
        """Return the command that the first of ``args`` names; the error for an unknown one suggests others."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from podkeep.base.text.similar import similar

            close = similar(args[0], self._verbs)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(close)}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._verbs[name].help) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a verb or an option of the group."""
        from click.shell_completion import CompletionItem

        verbs = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self._verbs[name].help) for name in verbs]
        return items + click.Command.shell_complete(self, ctx, incomplete)
