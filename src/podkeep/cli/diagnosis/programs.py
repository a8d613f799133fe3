"""The programs and files that podkeep uses and does not bring along."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base import spawn
from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.base.registries import docker_config
from podkeep.cli.diagnosis import finding, known_holes
from podkeep.cli.diagnosis.finding import Finding, Level

if TYPE_CHECKING:
    from podkeep.base.config import Config, ImagesConfig, StreamingConfig

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


@dataclass(frozen=True)
class Program:
    """A program, by path or by name, and what is lost without it."""

    path: str
    why: str
    key: str = ""
    """What names it in the configuration; empty: nothing, it is looked for by its name."""
    _: KW_ONLY
    required: bool
    keeps_states: bool = False
    """Whether it is an OCI runtime, which has a directory of states (option ``--root``)."""


def programs(config: Config) -> list[Program]:
    """Return the programs that a configuration uses, each once."""
    runtime = config.runtime
    handlers = [
        Program(
            handler.path,
            f"it is the OCI runtime of handler {name}",
            f"runtime.handlers.{name}.path",
            required=name == runtime.default_handler,
            keeps_states=True,
        )
        for name, handler in sorted(runtime.handlers.items())
    ]
    pid1 = "pods that share a PID namespace run it as PID 1"
    subids = "it says which IDs are set aside for pods in /etc/subuid"
    nft = "it writes the rules for pod traffic to the outside"
    return [
        *handlers,
        Program(runtime.conmon, "it keeps a container's output and exit status", "runtime.conmon", required=True),
        Program(runtime.catatonit, pid1, "runtime.catatonit", required=False),
        Program("nft", nft, required=config.network.masquerade),
        Program("getsubids", subids, required=False),
    ]


def examine(config: Config, *, holes: bool = True) -> list[Finding]:
    """Look for every program, ask it for its version, and look for the seccomp profile.

    :param holes: say which known holes a version has.
    """
    found = [item for program in programs(config) for item in _examine_program(program, holes=holes)]
    return [*found, _examine_seccomp(config)]


def examine_files(config: Config) -> Iterator[Finding]:
    """Read the files of certificates and credentials that the configuration names, as the daemons will."""
    for name, path, why in _authorities(config):
        yield from _examine_file(
            name,
            path,
            lambda path: ssl.create_default_context(cafile=path),
            why=why,
            fix="name a file of certificates (PEM), or leave the key out",
        )
    for name, path, key, why in _pairs(config):
        yield from _examine_file(
            name,
            path,
            partial(_load_certificate, key=key or None),
            why=why,
            fix="name a certificate and its key (PEM, not encrypted), or leave the keys out",
        )
    yield from _examine_file(
        "images.docker_config",
        config.images.docker_config,
        lambda path: docker_config.parse(Path(path).read_bytes()),
        why="pulls get their credentials from it",
        fix="name a file like docker's config.json, or leave the key out",
        level=Level.WARNING,
    )
    yield from _examine_credential_providers(config.images)
    yield from _examine_file(
        "streaming.tls_cert",
        config.streaming.tls_cert,
        lambda _: _load_tls(config.streaming),
        why="the server of Exec, Attach and PortForward proves itself with it",
    )
    yield from _examine_file(
        "api.token_auth_file",
        config.api.token_auth_file,
        _load_tokens,
        why="its bearer tokens name users of the API",
        fix="name a file of lines TOKEN,USER,UID,GROUPS, or leave the key out",
    )


def _authorities(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield key, path and purpose of each file of authorities."""
    for host, registry in config.registries.items():
        yield f'registries."{host}".ca_file', registry.ca_file, "certificates of this registry are checked against it"
    clients = "certificates of clients of the kubelet's server are checked against it"
    yield "agent.authentication.x509.client_ca_file", config.agent.authentication.x509.client_ca_file, clients
    yield "api.client_ca", config.api.client_ca, "certificates of clients of the API are checked against it"
    yield "api.kubelet_ca", config.api.kubelet_ca, "certificates of kubelets are checked against it"


def _pairs(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, paths of certificate and private key, and purpose of each pair."""
    for host, registry in config.registries.items():
        why = "we prove ourselves to this registry with it"
        yield f'registries."{host}".cert_file', registry.cert_file, registry.key_file, why
    agent, api = config.agent, config.api
    why = "the kubelet's server proves itself with it"
    yield "agent.tls_cert_file", agent.tls_cert_file, agent.tls_private_key_file, why
    yield "api.tls_cert", api.tls_cert, api.tls_key, "the API proves itself with it"


def _examine_file(
    name: str, path: str, load: Callable[[str], object], *, why: str, fix: str = "", level: Level = Level.MISSING
) -> Iterator[Finding]:
    """Judge a file by what ``load`` says of it, if the configuration names one."""
    if not path:
        return
    try:
        load(path)
    except OSError as error:  # Of which that of ssl is one.
        yield Finding(
            name=name, level=level, detail=f"{path} cannot be used: {error.strerror or error}", why=why, fix=fix
        )
    except PodkeepError as error:
        said = error.message if path in error.message else f"{path}: {error.message}"
        yield Finding(name=name, level=level, detail=said, why=why, fix=fix or error.hint)
    else:
        yield finding.ok(name, path)


def _load_certificate(path: str, key: str | None) -> None:
    # With an empty password, OpenSSL does not ask for one at the terminal if the key has one.
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, key, password=lambda: "")


def _load_tls(config: StreamingConfig) -> None:
    from podkeep.runtime.streaming.server import tls_context

    tls_context(config)


def _load_tokens(path: str) -> None:
    from podkeep.apiserver.auth.tokens import read_static_tokens

    try:
        read_static_tokens(Path(path).read_text(), path)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: {error}") from error


def _examine_credential_providers(config: ImagesConfig) -> Iterator[Finding]:
    if not config.credential_providers:
        return
    from podkeep.base.registries import credential_providers

    try:
        providers = credential_providers.load(config.credential_providers, config.credential_provider_dir)
    except InvalidArgument:
        return  # told by who checks the values
    for provider in providers:
        name = f"credential provider {provider.name}"
        if os.access(provider.path, os.X_OK):
            yield finding.ok(name, provider.path)
        else:
            why = f"it is asked for credentials for {', '.join(provider.match_images)}"
            fix = "put it there, or leave it out of images.credential_providers"
            yield finding.warning(name, f"{provider.path} cannot be run", why=why, fix=fix)


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
