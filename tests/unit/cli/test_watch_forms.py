"""``-w`` of verbs on objects: a form that it does not have is refused, and not left out in silence."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from podkeep.base.errors import InvalidArgument
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.objects import events, get


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(("verb", "arguments"), [(get.command, ["pods"]), (events.command, [])])
def test_a_watch_of_whole_objects_is_refused(verb: click.Command, arguments: list[str], form: str) -> None:
    invocation = Invocation(config_path=None, debug=False)
    done = CliRunner().invoke(verb, [*arguments, "-w", "-o", form], obj=invocation)
    assert isinstance(done.exception, InvalidArgument), done.output
    assert f"-w and -o {form}" in str(done.exception)


def test_a_type_of_events_that_there_is_not_is_refused() -> None:
    invocation = Invocation(config_path=None, debug=False)
    done = CliRunner().invoke(events.command, ["--types", "Normal,Error"], obj=invocation)
    assert isinstance(done.exception, InvalidArgument), done.output
    assert "valid types are Normal and Warning" in str(done.exception)
