from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cli.classes import assignments, check, classlist
from podkeep.cli.classes import command as classes
from podkeep.cli.core import output
from podkeep.cli.pods.targets import Target
from podkeep.cri.v1 import api_pb2
from podkeep.runtime.class_resources import yamlfile
from support.resctrl.fixture import Mount

PODKEEP = str(Path(sys.executable).parent / "podkeep")

DESCRIBED = {
    "blockio": {"classes": {"slow": {}}, "notOffered": {"pod": "cgroup version 1 throttles containers"}},
    "rdt": {"notOffered": {"container": "resctrl is not mounted", "pod": "rdt is for containers"}},
    "oom": {"disabled": "class_resources.oom has no classes"},
}
USERS = [
    {"level": "container", "id": "c1", "name": "default/a/main", "classes": {"blockio": "slow"}},
    {"level": "container", "id": "c2", "name": "default/b/main", "classes": {"blockio": "slow", "other": "x"}},
    {"level": "container", "id": "c3", "name": "default/c/main", "classes": {"blockio": "slow"}},
    {"level": "container", "id": "c4", "name": "default/d/main", "classes": {"blockio": "gone"}},
    {"level": "pod", "id": "p1", "name": "default/a", "classes": {"qos": "Burstable"}},
]


def offered(name: str, *names: str, default: str = "", immutable: bool = False) -> api_pb2.ClassResourceInfo:
    infos = [api_pb2.ClassResourceClassInfo(Name=item) for item in names]
    return api_pb2.ClassResourceInfo(Name=name, classes=infos, default_class=default, immutable=immutable)


