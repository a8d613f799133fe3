"""One request while it is answered, and answers in the forms that it takes."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from podkeep.apiserver.auth.interfaces import Authorizer, Decision, RequestAttributes
from podkeep.apiserver.auth.refusals import forbidden
from podkeep.apiserver.auth.user import NOBODY, User, share_of
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.requests import bodies, media_types
from podkeep.apiserver.requests.limits import NoRoom, Room
from podkeep.apiserver.requests.media_types import JSON, PLAIN, Form
from podkeep.apiserver.requests.output import written
from podkeep.apiserver.requests.query import Query
from podkeep.apiserver.requests.request_info import RequestInfo
from podkeep.base.concurrency.turns import Turns
from podkeep.http.messages import Request, Response

MAX_WARNING_BYTES = 4 << 10
"""Of all warnings of an answer together (apiserver: ``warning``)."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(slots=True, kw_only=True)
class Call:
    """A request, what it asks for, who asks, and the warnings of its answer."""

    request: Request
    query: Query
    info: RequestInfo
    user: User = NOBODY
    impersonator: User | None = None
    """Who asks as ``user``; None: that is who asks."""
    warnings: list[str] = field(default_factory=list)
    audit_id: str = ""
    room: Room = field(default_factory=Room)
    """For what is kept of its answer."""
    received: int = 0
    """Bytes of its body, once that was read."""
    turns: Turns | None = None
    """Of those who send large bodies, or have large objects read; None: it waits for nobody."""
    authorizer: Authorizer | None = None
    """Asked about what a request turns out to do beyond its verb; None: nobody may do that."""

    def require_creation(self, name: str) -> None:
        """Require that who asks may create the object that an update or a patch found missing (``withAuthorization``).

        :raises StatusError: 403.
        """
        self.require(structs.replace(self.info, verb="create", name=name))

    def require(self, attributes: RequestAttributes) -> None:
        """Require that who asks may do something.

        :raises StatusError: 403.
        """
        decision = self.authorizer.authorize(self.user, attributes) if self.authorizer else Decision(allowed=False)
        if not decision.allowed:
            raise forbidden(self.user, attributes, decision.reason)

    def header(self, name: str) -> str:
        """Return a header, all its lines as one; empty if it is not there. ``name`` is in lower case."""
        return ", ".join(self.request.headers.get(name, ()))

    def form(self, *, transforms: bool = True) -> Form:
        """Return the form of the answer.

        :raises StatusError: 406, if the client takes none that is served.
        """
        pretty = media_types.wants_pretty(self.query.text("pretty"), self.header("user-agent"))
        return media_types.negotiate(self.header("accept"), pretty=pretty, transforms=transforms)

    async def body(self, accepted: tuple[str, ...] = media_types.READ) -> tuple[bytes, str]:
        """Return the body and its media type.

        :raises StatusError: 413 or 415; NoRoom: if it is large, and there is none for it, or for what its answer may
            have of it.
        """
        media_type = media_types.of_body(self.header("content-type"), accepted)
        announced = self.request.body.length
        # Before anything of it comes: a client takes its time, and bodies of all users together have a bound.
        with self.room.taken(bodies.MAX_BYTES if announced is None else min(announced, bodies.MAX_BYTES)):
            data = await bodies.read(self.request)
        self.received = len(data)
        self.take_room(len(data))
        # It is read, and what it asks for computed, before the loop looks at the next one.
        await self.turn(len(data))
        return data, media_type

    async def turn(self, size: int) -> None:
        """Wait for the turn of reading so many bytes of JSON; it lasts until the caller waits for something else."""
        if self.turns is not None:
            await self.turns.wait(share_of(self.user), size)

    def take_room(self, size: int) -> None:
        """Keep so many bytes for this request until its client has the answer.

        :raises NoRoom: if there is none for them.
        """
        self.request.at_end.enter_context(self.room.taken(size))

    def answer(self, value: bytes | Mapping[str, Any], *, status: int = 200, form: Form | None = None) -> Response:
        """Return an answer with an object, and the warnings that there are so far."""
        form = form or self.form(transforms=False)
        body = written(value, form)
        if body is not value:
            self.take_room(len(body))
        return self.respond(body, status=status, content_type=form.content_type)

    def respond(
        self, body: bytes | AsyncGenerator[bytes, None], *, status: int = 200, content_type: str = JSON
    ) -> Response:
        """Return an answer whose body is made already, or while it is sent."""
        headers = [("Content-Type", content_type), ("Cache-Control", "no-cache, private"), ("Audit-Id", self.audit_id)]
        return Response(status=status, headers=[*headers, *warning_headers(self.warnings)], body=body)

    def refusal(self, error: StatusError) -> Response:
        form = PLAIN if error.code == 406 else media_types.refusal_form(self.header("accept"))
        if form.as_:
            form = PLAIN
        body = written(error.status(), form)
        try:
            # It may show what was sent, several times, to a client that does not take it.
            self.take_room(len(body))
        except NoRoom as full:
            return self.refusal(full)
        answer = self.respond(body, status=error.code, content_type=form.content_type)
        seconds = error.details.get("retryAfterSeconds")
        extra = [("Retry-After", str(seconds))] if seconds else []
        return Response(status=answer.status, headers=[*answer.headers, *extra], body=answer.body)


def warning_headers(warnings: list[str]) -> list[tuple[str, str]]:
    """Return warnings as headers (RFC 7234, section 5.5), each once and no more than clients take."""
    headers = []
    left = MAX_WARNING_BYTES
    for text in dict.fromkeys(warnings):
        plain = _UNPRINTABLE.sub(" ", text).encode("ascii", errors="replace").decode()
        left -= len(plain)
        if left < 0:
            break
        quoted = plain.replace("\\", "\\\\").replace('"', '\\"')
        headers.append(("Warning", f'299 - "{quoted}"'))
    return headers
