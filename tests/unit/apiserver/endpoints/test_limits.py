"""How many requests are answered at a time, and how many of them are one user's."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from podkeep.apiserver.auth.user import MASTERS, NODES, User, service_account_groups, service_account_name
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.requests import request_info
from podkeep.apiserver.requests.limits import ROOM_BYTES, SEAT_CHARACTERS, InFlight, NoRoom
from podkeep.apiserver.requests.query import Query

PODS = "/api/v1/pods"
UPSTREAM = "Too many requests, please try again later."
ANN, BOB, CARL = (User(name=name) for name in ("ann", "bob", "carl"))


def account(namespace: str, name: str) -> User:
    """Return the user that a service account is."""
    return User(name=service_account_name(namespace, name), groups=service_account_groups(namespace))


def count(limits: InFlight, held: ExitStack, user: User, method: str = "GET", query: str = "") -> None:
    info = request_info.parse(method, f"{PODS}?{query}", Query(query))
    held.enter_context(limits.counted(info, user))


def refused(limits: InFlight, user: User, method: str = "GET", query: str = "") -> bool:
    return bool(why(limits, user, method, query))


def why(limits: InFlight, user: User, method: str = "GET", query: str = "") -> str:
    """Return why a request is refused, without kube-apiserver's own words; empty: it is not."""
    with ExitStack() as held:
        try:
            count(limits, held, user, method, query)
        except StatusError as error:
            if error.code != 429 or not error.message.startswith(UPSTREAM):
                raise
            return error.message.removeprefix(UPSTREAM) or "no setting"
    return ""


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_one_user_leaves_room_for_others(method: str) -> None:
    limits = InFlight(reads=8, writes=8)
    with ExitStack() as held:
        for _ in range(4):
            count(limits, held, ANN, method)
        assert refused(limits, ANN, method)
        for _ in range(2):
            count(limits, held, BOB, method)
        assert refused(limits, CARL, method)
        assert not refused(limits, User(name="root", groups=(MASTERS,)), method)
    assert not refused(limits, ANN, method)
    slots = limits.reads if method == "GET" else limits.writes
    assert (slots.used, dict(slots.users)) == (0, {})


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_service_accounts_of_a_namespace_are_one_user(method: str) -> None:
    """Whoever may make one makes as many as they like; another namespace has a share of its own."""
    limits = InFlight(reads=8, writes=8)
    with ExitStack() as held:
        for number in range(4):
            count(limits, held, account("one", f"sa-{number}"), method)
        assert refused(limits, account("one", "another"), method)
        assert not refused(limits, account("one-more", "sa-0"), method)


@pytest.mark.parametrize(("method", "query"), [("GET", ""), ("POST", ""), ("GET", "watch=true")])
def test_service_accounts_of_controllers_are_users_of_their_own(method: str, query: str) -> None:
    """Those who clean up after a user may have much to do; what keeps pods running does not wait for them."""
    limits = InFlight(reads=8, writes=8, streams=8)
    with ExitStack() as held:
        for _ in range(4):
            count(limits, held, account("kube-system", "namespace-controller"), method, query)
        assert refused(limits, account("kube-system", "namespace-controller"), method, query)
        assert not refused(limits, account("kube-system", "node-controller"), method, query)


