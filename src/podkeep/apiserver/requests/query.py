"""A request's query, its values converted as upstream does (apimachinery: ``conversion/queryparams``)."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from podkeep.apiserver.meta.status import StatusError, bad_request

MAX_PARAMETERS = 1_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


class Query:
    """The parameters of a query; of one that is given several times the first counts, unless a list is asked for."""

    def __init__(self, text: str) -> None:
        """Parse a query string.

        :raises StatusError: 400, if it has more than ``MAX_PARAMETERS``.
        """
        try:
            self._values = (
                parse_qs(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="replace") if text else {}
            )
        except ValueError as error:
            raise bad_request(f"the query cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def texts(self, name: str) -> list[str]:
        """Return every value of a parameter."""
        return self._values.get(name, [])

    def text(self, name: str) -> str:
        """Return a parameter; empty if it is not given."""
        return self._values.get(name, [""])[0]

    def boolean(self, name: str) -> bool | None:
        """Return a parameter as a boolean; given without a value it is true. None: it is not given."""
        # Anything else is true, as in kube-apiserver (Convert_Slice_string_To_bool).
        return None if name not in self._values else self._values[name][0].lower() not in ("false", "0")

    def integer(self, name: str) -> int | None:
        """Return a parameter as a 64-bit integer; None: it is not given.

        :raises StatusError: 400, if it is not one.
        """
        if name not in self._values:
            return None
        text = self._values[name][0]
        number = int(text) if _INTEGER.fullmatch(text) else None
        if number is None or not -(1 << 63) <= number < 1 << 63:
            why = "invalid syntax" if number is None else "value out of range"
            raise _not_a_number(text, why)
        return number


def _not_a_number(text: str, why: str) -> StatusError:
    return bad_request(f'strconv.ParseInt: parsing "{text[:80]}": {why}')
