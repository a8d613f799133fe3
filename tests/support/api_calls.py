"""The API's handler over a real store, called without a connection in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from podkeep.apiserver.admission.attributes import AdmitAll
from podkeep.apiserver.auth import default_policy
from podkeep.apiserver.auth.authenticators import BearerAuthenticator, everybody
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.union import AnyAuthorizer
from podkeep.apiserver.discovery.catalog import Catalog
from podkeep.apiserver.discovery.groups import Discovery
from podkeep.apiserver.discovery.openapi import OpenApi
from podkeep.apiserver.endpoints.handler import Handler, Parts
from podkeep.apiserver.endpoints.kubelets import Kubelets
from podkeep.apiserver.endpoints.metrics import Metrics
from podkeep.apiserver.endpoints.relay import Relay
from podkeep.apiserver.endpoints.resources import Resources
from podkeep.apiserver.endpoints.reviews import Reviews
from podkeep.apiserver.endpoints.subresources import Subresources
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.registry.registry import Registry
from podkeep.apiserver.requests.limits import InFlight
from podkeep.apiserver.server import backup, bootstrap
from podkeep.apiserver.server.masters import Masters
from podkeep.apiserver.storage.store import Store
from podkeep.http.budget import Account, Pool
from podkeep.http.messages import Body, Credentials, Peer, Request, Response, WriteNow

ROOT = Peer(credentials=Credentials(pid=1, uid=0, gid=0))
STRANGER = Peer(address="192.0.2.1")
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    """What came back; ``lines`` are a stream's that goes on."""

    status: int
    headers: Mapping[str, list[str]]
    body: bytes
    lines: AsyncGenerator[bytes, None] | None = None
    at_end: ExitStack | None = None

    @property
    def value(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Of a Status."""
        text: str = self.value["message"]
        return text

    @property
    def warnings(self) -> list[str]:
        """Texts of warnings."""
        return [text.removeprefix('299 - "').removesuffix('"') for text in self.headers.get("Warning", [])]

    async def events(self, count: int) -> list[dict[str, Any]]:
        """Return the next events of a watch."""
        assert self.lines is not None
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(20):
            while len(found) < count:
                found += [json.loads(line) for line in (await anext(self.lines)).splitlines()]
        return found

    async def rest(self) -> bytes:
        """Return everything up to the end of a stream."""
        assert self.lines is not None
        async with asyncio.timeout(20):
            return b"".join([piece async for piece in self.lines])

    async def leave(self) -> None:
        """Go, as a client that closes its connection."""
        if self.lines is not None:
            await self.lines.aclose()
        if self.at_end is not None:
            self.at_end.close()


class Api:
    """A server without sockets; nobody but root may do anything, unless ``roles`` are made. A context manager."""

    def __init__(self, directory: Path, *, limits: InFlight | None = None) -> None:
        self.store = Store(directory / "api.db")
        lister = StoreLister(self.store)
        self.registry = Registry(self.store, AdmitAll())
        self.resources = Resources(self.store, self.registry)
        served = Served()
        catalog = Catalog(served)
        rbac, bearer = Rbac(lister), BearerAuthenticator([])
        authorizer = AnyAuthorizer([Masters(), rbac])
        self.in_flight = limits or InFlight()
        self.metrics = Metrics(lambda: (0, 0), lambda: 0, dict)
        subresources = Subresources(self.resources, self.registry, lister, served)
        relay = Relay(lister, Kubelets(lister, *[directory / "no-kubelet"] * 3))
        self._lister = lister
        self.write_now: WriteNow = lambda _: False
        """What watches write with while nobody asks them for more."""
        self.handler = Handler(
            Parts(
                catalog=catalog,
                resources=self.resources,
                authenticator=everybody(bearer, anonymous=True),
                authorizer=authorizer,
                discovery=Discovery(catalog, "127.0.0.1:6443"),
                openapi=OpenApi(catalog),
                metrics=self.metrics,
                in_flight=self.in_flight,
                answers=subresources.answers() | Reviews(authorizer, rbac, bearer).answers() | relay.answers(),
                downloads={backup.PATH: partial(backup.stream, self.store, directory)},
            )
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.resources.watches.close()
        await self.store.close()

    async def make_roles(self) -> None:
        """Make the default roles and namespaces."""
        await bootstrap.make_namespaces(self.registry)
        await bootstrap.make_roles(self.registry, self._lister)
        assert default_policy.node_rules()

    async def call(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        accept: str = "application/json",
        content_type: str = "application/json",
        peer: Peer = ROOT,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; a body that is no bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        pieces = [data] if data else []

        async def receive() -> bytes:
            return pieces.pop() if pieces else b""

        given = {"accept": accept, "content-type": content_type, "user-agent": "test/1.0", **(headers or {})}
        at_end = ExitStack()
        request = Request(
            method=method,
            target=target,
            headers={name: [text] for name, text in given.items()},
            body=Body(receive, len(data), Account(Pool()), 5.0),
            peer=peer,
            stopping=asyncio.Event(),
            at_end=at_end,
            admit=lambda owner="": None,
            write_now=self.write_now,
        )
        answer = await self.handler(request)
        assert isinstance(answer, Response)
        kept: dict[str, list[str]] = {}
        for name, text in answer.headers:
            kept.setdefault(name, []).append(text)
        if isinstance(answer.body, bytes):
            at_end.close()
            return Answer(answer.status, kept, answer.body)
        return Answer(answer.status, kept, b"", answer.body, at_end)


def run(directory: Path, test: Callable[[Api], Awaitable[None]], limits: InFlight | None = None) -> None:
    """Run a test with an API whose database is in a directory."""

    async def running() -> None:
        async with Api(directory, limits=limits) as api:
            await test(api)

    asyncio.run(running())