@pytest.mark.parametrize(
    "user",
    [
        User(name="system:node:a", groups=(NODES,)),
        User(name="system:kube-controller-manager"),
        User(name="system:kube-scheduler"),
        User(name="system:serviceaccount:kube-system:dns", groups=service_account_groups("kube-system")),
    ],
    ids=lambda user: user.name,
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_quarter_is_for_who_keeps_a_cluster_going(user: User, method: str) -> None:
    limits = InFlight(reads=8, writes=8)
    with ExitStack() as held:
        for other in (*[ANN] * 4, *[BOB] * 2):
            count(limits, held, other, method)
        assert refused(limits, CARL, method)
        for _ in range(2):
            count(limits, held, user, method)
        assert refused(limits, user, method)


def test_of_watches_one_user_has_a_number_of_their_own() -> None:
    """Each may keep a part of a large object; a node may have half."""
    limits = InFlight(streams=32, watches=4)
    with ExitStack() as held:
        for number in range(4):
            count(limits, held, account("one", f"sa-{number}"), query="watch=true")
        assert refused(limits, account("one", "another"), query="watch=true")
        node = User(name="system:node:a", groups=(NODES,))
        for _ in range(16):
            count(limits, held, node, query="watch=true")
        assert refused(limits, node, query="watch=true")
        for _ in range(4):
            count(limits, held, ANN, query="watch=true")
        assert refused(limits, BOB, query="watch=true")  # what is left is for nodes


def test_a_refusal_names_the_setting_that_it_comes_from() -> None:
    limits = InFlight(reads=8, writes=4, streams=8, watches=2)
    watch = {"query": "watch=true"}
    with ExitStack() as held:
        for _ in range(4):
            count(limits, held, ANN)
        assert why(limits, ANN) == " One user has at most 4 at a time (api.max_reads)."
        for _ in range(2):
            count(limits, held, BOB)
        assert why(limits, CARL) == " All users together have at most 6 at a time (api.max_reads)."
        for _ in range(2):
            count(limits, held, ANN, "POST")
        assert why(limits, ANN, "POST") == " One user has at most 2 at a time (api.max_writes)."
        for user in (ANN, BOB, CARL):
            for _ in range(2):
                count(limits, held, user, **watch)
        assert why(limits, ANN, **watch) == " One user has at most 2 at a time (api.max_user_watches)."
        assert why(limits, User(name="dan"), **watch) == "no setting"


def test_service_accounts_of_a_namespace_share_what_is_kept_for_them() -> None:
    limits = InFlight()
    with ExitStack() as held:
        held.enter_context(limits.room(account("one", "a")).taken(ROOM_BYTES // 2))
        with pytest.raises(NoRoom), limits.room(account("one", "b")).taken(ROOM_BYTES // 8):
            pass
        held.enter_context(limits.room(account("two", "a")).taken(ROOM_BYTES // 4))
        with pytest.raises(NoRoom), limits.room(ANN).taken(ROOM_BYTES // 8):
            pass
        held.enter_context(limits.room(User(name="system:node:a", groups=(NODES,))).taken(ROOM_BYTES // 8))


def test_reads_writes_and_watches_are_counted_apart() -> None:
    limits = InFlight(reads=1, writes=1, streams=1)
    with ExitStack() as held:
        for method, query in (("GET", ""), ("POST", ""), ("GET", "watch=true")):
            count(limits, held, ANN, method, query)
        assert [refused(limits, ANN, *kind) for kind in (("GET", ""), ("PUT", ""), ("GET", "watch=true"))] == [True] * 3


def test_long_selectors_take_more_seats() -> None:
    """An open watch keeps them: a user's share of watches is not a share of the memory."""
    limits = InFlight(streams=192, watches=24)
    info = request_info.parse("GET", PODS, Query("watch=true"))
    with ExitStack() as held:
        held.enter_context(limits.counted(info, ANN, SEAT_CHARACTERS - 1))
        assert limits.streams.used == 1
        held.enter_context(limits.counted(info, ANN, 10 * SEAT_CHARACTERS))
        assert limits.streams.used == 12
        with pytest.raises(StatusError), limits.counted(info, ANN, 14 * SEAT_CHARACTERS):
            pass
        with limits.counted(info, BOB, 100 * SEAT_CHARACTERS):  # as many as one user may have
            assert (limits.streams.users["bob"], limits.streams.used) == (24, 36)
        count(limits, held, ANN, query="watch=true")
    assert (limits.streams.used, dict(limits.streams.users)) == (0, {})
