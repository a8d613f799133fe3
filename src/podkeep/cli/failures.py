"""Verbs that take several objects: what fails for one is told, and the others are done."""

from __future__ import annotations

import click

from podkeep.base.errors import PodkeepError
from podkeep.cli.output import error_text


class Failures:
    """What went wrong for some of ``count`` objects. The failure of a single one is the verb's own."""

    def __init__(self, count: int) -> None:
        self._single = count == 1
        self.status = 0
        """The exit status: 1 once something has failed."""

    def add(self, error: PodkeepError) -> None:
        """Tell what failed.

        :raises PodkeepError: if there is nothing else to do.
        """
        if self._single:
            raise error
        self.status = 1
        click.echo(error_text(error), err=True)
