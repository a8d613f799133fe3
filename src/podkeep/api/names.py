"""Rules for names (RFC 1123 labels and subdomains, label values, environment variables) and for image references."""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9*]([-_a-z0-9*]*[a-z0-9*])?)*")


def dns_label(text: str) -> str:
    """Return why ``text`` is no RFC 1123 label, or nothing."""
    if len(text) > 63:
        return "must be no longer than 63 characters"
    return "" if _LABEL.fullmatch(text) else "must hold only lower-case letters, digits and '-', and '-' only inside"


def dns_subdomain(text: str) -> str:
    """Return why ``text`` is no RFC 1123 subdomain, or nothing."""
    if len(text) > 253:
        return "must be no longer than 253 characters"
    if _SUBDOMAIN.fullmatch(text):
        return ""
    return "must hold only lower-case letters, digits, '-' and '.', and start and end each part with a letter or digit"


def label_key(text: str) -> str:
    """Return why ``text`` cannot be the key of a label or annotation, or nothing."""
    prefix, slash, name = text.rpartition("/")
    if slash and dns_subdomain(prefix):
        return f"the part before '/' {dns_subdomain(prefix)}"
    if not name or len(name) > 63 or not _QUALIFIED.fullmatch(name):
        return "must be 1 to 63 letters, digits, '-', '_' or '.', after an optional DNS prefix and '/'"
    return ""


def label_value(text: str) -> str:
    """Return why ``text`` cannot be the value of a label, or nothing."""
    if text and (len(text) > 63 or not _QUALIFIED.fullmatch(text)):
        return "must be empty or 1 to 63 letters, digits, '-', '_' or '.'"
    return ""


def config_key(text: str) -> str:
    """Return why ``text`` cannot be a key of a ConfigMap or Secret, or nothing."""
    if len(text) > 253 or not _CONFIG_KEY.fullmatch(text) or text in {".", ".."} or text.startswith(".."):
        return "must be 1 to 253 letters, digits, '-', '_' or '.', and not start with '..'"
    return ""


def port_name(text: str) -> str:
    """Return why ``text`` cannot name a port (IANA service name), or nothing."""
    if len(text) > 15 or not _PORT_NAME.fullmatch(text):
        return "must be 1 to 15 lower-case letters, digits or single '-', with at least one letter"
    return ""


def env_name(text: str) -> str:
    """Return why ``text`` cannot name an environment variable, or nothing."""
    return "" if _ENV_NAME.fullmatch(text) else "must hold only printable ASCII characters other than '='"


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
