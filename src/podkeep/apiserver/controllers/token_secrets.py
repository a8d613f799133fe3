"""Secrets of the type ``kubernetes.io/service-account-token`` get a token, and go with their service account.

After kube-controller-manager's serviceaccount-token-controller.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from podkeep.apiserver.auth.secret_tokens import TOKEN_KEY
from podkeep.apiserver.auth.user import AUTHENTICATED, User
from podkeep.apiserver.controllers.controller import Change, Delete, Item, Patch, Plan, Write, revised
from podkeep.apiserver.kinds.cluster.configuration import (
    ACCOUNT_NAME,
    ACCOUNT_UID,
    MAX_BYTES,
    SERVICE_ACCOUNT_TOKEN,
    decoded_size,
)
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.storage.records import Key

SECRETS = "secrets"
ACCOUNTS = "serviceaccounts"


class TokenSecrets:
    """The controller. It remembers which Secrets have tokens of which service accounts.

    :param root_ca: PEM of the certificate authority that the API is verified with.
    :param issue: returns a new token, given a service account and the name of the Secret that is to have it.
    """

    name = "serviceaccount-token-controller"
    # It has no role of its own: it is kube-controller-manager itself there.
    user = User(name="system:kube-controller-manager", groups=(AUTHENTICATED,))
    resources = frozenset({SECRETS, ACCOUNTS})

    def __init__(self, root_ca: str, issue: Callable[[Mapping[str, Any], str], str]) -> None:
        self._root_ca = _encoded(root_ca)
        self._issue = issue
        self._accounts: dict[Key, Key] = {}
        """By Secrets."""
        self._secrets: dict[Key, dict[Key, None]] = {}
        """By service accounts."""

    def observe(self, change: Change) -> Iterator[Item]:
        """Return a Secret that may lack something, or a service account that is gone."""
        if change.key.resource == ACCOUNTS:
            if change.is_deletion:
                yield change.key
            return
        account = "" if change.is_deletion else _account_of(change.value)
        self._remember(change.key, account)
        if account:
            yield change.key

    def _remember(self, secret: Key, account: str) -> None:
        if (before := self._accounts.pop(secret, None)) is not None:
            del self._secrets[before][secret]
            if not self._secrets[before]:
                del self._secrets[before]
        if account:
            key = self._accounts[secret] = Key(ACCOUNTS, secret.namespace, account)
            self._secrets.setdefault(key, {})[secret] = None

    def reconcile(self, item: Item, lister: Lister, _now: datetime) -> Plan:
        assert isinstance(item, Key)
        # One that is not remembered yet is looked at when its own change is told.
        keys = list(self._secrets.get(item, ())) if item.resource == ACCOUNTS else [item]
        found = (lister.get(*key) for key in keys)
        return Plan(writes=(write for secret in found if secret is not None for write in self._writes(secret, lister)))

    def _writes(self, secret: Mapping[str, Any], lister: Lister) -> Iterator[Write]:
        fields = secret["metadata"]
        name, namespace, uid = fields["name"], fields["namespace"], fields["uid"]
        wanted = _account_of(secret)
        if not wanted or "deletionTimestamp" in fields:
            return
        account = lister.get(ACCOUNTS, namespace, wanted)
        known = fields["annotations"].get(ACCOUNT_UID)
        if account is None or known not in (None, "", account["metadata"]["uid"]):
            yield Delete(resource=SECRETS, namespace=namespace, name=name, uid=uid)
            return
        data = secret.get("data", {})
        missing = {} if data.get("ca.crt") == self._root_ca else {"ca.crt": self._root_ca}
        if not data.get("namespace"):
            missing["namespace"] = _encoded(namespace)
        if not data.get(TOKEN_KEY):
            missing[TOKEN_KEY] = _encoded(self._issue(account, name))
        # What is immutable stays without, and what has no room for it: the API would refuse each attempt.
        fits = decoded_size((data | missing).values()) <= MAX_BYTES
        if missing and fits and not secret.get("immutable"):
            annotations = {ACCOUNT_NAME: wanted, ACCOUNT_UID: account["metadata"]["uid"]}
            patch = revised(secret, {"metadata": {"annotations": annotations}, "data": missing})
            yield Patch(resource=SECRETS, namespace=namespace, name=name, patch=patch)


def _account_of(secret: Mapping[str, Any]) -> str:
    """Return the service account of a Secret for its token; empty: it is for something else."""
    if secret.get("type") != SERVICE_ACCOUNT_TOKEN:
        return ""
    name: str = secret["metadata"].get("annotations", {}).get(ACCOUNT_NAME, "")
    return name


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
