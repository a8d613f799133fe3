"""Who may reach the API: its authorities and tokens, and what decides who may do what."""

from __future__ import annotations

import logging
from pathlib import Path

from podkeep.apiserver.auth import default_policy
from podkeep.apiserver.auth.authenticators import BearerAuthenticator, everybody
from podkeep.apiserver.auth.interfaces import Authenticator, Authorizer
from podkeep.apiserver.auth.jwt import read_signing_key
from podkeep.apiserver.auth.node import NodeAuthorizer
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.secret_tokens import SecretTokens
from podkeep.apiserver.auth.service_account_tokens import ServiceAccountTokens
from podkeep.apiserver.auth.tokens import StaticTokens, read_static_tokens
from podkeep.apiserver.auth.union import AnyAuthorizer
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.server.masters import Masters
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct

log = logging.getLogger(__name__)

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Of service accounts' tokens, and the audience that means the API."""


class Access(FrozenStruct, kw_only=True):
    """Who asks, and whether they may."""

    authenticator: Authenticator
    authorizer: Authorizer
    rbac: Rbac
    bearer: BearerAuthenticator
    tokens: ServiceAccountTokens
    secret_tokens: SecretTokens

    @staticmethod
    def of(lister: StoreLister, accounts_key: bytes, token_file: str = "") -> Access:
        """Return what kube-apiserver has with ``--authorization-mode=Node,RBAC``.

        :param accounts_key: PEM of the key of service accounts' tokens.
        :param token_file: path of a file of bearer tokens; empty: there is none.
        :raises FailedPrecondition: if the key or the file cannot be used.
        """
        rbac = Rbac(lister)
        key = read_signing_key(accounts_key)
        tokens = ServiceAccountTokens(ISSUER, [ISSUER], key, lister)
        secret_tokens = SecretTokens([ISSUER], key, lister)
        static = [_static_tokens(token_file)] if token_file else []
        bearer = BearerAuthenticator([*static, tokens, secret_tokens])
        return Access(
            authenticator=everybody(bearer, anonymous=True),
            authorizer=AnyAuthorizer([Masters(), NodeAuthorizer(lister, default_policy.node_rules()), rbac]),
            rbac=rbac,
            bearer=bearer,
            tokens=tokens,
            secret_tokens=secret_tokens,
        )


def _static_tokens(path: str) -> StaticTokens:
    try:
        users, warnings = read_static_tokens(Path(path).read_text(), path)
    except (OSError, ValueError, InvalidArgument) as error:
        raise FailedPrecondition(f"api.token_auth_file: {path} cannot be used: {error}") from error
    for warning in warnings:
        log.warning("%s", warning)
    return StaticTokens(users, [ISSUER])
