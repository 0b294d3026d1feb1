"""Where the late ranks of a large job are, in a sentence."""

from __future__ import annotations

from dptune.advise.limits import percent
from dptune.measured import Measured
from dptune.measured.outliers import LatePlace
from dptune.runfile.ranks import spans

_AT_MOST = 4  # places: a verdict is read in seconds


def late_places(measured: Measured) -> str:
    """The places of late ranks, the latest first, and what steps gain without their delays; "" where none is late."""
    outliers = measured.known("outliers")
    if outliers is None or not outliers.late:
        return ""
    more = [f"{len(outliers.late) - _AT_MOST} more"] if len(outliers.late) > _AT_MOST else []
    *others, last = [*map(_named, outliers.late[:_AT_MOST]), *more]
    named = f"{', '.join(others)} and {last}" if others else last
    one = len(outliers.late) == 1 and len(outliers.late[0].ranks) == 1
    gain = (
        f": without {'its' if one else 'their'} delays, steps take {percent(outliers.gains[-1].share)} less time"
        if outliers.gains
        else ""
    )
    are = "are" if others else "is"
    return f"{named[:1].upper()}{named[1:]} {are} late{gain} (--section outliers)."


def look_at(measured: Measured) -> str:
    """What to do about the latest place; "" where none is late."""
    outliers = measured.known("outliers")
    if outliers is None or not outliers.late:
        return ""
    latest = outliers.late[0]
    cause = latest.known("cause")
    return f"Find out why {_named(latest)} is late{f': {cause}' if cause else ''}."


def _named(place: LatePlace) -> str:
    if place.kind == "rank":
        return f"rank {place.place}{f' on {place.hosts[0]}' if place.hosts else ''}"
    kind = "" if place.kind == "position" else f"{place.kind} "
    return f"{kind}{place.place} ({'ranks' if len(place.ranks) > 1 else 'rank'} {spans(place.ranks)})"
