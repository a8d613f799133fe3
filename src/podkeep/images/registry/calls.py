"""Single requests to a registry whose answers are small: status, headers and body as one value.

For what goes beyond pulling: listing referrers and pushing. How a request gets there, and who may see a token, is
``registry.py``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from podkeep.images.registry.client import Body
from podkeep.images.registry.registry import Registry

_MAX_BYTES = 1 << 16


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A registry's answer; names of ``headers`` are lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def media_type(self) -> str:
        """Type of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request. ``path`` is below ``/v2/<repository>/``, or a URL that the registry handed out (``Location``).

    ``accept``: statuses that are no error. ``what``: how errors call it. ``most``: bytes of the answer at most.
    """

    method: str
    path: str
    what: str
    headers: Mapping[str, str]
    accept: Collection[int] = (200,)
    body: Body | None = None
    most: int = _MAX_BYTES


def ask(registry: Registry, call: Call) -> Reply:
    """Send a request and return the answer.

    :raises PodkeepError: for a status that is an error, and if no answer comes.
    :raises FailedPrecondition: if the answer is longer than it may be.
    """
    answer = registry.exchange(
        call.method, call.path, headers=call.headers, accept=call.accept, body=call.body, what=call.what
    )
    data = registry.whole(answer, call.most, call.what)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Reply(status=answer.status, headers=headers, data=data)
