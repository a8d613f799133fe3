"""Who asks: certificates, tokens, the unix socket's peer, and acting as somebody else."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from podkeep.apiserver.auth.authenticators import BearerAuthenticator, everybody
from podkeep.apiserver.auth.impersonation import impersonate
from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.tokens import StaticTokens, read_static_tokens
from podkeep.apiserver.auth.user import NOBODY, User, node_of, service_account_of
from podkeep.apiserver.meta.status import StatusError
from podkeep.http.budget import Account
from podkeep.http.messages import Body, Credentials, Peer, Request

BEARER = BearerAuthenticator([StaticTokens(read_static_tokens("good,ann,1,dev\n", "f")[0], ["api"])])
ALL = "system:authenticated"


async def _nothing() -> bytes:
    return b""


def request(peer: Peer | None = None, **headers: Any) -> Request:
    given = {name.replace("_", "-"): [value] if isinstance(value, str) else value for name, value in headers.items()}
    body = Body(_nothing, 0, Account(), 1.0)
    return Request(
        method="GET",
        target="/",
        headers=given,
        body=body,
        peer=peer or Peer(address="192.0.2.1"),
        stopping=asyncio.Event(),
        at_end=ExitStack(),
        admit=lambda owner="": None,
    )


def certificate(*fields: tuple[str, str]) -> Peer:
    return Peer(address="192.0.2.1", certificate={"subject": tuple((field,) for field in fields)}, fingerprint="a1")


def unix(uid: int) -> Peer:
    return Peer(credentials=Credentials(pid=1, uid=uid, gid=0))


CN, ORG = "commonName", "organizationName"
BY_CERTIFICATE = {"authentication.kubernetes.io/credential-id": ("X509SHA256=a1",)}


@pytest.mark.parametrize(
    ("asked", "user"),
    [
        (request(certificate((CN, "ann"))), User(name="ann", groups=(ALL,), extra=BY_CERTIFICATE)),
        (
            request(certificate((ORG, "dev"), (ORG, "system:masters"), (CN, "ann"))),
            User(name="ann", groups=("dev", "system:masters", ALL), extra=BY_CERTIFICATE),
        ),
        (request(certificate((CN, "a"), (CN, "b"))), User(name="b", groups=(ALL,), extra=BY_CERTIFICATE)),
        (request(certificate((CN, "ann"), (ORG, ALL))), User(name="ann", groups=(ALL,), extra=BY_CERTIFICATE)),
        (
            request(certificate((CN, "ann")), authorization="Bearer bad"),
            User(name="ann", groups=(ALL,), extra=BY_CERTIFICATE),
        ),
        (request(authorization="Bearer good"), User(name="ann", uid="1", groups=("dev", ALL))),
        (request(authorization="  bearer good and more"), User(name="ann", uid="1", groups=("dev", ALL))),
        (request(unix(0)), User(name="kubernetes-admin", groups=("system:masters", ALL))),
    ],
)
def test_who_asks(asked: Request, user: User) -> None:
    assert everybody(BEARER).authenticate(asked) == user


@pytest.mark.parametrize(
    ("asked", "anonymous"),
    [
        (request(), True),
        (request(unix(1000)), True),
        (request(certificate((ORG, "system:masters"))), True),
        (request(certificate((CN, ""), (ORG, "system:masters"))), True),
        (request(certificate()), True),
        (request(authorization="Basic good"), True),
        (request(authorization="Bearer"), True),
        (request(authorization="Bearer  good"), True),
        (request(authorization="good"), True),
        (request(authorization="Bearer bad"), False),
        (request(authorization="Bearer " + "x" * 60_000), False),
        (request(authorization=["Bearer good", "Bearer good"]), False),
        (request(unix(0), authorization="Bearer bad"), False),
    ],
)
def test_who_shows_nothing_is_nobody_if_at_all(asked: Request, anonymous: bool) -> None:
    """What is wrong is refused even where everybody may ask."""
    with pytest.raises(StatusError) as caught:
        everybody(BEARER).authenticate(asked)
    assert (caught.value.code, caught.value.message) == (401, "Unauthorized")
    if anonymous:
        assert everybody(BEARER, anonymous=True).authenticate(asked) == NOBODY
    else:
        with pytest.raises(StatusError):
            everybody(BEARER, anonymous=True).authenticate(asked)


class Listed:
    """Allows to impersonate what it lists: resource, namespace/name."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        assert attributes.verb == "impersonate"
        place = attributes.namespace + "/" if attributes.namespace else ""
        resource = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
        group = f"{attributes.group}:" if attributes.group else ""
        return Decision(f"{group}{resource} {place}{attributes.name}" in self.allowed or "*" in self.allowed, "why")


ME = User(name="me", groups=("admins", ALL))


