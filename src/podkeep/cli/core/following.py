"""Following objects: what they are now, and each change, over watches that end and begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from podkeep.base.errors import Unavailable
from podkeep.cli.core.output import echo_line

ANEW = ""
"""The version of a watch that begins with what is there."""

APART_S = 1.0
"""Between the beginnings of two watches, at least."""

AWAY_S = 60.0
"""For how long an API may be away that has answered: its node starts it again within half of this."""

if TYPE_CHECKING:
    from podkeep.client.client import Client
    from podkeep.client.resources import Resource


class Pace:
    """Keeps watches apart that follow each other: who ends each at once is not asked as fast as it answers."""

    def __init__(self) -> None:
        self._next = float("-inf")

    async def begin(self) -> None:
        """Wait until the next watch may begin."""
        clock = asyncio.get_running_loop().time
        if (wait := self._next - clock()) > 0:
            await asyncio.sleep(wait)
        self._next = clock() + APART_S


class Shown:
    """Which revisions of objects were shown, so that a watch that begins anew shows none of them twice."""

    def __init__(self) -> None:
        self._revisions: dict[str, str] = {}

    def is_new(self, metadata: dict[str, Any]) -> bool:
        """Tell whether an object was not shown as it is now, and note that it is."""
        uid, revision = metadata["uid"], metadata["resourceVersion"]
        was_shown = self._revisions.get(uid) == revision
        self._revisions[uid] = revision
        return not was_shown

    def forget(self, metadata: dict[str, Any]) -> None:
        """Note that an object is gone."""
        self._revisions.pop(metadata["uid"], None)


async def back(client: Client, error: Unavailable) -> None:
    """Return when an API that broke off a watch answers again, and say before that it is away.

    :raises Unavailable: if it is away for long.
    """
    from podkeep.client.errors import ApiError

    echo_line(f"podkeep: {error.message}; what happens is shown when it answers again", err=True)
    pace, clock = Pace(), asyncio.get_running_loop().time
    given_up = clock() + AWAY_S
    while True:
        await pace.begin()
        try:
            await client.request("GET", "/version")
        except ApiError:
            # Whatever it refuses: it answers.
            return
        except Unavailable:
            if clock() >= given_up:
                raise
        else:
            return


async def states(
    client: Client, resource: Resource, name: str, namespace: str
) -> AsyncGenerator[dict[str, Any] | None]:
    """Yield an object as it is, and then as it becomes; None: there is none. It does not end by itself.

    :raises ApiError: if the API refuses.
    :raises Unavailable: if it does not answer: at first, or later for long.
    """
    from podkeep.client.errors import ApiError

    fields = f"metadata.name={name}"
    pace, clock = Pace(), asyncio.get_running_loop().time
    given_up = float("-inf")
    while True:
        await pace.begin()
        try:
            listed = await client.list(resource, namespace, fields=fields)
            given_up = float("inf")
            items = listed.get("items") or []
            yield items[0] if items else None
            version = listed["metadata"]["resourceVersion"]
            async with aclosing(client.watch(resource, namespace, fields=fields, version=version)) as events:
                async for event in events:
                    if event.type != "BOOKMARK":
                        yield None if event.type == "DELETED" else event.object
        except ApiError as error:
            # Changes since that version are not known, so the object is read anew.
            if not error.gone:
                raise
        except Unavailable:
            given_up = min(given_up, clock() + AWAY_S)
            if clock() >= given_up:
                raise


async def until_gone(client: Client, resource: Resource, name: str, namespace: str, uid: str) -> None:
    """Return when there is no object with that UID.

    :raises ApiError: if the API refuses.
    """
    async with aclosing(states(client, resource, name, namespace)) as found:
        async for state in found:
            if state is None or state["metadata"]["uid"] != uid:
                return
