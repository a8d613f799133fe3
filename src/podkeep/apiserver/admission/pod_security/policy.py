"""Pod Security levels and versions, and what a namespace's labels ask for (pod-security-admission: ``api``). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from podkeep.api.fields import FieldErrors

LABELS = "pod-security.kubernetes.io/"
"""What the labels of namespaces and the annotations of audit records begin with."""
MODES = ("enforce", "audit", "warn")
_VERSION = re.compile(r"v1\.(0|[1-9][0-9]{0,8})")


class Level(StrEnum):
    """A policy; each allows less than the one before."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


_STRICTNESS = {level: place for place, level in enumerate(Level)}
_MUST_BE_LEVEL = f"must be one of {', '.join(Level)}"
_MUST_BE_VERSION = 'must be "latest" or "v1.x"'


class Policy(NamedTuple):
    """A level as Kubernetes 1.``minor`` has it; None: the newest."""

    level: Level = Level.PRIVILEGED
    minor: int | None = None

    def __str__(self) -> str:
        return f"{self.level}:{'latest' if self.minor is None else f'v1.{self.minor}'}"

    def is_stricter(self, other: Policy) -> bool:
        """Tell whether the level allows less than that of another."""
        return _STRICTNESS[self.level] > _STRICTNESS[other.level]


class Policies(NamedTuple):
    """What is refused, what is written to the audit log, and what is warned of."""

    enforce: Policy = Policy()
    audit: Policy = Policy()
    warn: Policy = Policy()

    @property
    def is_privileged(self) -> bool:
        """Whether everything is allowed, without a word."""
        return all(policy.level is Level.PRIVILEGED for policy in self)


def parse_level(text: str) -> Level:
    """Return the level of this name.

    :raises ValueError: with what it must be.
    """
    try:
        return Level(text)
    except ValueError:
        raise ValueError(_MUST_BE_LEVEL) from None


def parse_version(text: str) -> int | None:
    """Return the minor version; None for ``latest``.

    :raises ValueError: with what it must be.
    """
    if text == "latest":
        return None
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(_MUST_BE_VERSION)
    return int(match[1])


def of_labels(labels: Mapping[str, str], defaults: Policies, errors: FieldErrors) -> Policies:
    """Return what a namespace's labels ask for, and note those that are wrong.

    A wrong level is enforced as ``restricted``, and neither audited nor warned of; a wrong version is ``latest``.
    Where nothing is said of warnings, they follow what is enforced if that is stricter.
    """
    if not any(key.startswith(LABELS) for key in labels):
        return defaults
    found: dict[str, Policy] = {}
    wrong = set()
    for mode, default in zip(MODES, defaults, strict=True):
        level, minor = default
        if (text := labels.get(f"{LABELS}{mode}")) is not None:
            try:
                level = parse_level(text)
            except ValueError as error:
                level = Level.RESTRICTED if mode == "enforce" else Level.PRIVILEGED
                wrong.add(mode)
                errors.invalid(f"metadata.labels[{LABELS}{mode}]", text, str(error))
        if (text := labels.get(f"{LABELS}{mode}-version")) is not None:
            try:
                minor = parse_version(text)
            except ValueError as error:
                minor = None
                errors.invalid(f"metadata.labels[{LABELS}{mode}-version]", text, str(error))
        found[mode] = Policy(level, minor)
    enforce, warn = found["enforce"], found["warn"]
    follows = f"{LABELS}enforce" in labels and "enforce" not in wrong and f"{LABELS}warn" not in labels
    if follows and enforce.is_stricter(warn):
        minor = warn.minor if f"{LABELS}warn-version" in labels else enforce.minor
        found["warn"] = Policy(enforce.level, minor)
    return Policies(**found)