@pytest.mark.parametrize(
    ("headers", "allowed", "user"),
    [
        ({}, "", ME),
        ({"impersonate_other": "x"}, "", ME),
        ({"impersonate_user": "ann"}, "users ann", User(name="ann", groups=(ALL,))),
        (
            {"impersonate_user": "ann", "impersonate_group": ["dev", "ops"]},
            "users ann|groups dev|groups ops",
            User(name="ann", groups=("dev", "ops", ALL)),
        ),
        (
            {"impersonate_user": "system:serviceaccount:ns:robot"},
            "serviceaccounts ns/robot",
            User(
                name="system:serviceaccount:ns:robot",
                groups=("system:serviceaccounts", "system:serviceaccounts:ns", ALL),
            ),
        ),
        (
            {"impersonate_user": "system:serviceaccount:ns:robot", "impersonate_group": "x"},
            "serviceaccounts ns/robot|groups x",
            User(name="system:serviceaccount:ns:robot", groups=("x", ALL)),
        ),
        (
            {"impersonate_user": "system:anonymous"},
            "users system:anonymous",
            User(name="system:anonymous", groups=("system:unauthenticated",)),
        ),
        (
            {"impersonate_user": "ann", "impersonate_group": "system:unauthenticated"},
            "users ann|groups system:unauthenticated",
            User(name="ann", groups=("system:unauthenticated",)),
        ),
        (
            {"impersonate_user": "ann", "impersonate_uid": "7", "impersonate_extra_scope%2fx": ["a", "b"]},
            "users ann|authentication.k8s.io:uids 7|authentication.k8s.io:userextras/scope/x a"
            "|authentication.k8s.io:userextras/scope/x b",
            User(name="ann", uid="7", groups=(ALL,), extra={"scope/x": ("a", "b")}),
        ),
        ({"impersonate_user": "J\xc3\xbcrgen"}, "users Jürgen", User(name="Jürgen", groups=(ALL,))),
    ],
)
def test_acting_as_somebody_else(headers: dict[str, Any], allowed: str, user: User) -> None:
    assert impersonate(ME, request(**headers), Listed(*allowed.split("|"))) == user


@pytest.mark.parametrize(
    ("headers", "allowed", "code", "message"),
    [
        (
            {"impersonate_group": "developers"},
            "*",
            400,
            "requested [{Group  developers    }] without impersonating a user",
        ),
        (
            {"impersonate_uid": "1", "impersonate_extra_a": "b"},
            "*",
            400,
            "requested [{UserExtra  b  authentication.k8s.io/v1  a} {UID  1  authentication.k8s.io/v1  }] without"
            " impersonating a user",
        ),
        (
            {"impersonate_user": "ann"},
            "",
            403,
            'users "ann" is forbidden: User "me" cannot impersonate resource "users" in API group "" at the cluster'
            " scope: why",
        ),
        (
            {"impersonate_user": "ann", "impersonate_group": "system:masters"},
            "users ann",
            403,
            'groups "system:masters" is forbidden: User "me" cannot impersonate resource "groups" in API group "" at'
            " the cluster scope: why",
        ),
        (
            {"impersonate_user": "system:serviceaccount:ns:robot"},
            "users system:serviceaccount:ns:robot",
            403,
            'serviceaccounts "robot" is forbidden: User "me" cannot impersonate resource "serviceaccounts" in API'
            ' group "" in the namespace "ns": why',
        ),
        ({"impersonate_user": "\xff"}, "*", 400, "a value to impersonate is not UTF-8 text"),
        (
            {"impersonate_user": "a", "impersonate_group": ["x"] * 1_000},
            "*",
            400,
            "more than 1000 values to impersonate",
        ),
    ],
)
def test_what_nobody_may_act_as(headers: dict[str, Any], allowed: str, code: int, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        impersonate(ME, request(**headers), Listed(*allowed.split("|")))
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("system:serviceaccount:ns:robot", ("ns", "robot")),
        ("system:serviceaccount:ns:robot.x", ("ns", "robot.x")),
        ("system:serviceaccount:ns:", None),
        ("system:serviceaccount::robot", None),
        ("system:serviceaccount:ns", None),
        ("system:serviceaccount:ns:a:b", None),
        ("system:serviceaccount:n.s:robot", None),
        ("ns:robot", None),
    ],
)
def test_names_of_service_accounts(name: str, account: tuple[str, str] | None) -> None:
    assert service_account_of(name) == account


@pytest.mark.parametrize(
    ("user", "node"),
    [
        (User(name="system:node:n1", groups=("system:nodes",)), "n1"),
        (User(name="system:node:", groups=("system:nodes",)), ""),
        (User(name="system:node:n1"), None),
        (User(name="n1", groups=("system:nodes",)), None),
    ],
)
def test_names_of_nodes(user: User, node: str | None) -> None:
    assert node_of(user) == node
