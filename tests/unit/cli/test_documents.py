"""What the documents say of files, targets, verbs and manifests is so."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from podkeep.api import manifest
from podkeep.cli import main

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_readme_leads_to_every_page() -> None:
    pages = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert pages == {name for name in DOCUMENTS if name.startswith("docs/")}


def test_readme_lists_every_verb() -> None:
    listed = set(re.findall(r"^\| `podkeep ([\w-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    assert listed == main.VERBS.keys()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"^make (\w+)|`make (\w+)", (ROOT / name).read_text(), flags=re.MULTILINE))
    assert {first or second for first, second in mentioned} <= targets


def test_readme_names_every_package_that_setup_installs() -> None:
    setup = (ROOT / "tools" / "setup").read_text()
    wanted = re.findall(r"packages\+?=\(([^)]*)\)", setup)
    assert len(wanted) >= 3
    text = " ".join((ROOT / "README.md").read_text().split())
    assert [package for line in wanted for package in line.split() if package not in text] == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    assert manifest.parse(path.read_text(), source=path.name).pods


def test_manifest_in_the_readme_is_valid() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    [pod] = manifest.parse(text, source="README.md").pods
    assert pod.spec.host_users is False


def test_readme_makes_the_image_of_the_example(tmp_path: Path) -> None:
    [command] = re.findall(
        r"^\.venv/bin/python (tools/demo\.py --archive) busybox\.tar",
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
