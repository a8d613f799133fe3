"""Who may ask the kubelet's endpoints for what, and how their paths are read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from podkeep.agent.metrics import AgentMetrics
from podkeep.agent.server import paths
from podkeep.agent.server.authentication import NOBODY, Authenticator, Unauthorized, User, certified, reviewed
from podkeep.agent.server.authorization import Authorizer, Wanted, wanted
from podkeep.agent.server.endpoints import Endpoints
from podkeep.base.errors import Unavailable
from podkeep.http.budget import Account, Pool
from podkeep.http.messages import Body, Head, Peer, Refused, Request, Response

ANN = User(name="ann", groups=("dev", "system:authenticated"))
CERTIFICATE = {"subject": ((("organizationName", "dev"),), (("commonName", "ann"),))}


@pytest.mark.parametrize(
    ("method", "path", "verb", "subresources"),
    [
        ("GET", "/pods", "get", ("pods", "proxy")),
        ("GET", "/runningpods", "get", ("pods", "proxy")),
        ("GET", "/healthz/ping", "get", ("healthz", "proxy")),
        ("GET", "/configz", "get", ("configz", "proxy")),
        ("GET", "/podsandmore", "get", ("proxy",)),
        ("GET", "/stats/summary", "get", ("stats",)),
        ("GET", "/metrics", "get", ("metrics",)),
        ("GET", "/metrics/resource", "get", ("metrics",)),
        ("GET", "/logs/syslog", "get", ("log",)),
        ("POST", "/checkpoint/a/b/c", "create", ("checkpoint",)),
        ("GET", "/containerLogs/a/b/c", "get", ("proxy",)),
        ("POST", "/exec/a/b/c", "create", ("proxy",)),
        ("HEAD", "/exec/a/b/c", "", ("proxy",)),
        # WebSockets ask with GET, and reading is not running commands.
        ("GET", "/exec/a/b/c", "create", ("proxy",)),
        ("GET", "/exec", "create", ("proxy",)),
        ("GET", "/attach/a/b/c", "create", ("proxy",)),
        ("GET", "/portForward/a/b", "create", ("proxy",)),
        ("GET", "/run/a/b/c", "create", ("proxy",)),
        ("GET", "/runs/a/b/c", "get", ("proxy",)),
    ],
)
def test_what_a_request_needs(method: str, path: str, verb: str, subresources: tuple[str, ...]) -> None:
    assert wanted(method, path) == Wanted(verb=verb, subresources=subresources)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/", ()),
        ("/runningpods/", ("runningpods",)),
        ("/exec/ns/web/main?command=a%20b&command=", ("exec", "ns", "web", "main")),
        ("/exec/n%73/web", ("exec", "ns", "web")),
    ],
)
def test_paths(target: str, parts: tuple[str, ...]) -> None:
    assert paths.of_request(Head(method="GET", target=target)).parts == parts


@pytest.mark.parametrize(
    "target",
    [
        "//pods",
        "/pods/../exec",
        "/pods/%2e%2e/exec",
        "/a%2fb",
        "/a%00",
        "*",
        "/%ff",
        "/pods?%ff=1",
        "/p?" + "a&" * 20_000,
    ],
)
def test_paths_that_others_may_read_otherwise_are_refused(target: str) -> None:
    with pytest.raises(Refused) as refused:
        paths.of_request(Head(method="GET", target=target))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/containerLogs/a/b/c?follow=true", "a"),
        ("/exec/a/b/u/c", "a"),
        ("/portForward/%61/b", "a"),
        ("/pods", ""),
        ("/metrics/resource", ""),
        ("/exec", ""),
    ],
)
def test_for_whom_a_request_is(target: str, expected: str) -> None:
    """Namespaces share what the server has."""
    assert paths.of_request(Head(method="GET", target=target)).namespace == expected


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/metrics/resource", ("GET", "metrics/resource", "readwrite", "false")),
        ("POST", "/exec/a/b/c", ("POST", "exec", "readwrite", "true")),
        ("BREW", "/coffee", ("other", "other", "readwrite", "false")),
        ("GET", "/metrics/made/up", ("GET", "other", "readwrite", "false")),
    ],
)
def test_series_do_not_grow_with_what_strangers_ask(method: str, target: str, expected: tuple[str, ...]) -> None:
    assert paths.labels(method, paths.of_request(Head(method=method, target=target))) == expected


@pytest.mark.parametrize(
    ("certificate", "user"),
    [
        (CERTIFICATE, ANN),
        (None, None),
        ({"subject": ((("organizationName", "dev"),),)}, None),
        ({"subject": ((("commonName", ""),),)}, None),
    ],
)
def test_whose_certificate_it_is(certificate: Mapping[str, Any] | None, user: User | None) -> None:
    assert certified(certificate) == user


@pytest.mark.parametrize(
    ("status", "user"),
    [
        ({"authenticated": True, "user": {"username": "ann", "groups": ["dev"]}}, ANN),
        ({"authenticated": False, "user": {"username": "ann"}}, None),
        ({"authenticated": "true", "user": {"username": "ann"}}, None),
        ({"authenticated": True, "user": {}}, None),
        ({"authenticated": True}, None),
        ({}, None),
    ],
)
def test_whose_token_it_is(status: Mapping[str, Any], user: User | None) -> None:
    assert reviewed(status) == user


def request(*authorization: str, certificate: Mapping[str, Any] | None = None) -> Request:
    async def nothing() -> bytes:
        return b""

    return Request(
        method="GET",
        target="/pods",
        headers={"authorization": authorization} if authorization else {},
        body=Body(nothing, 0, Account(Pool()), 1.0),
        peer=Peer(certificate=certificate),
        stopping=asyncio.Event(),
        at_end=ExitStack(),
        admit=lambda owner="": None,
    )


class Reviews:
    """Knows the token ``good``, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def __call__(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("nobody answers")
        if "token" in spec:
            return {"authenticated": spec["token"] == "good", "user": {"username": "ann", "groups": ["dev"]}}
        return {"allowed": spec["resourceAttributes"]["subresource"] == "stats"}


def test_a_review_of_a_token_counts_for_a_while() -> None:
    async def scenario() -> None:
        reviews = Reviews()
        authenticator = Authenticator(reviews, ttl=60, anonymous=False)
        found = await asyncio.gather(*(authenticator.authenticate(request("Bearer good")) for _ in range(3)))
        assert found == [ANN] * 3
        again = await authenticator.authenticate(request("bearer  good"))
        assert again == ANN
        before = reviews.asked
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await authenticator.authenticate(request("Bearer bad"))
        assert reviews.asked == before + 1

    asyncio.run(scenario())


def test_a_certificate_needs_no_review() -> None:
    async def scenario() -> None:
        reviews = Reviews()
        authenticator = Authenticator(reviews, ttl=60, anonymous=False)
        assert await authenticator.authenticate(request("Bearer good", certificate=CERTIFICATE)) == ANN
        assert reviews.asked == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "authorization", [(), ("Basic YTpi",), ("Bearer",), ("Bearer good", "Bearer good"), ("Bearer " + "a" * 20_000,)]
)
def test_who_shows_nothing_good_is_refused(authorization: tuple[str, ...]) -> None:
    async def scenario() -> None:
        with pytest.raises(Unauthorized):
            await Authenticator(Reviews(), ttl=60, anonymous=False).authenticate(request(*authorization))

    asyncio.run(scenario())


