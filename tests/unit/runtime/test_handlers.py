"""The table of runtime handlers: names, defaults and what a handler cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.config import Config, HandlerConfig, RuntimeConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.base.ids import HandlerName
from podkeep.runtime.lifecycle.handlers import Features, HandlerTable
from podkeep.runtime.model.layout import Layout

LAYOUT = Layout(root=Path("/r"), run=Path("/n"))


def table(default: str = "crun") -> HandlerTable:
    handlers = {"crun": HandlerConfig(path="/usr/bin/crun"), "kata": HandlerConfig(path="/opt/kata", root="/opt/state")}
    return HandlerTable.from_config(handlers, default, conmon="/usr/bin/conmon", layout=LAYOUT)


def test_the_empty_name_is_the_default() -> None:
    handlers = table()
    assert handlers.driver(HandlerName("")) == handlers.driver(HandlerName("crun"))
    assert table("kata").driver(HandlerName("")).handler.path == "/opt/kata"


def test_what_a_handler_is_made_of() -> None:
    crun, kata = (table().driver(HandlerName(name)) for name in ("crun", "kata"))
    assert (crun.handler.path, crun.handler.root, crun.conmon) == (
        "/usr/bin/crun",
        Path("/n/handlers/crun"),
        "/usr/bin/conmon",
    )
    assert kata.handler.root == Path("/opt/state")


def test_a_handler_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(NotFound, match="'gvisor'") as caught:
        table().driver(HandlerName("gvisor"))
    assert "crun, kata" in caught.value.hint


@pytest.mark.parametrize("default", ["runc", ""])
def test_a_default_that_is_not_in_the_table(default: str) -> None:
    with pytest.raises(InvalidArgument, match=r"runtime\.default_handler"):
        table(default)
    with pytest.raises(InvalidArgument):
        HandlerTable.from_config({}, default, conmon="c", layout=LAYOUT)


@pytest.mark.requirement("U97")
def test_user_namespaces_are_a_matter_of_each_handler() -> None:
    handlers = table()
    handlers.features[HandlerName("crun")] = Features(user_namespaces=True)
    handlers.features[HandlerName("kata")] = Features(user_namespaces=False, why_not="it ignores mappings")
    handlers.require_user_namespaces(HandlerName(""))
    handlers.require_user_namespaces(HandlerName("crun"))
    with pytest.raises(
        FailedPrecondition, match="user namespaces is not supported by the runtime handler 'kata': it ignores mappings"
    ):
        handlers.require_user_namespaces(HandlerName("kata"))


@pytest.mark.requirement("U97")
def test_a_default_handler_without_user_namespaces_is_named() -> None:
    handlers = table()
    handlers.features[HandlerName("crun")] = Features(user_namespaces=False, why_not="old")
    with pytest.raises(FailedPrecondition, match="'crun': old"):
        handlers.require_user_namespaces(HandlerName(""))


def test_mounts_that_are_read_only_in_depth_are_a_matter_of_each_handler() -> None:
    handlers = table()
    handlers.features[HandlerName("crun")] = Features(user_namespaces=False, recursive_read_only_mounts=True)
    handlers.features[HandlerName("kata")] = Features(user_namespaces=True, why_writable="it binds the top alone")
    handlers.require_recursive_read_only(HandlerName(""))
    with pytest.raises(FailedPrecondition, match=r"^RROUnsupported: runtime handler 'kata' .*: it binds the top alone"):
        handlers.require_recursive_read_only(HandlerName("kata"))


def test_the_default_configuration_makes_a_table() -> None:
    runtime: RuntimeConfig = Config().runtime
    handlers = HandlerTable.from_config(runtime.handlers, runtime.default_handler, conmon=runtime.conmon, layout=LAYOUT)
    assert handlers.driver(HandlerName("")).handler.name == "crun"
