"""Which keys differ between two configurations, and a configuration that cannot be read again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from podkeep.base import config
from podkeep.base.in_force import changed_keys
from podkeep.images.store.store import ImageStore
from podkeep.runtime.daemon.reload import Reload


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
        "registries.a.b:5",
        "runtime.socket",
    )
    again = config.Config(registries={"a.b:5": config.RegistryConfig(insecure=False)})
    assert changed_keys(other, again) == ("log.level", "registries.a.b:5.insecure", "runtime.socket")
    assert changed_keys(again, config.Config()) == ("registries.a.b:5",)


def test_a_line_of_the_log_does_not_list_a_thousand_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    classes = {f"c{number:04}": config.CustomClass(cgroup={"cpu.shares": "2"}) for number in range(1000)}
    types = {"many": config.CustomType(classes=classes)}
    few = {"many": config.CustomType(classes={"c0000": classes["c0000"]})}
    file = tmp_path / "blockio.yaml"
    file.write_text("Classes: {free: }")
    first, second, third = (
        config.Config(class_resources=config.ClassResourcesConfig(types=each, blockio_config=str(file)))
        for each in ({}, few, types)
    )
    assert changed_keys(first, third) == ("class_resources.types.many",)

    async def scenario() -> None:
        store = ImageStore.open(tmp_path / "images", config=config.ImagesConfig(), registries={})
        try:
            reload = Reload(second, lambda: third, store)
            reload.start()
            await reload.close()
        finally:
            store.close()

    asyncio.run(scenario())
    logged = caplog.text + capfd.readouterr().err
    assert "class_resources.types.many.classes.c0001" in logged
    assert f"class_resources.types.many.classes.c0020 and 979 more; also in force: {file}\n" in logged
    assert "class_resources.types.many.classes.c0021" not in logged


def test_values_that_cannot_work_are_not_put_into_force(tmp_path: Path) -> None:
    registries = {"r": config.RegistryConfig(mirrors=("http://",))}

    async def scenario() -> None:
        store = ImageStore.open(tmp_path / "images", config=config.ImagesConfig(), registries={})
        try:
            reload = Reload(config.Config(), lambda: config.Config(registries=registries), store)
            reload.start()
            await reload.close()
            assert store._fetching._registries == {}
        finally:
            store.close()

    asyncio.run(scenario())


def test_a_file_that_cannot_be_understood_does_not_end_what_waits_for_the_reload(tmp_path: Path) -> None:
    """A link to itself, for one, is no error of ours."""
    link = tmp_path / "loop"
    link.symlink_to(link)

    def load() -> config.Config:
        link.resolve(strict=True)
        return config.Config(images=config.ImagesConfig(parallel_layers=1))

    async def scenario() -> None:
        store = ImageStore.open(tmp_path / "images", config=config.ImagesConfig(), registries={})
        try:
            reload = Reload(config.Config(), load, store)
            reload.start()
            await reload.close()
            assert store._fetching._config == config.ImagesConfig()
        finally:
            store.close()

    asyncio.run(scenario())


def test_the_driver_of_layers_waits_for_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = config.ImagesConfig(snapshot_driver="directories", parallel_layers=1)

    async def scenario() -> None:
        store = ImageStore.open(tmp_path / "images", config=config.ImagesConfig(), registries={})
        try:
            reload = Reload(config.Config(), lambda: config.Config(images=images), store)
            for applied in ("images.parallel_layers", "nothing"):
                await reload._reload()
                said = capsys.readouterr().err
                assert f"applied: {applied}\n" in said
                assert "not in force before a restart: images.snapshot_driver\n" in said
            await reload.close()
        finally:
            store.close()

    asyncio.run(scenario())


def test_where_resctrl_is_waits_for_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = config.Config(class_resources=config.ClassResourcesConfig(resctrl="/elsewhere", oom={"low": 100}))
    given: list[config.ClassResourcesConfig] = []

    async def scenario() -> None:
        store = ImageStore.open(tmp_path / "images", config=config.ImagesConfig(), registries={})
        try:
            loaded = Reload(config.Config(), lambda: moved, store, lambda new: given.append(new.class_resources))
            for applied in ("class_resources.oom.low", "nothing"):
                await loaded._reload()
                said = capsys.readouterr().err
                assert f"applied: {applied}\n" in said
                assert "not in force before a restart: class_resources.resctrl\n" in said
        finally:
            store.close()

    asyncio.run(scenario())
    assert given == [config.ClassResourcesConfig(oom={"low": 100})] * 2
