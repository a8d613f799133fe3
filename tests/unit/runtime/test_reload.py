"""Which keys differ between two configurations."""

from __future__ import annotations

from podkeep.base import config
from podkeep.runtime.reload import changed_keys


def test_equal_configurations_differ_in_nothing() -> None:
    assert changed_keys(config.Config(), config.Config()) == ()


def test_changes_are_named_by_key() -> None:
    other = config.Config(
        log=config.LogConfig(level="debug"),
        runtime=config.RuntimeConfig(socket="/run/other.sock"),
        registries={"a.b:5": config.RegistryConfig(insecure=True)},
    )
    assert changed_keys(config.Config(), other) == (
        "log.level",
        "registries",
        "registries.a.b:5.ca_file",
        "registries.a.b:5.insecure",
        "registries.a.b:5.mirrors",
        "runtime.socket",
    )
