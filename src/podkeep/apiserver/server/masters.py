"""Administrators may do everything, whatever roles there are (kube-apiserver: ``NewPrivilegedGroups``)."""

from __future__ import annotations

from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.user import MASTERS, User


class Masters:
    """Allows the group ``system:masters`` everything; has no opinion on others."""

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        return Decision(MASTERS in user.groups)
