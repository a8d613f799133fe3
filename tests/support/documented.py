"""Runs the commands of one document as a reader pastes them, on a machine of their own.

A program of its own, started by tests/integration/cli/test_documented_commands.py in a new PID namespace, whose end
takes everything with it. It makes a scratch machine in which ``/etc``, ``/run``, ``/var/lib``, ``/var/log`` and the
checkout may be written to and nothing of that is seen outside; a registry answers as ``registry.example``. What was
seen is in ``told.json``.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

from podkeep.kernel.mount import mounts
from support import documents, scratch
from support.documents import ROOT, Block
from support.images import busybox_layout
from support.registry import Registry

REGISTRY = "registry.example"
IMAGES = ("app:1", "server:1")
"""What the documents take to be in the registry."""
PODKEEP = Path(sys.executable).with_name("podkeep")
CONFIGURATION = """\
[runtime]
cgroup_parent = "{cgroup}"
[registries."{registry}"]
insecure = true
"""
WAIT = """\
seen() { until grep -qF -- "$1" "$2"/*.out; do sleep 0.05; done; }
"""


def main() -> None:
    """Run the document that the first argument names, below the directory that the second does."""
    document, base, cgroup = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    _machine(base)
    Path("/etc/podkeep").mkdir(exist_ok=True)
    Path("/etc/podkeep/config.toml").write_text(CONFIGURATION.format(cgroup=cgroup, registry=REGISTRY))
    with Path("/etc/hosts").open("a") as hosts:
        hosts.write(f"127.0.0.1 {REGISTRY}\n")
    with Registry(base / "registry", port=80) as registry:
        image = busybox_layout(base / "busybox")
        for name in IMAGES:
            registry.push(image, name)
        script = base / "script"
        script.write_text(_script(documents.runnable(document), base, path=document != "README.md"))
        ran = subprocess.run(["bash", str(script)], cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
        for verb in (("rm", "--all", "--grace-period", "0"), ("runtime", "stop")):
            subprocess.run([PODKEEP, *verb], capture_output=True, check=False)
    outputs = {path.name: path.read_text(errors="replace") for path in sorted(base.glob("*.out"))}
    (base / "told.json").write_text(json.dumps({"status": ran.returncode, "outputs": outputs}))


def _machine(base: Path) -> None:
    scratch.enter()
    mounts.mount("proc", "/proc", fstype="proc")
    scratch.cover_run()
    for index, path in enumerate(("/etc", str(ROOT))):
        upper, work = base / f"upper{index}", base / f"work{index}"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir={path},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, path], check=True)
    for path in ("/var/lib", "/var/log"):
        directory = base / path.replace("/", "-")
        directory.mkdir(mode=0o755)
        subprocess.run(["mount", "--bind", directory, path], check=True)


def _script(blocks: list[Block], base: Path, *, path: bool) -> str:
    """Return the script that runs blocks in their order in one shell; it ends at the first command that fails."""
    lines = ["set -e", WAIT]
    if path:
        lines.append(f"export PATH={shlex.quote(str(PODKEEP.parent))}:$PATH")
    for index, block in enumerate(blocks):
        if "first" in block.notes:
            lines.append(f"{{ {block.notes['first']}; }} >{base}/{index:02}-first.out 2>&1")
        if "when" in block.notes:
            lines.append(f"seen {shlex.quote(block.notes['when'])} {base}")
        for number, (command, _) in enumerate(block.commands()):
            piece = base / name(index, number)
            piece.write_text(command + "\n")
            lines.append(f". {piece} >{piece}.out 2>&1")
    return "\n".join(lines) + "\n"


def name(block: int, command: int) -> str:
    """Return the name of the file of a command's output, without its suffix."""
    return f"{block:02}-{command:02}"


if __name__ == "__main__":
    main()
