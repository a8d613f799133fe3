"""The programs and files that podkeep uses and does not bring along."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base import spawn
from podkeep.base.errors import PodkeepError
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding

if TYPE_CHECKING:
    from podkeep.base.config import Config

_VERSION = re.compile(r"\d+(\.\d+)+")

_PACKAGES = {"seccomp.json": "golang-github-containers-common", "nft": "nftables", "getsubids": "uidmap"}
"""Debian's package of a file, where it is not named like it."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, by path or by name, and what is lost without it."""

    path: str
    why: str
    required: bool


def programs(config: Config) -> list[Program]:
    """Return the programs that a configuration uses, each once."""
    runtime = config.runtime
    used = [
        Program(
            path=handler.path,
            why=f"it is the OCI runtime of handler {name}",
            required=name == runtime.default_handler,
        )
        for name, handler in sorted(runtime.handlers.items())
    ]
    used += [
        Program(path=runtime.conmon, why="it keeps a container's output and exit status", required=True),
        Program(path=runtime.catatonit, why="pods that share a PID namespace run it as PID 1", required=False),
        Program(
            path="nft", why="it writes the rules for pod traffic to the outside", required=config.network.masquerade
        ),
        Program(path="getsubids", why="it says which IDs are set aside for pods in /etc/subuid", required=False),
    ]
    return used


def examine(config: Config) -> list[Finding]:
    """Look for every program, ask it for its version, and look for the seccomp profile."""
    return [*(_examine_program(program) for program in programs(config)), _examine_seccomp(config)]


def examine_files(config: Config) -> list[Finding]:
    """Look for the files that the configuration names."""
    found = []
    for host, registry in config.registries.items():
        name = f'registries."{host}".ca_file'
        if not registry.ca_file:
            continue
        if Path(registry.ca_file).is_file():
            found.append(finding.ok(name, registry.ca_file))
        else:
            found.append(
                finding.missing(
                    name,
                    f"no file {registry.ca_file}",
                    why="certificates of this registry are checked against it",
                    mend="name a file of certificates (PEM), or leave the key out",
                )
            )
    return found


def _examine_program(program: Program) -> Finding:
    name = Path(program.path).name
    try:
        done = spawn.run([program.path, "--version"], timeout=10)
    except (PodkeepError, OSError) as error:
        report = finding.missing if program.required else finding.warning
        reason = error.message.partition(": ")[2] if isinstance(error, PodkeepError) else str(error)
        return report(
            name, f"cannot be run: {reason}", why=program.why, mend=f"apt-get install {package(program.path)}"
        )
    return finding.ok(name, version(done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")))


def version(text: str) -> str:
    """Return the version number in what a program says about itself, or that it says none."""
    match = _VERSION.search(text)
    return match[0] if match else "present, no version told"


def package(path: str) -> str:
    """Return Debian's package of a program or file."""
    name = Path(path).name
    return _PACKAGES.get(name, name)


def _examine_seccomp(config: Config) -> Finding:
    path = config.runtime.seccomp_profile
    if Path(path).is_file():
        return finding.ok("seccomp profile", path)
    return finding.missing(
        "seccomp profile",
        f"no file {path}",
        why="it is the profile that containers get by default (RuntimeDefault)",
        mend=f"apt-get install {package(path)}",
    )
