"""Tokens that an issuer has signed: their claims, if the signature is right, which is remembered for a while."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from podkeep.apiserver.auth import jwt
from podkeep.apiserver.auth.jwt import InvalidToken, VerificationKey

REMEMBERED_TOKENS = 1_000


class _Issuer(msgspec.Struct):
    iss: str = ""


_issuer = msgspec.json.Decoder(_Issuer).decode
ClaimsT = TypeVar("ClaimsT")


class SignedTokens(Generic[ClaimsT]):
    """The tokens of one issuer.

    :param decode: reads the claims; raises as a decoder of msgspec.
    :param keys: with which they may be signed, by identifier.
    """

    def __init__(self, issuer: str, decode: Callable[[bytes], ClaimsT], keys: Mapping[str, VerificationKey]) -> None:
        self._issuer, self._decode, self._keys = issuer, decode, keys
        self._verified: dict[bytes, ClaimsT] = {}

    def verify(self, token: str) -> ClaimsT | None:
        """Return the claims of a token whose signature is right; None: it is no token of this issuer.

        :raises InvalidToken: if it is one, and is malformed or not signed with one of the keys.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        if (known := self._verified.get(digest)) is not None:
            return known
        parts = jwt.split(token)
        if parts is None or not self._is_ours(parts[1]):
            return None
        try:
            claims = self._decode(jwt.verify(token, self._keys))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InvalidToken("the token's claims are malformed") from None
        # Only tokens with a right signature get here: a client without one cannot push out other clients' tokens.
        if len(self._verified) >= REMEMBERED_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = claims
        return claims

    def _is_ours(self, payload: bytes) -> bool:
        """Tell whether a payload, which is not verified, names the issuer: other tokens are for others to judge."""
        try:
            return _issuer(payload).iss == self._issuer
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False


def common_audiences(given: Sequence[str], own: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the audiences of a token that are wanted.

    :param given: what the token is for.
    :param own: the API's, which are wanted if ``wanted`` is None.
    :raises InvalidToken: if there are none.
    """
    targets = tuple(own) if wanted is None else tuple(wanted)
    common = tuple(audience for audience in given if audience in targets)
    if not common:
        raise InvalidToken(f"token audiences {_listed(given)} is invalid for the target audiences {_listed(targets)}")
    return common


def _listed(texts: Sequence[str]) -> str:
    """Return audiences as messages list them."""
    return "[" + " ".join(f'"{text[:200]}"' for text in texts[:10]) + "]"
