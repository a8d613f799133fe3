"""Schedules of CronJobs: reading them, and when they are next due, by the rules of robfig/cron v3. Pure.

Those differ from other crons: ``L``, ``#`` and ``W`` are unknown, Sunday is only 0, ``N/STEP`` means from N to the end,
and a time that daylight saving skips is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from fractions import Fraction
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from podkeep.base.frozen import FrozenStruct

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ZONE = re.compile(r"(?:CRON_)?TZ=([^ ]*)(?: |\Z)")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_INTEGER = (1 << 63) - 1
_YEARS = 5
"""How far a schedule is looked ahead before it is held never to be due."""
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_PART = re.compile(r"([0-9]*)(\.[0-9]*)?([^0-9.]*)")
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class ScheduleError(ValueError):
    """A text is no schedule; the text of the error is robfig/cron's."""


class _Bounds(FrozenStruct):
    low: int
    high: int
    names: Mapping[str, int] = msgspec.field(default_factory=dict)


_MINUTE, _HOUR, _DAY = _Bounds(0, 59), _Bounds(0, 23), _Bounds(1, 31)
_MONTH = _Bounds(1, 12, {name: index + 1 for index, name in enumerate(_MONTHS)})
_WEEKDAY = _Bounds(0, 6, {name: index for index, name in enumerate(_DAYS)})


