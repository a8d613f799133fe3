"""Who may reach the API: its authorities and tokens, and what decides who may do what."""

from __future__ import annotations

from dataclasses import dataclass

from podkeep.apiserver.auth import default_policy
from podkeep.apiserver.auth.authenticators import BearerAuthenticator, everybody
from podkeep.apiserver.auth.interfaces import Authenticator, Authorizer
from podkeep.apiserver.auth.jwt import read_signing_key
from podkeep.apiserver.auth.node import NodeAuthorizer
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.service_account_tokens import ServiceAccountTokens
from podkeep.apiserver.auth.union import AnyAuthorizer
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.server.masters import Masters

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Of service accounts' tokens, and the audience that means the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who asks, and whether they may."""

    authenticator: Authenticator
    authorizer: Authorizer
    rbac: Rbac
    bearer: BearerAuthenticator
    tokens: ServiceAccountTokens

    @staticmethod
    def of(lister: StoreLister, accounts_key: bytes) -> Access:
        """Return what kube-apiserver has with ``--authorization-mode=Node,RBAC``.

        :param accounts_key: PEM of the key of service accounts' tokens.
        :raises FailedPrecondition: if that is not one.
        """
        rbac = Rbac(lister)
        tokens = ServiceAccountTokens(ISSUER, [ISSUER], read_signing_key(accounts_key), lister)
        bearer = BearerAuthenticator([tokens])
        return Access(
            authenticator=everybody(bearer, anonymous=True),
            authorizer=AnyAuthorizer([Masters(), NodeAuthorizer(lister, default_policy.node_rules()), rbac]),
            rbac=rbac,
            bearer=bearer,
            tokens=tokens,
        )
