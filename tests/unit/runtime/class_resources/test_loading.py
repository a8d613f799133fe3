"""From [class_resources] to types; the type qos; what `podkeep config check` and a start refuse."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.base.config import ClassResourcesConfig, Config, CustomClass, CustomType
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.class_resources import loading, qos
from podkeep.runtime.class_resources.model import Level, Target
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.daemon import settings

DEMO = CustomType(levels=("pod",), hook="/bin/true", classes={"a": CustomClass()})


def load(tmp_path: Path, **fields: object) -> ClassResources:
    config = ClassResourcesConfig(**fields)  # type: ignore[arg-type]
    return loading.load(config, cgroups=Cgroups(), root=tmp_path)


def names(classes: ClassResources, level: Level) -> list[str]:
    return [item.name for item in classes.catalog.offers(level)]


@pytest.mark.requirement("Q6")
def test_what_is_configured_is_offered_at_its_level(tmp_path: Path) -> None:
    classes = load(tmp_path, oom={"low": 500}, types={"vendor.example/demo": DEMO})
    assert names(classes, Level.CONTAINER) == ["oom", "qos"]
    assert names(classes, Level.POD) == ["qos", "vendor.example/demo"]


@pytest.mark.requirement("Q39")
def test_a_type_that_is_off_says_which_key_would_turn_it_on(tmp_path: Path) -> None:
    classes = load(tmp_path)
    assert names(classes, Level.CONTAINER) == ["qos"]
    for name, text in (
        ("rdt", "RDT is disabled: class_resources.rdt_config"),
        ("blockio", "class_resources.blockio_config"),
    ):
        with pytest.raises(FailedPrecondition, match=f"class resource {name}: .*{text}"):
            classes.catalog.resolve(Level.CONTAINER, {name: "gold"})
    with pytest.raises(FailedPrecondition, match=r"class resource oom: .*oom has no classes"):
        classes.catalog.resolve(Level.CONTAINER, {"oom": "low"})
    assert "names no file" in classes.catalog.describe()["rdt"]["disabled"]


@pytest.mark.requirement("Q79")
def test_defaults_are_classes_there_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    classes = load(tmp_path, oom={"low": 500}, container_defaults={"oom": "low"}, pod_defaults={"qos": "BestEffort"})
    assert classes.catalog.resolve(Level.CONTAINER, {"oom": "default"}) == {"oom": "low"}
    assert classes.catalog.resolve(Level.POD, {"qos": "default"}) == {"qos": "BestEffort"}
    with pytest.raises(InvalidArgument, match=r"class_resources.container_defaults.oom: there is no class 'high'.*low"):
        load(tmp_path, oom={"low": 500}, container_defaults={"oom": "high"})
    assert caplog.records == []
    # The same configuration may be on nodes with and without the hardware.
    load(tmp_path, container_defaults={"rdt": "gold"})
    loading.check(ClassResourcesConfig(container_defaults={"rdt": "gold"}))
    assert "class_resources.container_defaults.rdt has no effect: RDT is disabled" in caplog.text


@pytest.mark.skipif(Cgroups().version == 2, reason="cgroup version 2 throttles pods")
def test_a_default_that_this_machine_cannot_give(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "blockio.yaml"
    file.write_text("Classes:\n  free:\n  slow:\n  - Devices: [/dev/vda]\n    ThrottleReadBps: 1M\n")
    classes = load(tmp_path, blockio_config=str(file), pod_defaults={"blockio": "slow"})
    assert "class_resources.pod_defaults.blockio has no effect: pods cannot have slow here" in caplog.text
    with pytest.raises(InvalidArgument, match="this node has no default class for pods"):
        classes.catalog.resolve(Level.POD, {"blockio": "default"})


@pytest.mark.requirement("Q79")
@pytest.mark.parametrize(
    ("defaults", "message", "hint"),
    [
        ({"container_defaults": {"nosuch": "a"}}, "container_defaults.nosuch: there is no type 'nosuch'", ""),
        ({"pod_defaults": {"nosuch": "a"}}, "pod_defaults.nosuch: there is no type 'nosuch'", ""),
        ({"container_defaults": {"oom": "nosuch"}}, "container_defaults.oom: there is no class 'nosuch'", "low"),
        ({"container_defaults": {"oom": "default"}}, "container_defaults.oom: there is no class 'default'", "low"),
        ({"container_defaults": {"blockio": "fast"}}, "container_defaults.blockio: there is no class 'fast'", "slow"),
        ({"container_defaults": {"rdt": "lead"}}, "container_defaults.rdt: there is no class 'lead'", "gold"),
        ({"container_defaults": {"qos": "best"}}, "container_defaults.qos: there is no class 'best'", "BestEffort"),
        ({"pod_defaults": {"oom": "low"}}, "pod_defaults.oom: the type is for containers only", ""),
        ({"pod_defaults": {"rdt": "gold"}}, "pod_defaults.rdt: the type is for containers only", ""),
        ({"container_defaults": {"demo": "a"}}, "container_defaults.demo: the type is for pods only", ""),
        ({"pod_defaults": {"demo": "b"}}, "pod_defaults.demo: there is no class 'b'", "a"),
    ],
)
def test_defaults_are_checked_without_the_machine(
    tmp_path: Path, defaults: dict[str, dict[str, str]], message: str, hint: str
) -> None:
    (tmp_path / "blockio.yaml").write_text("Classes:\n  slow:\n")
    (tmp_path / "rdt.yaml").write_text("partitions:\n  a:\n    classes:\n      gold: {}\n")
    config = {
        "oom": {"low": 500},
        "types": {"demo": DEMO},
        "blockio_config": str(tmp_path / "blockio.yaml"),
        "rdt_config": str(tmp_path / "rdt.yaml"),
    }
    loading.check(ClassResourcesConfig(**config))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as caught:
        loading.check(ClassResourcesConfig(**config, **defaults))  # type: ignore[arg-type]
    assert caught.value.message.startswith(f"class_resources.{message}")
    assert hint in caught.value.hint


@pytest.mark.requirement("Q80")
@pytest.mark.parametrize(
    "refused",
    [
        ClassResourcesConfig(oom={"default": 5}),
        ClassResourcesConfig(types={"x": CustomType(hook="/bin/true", classes={"default": CustomClass()})}),
    ],
)
def test_the_reserved_name_is_no_class(refused: ClassResourcesConfig) -> None:
    with pytest.raises(InvalidArgument, match="no class may be called 'default'"):
        settings.check(Config(class_resources=refused))


@pytest.mark.requirement("Q80")
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            "rdt_config",
            "partitions: {p: {l3Allocation: 100%, classes: {default: {l3Allocation: 50%}}}}\n",
        ),
        ("blockio_config", "classes:\n  default:\n  - weight: 10\n"),
    ],
)
def test_the_reserved_name_in_a_file(tmp_path: Path, key: str, text: str) -> None:
    file = tmp_path / "classes.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=r"classes.yaml:\d+: .*default"):
        settings.check(Config(class_resources=ClassResourcesConfig(**{key: str(file)})))


@pytest.mark.parametrize("key", ["rdt_config", "blockio_config"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidArgument, match=r"absent\.yaml"):
        settings.check(Config(class_resources=ClassResourcesConfig(**{key: str(tmp_path / "absent.yaml")})))


@pytest.mark.slow
def test_a_daemon_without_them_does_not_load_what_reads_them() -> None:
    script = "import sys, podkeep.runtime.daemon.daemon; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    package = "podkeep.runtime.class_resources"
    assert f"{package}.loading" in loaded
    of_files = ("yaml", "podkeep.kernel.cgroup.resctrl", f"{package}.yamlfile", f"{package}.rdt", f"{package}.blockio")
    assert [name for name in loaded if name.startswith(of_files)] == []


@pytest.mark.requirement("Q76", "Q77")
def test_qos_is_told_at_both_levels_and_enforces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kind = qos.Qos()
    assert {level: offer.classes for level, offer in kind.offers().items()} == dict.fromkeys(
        Level, ("BestEffort", "Burstable", "Guaranteed")
    )
    config = {"annotations": {"a": "b"}}
    told = qos.edit_of_pod({"qos": "Burstable"}, kind.edit("Guaranteed", config))
    assert told["annotations"] == {
        "a": "b",
        "io.kubernetes.container.qos-class": "Guaranteed",
        "io.kubernetes.pod.qos-class": "Burstable",
    }
    assert qos.edit_of_pod({}, config) is config
    target = Target(level=Level.POD, id="p", name="ns/web", cgroup="/none")
    kind.apply(target, "Burstable")
    kind.verify(target, "Burstable")
    kind.release(target, "Burstable")
    assert [record.getMessage() for record in caplog.records] == ["ns/web: QoS class Burstable"]
