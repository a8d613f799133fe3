"""Errors about fields: a path into an object, and what is wrong there, in Kubernetes' style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import printable, quote


class FieldError(FrozenStruct, kw_only=True, order=True):
    """One wrong field: ``spec.containers[0].image`` and what is wrong with it."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


MAX_ERRORS = 10_000
"""So many wrong fields of an object are told; one of the largest that is taken could have a million."""
MAX_CHARACTERS = 1 << 20
"""So much is told of them: some texts have a large value whole, and the object may have it several times."""


def first_of(texts: Iterable[str]) -> list[str]:
    """Return texts in their order, none of them after :data:`MAX_CHARACTERS`; no more are made than that.

    Those of an object that name places may each have the same long name in them.
    """
    found: list[str] = []
    characters = 0
    for text in texts:
        found.append(text)
        characters += len(text)
        if characters >= MAX_CHARACTERS:
            break
    return found


class FieldErrors:
    """Collects field errors in the order in which they are found, the first :data:`MAX_ERRORS` of them, and none after
    :data:`MAX_CHARACTERS`.

    :param tolerant: fields that are not known are no errors, as in an object of an API server that knows more.
    """

    def __init__(self, *, tolerant: bool = False) -> None:
        self.found: list[FieldError] = []
        self.tolerant = tolerant
        self._characters = 0

    def add(self, path: str, problem: str) -> None:
        """Note that the field at ``path`` is wrong.

        Both may quote the object: what is not printable, such as a new line, is escaped.
        """
        if len(self.found) < MAX_ERRORS and self._characters < MAX_CHARACTERS:
            error = FieldError(path=printable(path), problem=printable(problem))
            self._characters += len(error.path) + len(error.problem)
            self.found.append(error)

    def required(self, path: str, value: object) -> bool:
        """Note an empty required field; return whether it is there."""
        if not value:
            self.add(path, "Required value")
        return bool(value)

    def invalid(self, path: str, value: object, why: str) -> None:
        """Note a value of the right type that is wrong; what is no text is shown as JSON."""
        self.add(path, f"Invalid value: {_shown(value)}: {why}")

    def unsupported(self, path: str, value: object, supported: Sequence[str]) -> None:
        """Note a value that is none of the known ones, which are named in their alphabetical order."""
        known = ", ".join(map(quote, sorted(supported)))
        self.add(path, f"Unsupported value: {_shown(value)}: supported values: {known}")

    def duplicate(self, path: str, value: object) -> None:
        """Note a value that must be unique and is not."""
        self.add(path, f"Duplicate value: {_shown(value)}")

    def forbidden(self, path: str, why: str) -> None:
        """Note a field that must not be set here."""
        self.add(path, f"Forbidden: {why}")

    def not_found(self, path: str, value: str) -> None:
        """Note a reference to something that is not there."""
        self.add(path, f"Not found: {quote(value)}")


def _shown(value: object) -> str:
    return quote(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
