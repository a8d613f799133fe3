"""A host and a port in one text (RFC 3986, section 3.2.2: an IPv6 address stands in brackets). Pure."""

from __future__ import annotations


def bracketed(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def join(host: str, port: int | str) -> str:
    """Return ``host:port`` as URLs have it."""
    return f"{bracketed(host)}:{port}"
