"""How old a measurement of links is. They drift with what else uses the network, and with the machine."""

from __future__ import annotations

from datetime import datetime, timedelta

# Older ones are measured again. A measurement of the day before made the replay of a run on CPUs 10.6 % too short. How
# fast links drift was not measured: an hour is as seldom as costs next to nothing, as measuring takes 10 s at most,
# 0.3 % of it.
MOST = timedelta(hours=1)
_UNITS = (("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1)))
_DAYS = timedelta(days=2)  # from here on in days: 26 hours say more than 1 day


def age(measured: str, at: datetime | str) -> timedelta | None:
    """How long before `at` it was measured (ISO 8601, with time zones); None where one of them is no such time."""
    try:
        then = datetime.fromisoformat(at) if isinstance(at, str) else at
        return then - datetime.fromisoformat(measured)
    except (ValueError, TypeError, OverflowError):
        return None


def is_fresh(measured: str) -> bool:
    """Whether it need not be measured again; what was measured at an unknown or a later time is to be."""
    old = age(measured, datetime.now().astimezone())
    return old is not None and timedelta(0) <= old <= MOST


def in_words(old: timedelta | None) -> str:
    """`26 hours`, `3 days`; empty where it is less than a minute or unknown."""
    if old is None:
        return ""
    for unit, length in (("day", timedelta(days=1)),) if old >= _DAYS else _UNITS:
        if old >= length:
            count = old // length
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return ""
