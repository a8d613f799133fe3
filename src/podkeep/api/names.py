"""Rules for names (RFC 1123 labels and subdomains, label values, environment variables) and for image references.

The texts are those of Kubernetes (apimachinery: util/validation), which people search for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PORT_CHARACTERS = re.compile(r"[-a-z0-9]+")
_LETTER = re.compile(r"[a-z]")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9*]([-_a-z0-9*]*[a-z0-9*])?)*")

_LABEL_FORMAT = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NO_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    f" '{_LABEL_FORMAT}')"
)
_NO_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    f" '{_LABEL_FORMAT}(\\.{_LABEL_FORMAT})*')"
)
_QUALIFIED_FORMAT = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_NO_KEY = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
    f" (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED_FORMAT}')"
)
_NO_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '({_QUALIFIED_FORMAT})?')"
)
_NO_CONFIG_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or"
    " 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def dns_label(text: str) -> str:
    """Return why ``text`` is no RFC 1123 label, or nothing."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    if _LABEL.fullmatch(text):
        return ""
    return "must not contain dots" if _SUBDOMAIN.fullmatch(text) else _NO_LABEL


def dns_subdomain(text: str) -> str:
    """Return why ``text`` is no RFC 1123 subdomain, or nothing."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.fullmatch(text) else _NO_SUBDOMAIN


def label_key(text: str) -> str:
    """Return the first reason why ``text`` cannot be the key of a label or annotation, or nothing."""
    found = label_key_problems(text)
    return found[0] if found else ""


def label_key_problems(text: str) -> list[str]:
    """Return every reason why ``text`` cannot be the key of a label or annotation.

    A name that is empty or too long mostly has two: kube-apiserver (apimachinery: ``content.IsLabelKey``) checks its
    characters as well.
    """
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_NO_KEY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    found = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash and (why := dns_subdomain(prefix)):
        found.append(f"prefix part {why}")
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > 63:
        found.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        found.append(f"name part {_NO_KEY}")
    return found


def label_value(text: str) -> str:
    """Return why ``text`` cannot be the value of a label, or nothing."""
    if len(text) > 63:
        return "must be no more than 63 bytes"
    return "" if not text or _QUALIFIED.fullmatch(text) else _NO_VALUE


def config_key(text: str) -> str:
    """Return why ``text`` cannot be a key of a ConfigMap or Secret, or nothing."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    if not _CONFIG_KEY.fullmatch(text):
        return _NO_CONFIG_KEY
    if text in (".", ".."):
        return f"must not be '{text}'"
    return "must not start with '..'" if text.startswith("..") else ""


def port_name(text: str) -> str:
    """Return the first reason why ``text`` cannot name a port (IANA service name), or nothing."""
    return next(port_name_problems(text), "")


def port_name_problems(text: str) -> Iterator[str]:
    """Yield every reason why ``text`` cannot name a port."""
    if len(text) > 15:
        yield "must be no more than 15 characters"
    if not _PORT_CHARACTERS.fullmatch(text):
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not _LETTER.search(text):
        yield "must contain at least one letter (a-z)"
    if "--" in text:
        yield "must not contain consecutive hyphens"
    if text.startswith("-") or text.endswith("-"):
        yield "must not begin or end with a hyphen"


def env_name(text: str) -> str:
    """Return why ``text`` cannot name an environment variable, or nothing."""
    if not text:
        return "environment variable name must be non-empty"
    if _ENV_NAME.fullmatch(text):
        return ""
    return "a valid environment variable name must consist only of printable ASCII characters other than '='"


def sysctl(text: str) -> str:
    """Return why ``text`` cannot name a sysctl, or nothing."""
    return (
        ""
        if len(text) <= 253 and _SYSCTL.fullmatch(text)
        else "must be a sysctl name such as net.ipv4.ping_group_range"
    )


def has_floating_tag(image: str) -> bool:
    """Return whether ``image`` names no digest and either no tag or ``latest``."""
    image = image.partition("?")[0]  # what follows is a condition of podkeep's own (docs/artifacts.md, "Referrers")
    if "@" in image:
        return False
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return not colon or tag == "latest"
