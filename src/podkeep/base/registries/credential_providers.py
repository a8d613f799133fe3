"""A kubelet's exec credential-provider plugins: programs that are asked for credentials for an image.

Owns: reading the CredentialProviderConfig (kubelet.config.k8s.io), running the plugins
(credentialprovider.kubelet.k8s.io) and keeping what they say for as long as they say. Does not own: which of several
credentials is tried first. Used by the runtime and by the agent, on threads; no text made here holds a secret.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from podkeep.base import spawn
from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.registries.docker_config import Credentials, Entry, Keyring

TIMEOUT_S = 60.0
"""Seconds a plugin may take, as a kubelet gives it."""
_MAX_OUTPUT = 1 << 20
_MAX_STDERR = 1024
_MAX_CACHED = 1000
_CONFIG_VERSIONS = tuple(f"kubelet.config.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_API_VERSIONS = tuple(f"credentialprovider.kubelet.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


class _Env(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    value: str = ""


class _Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    name: str
    match_images: list[str]
    default_cache_duration: str
    api_version: str
    args: list[str] | None = None
    env: list[_Env] | None = None
    token_attributes: Any = None


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    api_version: str
    kind: str
    providers: list[_Provider]


class _Auth(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""


class _Response(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    api_version: str
    kind: str
    cache_key_type: Literal["Image", "Registry", "Global"]
    cache_duration: str | None = None
    auth: dict[str, _Auth] | None = None


class Provider(FrozenStruct, kw_only=True):
    """A plugin: the program, and for which images it is asked."""

    name: str
    path: str
    match_images: tuple[str, ...]
    cache_seconds: float
    api_version: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]

    def matches(self, image: str) -> bool:
        """Return whether it is asked for ``host/repository``."""
        return bool(Keyring((pattern, _ANY) for pattern in self.match_images).lookup(image))


_ANY = Credentials(username="matched")


class Settings(FrozenStruct, kw_only=True):
    """The names of the two settings, for messages: of the configuration and of the directory of the programs."""

    config: str = "images.credential_providers"
    directory: str = "images.credential_provider_dir"


def load(path: str, directory: str, settings: Settings | None = None) -> tuple[Provider, ...]:
    """Read the configuration of the plugins: a file, or the ``.json``, ``.yaml`` and ``.yml`` files of a directory.

    :raises InvalidArgument: naming the file and what is wrong.
    """
    place, named = Path(path), settings or Settings()
    try:
        files = (
            sorted(item for item in place.iterdir() if item.suffix in (".json", ".yaml", ".yml") and item.is_file())
            if place.is_dir()
            else [place]
        )
        found = [provider for file in files for provider in _read(file, directory, named)]
    except OSError as error:
        raise InvalidArgument(f"{named.config}: {path}: {error.strerror}") from error
    names = [provider.name for provider in found]
    if not names:
        raise InvalidArgument(f"{named.config}: {path} names no provider")
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"{named.config}: {path} has two providers of the name {name!r}")
    return tuple(found)


def _read(path: Path, directory: str, settings: Settings) -> list[Provider]:
    import yaml  # few nodes have plugins

    from podkeep.base.text import yaml_text

    where = f"{settings.config}: {path}"
    try:
        # JSON is YAML, too.
        config = msgspec.convert(yaml_text.load(path.read_bytes()), _Config)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{where}: neither YAML nor JSON: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where}: {error}") from error
    if config.kind != "CredentialProviderConfig" or config.api_version not in _CONFIG_VERSIONS:
        raise InvalidArgument(
            f"{where}: it is a {config.kind!r} of {config.api_version!r}",
            hint=f"it must be a CredentialProviderConfig of {_CONFIG_VERSIONS[0]}",
        )
    return [_provider(item, directory, f"{where}: provider {item.name!r}", settings) for item in config.providers]


def _provider(item: _Provider, directory: str, where: str, settings: Settings) -> Provider:
    # As a kubelet: the name becomes a path below the directory of the plugins.
    if not item.name or item.name in (".", "..") or set(item.name) & set("/ \0"):
        raise InvalidArgument(f"{where}: the name must be that of a file in {settings.directory}")
    if item.api_version not in _API_VERSIONS:
        raise InvalidArgument(f"{where}: apiVersion {item.api_version!r} is unknown", hint=f"use {_API_VERSIONS[0]}")
    if item.token_attributes is not None:
        raise InvalidArgument(
            f"{where}: tokenAttributes: plugins get no tokens of service accounts here", hint="leave them out"
        )
    if not item.match_images:
        raise InvalidArgument(f"{where}: matchImages is empty")
    try:
        seconds = parse_duration(item.default_cache_duration)
    except ValueError as error:
        raise InvalidArgument(f"{where}: defaultCacheDuration: {error}") from error
    return Provider(
        name=item.name,
        path=os.path.join(directory, item.name),
        match_images=tuple(item.match_images),
        cache_seconds=seconds,
        api_version=item.api_version,
        args=tuple(item.args or ()),
        env=tuple((pair.name, pair.value) for pair in item.env or ()),
    )


def parse_duration(text: str) -> float:
    """Return the seconds of a duration as Go writes it: ``12h30m``, ``1.5s``, ``0``.

    :raises ValueError: if it is not one, or negative.
    """
    if text == "0":
        return 0.0
    position, total = 0, 0.0
    while match := _DURATION.match(text, position):
        position = match.end()
        total += float(match[1]) * _UNITS[match[2]]
    if not text or position < len(text):
        raise ValueError(f"{text[:40]!r} is not a duration such as 12h30m")
    return total


class Told(FrozenStruct, kw_only=True):
    """What plugins say about an image: entries of a keyring, and what went wrong with those that say nothing."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


