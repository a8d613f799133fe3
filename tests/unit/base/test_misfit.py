"""A value that does not fit is named by its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base import config
from podkeep.base.errors import InvalidArgument

DOCUMENT = "docs/configuration.md lists every key"
QUOTES = "write the value in quotes"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[images]\nparallel_layers = "x"', "images.parallel_layers: expected `integer`, got `string`", DOCUMENT),
        (
            '[class_resources]\noom = {a = 1, b = "2"}',
            "class_resources.oom.b: expected `integer`, got `string`",
            DOCUMENT,
        ),
        (
            '[class_resources.types.x.classes]\na.cgroup = {"pids.max" = "1"}\nb.cgroup = {"pids.max" = 20}',
            'class_resources.types.x.classes.b.cgroup."pids.max": expected `string`, got `integer`',
            QUOTES,
        ),
        (
            '[class_resources.types.x]\n[class_resources.types."y.z/t"]\nhok = "a"',
            'class_resources.types."y.z/t".hok: unknown key',
            'did you mean class_resources.types."y.z/t".hook?',
        ),
        ("[runtime]\nfoo = 1", "runtime.foo: unknown key", DOCUMENT),
        ("foo = 1", "foo: unknown key", DOCUMENT),
        ("[agent]\nnode_nam = 1", "agent.node_nam: unknown key", "did you mean agent.node_name?"),
        ('[runtme]\nsocket = "/x"', "runtme: unknown key", "did you mean runtime?"),
        (
            "[runtime.handlers.x]\npatth = 1",
            "runtime.handlers.x.patth: unknown key",
            "did you mean runtime.handlers.x.path?",
        ),
        ("runtime = 1", "runtime: expected `table`, got `integer`", DOCUMENT),
        ("[images]\nallowed_registries = [1]", "images.allowed_registries: expected `string`, got `integer`", QUOTES),
        (
            '[class_resources.types.x]\nlevels = ["host"]',
            "class_resources.types.x.levels: invalid enum value 'host'",
            "use container or pod",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        config.load(path)
    assert (caught.value.message, caught.value.hint) == (f"{path}: {message}", hint)


def test_a_setting_of_the_command_line_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    with pytest.raises(InvalidArgument) as caught:
        config.load(path, ["class_resources.types.x.hook_timeout=now"])
    setting = "class_resources.types.x.hook_timeout"
    assert caught.value.message == f"--set {setting}=now: {setting}: expected `float`, got `string`"


@pytest.mark.parametrize(
    ("setting", "key"), [("runtime.rot=/x", "runtime.rot"), ("nosuch=1", "nosuch"), ("no.such.key=1", "no")]
)
def test_an_unknown_key_of_the_command_line_is_not_the_files(tmp_path: Path, setting: str, key: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    with pytest.raises(InvalidArgument) as caught:
        config.load(path, [setting])
    assert caught.value.message == f"--set {setting}: {key}: unknown key"
