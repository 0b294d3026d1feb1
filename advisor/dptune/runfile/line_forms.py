"""Known costly patterns (forms) of the lines in which a function of the script spends its time, in untraced steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dptune.runfile.facts import Facts
from dptune.runfile.sampled_functions import frame_of, function, sampled

_LEAST_LOOKS = 3  # fewer may be chance
_LEAST_SHARE = 0.3  # of the function's time: below, its other lines matter more


@dataclass(frozen=True)
class LineForm:
    """A form; the line (`file:line`) that has it and takes most time; the function of the script that this line calls,
    or ""; and the share of the function's time in lines of this form.
    """

    form: str
    at: str
    called: str
    share: float


def line_form(facts: Sequence[Facts], name: str, at: str, form: str = "") -> LineForm | None:
    """The form in which a function spends most of its time, itself or in what it calls; None if none is known.

    `form`: only lines of this form in the function itself, whatever their share: for a function with the training loop.
    """
    of = function(facts, name.rpartition(".")[2], at)
    spent: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    places: dict[str, Counter[tuple[str, str]]] = {}
    total_ns = 0
    for sample in sampled(facts):
        frames, inside = [frame_of(frame) for frame in sample.path], of.frames(sample)
        if not inside:
            continue
        spent_ns = sum(sample.spent_ns)
        total_ns += spent_ns
        having = frames[sample.form_at] if sample.form and 0 <= sample.form_at < len(frames) else None
        if having is None or sample.form_at < inside[0]:
            continue
        if form and (sample.form, sample.form_at) != (form, inside[-1]):
            continue
        below = frames[sample.form_at + 1] if sample.form_at + 1 < len(frames) else None
        spent[sample.form] += spent_ns
        looks[sample.form] += sample.looks
        place = f"{having.file}:{having.line}"
        places.setdefault(sample.form, Counter())[place, below.name if below else ""] += spent_ns
    for found, spent_ns in spent.most_common(1) if total_ns > 0 else ():
        if looks[found] >= _LEAST_LOOKS and (form or spent_ns >= _LEAST_SHARE * total_ns):
            (place, called), _ = places[found].most_common(1)[0]
            return LineForm(found, place, called, spent_ns / total_ns)
    return None
