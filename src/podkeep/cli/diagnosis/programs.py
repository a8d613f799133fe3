"""The programs and files that podkeep uses and does not bring along."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base import docker_config, spawn
from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.cli.diagnosis import finding, known_holes
from podkeep.cli.diagnosis.finding import Finding

if TYPE_CHECKING:
    from podkeep.base.config import Config, StreamingConfig

_VERSION = re.compile(r"\d+(\.\d+)+")

_PACKAGES = {
    "/usr/bin/crun": "crun",
    "/usr/bin/runc": "runc",
    "/usr/sbin/runc": "runc",
    "/usr/bin/conmon": "conmon",
    "/usr/bin/catatonit": "catatonit",
    "/usr/share/containers/seccomp.json": "golang-github-containers-common",
    "nft": "nftables",
    "getsubids": "uidmap",
}
"""Debian's package of a file; another path is somebody's own, and no package would put anything there."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, by path or by name, and what is lost without it."""

    path: str
    why: str
    required: bool
    key: str = ""
    """What names it in the configuration; empty: nothing, it is looked for by its name."""
    keeps_states: bool = False
    """Whether it is an OCI runtime, which has a directory of states (option ``--root``)."""


def programs(config: Config) -> list[Program]:
    """Return the programs that a configuration uses, each once."""
    runtime = config.runtime
    used = [
        Program(
            path=handler.path,
            why=f"it is the OCI runtime of handler {name}",
            required=name == runtime.default_handler,
            key=f"runtime.handlers.{name}.path",
            keeps_states=True,
        )
        for name, handler in sorted(runtime.handlers.items())
    ]
    used += [
        Program(
            path=runtime.conmon,
            why="it keeps a container's output and exit status",
            required=True,
            key="runtime.conmon",
        ),
        Program(
            path=runtime.catatonit,
            why="pods that share a PID namespace run it as PID 1",
            required=False,
            key="runtime.catatonit",
        ),
        Program(
            path="nft", why="it writes the rules for pod traffic to the outside", required=config.network.masquerade
        ),
        Program(path="getsubids", why="it says which IDs are set aside for pods in /etc/subuid", required=False),
    ]
    return used


def examine(config: Config, *, holes: bool = True) -> list[Finding]:
    """Look for every program, ask it for its version, and look for the seccomp profile.

    :param holes: say which known holes a version has.
    """
    found = [item for program in programs(config) for item in _examine_program(program, holes=holes)]
    return [*found, _examine_seccomp(config)]


def examine_files(config: Config) -> list[Finding]:
    """Read the files of certificates that the configuration names, as the runtime will."""
    found = [
        _examine_ca_file(f'registries."{host}".ca_file', registry.ca_file)
        for host, registry in config.registries.items()
        if registry.ca_file
    ]
    return [
        *found,
        *_examine_own_certificates(config),
        *_examine_credentials(config),
        *_examine_streaming(config.streaming),
    ]


def _examine_own_certificates(config: Config) -> list[Finding]:
    found = []
    for host, registry in config.registries.items():
        if registry.cert_file:
            name = f'registries."{host}".cert_file'
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
                    registry.cert_file, registry.key_file or None, password=lambda: ""
                )
            except OSError as error:
                why = "we prove ourselves to this registry with it"
                reason = f"{registry.cert_file} cannot be used: {error.strerror or error}"
                fix = "name a certificate and its key (PEM, not encrypted), or leave the keys out"
                found.append(finding.missing(name, reason, why=why, fix=fix))
            else:
                found.append(finding.ok(name, registry.cert_file))
    return found


def _examine_credentials(config: Config) -> list[Finding]:
    found = []
    path = config.images.docker_config
    if path:
        name = "images.docker_config"
        try:
            docker_config.parse(Path(path).read_bytes())
        except (OSError, InvalidArgument) as error:
            reason = error.message if isinstance(error, InvalidArgument) else error.strerror or str(error)
            fix = "name a file like docker's config.json, or leave the key out"
            found.append(finding.warning(name, f"{path}: {reason}", why="pulls get their credentials from it", fix=fix))
        else:
            found.append(finding.ok(name, path))
    if config.images.credential_providers:
        from podkeep.images.registry import credential_providers

        images = config.images
        try:
            providers = credential_providers.load(images.credential_providers, images.credential_provider_dir)
        except InvalidArgument:
            return found  # told by who checks the values
        for provider in providers:
            name = f"credential provider {provider.name}"
            if os.access(provider.path, os.X_OK):
                found.append(finding.ok(name, provider.path))
            else:
                why = f"it is asked for credentials for {', '.join(provider.match_images)}"
                fix = "put it there, or leave it out of images.credential_providers"
                found.append(finding.warning(name, f"{provider.path} cannot be run", why=why, fix=fix))
    return found


def _examine_ca_file(name: str, path: str) -> Finding:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:  # Of which that of ssl is one.
        return finding.missing(
            name,
            f"{path} cannot be used: {error.strerror or error}",
            why="certificates of this registry are checked against it",
            fix="name a file of certificates (PEM), or leave the key out",
        )
    return finding.ok(name, path)


def _examine_streaming(config: StreamingConfig) -> list[Finding]:
    if not config.tls_cert:
        return []
    from podkeep.runtime.streaming.server import tls_context

    name = "streaming.tls_cert"
    try:
        tls_context(config)
    except PodkeepError as error:
        why = "the server of Exec, Attach and PortForward proves itself with it"
        return [finding.missing(name, error.message, why=why, fix=error.hint)]
    return [finding.ok(name, config.tls_cert)]


def _examine_program(program: Program, *, holes: bool) -> list[Finding]:
    name = Path(program.path).name
    try:
        done = _ask_version(program)
    except (PodkeepError, OSError) as error:
        report = finding.missing if program.required else finding.warning
        reason = error.message.partition(": ")[2] if isinstance(error, PodkeepError) else str(error)
        return [report(name, f"cannot be run: {reason}", why=program.why, fix=fix(program.path, program.key))]
    said = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    found = finding.ok(name, version(said))
    return [found, *(known_holes.of_program(program.path, said) if holes else [])]


def _ask_version(program: Program) -> spawn.Completed:
    if not program.keeps_states:
        return spawn.run([program.path, "--version"], timeout=10)
    # crun 1.8.1 makes the directory of its states even to tell its version; the real one is the runtime's to make.
    with tempfile.TemporaryDirectory(prefix="podkeep-") as root:
        return spawn.run([program.path, f"--root={root}", "--version"], timeout=10)


def version(text: str) -> str:
    """Return the version number in what a program says about itself, or that it says none."""
    match = _VERSION.search(text)
    return match[0] if match else "present, no version told"


def fix(path: str, key: str) -> str:
    """Return what to do about a program or file that is missing; ``key`` names it in the configuration."""
    package = _PACKAGES.get(path)
    return f"apt-get install {package}" if package else f"install it, or set {key} to where it is"


def _examine_seccomp(config: Config) -> Finding:
    path = config.runtime.seccomp_profile
    if Path(path).is_file():
        return finding.ok("seccomp profile", path)
    return finding.missing(
        "seccomp profile",
        f"no file {path}",
        why="it is the profile that containers get by default (RuntimeDefault)",
        fix=fix(path, "runtime.seccomp_profile"),
    )