class Schedule(FrozenStruct):
    """Times of day on days. ``any_day`` tells that one of the two fields for days is a ``*``, so that both must match.

    ``zone`` is that of a ``TZ=`` before the fields; None: that of the time that :meth:`next` is given.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    zone: tzinfo | None = None

    def next(self, after: datetime) -> datetime | None:
        """Return the first time after ``after`` (aware), in its zone; None if there is none within five years."""
        if not (self.minutes and self.hours and self.months):
            return None  # a field of commas alone
        zone = self.zone or after.tzinfo or UTC
        moment = _whole_minutes(after, zone)
        limit = moment.year + _YEARS
        while moment.year <= limit:
            if moment.month not in self.months:
                moment = _first_of_next_month(moment, zone)
            elif not self._is_day(moment):
                moment = _next_day(moment, zone)
            elif moment.hour not in self.hours:
                moment = _later(moment, timedelta(hours=1, minutes=-moment.minute), zone)
            elif moment.minute not in self.minutes:
                minute = min((item for item in self.minutes if item > moment.minute), default=60)
                moment = _later(moment, timedelta(minutes=minute - moment.minute), zone)
            else:
                return moment.astimezone(after.tzinfo)
        return None

    def _is_day(self, moment: datetime) -> bool:
        by_month, by_week = moment.day in self.days, moment.isoweekday() % 7 in self.weekdays
        return (by_month and by_week) if self.any_day else (by_month or by_week)


class Every(FrozenStruct):
    """A time that comes again and again after the same span, of whole seconds and at least one."""

    span: timedelta

    def next(self, after: datetime) -> datetime | None:
        """Return the time one span after ``after``, in whole seconds."""
        return _later(after.replace(microsecond=0), self.span, after.tzinfo or UTC)


def _later(moment: datetime, span: timedelta, zone: tzinfo) -> datetime:
    """Return a moment that is later by what clocks without a zone would measure."""
    return (moment.astimezone(UTC) + span).astimezone(zone)


def _whole_minutes(after: datetime, zone: tzinfo) -> datetime:
    """Return the first whole minute after a time."""
    start = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    return start.astimezone(zone)


def _first_of_next_month(moment: datetime, zone: tzinfo) -> datetime:
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return _midnight(date(year, month, 1), moment, zone)


def _next_day(moment: datetime, zone: tzinfo) -> datetime:
    return _midnight(moment.date() + timedelta(days=1), moment, zone)


def _midnight(day: date, after: datetime, zone: tzinfo) -> datetime:
    """Return when a day begins: later than midnight where daylight saving skips that, the second time if it is twice.

    robfig/cron leaves out a day that begins later, or takes the one after it too.
    """
    begin = datetime.combine(day, time(), zone).astimezone(UTC)
    if begin <= after.astimezone(UTC):
        begin = datetime.combine(day, time(fold=1), zone).astimezone(UTC)
    return begin.astimezone(zone)


def parse(text: str) -> Schedule | Every:
    """Return the schedule that ``spec.schedule`` of a CronJob means.

    :raises ScheduleError: if it is none.
    """
    if not text:
        raise ScheduleError("empty spec string")
    zone: tzinfo | None = None
    if text.startswith(("TZ=", "CRON_TZ=")):
        zone, text = _zoned(text)
    if text.startswith("@every "):
        return _every(text)
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise ScheduleError(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    fields = text.split()
    if len(fields) != 5:
        raise ScheduleError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    found = [
        _field(item, bounds) for item, bounds in zip(fields, (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY), strict=True)
    ]
    (minutes, _), (hours, _), (days, every_day), (months, _), (weekdays, every_weekday) = found
    return Schedule(minutes, hours, days, months, weekdays, every_day or every_weekday, zone)


def _zoned(text: str) -> tuple[tzinfo, str]:
    match = _ZONE.match(text)
    if match is None or " " not in text:
        # robfig/cron panics here, which kube-apiserver tells.
        raise ScheduleError("invalid schedule format: runtime error: slice bounds out of range [:-1]")
    name = match[1]
    return zone(name), text[match.end() :].strip()


def zone(name: str) -> tzinfo:
    """Return a time zone by its name; an empty name is UTC.

    :raises ScheduleError: if there is none.
    """
    try:
        return ZoneInfo(name) if name and name != "UTC" else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(f"provided bad location {name}: unknown time zone {name}") from None


def _field(text: str, bounds: _Bounds) -> tuple[frozenset[int], bool]:
    """Return the numbers of a field, and whether it has a star that means every number."""
    numbers: set[int] = set()
    star = False
    for item in filter(None, text.split(",")):
        found, every = _range(item, bounds)
        numbers |= found
        star |= every
    return frozenset(numbers), star


def _range(text: str, bounds: _Bounds) -> tuple[set[int], bool]:
    given, *steps = text.split("/")
    low, *high = given.split("-")
    star = low in ("*", "?")
    if star:
        start, end = bounds.low, bounds.high
    else:
        start = end = _number(low, bounds)
        if len(high) == 1:
            end = _number(high[0], bounds)
        elif high:
            raise ScheduleError(f"too many hyphens: {text}")
    if len(steps) > 1:
        raise ScheduleError(f"too many slashes: {text}")
    step = _integer(steps[0]) if steps else 1
    if steps and not high:
        end = bounds.high
    for wrong, why in (
        (start < bounds.low, f"beginning of range ({start}) below minimum ({bounds.low}): {text}"),
        (end > bounds.high, f"end of range ({end}) above maximum ({bounds.high}): {text}"),
        (start > end, f"beginning of range ({start}) beyond end of range ({end}): {text}"),
        (step == 0, f"step of range should be a positive number: {text}"),
    ):
        if wrong:
            raise ScheduleError(why)
    # A star with a step is none (robfig/cron: getRange): then one of the two fields for days is enough.
    return set(range(start, end + 1, step)), star and step == 1


def _number(text: str, bounds: _Bounds) -> int:
    named = bounds.names.get(text.lower())
    return _integer(text) if named is None else named


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    # The length first: int() refuses thousands of digits with an error of its own.
    if len(text) > 20 or abs(int(text)) > _MAX_INTEGER:
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": value out of range')
    number = int(text)
    if number < 0:
        raise ScheduleError(f"negative number ({number}) not allowed: {text}")
    return number


def _every(text: str) -> Every:
    given = text.removeprefix("@every ")
    try:
        nanoseconds = _duration(given)
    except ValueError as error:
        raise ScheduleError(f"failed to parse duration {text}: time: {error}") from None
    return Every(timedelta(seconds=max(1, nanoseconds // 10**9)))


def _duration(text: str) -> int:
    """Return the nanoseconds that a text such as ``1h30m`` means to Go's ``time.ParseDuration``."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total = Fraction(0)
    if not rest:
        raise ValueError(f'invalid duration "{text}"')
    place = 0
    while place < len(rest):
        match = _PART.match(rest, place)
        if match is None or not (match[1] or (match[2] or ".") != "."):
            raise ValueError(f'invalid duration "{text}"')
        unit = match[3]
        if not unit:
            raise ValueError(f'missing unit in duration "{text}"')
        if unit not in _UNITS:
            raise ValueError(f'unknown unit "{unit}" in duration "{text}"')
        number = f"{match[1] or '0'}{match[2] or ''}".rstrip(".")
        # Fractions of more digits take time that grows with the square: so long a number counts as too large.
        total += Fraction(number) * _UNITS[unit] if len(number) <= 40 else _MAX_INTEGER + 1
        if total > _MAX_INTEGER:
            raise ValueError(f'invalid duration "{text}"')
        place = match.end()
    return sign * int(total)
