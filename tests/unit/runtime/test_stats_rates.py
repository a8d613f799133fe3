"""CPU in use from samples: which two readings are compared."""

from __future__ import annotations

from podkeep.runtime.stats.rates import MAX_WINDOW_NS, Rates, Sample

S = 1_000_000_000


def test_a_rate_is_what_was_used_between_two_samples() -> None:
    rates = Rates()
    rates.add({"c": Sample(at=10 * S, used=1 * S)})
    assert rates.rate("c", Sample(at=12 * S, used=2 * S)) == S // 2
    assert rates.rate("c", Sample(at=12 * S, used=1 * S)) == 0


def test_a_sample_that_is_too_young_is_passed_over() -> None:
    rates = Rates()
    rates.add({"c": Sample(at=10 * S, used=0)})
    rates.add({"c": Sample(at=20 * S, used=10 * S)})
    assert rates.rate("c", Sample(at=20 * S + 1, used=10 * S)) == 10 * S * S // (10 * S + 1)


def test_the_first_request_is_a_sample_too() -> None:
    rates = Rates()
    assert rates.rate("c", Sample(at=10 * S, used=1 * S)) is None
    assert rates.rate("c", Sample(at=10 * S + 1, used=1 * S)) is None
    assert rates.rate("c", Sample(at=12 * S, used=3 * S)) == S


def test_a_young_container_has_a_rate_since_its_start() -> None:
    rates = Rates()
    assert rates.rate("c", Sample(at=10 * S, used=S // 2), born=9 * S) == S // 2
    assert rates.rate("d", Sample(at=10 * S, used=S // 2), born=10 * S - 1000) is None
    assert rates.rate("e", Sample(at=1000 * S, used=S // 2), born=S) is None, "a mean over its life is no present use"


def test_a_counter_that_went_back_has_no_rate() -> None:
    rates = Rates()
    rates.add({"c": Sample(at=10 * S, used=5 * S)})
    assert rates.rate("c", Sample(at=20 * S, used=1 * S)) is None


def test_a_window_across_a_sleep_of_the_machine_has_no_rate() -> None:
    rates = Rates()
    rates.add({"c": Sample(at=S, used=0)})
    assert rates.rate("c", Sample(at=S + MAX_WINDOW_NS + 1, used=S)) is None


def test_what_is_not_sampled_any_more_is_forgotten() -> None:
    rates = Rates()
    rates.add({"a": Sample(at=S, used=0), "b": Sample(at=S, used=0)})
    rates.add({"b": Sample(at=2 * S, used=0)})
    assert rates.keys() == {"b"}
    rates.add({})
    assert rates.keys() == frozenset()
