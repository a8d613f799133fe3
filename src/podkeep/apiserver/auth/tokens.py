"""Bearer tokens: the interface of what knows their users, and the tokens that a file lists."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from podkeep.apiserver.auth.user import User
from podkeep.base.errors import InvalidArgument


class TokenUser(NamedTuple):
    """Whose a token is, and for which of the audiences that were asked for."""

    user: User
    audiences: tuple[str, ...]


class Tokens(Protocol):
    """Tells whose a token is."""

    def authenticate(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser | None:
        """Return whose token it is; None: it is not one of these.

        :param audiences: what it may be for; None: the API itself.
        :raises InvalidToken: if it is one, and not good.
        """
        ...


class StaticTokens:
    """Tokens of a file, which are good for the API itself.

    :param users: by the SHA-256 digest of the token: comparing digests tells nobody how much of a guess was right.
    """

    def __init__(self, users: Mapping[bytes, User], audiences: Sequence[str]) -> None:
        self._users = dict(users)
        self._audiences = tuple(audiences)

    def authenticate(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser | None:
        """Return whose token it is; None: the file does not have it, or it is not for these audiences."""
        wanted = self._audiences if audiences is None else audiences
        common = tuple(audience for audience in self._audiences if audience in wanted)
        user = self._users.get(_digest(token))
        return TokenUser(user, common) if user is not None and common else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_static_tokens(text: str, path: str) -> tuple[dict[bytes, User], list[str]]:
    """Return the users of a token file by the digests of their tokens, and what an administrator should know of it.

    :param text: CSV with the columns token, user name, user UID and, if there are any, groups separated by commas.
    :param path: what messages call the file.
    :raises InvalidArgument: if a line has fewer than three columns, or it is no CSV.
    """
    users: dict[bytes, User] = {}
    warnings = []
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=False) if row]
    except csv.Error as error:
        raise InvalidArgument(f"token file '{path}': {error}") from None
    for number, (token, *columns) in enumerate(rows, 1):
        if len(columns) < 2:
            raise InvalidArgument(
                f"token file '{path}' must have at least 3 columns (token, user name, user uid), found"
                f" {len(columns) + 1}"
            )
        if not token:
            warnings.append(f"empty token has been found in token file '{path}', record number '{number}'")
            continue
        if _digest(token) in users:
            warnings.append(f"duplicate token has been found in token file '{path}', record number '{number}'")
        groups = tuple(columns[2].split(",")) if len(columns) > 2 else ()
        users[_digest(token)] = User(name=columns[0], uid=columns[1], groups=groups)
    return users, warnings
