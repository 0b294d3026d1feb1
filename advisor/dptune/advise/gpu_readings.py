"""Findings from GPU readings: throttled clocks, and PCIe links narrower than the slot supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.finding import Finding
from dptune.runfile.facts import Facts
from dptune.runfile.record import CardReadings, CardRecord, RunRecord

# Readings lie 0.2 s apart at best. A power cap touched in one reading of many costs nothing that a step would show; a
# thermal or hardware slowdown in any of them does not pass by itself.
LEAST_CAPPED_ONE_IN = 10
MOST_NAMED = 4  # cards, for each thing found: of hundreds of them a reader wants to know how many
_CAP = "software power cap"
_TIMED = ("untraced", "light")  # the windows that step times and shares are taken from
_NAME_LENGTH = 80


def limits(record: RunRecord | None, facts: Sequence[Facts] = ()) -> Iterator[Finding]:
    """What was found of the first few cards, and how many more there are; none for ranks that computed on CPUs."""
    if record is None or (facts and all(rank.device is not None and rank.device.kind == "cpu" for rank in facts)):
        return
    if record.cards_unread:
        yield Finding(code="cards-unread", level="info", text=record.cards_unread)
    several_hosts = len({card.host for card in record.cards}) > 1
    named = [(f"GPU {c.index}" + (f" on {c.host[:_NAME_LENGTH]}" if several_hosts else ""), c) for c in record.cards]
    throttled = [text for name, card in named if (text := _throttled(card, name))]
    narrow = [text for name, card in named if (text := _narrow(card, name))]
    yield from _first("throttled", throttled, "were throttled")
    yield from _first("pcie-narrow", narrow, "are on narrow PCIe links")


def _first(code: str, texts: Sequence[str], what: str) -> Iterator[Finding]:
    for text in texts[:MOST_NAMED]:
        yield Finding(code=code, level="info", text=text)
    if len(texts) > MOST_NAMED:
        yield Finding(code=code, level="info", text=f"{len(texts) - MOST_NAMED:,} more GPUs {what}: see run.json")


def _throttled(card: CardRecord, name: str) -> str | None:
    """Of the first window in which it was."""
    for readings in card.readings:
        reasons = _lasting(readings)
        if readings.window in _TIMED and reasons:
            counts = list(reasons.items())[:MOST_NAMED]
            why = ", ".join(
                f"{reason[:_NAME_LENGTH]} in {count} of {readings.samples} readings" for reason, count in counts
            )
            return f"{name} was throttled in the {readings.window} steps ({why}){_clock(card, readings)}"
    return None


def _lasting(readings: CardReadings) -> dict[str, int]:
    return {
        reason: count
        for reason, count in readings.throttled.items()
        if count > 0 and (reason != _CAP or count * LEAST_CAPPED_ONE_IN >= readings.samples)
    }


def _clock(card: CardRecord, readings: CardReadings) -> str:
    if readings.sm_clock_mhz is None or not card.most_sm_clock_mhz:
        return ""
    return f": median SM clock {readings.sm_clock_mhz:,} MHz, maximum {card.most_sm_clock_mhz:,} MHz"


def _narrow(card: CardRecord, name: str) -> str | None:
    """A link of fewer lanes than card and slot have; an idle link lowers its generation, so that alone says nothing."""
    width = max((readings.pcie_width or 0 for readings in card.readings), default=0)
    if width and card.most_pcie_width and width < card.most_pcie_width:
        return f"{name} is on a PCIe x{width} link (x{card.most_pcie_width} supported): host-device copies are slower"
    return None
