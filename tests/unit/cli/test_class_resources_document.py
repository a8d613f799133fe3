"""The examples of docs/class-resources.md: configurations, files and Pods that are taken as they stand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from podkeep.api import class_resources, manifest
from podkeep.base.config import ClassResourcesConfig
from podkeep.runtime.class_resources import loading
from podkeep.runtime.class_resources.blockio import configuration

TEXT = (Path(__file__).parents[3] / "docs" / "class-resources.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def tables(text: str) -> ClassResourcesConfig:
    return msgspec.convert(tomllib.loads(text)["class_resources"], ClassResourcesConfig)


@pytest.mark.requirement("Q78")
def test_the_configuration_of_the_beginning_goes_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "blockio.yaml"
    file.write_text(blocks("yaml")[0])
    config = tables(blocks("toml")[0])
    assert f"`{config.blockio_config}`:" in TEXT
    loading.check(msgspec.structs.replace(config, blockio_config=str(file)))
    [asked] = re.findall(r"classes: (\{blockio.*\})", blocks("yaml")[1])
    wanted = yaml.safe_load(asked)
    assert wanted["blockio"] in configuration.load(file).classes
    assert wanted["oom"] in config.oom


@pytest.mark.requirement("Q78")
def test_types_of_your_own_are_taken() -> None:
    config = tables(blocks("toml")[1])
    loading.check(config)
    # What the documents call by a name can be written into a Pod without quotes.
    for item in config.types.values():
        assert [yaml.safe_load(name) for name in item.classes] == list(item.classes)


@pytest.mark.requirement("Q78", "Q51", "Q53")
def test_the_pod_is_valid() -> None:
    [text] = [block for block in blocks("yaml") if "kind: Pod\n" in block]
    [pod] = manifest.parse(text, source="docs").pods
    assert pod.spec.resources is not None
    assert pod.spec.resources.classes == {"blockio": "slow"}
    found = {container.name: container.resources.classes for _, container in class_resources.containers(pod.spec)}
    assert found == {"setup": {"blockio": "free"}, "main": {"rdt": "gold", "vendor.example/turbo": "default"}}
