"""What the cards' own readings limit: clocks that were held back, PCIe links below what the slot can do."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.finding import Finding
from dptune.runfile.record import CardReadings, CardRecord, RunRecord

# Readings lie 0.2 s apart at best. A power cap touched in one reading of many costs nothing that a step would show; a
# thermal or hardware slowdown in any of them does not pass by itself.
LEAST_CAPPED_SHARE = 0.10
_CAP = "software power cap"
_TIMED = ("unprofiled", "lean")  # the windows that step times and shares are taken from
_WORDS = {"unprofiled": "untraced", "lean": "light"}


def limits(record: RunRecord | None) -> Iterator[Finding]:
    """A finding for each card and cause; one more where the cards could not be read."""
    if record is None:
        return
    if record.cards_unread:
        yield Finding(code="cards-unread", level="info", text=record.cards_unread)
    several_hosts = len({card.host for card in record.cards}) > 1
    for card in record.cards:
        name = f"GPU {card.index}" + (f" of {card.host}" if several_hosts else "")
        yield from _throttled(card, name)
        yield from _narrow(card, name)


def _throttled(card: CardRecord, name: str) -> Iterator[Finding]:
    for readings in card.readings:
        reasons = _lasting(readings)
        if readings.window in _TIMED and reasons:
            why = ", ".join(f"{reason} in {count} of {readings.samples} readings" for reason, count in reasons.items())
            text = f"{name} was throttled in the {_WORDS[readings.window]} steps ({why}){_clock(card, readings)}"
            yield Finding(code="throttled", level="info", text=text)


def _lasting(readings: CardReadings) -> dict[str, int]:
    least = LEAST_CAPPED_SHARE * readings.samples
    return {reason: count for reason, count in readings.throttled.items() if reason != _CAP or count >= least}


def _clock(card: CardRecord, readings: CardReadings) -> str:
    if readings.sm_clock_mhz is None or not card.most_sm_clock_mhz:
        return ""
    return f": median SM clock {readings.sm_clock_mhz:,} MHz, maximum {card.most_sm_clock_mhz:,} MHz"


def _narrow(card: CardRecord, name: str) -> Iterator[Finding]:
    """A link of fewer lanes than card and slot have; an idle link lowers its generation, so that alone says nothing."""
    width = max((readings.pcie_width or 0 for readings in card.readings), default=0)
    if width and card.most_pcie_width and width < card.most_pcie_width:
        text = f"{name} is connected by {width} PCIe lanes of {card.most_pcie_width}: host-device copies are slower"
        yield Finding(code="pcie-narrow", level="info", text=text)
