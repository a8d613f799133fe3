"""What every verb gets from the command line as a whole: the configuration, read when a verb first asks for it.

Used by every verb through :data:`pass_invocation`. Does not own: rendering errors (``main``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from podkeep.base.config import Config


class Invocation:
    """One run of ``podkeep``: its global options."""

    def __init__(self, *, config_path: Path | None, debug: bool, settings: Sequence[str] = ()) -> None:
        self.config_path = config_path
        """What ``--config`` named; ``None``: the default file, which may be absent."""
        self.debug = debug
        self.settings = tuple(settings)
        """What ``--set`` gave, ``KEY=VALUE``; it wins over the file."""

    def override(self, *settings: str) -> None:
        """Add settings of a verb's own options, before the configuration is asked for."""
        self.settings += settings

    def load(self) -> Config:
        """Read the configuration anew.

        :raises InvalidArgument: naming the file and the key, if it cannot be read or understood.
        """
        # Reading it imports msgspec; `--help` and completion need neither.
        from podkeep.base import config

        return config.load(self.config_path, self.settings)

    def global_options(self) -> list[str]:
        """Return the command line options that give another ``podkeep`` the same configuration."""
        options = ["--config", str(self.config_path.absolute())] if self.config_path else []
        return options + [part for setting in self.settings for part in ("--set", setting)]

    @cached_property
    def config(self) -> Config:
        """The configuration, read once.

        :raises InvalidArgument: naming the file and the key, if it cannot be read or understood.
        """
        return self.load()


pass_invocation = click.make_pass_decorator(Invocation)
"""Decorator that hands a verb its :class:`Invocation` as the first argument."""
