"""When a log is looked at again."""

from __future__ import annotations

import pytest

from podkeep.agent.logs.node_logs import pause

MI = 1 << 20


@pytest.mark.parametrize(
    ("size", "rate", "before", "expected"),
    [
        # As long as it does not grow, after twice the time, up to the interval.
        (0, 0.0, 0.25, 0.5),
        (5 * MI, 0.0, 8.0, 10.0),
        (5 * MI, -100.0, 1.0, 2.0),
        # One that grows, before it can be beyond its limit.
        (5 * MI, 1.0 * MI, 0.25, 2.5),
        (9 * MI, 1.0 * MI, 2.5, 0.5),
        (9 * MI, 100.0 * MI, 0.5, 0.1),
        (20 * MI, 1.0 * MI, 0.5, 0.1),
        (MI, 100.0, 0.25, 10.0),
    ],
)
def test_pause(size: int, rate: float, before: float, expected: float) -> None:
    assert pause(size, rate, before=before, max_size=10 * MI, interval=10.0) == pytest.approx(expected)
