"""Texts for people without the secrets in them: credentials, tokens, and what opens the door in a URL.

Others choose words that we pass on: a registry quotes the token it refuses, a credential helper prints what it was
given, a redirect has a signature in its query. What a process knows as a secret (``remember``), and what has the form
of one, is left out where text leaves it: log lines, details of a gRPC status, errors on the terminal, a worker's error.
Nothing else has to think of it. Safe to use from any thread.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from urllib.parse import quote

HIDDEN = "[hidden]"
_GRAM = 8
"""Characters of a long secret that are recognized anywhere: a text that is cut off may have only a part of it."""
_LONG = 16
"""Characters of a secret from which on no part of it is a word of its own."""
_SHORTEST = 4
"""A shorter secret would be found in every other word."""
_MOST = 1 << 18
"""Characters of all secrets together; each takes a hundred bytes. Of an image with 500 layers the storage that they are
in signs as many URLs, with some 200 characters each."""
_WORD = re.compile(r"""[^\s'"<>]+""")
_FORMS = (
    # What is in an Authorization header, and a JSON web token.
    (
        re.compile(r"\b([Bb]asic|[Bb]earer) {1,4}(?=[^\s0-9=+/_.]{0,256}[0-9=+/_.])[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1 {HIDDEN}",
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*"), HIDDEN),
)
"""Each takes time in proportion to the text, whoever wrote that; so does the rest."""


class _Known:
    """What this process knows to be secret, taken apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._size = 0
        # Both only grow, in place: to add a secret copies that one alone.
        self.grams: set[str] = set()
        self.short: list[str] = []

    def add(self, text: str) -> None:
        with self._lock:
            # Beyond the limit a secret is not recognized: what is remembered takes bounded memory.
            if text in self._seen or self._size + len(text) > _MOST:
                return
            self._seen.add(text)
            self._size += len(text)
            if len(text) < _LONG:
                self.short.append(text)
            else:
                self.grams.update(text[start : start + _GRAM] for start in range(len(text) - _GRAM + 1))


_known = _Known()


def remember(*secrets: str) -> None:
    """Leave these texts, and any eight characters in a row of a long one, out of all that :func:`redacted` returns.

    For processes that end soon, or whose secrets stay the same: nothing is ever forgotten.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            for form in dict.fromkeys(_forms(secret)):
                _known.add(form)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it stands in URLs, headers, JSON, and in what Python quotes, with the marks it escapes."""
    data = secret.encode(errors="surrogatepass")
    yield from (secret, quote(data, safe=""), quote(data), data.decode("latin-1"), json.dumps(secret)[1:-1])
    yield from (repr(secret)[1:-1], repr(f"{secret}'\"")[1:-4], repr(data)[2:-1], repr(data + b"'\"")[2:-4])


def redacted(text: str) -> str:
    """Return ``text`` without what is, or looks like, a secret."""
    if "://" in text:
        text = _WORD.sub(lambda word: _url(word[0]), text)
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    for secret in _known.short:
        text = text.replace(secret, HIDDEN)
    grams = _known.grams
    if not grams or len(text) < _GRAM:
        return text
    pieces: list[str] = []
    shown = 0  # where what is not yet in pieces begins
    position = 0
    while position <= len(text) - _GRAM:
        if text[position : position + _GRAM] not in grams:
            position += 1
            continue
        end = position + _GRAM
        while end < len(text) and text[end - _GRAM + 1 : end + 1] in grams:
            end += 1
        pieces += (text[shown:position], HIDDEN)
        shown = position = end
    return "".join((*pieces, text[shown:]))


def _url(word: str) -> str:
    """Return a word, which may be one or more URLs, without users, passwords and queries."""
    start, *rest = word.split("://")
    parts = [start]
    for part in rest:
        length = min((at for at in map(part.find, "/?#") if at >= 0), default=len(part))
        before, at, _ = part[:length].rpartition("@")
        parts.append(f"{HIDDEN}{part[len(before) :]}" if at else part)
    address, mark, query = "://".join(parts).partition("?")
    return f"{address}?{HIDDEN}" if query and "://" in address else f"{address}{mark}{query}"
