"""Rules that many fields of pods share, in kube-apiserver's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.field_rules import named
from podkeep.base.frozen import FrozenStruct

MAX_ID = (1 << 31) - 1
MAX_INT32 = (1 << 31) - 1
CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")
"""In the order in which messages list their names."""
MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that stands for one which an agent runs on its own."""
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_LOOSE_PART = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_LOOSE_SUBDOMAIN = re.compile(rf"{_LOOSE_PART}(\.{_LOOSE_PART})*")


class Context(FrozenStruct, kw_only=True):
    """What the fields of a pod's spec are held against.

    ``is_pod`` tells a pod from a template. ``volumes`` are those without errors, by name; ``claims`` the names of
    resource claims, and ``claims_shown`` how messages end with them.
    """

    spec: Mapping[str, Any]
    errors: FieldErrors
    is_pod: bool
    volumes: Mapping[str, Mapping[str, Any]]
    claims: frozenset[str]
    claims_shown: str

    @property
    def host_users(self) -> bool:
        """Whether the pod shares the user namespace of its node."""
        return self.spec.get("hostUsers") is not False

    @property
    def os(self) -> str:
        """The operating system that the pod is for; empty if it names none."""
        name: str = self.spec.get("os", {}).get("name", "")
        return name

    @property
    def grace_period(self) -> int:
        """The seconds between the stop signal and the kill."""
        seconds: int = self.spec.get("terminationGracePeriodSeconds", 0)
        return seconds


def containers(spec: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every container of a pod with the path of its field."""
    for group in CONTAINER_FIELDS:
        for index, container in enumerate(spec.get(group, ())):
            yield f"{path}.{group}[{index}]", container


def name(path: str, value: str, errors: FieldErrors) -> None:
    """Note why a value is no RFC 1123 label, or that there is none."""
    if errors.required(path, value):
        named(path, value, names.dns_label(value), errors)


def supported(path: str, value: str, known: Sequence[str], errors: FieldErrors) -> bool:
    """Note a value that is none of the known ones, which are named in the order given; return whether it is one."""
    if value in known:
        return True
    field_rules.not_supported(path, value, known, errors)
    return False


def in_range(path: str, value: int | None, low: int, high: int, errors: FieldErrors) -> None:
    """Note a number that is out of range."""
    if value is not None and not low <= value <= high:
        errors.invalid(path, value, f"must be between {low} and {high}, inclusive")


def mode(path: str, value: int | None, errors: FieldErrors) -> None:
    """Note permission bits that are out of range."""
    if value is not None and not 0 <= value <= 0o777:
        errors.invalid(path, value, "must be a number between 0 and 0777 (octal), both inclusive")


def no_backsteps(path: str, value: str, errors: FieldErrors) -> None:
    """Note a path that goes up."""
    if ".." in value.split("/"):
        errors.invalid(path, value, "must not contain '..'")


def descending(path: str, value: str, errors: FieldErrors) -> None:
    """Note a path that is not below a directory."""
    if value.startswith("/"):
        errors.invalid(path, value, "must be a relative path")
    no_backsteps(path, value, errors)


def not_reserved(path: str, value: str, errors: FieldErrors) -> None:
    """Note a path that is not below a directory, or starts with the dots that agents keep for themselves."""
    descending(path, value, errors)
    if value.startswith("..") and not value.startswith("../"):
        errors.invalid(path, value, "must not start with '..'")


def header_name(text: str) -> str:
    """Return why ``text`` cannot name an HTTP header, or nothing."""
    if _HEADER.fullmatch(text):
        return ""
    return (
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for"
        " validation is '[-A-Za-z0-9]+')"
    )


def search_domain(text: str) -> str:
    """Return why ``text`` cannot be a DNS search domain, or nothing; underscores are taken."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    if _LOOSE_SUBDOMAIN.fullmatch(text):
        return ""
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must"
        " start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
        rf" '{_LOOSE_PART}(\.{_LOOSE_PART})*')"
    )
