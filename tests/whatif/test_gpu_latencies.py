"""What operations wait for where their launch comes shortly before another operation ends, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.whatif.gpu.changes import changed

from ..measure.handmade import US, Event, call, kernel, launch, load_events, step  # noqa: TID252
from .test_recorded_waits import program, waits

STEPS = 12


def steps(*, launched: float, begun: float, after: str = "", others: int = 0, awaited: bool = False) -> list[Event]:
    """Steps of 200 us: a from 10 to 20, b from 60 to 80, c right behind it from 81 to 91, then d; e from 160 to 170.

    a, b and e are launched 9 us before they begin, on an idle device; c at 53. d is launched and begins at these
    moments, and takes 20. Something runs on stream 8 from 92 to 105, if `after` names it; d waits for it if `awaited`.
    """
    events = []
    for number in range(STEPS):
        at, first = 200.0 * number, 10 * number
        calls = ((1, "a", 10, 20), (51, "b", 60, 80), (53, "c", 81, 91), (151, "e", 160, 170))
        events.append(step(number, at, at + 200))
        for place, (called, name, begin, end) in enumerate((*calls, (launched, "d", begun, begun + 20))):
            events += [
                launch(first + place, at + called, at + called + 0.5),
                kernel(name, at + begin, at + end, first + place),
            ]
        if after:
            events += [
                launch(first + 6, at + 42, at + 43),
                kernel(after, at + 92, at + 105, first + 6, stream=8),
                call("cudaEventRecord", at + 44, at + 45, first + 7),
                call("cudaStreamWaitEvent", at + launched - 2, at + launched - 1, first + 8),
                waits(first + 7, first + 8, at + launched - 2, 7 if awaited else 9, 8),
            ]
    return events


@pytest.mark.parametrize(
    ("more", "step_us"),
    [
        pytest.param({"launched": 89, "begun": 98}, 70 + 5, id="launched 9 us before it begins"),
        pytest.param({"launched": 70, "begun": 98}, 70 + 3 * 4 + 1 + 7, id="launched long before it begins"),
        pytest.param({"launched": 97, "begun": 106, "after": "other"}, 70 + 5, id="another stream in between"),
    ],
)
def test_a_launch_just_before_the_device_is_free_is_what_holds_an_operation_up(
    tmp_path: Path, more: dict[str, object], step_us: float
) -> None:
    """A host that takes no time leaves kernels one after another, 1 us apart, and what they wait for.

    If d begins 7 us after c for no known reason, the usual gap is 4 us: the median of 1 and 7.
    """
    made = program(load_events(tmp_path, steps(**more)))  # type: ignore[arg-type]
    assert made.run() == [float(at) for at in made.recorded_ns]
    assert changed(made, {"host.times": 0.0}).step_ns() / US == pytest.approx(step_us)


@pytest.mark.parametrize("awaited", [True, False])
def test_a_stream_that_is_known_to_wait_still_does(tmp_path: Path, awaited: bool) -> None:
    """d, launched 8 us before it begins, waits for what ended 1 us before that. A faster host launches it before."""
    made = program(load_events(tmp_path, steps(launched=98, begun=106, after="other", awaited=awaited)))
    quick = changed(made, {"host.times": 0.5}).run()
    begins = [made.recorded_ns.index(int((at - 1) * US)) for at in (106, 105)]
    assert awaited is (quick[begins[0]] >= quick[begins[1]])


def test_an_operation_that_was_queued_begins_no_sooner_after_its_launch_than_on_an_idle_device(tmp_path: Path) -> None:
    """c, launched at 53, begins at 81. If kernels take no time, it begins 9 us after its launch, as the others do."""
    made = program(load_events(tmp_path, steps(launched=89, begun=98)))
    quick = changed(made, {"compute.times": 0.0})
    begun = made.recorded_ns.index(int((81 + 200 - 1) * US))
    assert quick.run()[begun] == pytest.approx((53 + 200 - 1 + 9) * US)