def podkeep(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PODKEEP, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def report() -> classlist.ClassReport:
    resources = api_pb2.ResourcesInfo(
        container_class_resources=[offered("blockio", "fast", "slow", default="slow")],
        pod_class_resources=[offered("qos", "Burstable", immutable=True)],
    )
    info = {"classResources": json.dumps(DESCRIBED), "classResourceUsers": json.dumps(USERS)}
    return classlist.report(resources, info)


def shown(report: classlist.ClassReport) -> list[tuple[str, ...]]:
    return [output.cells(classlist.COLUMNS, row) for row in report.rows()]


@pytest.mark.requirement("Q13", "Q79")
def test_a_line_for_each_class_with_default_mutability_and_users(report: classlist.ClassReport) -> None:
    assert shown(report) == [
        ("blockio", "container", "fast", "-", "yes", "-"),
        ("blockio", "container", "slow", "yes", "yes", "default/a/main, default/b/main, +1"),
        ("blockio", "container", "gone", "-", "yes", "default/d/main"),
        ("other", "container", "x", "-", "no", "default/b/main"),
        ("qos", "pod", "Burstable", "-", "no", "default/a"),
    ]


@pytest.mark.requirement("Q39")
def test_why_a_configured_type_is_not_offered_and_what_is_not_configured(report: classlist.ClassReport) -> None:
    assert report.notes() == [
        "not offered: rdt for containers: resctrl is not mounted",
        "not offered: rdt for pods: rdt is for containers",
        "not configured: oom",
    ]


def test_json_has_everything(report: classlist.ClassReport, capsys: pytest.CaptureFixture[str]) -> None:
    output.echo_json(report)
    value = json.loads(capsys.readouterr().out)
    assert value["types"][0]["classes"][1]["users"] == ["default/a/main", "default/b/main", "default/c/main"]
    assert {"name": "blockio", "level": "pod", "why": "cgroup version 1 throttles containers"} in value["not_offered"]
    assert value["disabled"] == {"oom": "class_resources.oom has no classes"}
    assert value["meaning"]["blockio"] == {"classes": {"slow": {}}}


def test_who_is_in_a_class_of_a_type_that_is_not_configured_any_more_is_shown() -> None:
    users = [
        {"level": "container", "id": "c1", "name": "default/a/main", "classes": {"demo": "on", "rdt": "gold"}},
        {"level": "pod", "id": "p1", "name": "default/a", "classes": {"demo": "off"}},
    ]
    resources = api_pb2.ResourcesInfo(container_class_resources=[offered("rdt", "gold")])
    report = classlist.report(resources, {"classResourceUsers": json.dumps(users)})
    assert shown(report) == [
        ("demo", "container", "on", "-", "no", "default/a/main"),
        ("demo", "pod", "off", "-", "no", "default/a"),
        ("rdt", "container", "gold", "-", "yes", "default/a/main"),
    ]
    assert report.offered("demo") == {}
    assert [(item.name, item.level, item.classes) for item in report.left] == [
        ("demo", "container", (classlist.ClassRow(name="on", users=("default/a/main",)),)),
        ("demo", "pod", (classlist.ClassRow(name="off", users=("default/a",)),)),
    ]


def test_a_runtime_that_says_no_more_than_cri_is_understood() -> None:
    resources = api_pb2.ResourcesInfo(container_class_resources=[offered("rdt", "gold")])
    report = classlist.report(resources, {})
    assert shown(report) == [("rdt", "container", "gold", "-", "yes", "-")]
    assert report.notes() == []


def test_words_that_people_type() -> None:
    assert assignments.parse(["rdt=gold", "vendor.example/a=b", "rdt=gold"]) == {"rdt": "gold", "vendor.example/a": "b"}
    for words, message in (
        (["rdt"], "'rdt' is not TYPE=CLASS"),
        ([""], "'' is not TYPE=CLASS"),
        (["=gold"], "type '' "),
        (["rdt="], "class '' must be 1 to 63"),
        (["rdt=a=b"], "class 'a=b' must be 1 to 63"),
        (["rdt=gold", "rdt=silver"], "rdt is given twice, as gold and silver"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}"):
            assignments.parse(words)
        with pytest.raises(InvalidArgument, match=f"^--class: {re.escape(message)}"):
            assignments.parse(words, option="--class")


def test_what_classes_are_set_of() -> None:
    """A container can be named as the list of classes shows it."""
    assert classes.read_target("web", "default") == Target(pod="web", namespace="default", container=None)
    assert classes.read_target("web/main", "shop") == Target(pod="web", namespace="shop", container="main")
    assert classes.read_target("shop/web/main", "default") == Target(pod="web", namespace="shop", container="main")
    assert classes.read_target("shop/web/main", "shop") == Target(pod="web", namespace="shop", container="main")
    # A variable of a shell that is not set must not make the pod's class of a container's.
    for wrong in ("web/", "/main", "", "/", "shop//main", "a/b/c/d"):
        with pytest.raises(InvalidArgument, match=r"is not POD\[/CONTAINER\]"):
            classes.read_target(wrong, "default")
    with pytest.raises(InvalidArgument, match="shop/web/main is not in namespace other"):
        classes.read_target("shop/web/main", "other")


@pytest.mark.slow
def test_nobody_chooses_the_qos_class_of_a_pod() -> None:
    done = podkeep("classes", "set", "web", "qos=Guaranteed")
    assert done.returncode == 1
    assert "class resource qos: a pod's follows from the limits and requests of its containers" in done.stderr


def test_what_a_change_did() -> None:
    assert classes.described("rdt", "gold", "silver") == "rdt=silver (was gold)"
    assert classes.described("rdt", None, "silver") == "rdt=silver (was in no class)"
    assert classes.described("rdt", "gold", "gold") == "rdt=gold already"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("partitions: {}", "rdt"),
        ("Partitions: {}", "rdt"),
        ("options: {l3: {optional: true}}", "rdt"),
        ("Classes: {}", "blockio"),
        ("classes: {a: []}", "blockio"),
    ],
)
def test_files_are_told_apart(text: str, kind: str) -> None:
    assert check.kind_of(yamlfile.parse(text, source="x.yaml")) == kind


