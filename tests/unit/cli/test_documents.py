"""What the documents say of files, targets, verbs and manifests is so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from podkeep.api import manifest
from podkeep.api.documents import parse as parse_documents
from podkeep.base import config
from podkeep.cli import main
from podkeep.cli.mountns import command as mountns
from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.blockio import configuration as blockio
from podkeep.runtime.class_resources.rdt import configuration as rdt
from support import documents
from support.documents import DOCUMENTS, ROOT, Block


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_readme_leads_to_every_page() -> None:
    pages = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert pages == {name for name in DOCUMENTS if name.startswith("docs/")}


def test_every_verb_is_listed() -> None:
    listed = set(re.findall(r"^\| `podkeep ([\w-]+)", (ROOT / "docs/commands.md").read_text(), flags=re.MULTILINE))
    assert listed == main.VERBS.keys()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = "".join(block.text for block in documents.blocks(name) if block.language in documents.RUN)
    mentioned = re.findall(r"^(?:# )?make (\w+)", commands, flags=re.MULTILINE)
    assert {*mentioned, *re.findall(r"`make (\w+)", (ROOT / name).read_text())} <= targets


def test_every_package_that_setup_installs_is_named() -> None:
    setup = (ROOT / "tools" / "setup").read_text()
    wanted = re.findall(r"packages\+?=\(([^)]*)\)", setup)
    assert len(wanted) >= 3
    text = " ".join((ROOT / "docs/install.md").read_text().split())
    assert [package for line in wanted for package in line.split() if package not in text] == []


def test_numbers_in_the_readme_are_those_of_the_benchmarks() -> None:
    measured = (ROOT / "docs/benchmarks.md").read_text().splitlines()
    _, _, table = (ROOT / "README.md").read_text().partition("## Numbers\n")
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert len(rows) >= 8
    assert [row for row in rows if row not in measured] == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    assert manifest.parse(path.read_text(), source=path.name).pods


def test_manifest_in_the_readme_is_valid() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    [pod] = manifest.parse(text, source="README.md").pods
    assert pod.spec.host_users is False


@pytest.mark.slow
def test_readme_makes_the_image_of_the_example(tmp_path: Path) -> None:
    [command] = re.findall(
        r"^python (tools/demo\.py --archive) busybox\.tar",
        (ROOT / "README.md").read_text(),
        flags=re.MULTILINE,
    )
    archive = tmp_path / "busybox.tar"
    subprocess.run([sys.executable, *command.split(), str(archive)], cwd=ROOT, check=True, timeout=60)
    [image] = re.findall(r"image: (\S+)", (ROOT / "examples" / "userns.yaml").read_text())
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        assert image in index.read().decode()


BLOCKS = [block for name in DOCUMENTS for block in documents.blocks(name)]


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


@pytest.mark.parametrize("block", of("sh", "console"), ids=lambda block: block.place)
def test_commands_run_in_a_test_or_say_why_not(block: Block) -> None:
    assert block.notes.keys() <= documents.NOTES
    if "not run" in block.notes:
        assert len(block.notes["not run"].split()) >= 3
    else:
        assert block.commands()


def test_every_block_says_what_it_is_in() -> None:
    known = {"", "sh", "console", "yaml", "toml", "json", "python"}
    assert {block.place: block.language for block in BLOCKS if block.language not in known} == {}


PROGRAMS = ("podkeep", "make", "systemctl", "kubectl", "crictl", "mount", "umount", "python", "critest", "unshare")


@pytest.mark.parametrize("block", of(""), ids=lambda block: block.place)
def test_a_block_of_commands_says_that_it_is_one(block: Block) -> None:
    """One of no language is run by nothing, and says no reason: it is for drawings and for what a program printed."""
    commands = [line.removeprefix("# ").partition(" ")[0] for line in block.text.splitlines()]
    assert [command for command in commands if command in PROGRAMS] == []


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.place)
def test_configurations_in_documents_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(block.text)
    config.load(file)


@pytest.mark.parametrize("block", of("json"), ids=lambda block: block.place)
def test_json_in_documents_is_valid(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", of("yaml"), ids=lambda block: block.place)
def test_yaml_in_documents_is_what_podkeep_reads(block: Block) -> None:
    for document in parse_documents(block.text, source=block.place):
        value = document.value
        if "kind" in value:
            continue  # read as a whole below: a Pod and what it names
        if "Classes" in value:
            assert blockio.read(yamlfile.parse(block.text, source=block.place))
        elif "partitions" in value:
            assert rdt.read(yamlfile.parse(block.text, source=block.place))
        else:
            manifest.parse(json.dumps(whole_pod(value)), source=block.place)
    if "kind: Pod" in block.text:
        assert manifest.parse(block.text, source=block.place).pods


def whole_pod(part: dict[str, Any]) -> dict[str, Any]:
    """Return a Pod with a part of one that a document shows."""
    spec: dict[str, Any] = dict(part.get("spec", part))
    containers = spec.get("containers", [{"name": "main"}])
    spec["containers"] = [{"image": "registry.example/app:1"} | container for container in containers]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}


def test_example_outputs_are_compared_without_what_differs() -> None:
    expected = ["NAME  AGE", "web   3s   5f2c0000aa…  1/1"]
    assert documents.missing(expected, "NAME   AGE\nother\nweb 12s 77b1d2e3f4 1/1\n") == []
    assert documents.missing(expected, "NAME   AGE\nweb 12s Running\n") == [expected[1]]


def section(name: str, title: str) -> str:
    """Return a section of a page, in one line."""
    [text] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (ROOT / name).read_text(), flags=re.DOTALL | re.M)
    return " ".join(text.split())


HIDING = "docs/mount-namespace.md"


@pytest.mark.requirement("M26")
def test_page_says_that_the_third_guarantee_is_gone() -> None:
    text = section(HIDING, "What holds, and what does not any more")
    assert "3. **No longer**: what they mount is visible to the host. This is the purpose." in text
    assert "enters the namespace: `podkeep mountns enter`" in text


@pytest.mark.requirement("M34")
def test_page_shows_the_table_before_and_after_and_names_the_tools_that_must_enter() -> None:
    seeing = (ROOT / HIDING).read_text()
    host, inside = re.findall(
        r"```console\n# (?:podkeep mountns exec -- )?findmnt[^\n]*\n(.*?)```", seeing, flags=re.DOTALL
    )
    assert "overlay" in inside
    assert "overlay" not in host
    assert [line for line in host.splitlines() if "/pods/" in line or "/sandboxes/" in line] == []
    tools = section(HIDING, "For administrators, and for tools on the host")
    for name in ("node exporters", "scanners", "backups", "CSI driver", "podman, skopeo", "crictl", "nsenter --target"):
        assert name in tools, name


@pytest.mark.requirement("M38")
def test_page_claims_nothing_about_how_systemd_scans() -> None:
    text = section(HIDING, "What is not fixed, and what else was considered")
    assert "systemd still scans the whole table when it changes" in text


@pytest.mark.requirement("M18")
def test_page_has_the_alternatives() -> None:
    text = section(HIDING, "What is not fixed, and what else was considered")
    for alternative in (
        "level of a slice",
        "`PrivateMounts=`",
        "In Kubernetes itself",
        "The nsenter form works for all",
    ):
        assert alternative in text, alternative


def test_page_lists_every_verb_of_mountns() -> None:
    _, _, table = (ROOT / HIDING).read_text().partition("### Verbs\n\n")
    rows = [line.split(" | ")[0] for line in table.partition("\n\n")[0].splitlines()[2:]]
    verbs = {name for row in rows for name in re.findall(r"`([a-z-]+)", row)}
    assert verbs == set(mountns.command.commands)