def test_anonymous_clients_are_nobody_where_they_are_let_in_but_bad_tokens_are_bad() -> None:
    async def scenario() -> None:
        authenticator = Authenticator(Reviews(), ttl=60, anonymous=True)
        assert await authenticator.authenticate(request()) == NOBODY
        with pytest.raises(Unauthorized):
            await authenticator.authenticate(request("Bearer bad"))

    asyncio.run(scenario())


def test_an_api_that_does_not_answer_is_asked_again_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        reviews = Reviews()
        authenticator = Authenticator(reviews, ttl=60, anonymous=False)
        for number in range(2):
            reviews.away = True
            for _ in range(3):
                with pytest.raises(Unauthorized):
                    await authenticator.authenticate(request(f"Bearer new{number}"))
            reviews.away = False
            with pytest.raises(Unauthorized):
                await authenticator.authenticate(request(f"Bearer new{number}"))
        assert await authenticator.authenticate(request("Bearer good")) == ANN

    asyncio.run(scenario())
    assert caplog.messages == ["a token cannot be reviewed: nobody answers"] * 2


def test_who_is_refused_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        away: Any = None
        endpoints = Endpoints(
            client=away,
            pods=away,
            metrics=AgentMetrics(),
            collector=away,
            authenticator=Authenticator(None, ttl=60, anonymous=False),
            authorizer=away,
            configuration=dict,
        )
        answer = await endpoints.answer(request("Bearer bad"))
        assert isinstance(answer, Response)
        assert answer.status == 401

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    assert caplog.messages == []


def test_access_is_what_the_api_says_and_is_remembered() -> None:
    async def scenario() -> None:
        reviews = Reviews()
        authorizer = Authorizer("n1", "Webhook", reviews, allowed_ttl=60, denied_ttl=60)
        for _ in range(2):
            await authorizer.check(ANN, wanted("GET", "/stats/summary"))
        assert reviews.asked == 1
        for _ in range(2):
            with pytest.raises(Refused, match=r"Forbidden \(user=ann, verb=get,") as refused:
                await authorizer.check(ANN, wanted("GET", "/pods"))
            assert refused.value.status == 403
        assert reviews.asked == 3

    asyncio.run(scenario())


def test_without_an_answer_nobody_gets_in_and_nothing_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        reviews = Reviews()
        reviews.away = True
        authorizer = Authorizer("n1", "Webhook", reviews, allowed_ttl=60, denied_ttl=60)
        for _ in range(3):
            with pytest.raises(Refused) as refused:
                await authorizer.check(ANN, wanted("GET", "/stats/summary"))
            assert refused.value.status == 500
        assert caplog.messages == ["an access cannot be reviewed: nobody answers"]
        reviews.away = False
        await authorizer.check(ANN, wanted("GET", "/stats/summary"))
        with pytest.raises(Refused):
            await Authorizer("n1", "Webhook", None, allowed_ttl=60, denied_ttl=60).check(ANN, wanted("GET", "/stats/x"))
        await Authorizer("n1", "AlwaysAllow", None, allowed_ttl=60, denied_ttl=60).check(ANN, wanted("POST", "/exec/a"))

    asyncio.run(scenario())
