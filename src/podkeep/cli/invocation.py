"""What every verb gets from the command line as a whole: the configuration, read when a verb first asks for it.

Used by every verb through :data:`pass_invocation`. Does not own: rendering errors (``main``).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from podkeep.base.config import Config


class Invocation:
    """One run of ``podkeep``: its global options."""

    def __init__(self, *, config_path: Path | None, debug: bool) -> None:
        self.config_path = config_path
        """What ``--config`` named; ``None``: the default file, which may be absent."""
        self.debug = debug

    @cached_property
    def config(self) -> Config:
        """The configuration.

        :raises InvalidArgument: naming the file and the key, if it cannot be read or understood.
        """
        # Reading it imports msgspec; `--help` and completion need neither.
        from podkeep.base import config

        return config.load(self.config_path)


pass_invocation = click.make_pass_decorator(Invocation)
"""Decorator that hands a verb its :class:`Invocation` as the first argument."""
