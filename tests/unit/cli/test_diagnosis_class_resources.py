"""What `podkeep doctor` says about class resources: nothing where none are configured."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from podkeep.base.config import ClassResourcesConfig, Config, CustomClass, CustomType
from podkeep.cli.diagnosis import class_resources
from podkeep.cli.diagnosis.finding import Finding, Level
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.class_resources.blockio.devices import Devices
from support.resctrl.fixture import Mount
from support.resctrl.hardware import MONITORING_ONLY, Cache, Hardware

RDT = "partitions:\n  all:\n    l3Allocation: 100%\n    classes:\n      gold: {l3Allocation: 50%}\n"


def one(config: ClassResourcesConfig) -> Finding:
    [found] = class_resources.examine(Config(class_resources=config))
    return found


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_nothing_is_said_of_what_is_not_configured() -> None:
    assert class_resources.examine(Config()) == []


@pytest.mark.requirement("Q39")
def test_resctrl_that_the_kernel_has_is_to_be_mounted(tmp_path: Path) -> None:
    file = Path(written(tmp_path / "rdt.yaml", RDT))
    found = class_resources.rdt(file, tmp_path / "resctrl", tmp_path, filesystems="nodev\tresctrl\n")
    assert (found.level, found.fix) == (Level.WARNING, f"mount -t resctrl resctrl {tmp_path}/resctrl")
    found = class_resources.rdt(file, tmp_path / "resctrl", tmp_path, filesystems="nodev\ttmpfs\n")
    assert found.level is Level.WARNING
    assert "no resctrl" in found.detail


def test_hardware_that_must_be_there_and_is_not_keeps_the_runtime_from_starting(tmp_path: Path) -> None:
    file = Path(written(tmp_path / "rdt.yaml", "options: {l3: {optional: false}}\n" + RDT))
    found = class_resources.rdt(file, tmp_path / "resctrl", tmp_path, filesystems="")
    assert found.level is Level.MISSING
    assert found.fix


@pytest.mark.slow
def test_classes_that_resctrl_can_give_are_in_order(tmp_path: Path, resctrl: Mount) -> None:
    file = Path(written(tmp_path / "rdt.yaml", RDT))
    found = class_resources.rdt(file, resctrl().path, tmp_path, filesystems="")
    assert (found.level, found.detail) == (Level.OK, "gold")


@pytest.mark.slow
def test_hardware_that_can_only_monitor_is_not_to_be_mounted_once_more(tmp_path: Path, resctrl: Mount) -> None:
    file = Path(written(tmp_path / "rdt.yaml", RDT))
    found = class_resources.rdt(file, resctrl(MONITORING_ONLY).path, tmp_path, filesystems="nodev\tresctrl\n")
    assert found.level is Level.WARNING
    assert "can only monitor" in found.detail
    assert "rdt_config" in found.fix


@pytest.mark.slow
def test_groups_of_others_take_closids(tmp_path: Path, resctrl: Mount) -> None:
    file, mounted = Path(written(tmp_path / "rdt.yaml", RDT)), resctrl(Hardware(l3=Cache(num_closids=2)))
    assert class_resources.rdt(file, mounted.path, tmp_path, filesystems="").level is Level.OK
    (mounted.path / "foreign").mkdir()
    found = class_resources.rdt(file, mounted.path, tmp_path, filesystems="")
    assert found.level is Level.MISSING
    assert "foreign" in found.detail


@pytest.mark.parametrize(("key", "text"), [("rdt_config", "partitons: {}\n"), ("blockio_config", "Clases: {}\n")])
def test_a_file_with_an_error_is_named_with_its_line(tmp_path: Path, key: str, text: str) -> None:
    path = written(tmp_path / "classes.yaml", text)
    found = one(ClassResourcesConfig(**{key: path}))  # type: ignore[arg-type]
    assert found.level is Level.MISSING
    assert found.detail.startswith(f"{path}:1: ")


def test_weights_need_bfq(tmp_path: Path) -> None:
    path = written(tmp_path / "blockio.yaml", "Classes:\n  light:\n    - Weight: 50\n")
    found = one(ClassResourcesConfig(blockio_config=path))
    if any(Devices().scheduler(number) == "bfq" for number in Devices().numbers()):
        assert found.level is Level.OK
    else:
        text = "class light has weights, and no disk that they are for respects any"
        assert (found.level, found.detail) == (Level.WARNING, text)
        assert "echo bfq" in found.fix


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    text = "Classes:\n  slow:\n    - Devices: [/dev/nosuch*]\n      ThrottleReadBps: 1M\n"
    found = one(ClassResourcesConfig(blockio_config=written(tmp_path / "blockio.yaml", text)))
    assert found.level is Level.WARNING
    assert "/dev/nosuch*" in found.detail


def test_types_of_the_configuration() -> None:
    classes = {"a": CustomClass(cgroup={"pids.max": "9"})}
    assert one(ClassResourcesConfig(types={"tasks": CustomType(classes=classes)})).detail == "a"
    found = one(ClassResourcesConfig(types={"tasks": CustomType(classes=classes, hook="/nosuch/hook")}))
    assert (found.level, found.detail) == (Level.WARNING, "its hook /nosuch/hook is not there")
    found = one(ClassResourcesConfig(types={"tasks": CustomType(levels=("pod",))}))
    assert (found.level, found.detail) == (Level.WARNING, "the configuration gives it no class")
    found = one(ClassResourcesConfig(types={"rdt": CustomType()}))
    assert found.level is Level.MISSING


def test_files_that_no_cgroup_has() -> None:
    cgroups, path = Cgroups(), f"/podkeep-test-{uuid.uuid4().hex[:8]}"
    cgroups.create(path)
    try:
        cgroup = {"pids.maxx": "9", "pids.max": "9", "nosuch.controller": "1"}
        found = one(ClassResourcesConfig(types={"tasks": CustomType(classes={"a": CustomClass(cgroup=cgroup)})}))
    finally:
        cgroups.remove(path)
    assert (found.level, found.detail) == (
        Level.WARNING,
        f"cgroups of this machine, of version {cgroups.version}, have no pids.maxx",
    )
    assert 'class_resources.types."tasks"' in found.fix
