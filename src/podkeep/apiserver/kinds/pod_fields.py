"""Rules that many fields of pods share, in kube-apiserver's words."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors

MAX_ID = (1 << 31) - 1
MAX_INT32 = (1 << 31) - 1
GROUPS = ("initContainers", "containers", "ephemeralContainers")
MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that stands for one which an agent runs on its own."""
_PORT_CHARACTERS = re.compile(r"[-a-z0-9]+")
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_LOOSE_PART = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_LOOSE_SUBDOMAIN = re.compile(rf"{_LOOSE_PART}(\.{_LOOSE_PART})*")
_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the fields of a pod's spec are held against.

    ``is_pod`` tells a pod from a template. ``volumes`` are those without errors, by name.
    """

    spec: Mapping[str, Any]
    errors: FieldErrors
    is_pod: bool
    volumes: Mapping[str, Mapping[str, Any]]

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
    for group in GROUPS:
        for index, container in enumerate(spec.get(group, ())):
            yield f"{path}.{group}[{index}]", container


def note(errors: FieldErrors, path: str, value: object, why: str) -> None:
    """Note why a value is wrong, unless ``why`` is empty."""
    if why:
        errors.invalid(path, value, why)


def name(errors: FieldErrors, path: str, value: str) -> None:
    """Note why a value is no RFC 1123 label, or that there is none."""
    if errors.required(path, value):
        note(errors, path, value, names.dns_label(value))


def required(errors: FieldErrors, path: str, why: str) -> None:
    """Note that a field is not there, and why it must be."""
    errors.add(path, f"Required value: {why}")


def supported(errors: FieldErrors, path: str, value: str, known: Sequence[str]) -> bool:
    """Note a value that is none of the known ones, which are named in the order given; return whether it is one."""
    if value in known:
        return True
    texts = ", ".join(f'"{text}"' for text in known)
    errors.add(path, f'Unsupported value: "{value}": supported values: {texts}')
    return False


def chosen(errors: FieldErrors, path: str, value: str, known: Sequence[str]) -> None:
    """Note a value that is not there, or is none of the known ones."""
    if errors.required(path, value):
        supported(errors, path, value, known)


def too_long(errors: FieldErrors, path: str, limit: int) -> None:
    """Note a text that is too long."""
    errors.add(path, f"Too long: may not be more than {limit} bytes")


def too_many(errors: FieldErrors, path: str, count: int, limit: int) -> None:
    """Note a list that is too long."""
    errors.add(path, f"Too many: {count}: must have at most {limit} items")


def in_range(errors: FieldErrors, path: str, value: int | None, low: int, high: int) -> None:
    """Note a number that is out of range."""
    if value is not None and not low <= value <= high:
        errors.invalid(path, value, f"must be between {low} and {high}, inclusive")


def not_negative(errors: FieldErrors, path: str, value: int) -> None:
    """Note a number below 0."""
    if value < 0:
        errors.invalid(path, value, "must be greater than or equal to 0")


def mode(errors: FieldErrors, path: str, value: int | None) -> None:
    """Note permission bits that are out of range."""
    if value is not None and not 0 <= value <= 0o777:
        errors.invalid(path, value, "must be a number between 0 and 0777 (octal), both inclusive")


def no_backsteps(errors: FieldErrors, path: str, value: str) -> None:
    """Note a path that goes up."""
    if ".." in value.split("/"):
        errors.invalid(path, value, "must not contain '..'")


def descending(errors: FieldErrors, path: str, value: str) -> None:
    """Note a path that is not below a directory."""
    if value.startswith("/"):
        errors.invalid(path, value, "must be a relative path")
    no_backsteps(errors, path, value)


def not_reserved(errors: FieldErrors, path: str, value: str) -> None:
    """Note a path that is not below a directory, or starts with the dots that agents keep for themselves."""
    descending(errors, path, value)
    if value.startswith("..") and not value.startswith("../"):
        errors.invalid(path, value, "must not start with '..'")


def port_name(text: str) -> str:
    """Return why ``text`` cannot name a port (IANA service name), or nothing."""
    if len(text) > 15:
        return "must be no more than 15 characters"
    if not _PORT_CHARACTERS.fullmatch(text):
        return "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not re.search("[a-z]", text):
        return "must contain at least one letter (a-z)"
    if "--" in text:
        return "must not contain consecutive hyphens"
    return "must not begin or end with a hyphen" if "-" in (text[0], text[-1]) else ""


def port(errors: FieldErrors, path: str, value: int | str) -> None:
    """Note a number or name that is no port."""
    if isinstance(value, str):
        note(errors, path, value, port_name(value))
    else:
        in_range(errors, path, value, 1, 65_535)


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


def address(errors: FieldErrors, path: str, value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Note a text that is no IP address; return the address that it is."""
    try:
        found = ipaddress.ip_address(value)
    except ValueError:
        if _IPV4.fullmatch(value) and all(int(part) <= 255 for part in value.split(".") if len(part) < 10):
            errors.invalid(path, value, "must not have leading 0s")
        else:
            errors.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        return None
    if "%" in value:
        errors.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        errors.invalid(path, value, "must not be an IPv4-mapped IPv6 address")
    return found


def address_warning(path: str, value: str) -> list[str]:
    """Return a warning for an IPv6 address that is not written as RFC 5952 does."""
    try:
        found = ipaddress.ip_address(value)
    except ValueError:
        return []
    if str(found) == value:
        return []
    return [f'{path}: IPv6 address "{value}" should be in RFC 5952 canonical format ("{found}")']


def labels(errors: FieldErrors, path: str, given: Mapping[str, str]) -> None:
    """Note keys and values that are none of labels."""
    for key, value in given.items():
        note(errors, path, key, names.label_key(key))
        note(errors, path, value, names.label_value(value))


def label_selector(errors: FieldErrors, path: str, selector: Mapping[str, Any] | None) -> None:
    """Note what is wrong with a label selector (apimachinery: ``ValidateLabelSelector``)."""
    if selector is None:
        return
    labels(errors, f"{path}.matchLabels", selector.get("matchLabels", {}))
    for index, requirement in enumerate(selector.get("matchExpressions", ())):
        where = f"{path}.matchExpressions[{index}]"
        values = requirement.get("values", ())
        operator = requirement.get("operator", "")
        if operator in ("In", "NotIn"):
            if not values:
                required(errors, f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                errors.forbidden(
                    f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            errors.invalid(f"{where}.operator", operator, "not a valid selector operator")
        key = requirement.get("key", "")
        note(errors, f"{where}.key", key, names.label_key(key))
        for number, value in enumerate(values):
            note(errors, f"{where}.values[{number}]", value, names.label_value(value))
