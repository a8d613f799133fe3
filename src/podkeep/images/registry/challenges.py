"""What a registry asks for in ``WWW-Authenticate``: parsing only (RFC 9110, 11.6.1).

Pure; the texts are not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

_MAX_TEXT = 16 << 10
_MAX_CHALLENGES = 8
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PART = re.compile(
    rf"""[ \t,]*(?:
        (?P<name>{_WORD})[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s,"]*))  # a parameter
      | (?P<scheme>{_WORD})(?:[ \t]+(?P<token>[A-Za-z0-9._~+/-]+=*)(?=[ \t]*(?:,|$)))?  # a scheme, maybe its token
    )""",
    re.VERBOSE,
)


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """One way to log in; ``scheme`` and the names of the parameters are lower case."""

    scheme: str
    parameters: Mapping[str, str]


def parse(headers: Iterable[str]) -> list[Challenge]:
    """Return the challenges of all ``WWW-Authenticate`` headers in their order.

    What cannot be understood ends that header; what came before it counts.
    """
    found: list[Challenge] = []
    for header in headers:
        position, text = 0, header[:_MAX_TEXT].rstrip(" \t,")
        parameters: dict[str, str] | None = None
        while position < len(text) and len(found) <= _MAX_CHALLENGES:
            match = _PART.match(text, position)
            if match is None or match.end() == position:
                break
            position = match.end()
            if match["scheme"]:
                parameters = {}
                found.append(Challenge(scheme=match["scheme"].lower(), parameters=parameters))
            elif parameters is None:
                break
            else:
                quoted = match["quoted"]
                value = match["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                # Of a parameter that is there twice the first counts.
                parameters.setdefault(match["name"].lower(), value)
    return found[:_MAX_CHALLENGES]


def usable(challenges: Iterable[Challenge]) -> list[Challenge]:
    """Return those podkeep can answer, the best first: a token gives less away than a password."""
    order = {"bearer": 0, "basic": 1}
    return sorted((item for item in challenges if item.scheme in order), key=lambda item: order[item.scheme])
