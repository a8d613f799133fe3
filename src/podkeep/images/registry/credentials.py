"""Credentials for pulls whose request has none: from a kubelet's plugins, then from docker's configuration file.

Owns: the order, docker's credential helpers, and which server of a pull gets what. A mirror gets what is configured
for the mirror's own host, never what is meant for the registry. Does not own: the credentials of a request (pull
secrets), which win over everything here. Runs in the server, on threads.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import structs

from podkeep.base import spawn
from podkeep.base.config import ImagesConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.registries import credential_providers, docker_config
from podkeep.base.registries.credential_providers import Providers, last_words
from podkeep.base.registries.docker_config import Credentials, Keyring
from podkeep.base.registries.reference import DEFAULT_HOST, Reference
from podkeep.images.formats.image import RegistryAuth
from podkeep.images.registry.endpoint import Endpoint

log = logging.getLogger(__name__)

_HELPER_TIMEOUT_S = 30.0
_MAX_FILE = 1 << 20
_MAX_OUTPUT = 1 << 20
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DOCKER_HUB_NAMES = ("https://index.docker.io/v1/", "index.docker.io")
"""Docker Hub in the files of docker and of its helpers."""
_NOT_FOUND = b"credentials not found"
"""What helpers print if they have none (docker-credential-helpers, errCredentialsNotFoundMessage)."""


class Found(FrozenStruct, kw_only=True):
    """Credentials in the order in which to try them, and what went wrong on the way to others."""

    credentials: tuple[Credentials, ...]
    problems: tuple[str, ...]


def check(config: ImagesConfig) -> None:
    """Check the settings, and read the configuration of plugins.

    :raises InvalidArgument: naming the key, and the file if that is wrong.
    """
    for key, path in (
        ("docker_config", config.docker_config),
        ("credential_providers", config.credential_providers),
        ("credential_provider_dir", config.credential_provider_dir),
    ):
        if path and not os.path.isabs(path):
            raise InvalidArgument(f"images.{key}: {path!r} is not an absolute path", hint="begin it with /")
    if bool(config.credential_providers) != bool(config.credential_provider_dir):
        raise InvalidArgument("images: credential_providers and credential_provider_dir go together", hint="set both")
    if config.credential_providers:
        credential_providers.load(config.credential_providers, config.credential_provider_dir)


class NodeCredentials:
    """The credentials of this node. Its methods may be called from any thread and block: they run programs."""

    def __init__(self, config: ImagesConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._providers: Providers | None = None

    def equip(self, name: Reference, endpoints: Iterable[Endpoint]) -> tuple[tuple[Endpoint, ...], tuple[str, ...]]:
        """Return the endpoints of an image, each with the credentials for it, and what went wrong in getting them.

        One that has credentials, those of a request, keeps just these.
        """
        equipped: list[Endpoint] = []
        problems: list[str] = []
        for endpoint in endpoints:
            if endpoint.credentials:
                equipped.append(endpoint)
                continue
            mirrored = "/".join(part for part in (endpoint.host, endpoint.prefix, name.repository) if part)
            # A mirror is asked for under its own host: it must not see what is meant for the registry.
            found = self.find(name.name if endpoint.own else mirrored)
            given = tuple(RegistryAuth(**item.told()) for item in found.credentials)
            equipped.append(structs.replace(endpoint, credentials=given))
            problems += found.problems
        # Logged and not raised: the image may be public, or another source may have credentials.
        for problem in problems:
            log.warning("%s", problem)
        return tuple(equipped), tuple(dict.fromkeys(problems))

    def find(self, name: str) -> Found:
        """Return the credentials for ``host/repository``: plugins' first, then those of docker's file."""
        credentials: list[Credentials] = []
        problems: list[str] = []
        if self._config.credential_providers:
            try:
                told = self._plugins().ask(name)
            except PodkeepError as error:
                problems.append(error.message)
            else:
                credentials += Keyring(told.entries).lookup(name)
                problems += told.problems
        if self._config.docker_config:
            try:
                credentials += from_docker(Path(self._config.docker_config), name)
            except PodkeepError as error:
                problems.append(error.message)
        return Found(credentials=tuple(dict.fromkeys(credentials)), problems=tuple(problems))

    def _plugins(self) -> Providers:
        with self._lock:
            if self._providers is None:
                config = self._config
                loaded = credential_providers.load(config.credential_providers, config.credential_provider_dir)
                self._providers = Providers(loaded)
            return self._providers


def from_docker(path: Path, name: str, *, what: str = "") -> tuple[Credentials, ...]:
    """Return docker's credentials for ``host/repository``.

    The helper for the host (``credHelpers``) goes before ``auths``, and those go before the helper for all
    (``credsStore``), which is asked only if there are none. ``what`` is how errors call the file, if it is not the
    node's.

    :raises InvalidArgument: if the file is not what it should be.
    :raises FailedPrecondition: if a helper fails.
    """
    where = what or f"images.docker_config: {path}"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise InvalidArgument(f"{where}: {error.strerror}") from error
    if len(data) > _MAX_FILE:
        raise InvalidArgument(f"{where}: it has more than {_MAX_FILE} bytes")
    try:
        entries = docker_config.parse(data)
        document = docker_config.decode(data)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"{where}: expected an object")
    host = name.partition("/")[0]
    server = _DOCKER_HUB_NAMES[0] if host == DEFAULT_HOST else host
    helpers, store = document.get("credHelpers") or {}, document.get("credsStore") or ""
    if not isinstance(helpers, Mapping) or not isinstance(store, str):
        raise InvalidArgument(f"{where}: credHelpers is not an object, or credsStore not a string")
    names = [host, *_DOCKER_HUB_NAMES] if host == DEFAULT_HOST else [host]
    helper = next((helpers[key] for key in names if helpers.get(key)), "")
    if not helper:
        if found := Keyring(entries).lookup(name):
            return found
        helper = store
    return from_helper(helper, server) if helper else ()


def from_helper(helper: object, server: str, *, timeout: float = _HELPER_TIMEOUT_S) -> tuple[Credentials, ...]:
    """Ask one of docker's credential helpers, ``docker-credential-<helper>`` in ``PATH``, what it has for a server.

    :raises FailedPrecondition: if it fails, takes too long or says something else.
    """
    if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
        raise FailedPrecondition(f"{str(helper)[:40]!r} is not the name of a credential helper")
    who = f"docker-credential-{helper}"
    try:
        done = spawn.run_foreign(
            [who, "get"], stdin=server.encode(), timeout=timeout, env=os.environ, output_limit=_MAX_OUTPUT
        )
    except OSError as error:
        raise FailedPrecondition(f"{who}: {error.strerror}") from error
    except PodkeepError as error:
        raise FailedPrecondition(f"{who}: {error.message}") from error
    if done.returncode != 0:
        # Helpers print errors on either of their outputs.
        if _NOT_FOUND in done.stdout or _NOT_FOUND in done.stderr:
            return ()
        raise FailedPrecondition(f"{who} exited with {done.returncode}: {last_words(done.stderr)}")
    try:
        answer = docker_config.decode(done.stdout)
        username, secret = answer["Username"], answer["Secret"]
        if not isinstance(username, str) or not isinstance(secret, str):
            raise TypeError
    except (InvalidArgument, KeyError, TypeError):
        raise FailedPrecondition(f"{who} did not print credentials") from None
    if username == "<token>":
        return (Credentials(identity_token=secret),)
    return (Credentials(username=username, password=secret),)
