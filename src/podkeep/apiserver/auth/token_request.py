"""``TokenRequest``, the subresource ``token`` of a service account: what a token may be bound to, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.auth import jwt
from podkeep.apiserver.auth.service_account_tokens import Binding, Ref, ServiceAccountTokens
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import StatusError, bad_request, conflict, invalid, not_found
from podkeep.base.text import rfc3339

GROUP = "authentication.k8s.io"
DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 1 << 32
WARN_SECONDS = 3607
"""What admission asks for when it mounts a token into a pod: programs that never read it again still work with it for
a year, as with kube-apiserver, as long as the pod is there."""
EXTENDED_SECONDS = 365 * 24 * 3600


def request_token(
    value: Object,
    account: tuple[str, str],
    lister: Lister,
    tokens: ServiceAccountTokens,
    *,
    now: datetime,
) -> Object:
    """Return a ``TokenRequest`` with a new token in its status.

    :param value: as admission left it, which is asked before anything is filled in (NodeRestriction looks at which
        audiences a node asked for); changed.
    :param account: namespace and name of the service account.
    :raises StatusError: 400, 403, 404, 409 or 422.
    """
    namespace, name = account
    found = lister.get("serviceaccounts", namespace, name)
    fields = value.setdefault("metadata", {})
    errors = FieldErrors()
    for key, given in (("name", name), ("namespace", namespace)):
        if fields.get(key, given) != given:
            errors.invalid(f"metadata.{key}", fields[key], f"must match the service account {key} if specified")
            raise invalid("TokenRequest", GROUP, name, errors.found)
    if found is None:
        raise not_found("serviceaccounts", "", name)
    uid = metadata(found)["uid"]
    if fields.get("uid", uid) != uid:
        why = (
            f"the UID in the token request ({fields['uid'][:80]}) does not match the UID of the service account ({uid})"
        )
        raise conflict("TokenRequest", GROUP, name, why)
    spec = value.setdefault("spec", {})
    spec["audiences"] = spec.get("audiences") or list(tokens.audiences)
    seconds = spec.setdefault("expirationSeconds", DEFAULT_SECONDS)
    now = now.astimezone(UTC).replace(microsecond=0)
    fields |= {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": rfc3339.of(now)}
    value.pop("status", None)
    _validate(seconds, errors)
    if errors.found:
        raise invalid("TokenRequest", GROUP, "", errors.found)
    binding = _binding(found, spec.get("boundObjectRef"), lister)
    lasts, warn = seconds, 0
    # Only tokens that are bound to a pod and whose audiences are the API server's are extended.
    if seconds == WARN_SECONDS and binding.pod is not None and set(spec["audiences"]) <= set(tokens.audiences):
        lasts, warn = EXTENDED_SECONDS, seconds
    token = tokens.issue(binding, spec["audiences"], lasts, warn)
    if len(token) > jwt.MAX_CHARACTERS:
        raise bad_request(f"the token would be longer than {jwt.MAX_CHARACTERS} characters: name fewer audiences")
    value["status"] = {
        "token": token,
        "expirationTimestamp": rfc3339.of(now + timedelta(seconds=seconds)),
    }
    return value


def _validate(seconds: int, errors: FieldErrors) -> None:
    path = "spec.expirationSeconds"
    if seconds < MIN_SECONDS:
        errors.invalid(path, seconds, "may not specify a duration less than 10 minutes")
    if seconds > MAX_SECONDS:
        errors.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")


def _binding(account: Mapping[str, Any], ref: Mapping[str, Any] | None, lister: Lister) -> Binding:
    """Return what a token is made for, by ``spec.boundObjectRef``.

    :raises StatusError: 400, 404 or 409.
    """
    if ref is None:
        return Binding(account=account)
    version, kind, name = ref.get("apiVersion", ""), ref.get("kind", ""), ref.get("name", "")
    resource = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}.get(kind)
    if "/" in version or resource is None:
        group, _, plain = version.rpartition("/")
        raise bad_request(f"cannot bind token to object of type {group}/{plain}, Kind={kind}")
    found = lister.get(resource, "" if kind == "Node" else metadata(account)["namespace"], name)
    if found is None:
        raise not_found(resource, "", name)
    own = metadata(account)["name"]
    if kind == "Pod" and found.get("spec", {}).get("serviceAccountName", "") != own:
        raise bad_request(
            f'cannot bind token for serviceaccount "{own}" to pod running with different serviceaccount name.'
        )
    uid = metadata(found)["uid"]
    if ref.get("uid", uid) != uid:
        raise _other(kind, name, ref["uid"])
    if kind == "Node":
        return Binding(account=account, node=Ref(name, uid))
    if kind == "Secret":
        return Binding(account=account, secret=found)
    return Binding(account=account, pod=found, node=_node(found.get("spec", {}).get("nodeName", ""), lister))


def _other(kind: str, name: str, uid: str) -> StatusError:
    why = (
        f"the UID in the bound object reference ({uid[:80]}) does not match the UID in record. The object might have"
        " been deleted and then recreated"
    )
    return conflict(kind, "", name, why)


def _node(name: str, lister: Lister) -> Ref | None:
    """Return the node that a pod is on; without UID, if there is no such object."""
    if not name:
        return None
    found = lister.get("nodes", "", name)
    return Ref(name, metadata(found)["uid"] if found else "")