@pytest.mark.parametrize("text", ["", "[]", "- a", "version: 1", "text"])
def test_a_file_that_is_neither_is_an_error_with_its_place(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"x.yaml:\d+: ") as caught:
        check.kind_of(yamlfile.parse(text, source="x.yaml"))
    assert "partitions:" in caught.value.hint


@pytest.mark.slow
@pytest.mark.requirement("Q45")
def test_check_explains_block_io_without_a_runtime(tmp_path: Path) -> None:
    file = tmp_path / "blockio.yaml"
    file.write_text("Classes:\n  slow:\n    - Devices: [/dev/nosuch*]\n      ThrottleReadBps: 10M\n")
    done = podkeep("classes", "check", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert "slow" in done.stdout
    assert "/dev/nosuch*" in done.stdout
    value = json.loads(podkeep("classes", "check", "-o", "json", str(file)).stdout)
    assert (value["file"], value["type"]) == (str(file), "blockio")
    assert list(value["classes"]) == ["slow"]


RDT = """\
partitions:
  exclusive:
    l3Allocation: 60%
    classes:
      gold: {l3Allocation: 100%}
  shared:
    l3Allocation: 40%
    classes:
      bronze: {}
"""


@pytest.mark.slow
@pytest.mark.requirement("Q40")
def test_check_draws_masks_as_the_node_would_apply_them(tmp_path: Path, resctrl: Mount) -> None:
    file = tmp_path / "rdt.yaml"
    file.write_text(RDT)
    there = resctrl()
    before = (there.groups(), there.schemata())
    done = podkeep("classes", "check", str(file), "--resctrl", str(there.path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{file}: rdt, 2 classes\n")
    assert "#" in done.stdout
    value = json.loads(podkeep("classes", "check", "-o", "json", str(file), "--resctrl", str(there.path)).stdout)
    masks = [int(value["partitions"][name]["masks"]["L3"]["0"], 16) for name in ("exclusive", "shared")]
    assert all(masks)
    assert not masks[0] & masks[1]
    assert (there.groups(), there.schemata()) == before  # it only looks


@pytest.mark.slow
def test_check_of_rdt_without_hardware_says_so(tmp_path: Path) -> None:
    file = tmp_path / "rdt.yaml"
    file.write_text(RDT)
    done = podkeep("classes", "check", str(file), "--resctrl", str(tmp_path))
    assert done.returncode == 0
    assert f"not offered on this machine: resctrl is not mounted at {tmp_path}\nhint: " in done.stdout
    file.write_text("options: {l3: {optional: false}}\n" + RDT)
    assert podkeep("classes", "check", str(file), "--resctrl", str(tmp_path)).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Classes:\n  slow:\n    - Devices: [/dev/vda]\n      ThrotleReadBps: 10M\n", ":4: "),
        ("Classes:\n  default:\n    - Weight: 80\n", ":2: "),
        ("partitions:\n  a:\n    l3Alocation: 50%\n", ":3: "),
        ("a: [", ":2: "),
    ],
)
def test_check_names_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "classes.yaml"
    file.write_text(text)
    done = podkeep("classes", "check", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"podkeep: {file}{said}")


@pytest.mark.slow
def test_check_of_what_is_not_there(tmp_path: Path) -> None:
    done = podkeep("classes", "check", str(tmp_path / "nosuch.yaml"))
    assert done.returncode == 1
    assert "nosuch.yaml: No such file" in done.stderr


@pytest.mark.slow
def test_without_a_runtime_the_others_say_how_to_start_it(tmp_path: Path) -> None:
    for words in (["classes"], ["classes", "set", "web/main", "rdt=gold"]):
        done = podkeep("--set", f"runtime.socket={tmp_path}/none.sock", *words)
        assert done.returncode == 1
        assert "no such socket" in done.stderr
        assert "hint: start it as root: podkeep" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [("podkeep cl", "classes"), ("podkeep classes ch", "check")])
def test_completion(words: str, expected: str) -> None:
    done = podkeep(_PODKEEP_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert f"plain,{expected}" in done.stdout.splitlines()
