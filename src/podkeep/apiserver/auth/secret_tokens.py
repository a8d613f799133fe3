"""Tokens of service accounts that are kept in Secrets and do not end (``pkg/serviceaccount``: legacy).

Such a token is good while its Secret has it and its service account is there, both of which are looked up each time.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.apiserver.auth import jwt
from podkeep.apiserver.auth.jwt import InvalidToken, SigningKey
from podkeep.apiserver.auth.signed_tokens import SignedTokens, common_audiences
from podkeep.apiserver.auth.tokens import TokenUser
from podkeep.apiserver.auth.user import User, service_account_groups, service_account_name
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import metadata

ISSUER = "kubernetes/serviceaccount"
TOKEN_KEY = "token"
INVALID_SINCE = "kubernetes.io/legacy-token-invalid-since"
"""The label of a Secret whose token is not taken any more."""
_PREFIX = "kubernetes.io/serviceaccount/"
_INVALIDATED = "Token has been invalidated"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says."""

    iss: str
    namespace: str = msgspec.field(name=f"{_PREFIX}namespace")
    secret: str = msgspec.field(name=f"{_PREFIX}secret.name")
    account: str = msgspec.field(name=f"{_PREFIX}service-account.name")
    uid: str = msgspec.field(name=f"{_PREFIX}service-account.uid")
    sub: str


_claims = msgspec.json.Decoder(Claims).decode


class SecretTokens:
    """Makes tokens for Secrets and tells whose they are.

    :param audiences: of the API itself, which is all that they are for.
    :param signing: the key of all of them.
    """

    def __init__(self, audiences: Sequence[str], signing: SigningKey, lister: Lister) -> None:
        self._audiences = tuple(audiences)
        self._signing = signing
        self._signed = SignedTokens(ISSUER, _claims, {signing.public.identifier: signing.public})
        self._lister = lister

    def issue(self, account: Mapping[str, Any], secret: str) -> str:
        """Return a new token of a service account for the Secret of that name in its namespace."""
        fields = metadata(account)
        namespace, name = fields["namespace"], fields["name"]
        sub = service_account_name(namespace, name)
        claims = Claims(iss=ISSUER, namespace=namespace, secret=secret, account=name, uid=fields["uid"], sub=sub)
        return jwt.encode(claims, self._signing)

    def authenticate(self, token: str, audiences: Sequence[str] | None = None) -> TokenUser | None:
        """Return whose token it is, and for which of the audiences; None: it is no token of a Secret.

        :param audiences: what it may be for; None: the API itself.
        :raises InvalidToken: if it is one that is not good (any more).
        """
        claims = self._signed.verify(token)
        if claims is None:
            return None
        if claims.sub != (name := service_account_name(claims.namespace, claims.account)):
            raise InvalidToken("sub claim is invalid")
        common = common_audiences(self._audiences, self._audiences, audiences)
        self._require_kept(claims, token)
        self._require_account(claims)
        groups = service_account_groups(claims.namespace)
        return TokenUser(User(name=name, uid=claims.uid, groups=groups), common)

    def _require_kept(self, claims: Claims, token: str) -> None:
        """Require that the Secret has the token, so that it ends with it.

        :raises InvalidToken: if it does not.
        """
        secret = self._lister.get("secrets", claims.namespace, claims.secret)
        if secret is None or "deletionTimestamp" in metadata(secret):
            raise InvalidToken(_INVALIDATED)
        kept = base64.b64decode(secret.get("data", {}).get(TOKEN_KEY, ""))
        if not hmac.compare_digest(kept, token.encode("utf-8", "surrogateescape")):
            raise InvalidToken("Token does not match server's copy")
        if metadata(secret).get("labels", {}).get(INVALID_SINCE):
            place = f"{claims.namespace}/{claims.secret}"
            raise InvalidToken(
                f"the token in secret {place} for service account {claims.namespace}/{claims.account} has been marked"
                " invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the"
                f" '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
            )

    def _require_account(self, claims: Claims) -> None:
        account = self._lister.get("serviceaccounts", claims.namespace, claims.account)
        if account is None:
            raise InvalidToken(f'serviceaccounts "{claims.account}" not found')
        if "deletionTimestamp" in metadata(account):
            raise InvalidToken(f"ServiceAccount {claims.namespace}/{claims.account} has been deleted")
        if metadata(account)["uid"] != claims.uid:
            raise InvalidToken(f"ServiceAccount UID ({metadata(account)['uid']}) does not match claim ({claims.uid})")
