"""When the token of a service account is asked for again (kubelet, token manager)."""

from __future__ import annotations

import pytest

from podkeep.agent.objects.api_objects import token_of

EXPIRES, AT = "2026-01-31T08:00:00Z", 1769846400.0
DAY = 24 * 3600


@pytest.mark.parametrize(
    ("seconds", "before"),
    [
        (600, 120),  # a fifth is left
        (3600, 720),
        (DAY, DAY // 5),
        (10 * DAY, 9 * DAY),  # a day after it was issued, however long it is good
        (365 * DAY, 364 * DAY),
    ],
)
def test_renewal(seconds: int, before: int) -> None:
    made = {"spec": {"expirationSeconds": seconds}, "status": {"token": "t", "expirationTimestamp": EXPIRES}}
    token = token_of(made, 3607, 0.0, AT)
    assert token.expires == AT
    assert token.refresh == pytest.approx(AT - before)
    assert token_of(made, 3607, 1.0, AT).refresh == pytest.approx(AT - before - 10)


def test_an_answer_that_does_not_say_for_how_long() -> None:
    made = {"status": {"token": "t", "expirationTimestamp": EXPIRES}}
    assert token_of(made, 600, 0.0, AT).refresh == pytest.approx(AT - 120)


def test_a_token_is_replaced_when_the_clock_is_set() -> None:
    """One that is issued in the future is refused; the API's clock may be ahead of the node's all the time, though."""
    made = {"spec": {"expirationSeconds": 3600}, "status": {"token": "t", "expirationTimestamp": EXPIRES}}
    token = token_of(made, 3600, 0.0, AT - 3700)
    assert token.is_new(AT - 3700)
    assert token.is_new(AT - 3750), "within what the API allows"
    assert not token.is_new(AT - 7300), "the clock was set back"
    assert not token.is_new(AT + 7300), "the clock was set forward"
