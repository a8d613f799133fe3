"""How many requests are answered at a time, and how many of them are one user's."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from podkeep.apiserver.auth.user import MASTERS, User
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.requests import request_info
from podkeep.apiserver.requests.limits import SEAT_CHARACTERS, InFlight
from podkeep.apiserver.requests.query import Query

PODS = "/api/v1/pods"
ANN, BOB, CARL = (User(name=name) for name in ("ann", "bob", "carl"))


def count(limits: InFlight, held: ExitStack, user: User, method: str = "GET", query: str = "") -> None:
    info = request_info.parse(method, f"{PODS}?{query}", Query(query))
    held.enter_context(limits.counted(info, user))


def refused(limits: InFlight, user: User, method: str = "GET", query: str = "") -> bool:
    with ExitStack() as held:
        try:
            count(limits, held, user, method, query)
        except StatusError as error:
            return (error.code, error.message) == (429, "Too many requests, please try again later.")
    return False


@pytest.mark.parametrize(("method", "query"), [("GET", ""), ("POST", ""), ("GET", "watch=true")])
def test_one_user_leaves_room_for_others(method: str, query: str) -> None:
    limits = InFlight(reads=4, writes=4, streams=4)
    with ExitStack() as held:
        for _ in range(2):
            count(limits, held, ANN, method, query)
        assert refused(limits, ANN, method, query)
        for _ in range(2):
            count(limits, held, BOB, method, query)
        assert refused(limits, CARL, method, query)
        assert not refused(limits, User(name="root", groups=(MASTERS,)), method, query)
    assert not refused(limits, ANN, method, query)
    slots = limits.streams if query else limits.reads if method == "GET" else limits.writes
    assert (slots.used, dict(slots.users)) == (0, {})


def test_reads_writes_and_watches_are_counted_apart() -> None:
    limits = InFlight(reads=1, writes=1, streams=1)
    with ExitStack() as held:
        for method, query in (("GET", ""), ("POST", ""), ("GET", "watch=true")):
            count(limits, held, ANN, method, query)
        assert [refused(limits, ANN, *kind) for kind in (("GET", ""), ("PUT", ""), ("GET", "watch=true"))] == [True] * 3


def test_long_selectors_take_more_seats() -> None:
    """An open watch keeps them: a user's share of watches is not a share of the memory."""
    limits = InFlight(streams=40)
    info = request_info.parse("GET", PODS, Query("watch=true"))
    with ExitStack() as held:
        held.enter_context(limits.counted(info, ANN, SEAT_CHARACTERS - 1))
        assert limits.streams.used == 1
        held.enter_context(limits.counted(info, ANN, 10 * SEAT_CHARACTERS))
        assert limits.streams.used == 12
        with pytest.raises(StatusError), limits.counted(info, ANN, 10 * SEAT_CHARACTERS):
            pass
        with limits.counted(info, BOB, 100 * SEAT_CHARACTERS):  # as many as one user may have
            assert (limits.streams.users["bob"], limits.streams.used) == (20, 32)
        count(limits, held, ANN, query="watch=true")
    assert (limits.streams.used, dict(limits.streams.users)) == (0, {})
