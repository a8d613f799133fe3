"""Every command of README and docs runs as it is written, in the order in which a reader comes to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.kernel.cgroup.cgroups import Cgroups
from support import documents
from support.documented import name
from support.documents import ROOT
from support.waiting import TIMEOUT_S


@pytest.mark.container_mounts("hidden", reason="the documents describe the default")
@pytest.mark.parametrize("document", [page for page in documents.DOCUMENTS if documents.runnable(page)])
def test_commands_run_as_pasted(document: str, open_directory: Path) -> None:
    token = os.urandom(3).hex()
    base, cgroup = open_directory / f"document-{token}", f"/pkdoc-{token}"
    base.mkdir()
    program = [sys.executable, "-m", "support.documented", document, str(base), cgroup]
    try:
        subprocess.run(
            ["unshare", "--pid", "--fork", "--kill-child", "catatonit", "--", *program],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}"},
            timeout=TIMEOUT_S,
            check=True,
        )
        told = json.loads((base / "told.json").read_text())
    finally:
        Cgroups().kill(cgroup)
        Cgroups().remove(cgroup)
    problems = []
    for index, block in enumerate(documents.runnable(document)):
        for number, (command, expected) in enumerate(block.commands()):
            output = told["outputs"].get(f"{name(index, number)}.out")
            if output is None:
                problems.append(f"{block.place}: not reached: {command}")
            elif "output" not in block.notes and (lost := documents.missing(expected, output)):
                problems.append(f"{block.place}: {command}\nhas no line like {lost[0]!r} in\n{output}")
    said = "".join(f"--- {file}\n{text}" for file, text in told["outputs"].items())
    assert (told["status"], problems) == (0, []), said
