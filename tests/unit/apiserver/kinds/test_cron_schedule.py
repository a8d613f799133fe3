"""When schedules are due; texts that are none are among the rules of CronJobs."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.apiserver.kinds.workloads import cron_schedule
from podkeep.apiserver.kinds.workloads.cron_schedule import ScheduleError


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01:00"),
        ("* * * * *", "2026-01-01T00:00:59.5", "2026-01-01T00:01:00"),
        ("*/15 * * * *", "2026-01-01T00:14:59", "2026-01-01T00:15:00"),
        ("20/15 * * * *", "2026-01-01T00:00:00", "2026-01-01T00:20:00"),
        ("20-35/15 * * * *", "2026-01-01T00:20:00", "2026-01-01T00:35:00"),
        ("0 0 1 1 *", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 31 4 *", "2026-01-01T00:00:00", None),
        (", * * * *", "2026-01-01T00:00:00", None),
        ("0 0 13 * 5", "2026-02-01T00:00:00", "2026-02-06T00:00:00"),  # one of the two is enough
        ("0 0 */2 * 5", "2026-02-01T00:00:00", "2026-02-03T00:00:00"),
        ("0 0 * * MON-fri", "2026-01-02T00:00:00", "2026-01-05T00:00:00"),
        ("0 0 ? jan,MAR 0", "2026-01-31T00:00:00", "2026-03-01T00:00:00"),
        ("@hourly", "2026-01-01T00:00:00", "2026-01-01T01:00:00"),
        ("@daily", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
        ("@weekly", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
        ("@monthly", "2026-01-01T00:00:00", "2026-02-01T00:00:00"),
        ("@yearly", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("@every 1h30m", "2026-01-01T00:00:00.7", "2026-01-01T01:30:00"),
        ("@every 1ms", "2026-01-01T00:00:00", "2026-01-01T00:00:01"),
        ("@every 1.9s", "2026-01-01T00:00:00", "2026-01-01T00:00:01"),
        ("@every -1h", "2026-01-01T00:00:00", "2026-01-01T00:00:01"),
        ("TZ=Asia/Tokyo 0 3 * * *", "2026-01-01T00:00:00", "2026-01-01T18:00:00"),
        ("CRON_TZ=UTC 0 3 * * *", "2026-01-01T00:00:00", "2026-01-01T03:00:00"),
    ],
)
def test_next(schedule: str, after: str, expected: str | None) -> None:
    found = cron_schedule.parse(schedule).next(_moment(after))
    assert found == (None if expected is None else _moment(expected))


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00", ["2026-03-09T06:30:00"]),  # skipped on the 8th
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00:00", ["2026-11-01T05:30:00", "2026-11-01T06:30:00"]),
        ("0 0 * * *", "Europe/Berlin", "2026-03-28T12:00:00", ["2026-03-28T23:00:00", "2026-03-29T22:00:00"]),
        ("0 * * * *", "America/Sao_Paulo", "2018-11-04T02:30:00", ["2018-11-04T03:00:00"]),
        ("30 1 4 11 *", "America/Sao_Paulo", "2018-11-03T12:00:00", ["2018-11-04T03:30:00"]),  # begins at one
        ("0 0 * * 0", "America/St_Johns", "2010-11-07T02:30:00", ["2010-11-07T03:30:00"]),  # has two midnights
        ("@every 24h", "Europe/Berlin", "2026-03-28T12:00:00", ["2026-03-29T12:00:00", "2026-03-30T12:00:00"]),
        ("0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00:00", ["2026-01-01T03:30:00"]),
    ],
)
def test_daylight_saving(schedule: str, zone: str, after: str, expected: list[str]) -> None:
    parsed, moment = cron_schedule.parse(schedule), _moment(after).astimezone(ZoneInfo(zone))
    for due in expected:
        found = parsed.next(moment)
        assert found is not None
        assert (found.astimezone(UTC), found.tzinfo) == (_moment(due), moment.tzinfo)
        moment = found


@given(st.text(alphabet="0123456789*/-,? @everymTZ=UsunJAN.h", max_size=24), st.datetimes(datetime(2000, 1, 1)))
def test_any_text_is_a_schedule_or_an_error(text: str, after: datetime) -> None:
    moment = after.replace(year=2026, day=1, tzinfo=UTC)
    with suppress(ScheduleError):
        found = cron_schedule.parse(text).next(moment)
        assert found is None or found > moment
