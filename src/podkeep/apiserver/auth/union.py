"""Several authenticators or authorizers as one: asked in order, until one has an opinion."""

from __future__ import annotations

from collections.abc import Sequence

from podkeep.apiserver.auth.interfaces import Authenticator, Authorizer, Decision, RequestAttributes
from podkeep.apiserver.auth.user import User
from podkeep.http.messages import Request


class AnyAuthenticator:
    """The first authenticator that knows the credentials of a request decides."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    def authenticate(self, request: Request) -> User | None:
        """Return who asks; None: nobody knows the credentials, or there are none.

        :raises StatusError: 401, as soon as one finds credentials that are wrong.
        """
        for authenticator in self._authenticators:
            if user := authenticator.authenticate(request):
                return user
        return None


class AnyAuthorizer:
    """The first authorizer that allows or denies decides; what none has an opinion on is denied."""

    def __init__(self, authorizers: Sequence[Authorizer]) -> None:
        self._authorizers = tuple(authorizers)

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        """Decide; a refusal has the reasons of all that were asked, one on each line."""
        reasons = []
        for authorizer in self._authorizers:
            decision = authorizer.authorize(user, attributes)
            if decision.allowed or decision.denied:
                return decision
            if decision.reason:
                reasons.append(decision.reason)
        return Decision(allowed=False, reason="\n".join(reasons))