class Providers:
    """The plugins of a node, and what they said lately. Its methods may be called from any thread and block."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = tuple(providers)
        self._lock = threading.Lock()
        self._cached: dict[tuple[str, str, str], tuple[float, tuple[Entry, ...]]] = {}

    def known(self, image: str) -> Told | None:
        """Return what :meth:`ask` would, if that needs no plugin to be run; None if it does. Does not block."""
        kept = [self._kept(provider, image) for provider in self._providers if provider.matches(image)]
        if None in kept:
            return None
        return Told(entries=tuple(entry for entries in kept for entry in entries or ()), problems=())

    def ask(self, image: str) -> Told:
        """Ask every plugin that is meant for ``image`` (``host/repository``); one that fails hinders no other."""
        entries: list[Entry] = []
        problems: list[str] = []
        for provider in self._providers:
            if not provider.matches(image):
                continue
            try:
                entries += self._of(provider, image)
            except PodkeepError as error:
                problems.append(error.message)
        return Told(entries=tuple(entries), problems=tuple(problems))

    def _kept(self, provider: Provider, image: str) -> tuple[Entry, ...] | None:
        now = time.monotonic()
        with self._lock:
            # As a kubelet: an answer for the image goes before one for its registry, and that before one for all.
            for kind, key in _keys(image).items():
                until, entries = self._cached.get((provider.name, kind, key), (0.0, ()))
                if until > now:
                    return entries
        return None

    def _of(self, provider: Provider, image: str) -> tuple[Entry, ...]:
        if (kept := self._kept(provider, image)) is not None:
            return kept
        response = run(provider, image)
        entries = tuple(
            (where, Credentials(username=auth.username, password=auth.password))
            for where, auth in (response.auth or {}).items()
        )
        seconds = provider.cache_seconds
        if response.cache_duration is not None:
            try:
                seconds = parse_duration(response.cache_duration)
            except ValueError as error:
                raise FailedPrecondition(f"credential provider {provider.name}: cacheDuration: {error}") from error
        if seconds > 0:
            key = _keys(image)[response.cache_key_type]
            self._keep((provider.name, response.cache_key_type, key), seconds, entries)
        return entries

    def _keep(self, key: tuple[str, str, str], seconds: float, entries: tuple[Entry, ...]) -> None:
        now = time.monotonic()
        with self._lock:
            self._cached = {other: kept for other, kept in self._cached.items() if kept[0] > now}
            # Names of images come from pods: the cache must not grow with them.
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            self._cached[key] = (now + seconds, entries)


def _keys(image: str) -> dict[str, str]:
    """Return what an answer is kept under, by its ``cacheKeyType``."""
    return {"Image": image, "Registry": image.partition("/")[0], "Global": ""}


def run(provider: Provider, image: str, *, timeout: float = TIMEOUT_S) -> _Response:
    """Run a plugin and return its answer.

    :raises FailedPrecondition: if it cannot be run, fails, takes too long or says something else.
    """
    request = {"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": image}
    who = f"credential provider {provider.name}"
    try:
        done = spawn.run_foreign(
            [provider.path, *provider.args],
            stdin=msgspec.json.encode(request),
            timeout=timeout,
            env=os.environ | dict(provider.env),
            output_limit=_MAX_OUTPUT,
        )
    except OSError as error:
        raise FailedPrecondition(f"{who}: cannot run {provider.path}: {error.strerror}") from error
    except PodkeepError as error:
        raise FailedPrecondition(f"{who}: {error.message}") from error
    if done.returncode != 0:
        raise FailedPrecondition(f"{who} exited with {done.returncode}: {last_words(done.stderr)}")
    try:
        response = msgspec.json.decode(done.stdout, type=_Response)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Not "from", and not a word of it: there may be a secret in what it printed.
        raise FailedPrecondition(f"{who} did not print a CredentialProviderResponse") from None
    if response.kind != "CredentialProviderResponse" or response.api_version != provider.api_version:
        raise FailedPrecondition(
            f"{who} answered in another version than it was asked in, which is {provider.api_version}"
        )
    return response


def last_words(stderr: bytes) -> str:
    """Return the end of what a program printed, in one line, for an error."""
    text = " ".join(stderr[-_MAX_STDERR:].decode(errors="replace").split())
    return "".join(char if char.isprintable() else "?" for char in text) or "it said nothing"
