"""A against B, on runs built by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.advice import Headline, Report, RunSummary, Trust
from dptune.compare.categories import apportioned
from dptune.compare.comparison import compare
from dptune.compare.headline import build_comparison, changes
from dptune.compare.result import Compared, Comparison
from dptune.compare.sides import ReadRun, Sides
from dptune.compare.verdict import decide
from dptune.errors import RunError
from dptune.finding import Finding
from dptune.measured import (
    CLASSES,
    Account,
    AccumulationFigures,
    CollectiveFigures,
    CopyFigures,
    DeviceFigures,
    InputFigures,
    MatmulFigures,
    Measured,
    Missing,
    PhaseFigures,
    RankFigures,
    StepAccount,
    StepTime,
)
from dptune.present.sections.comparison import _kind, _values, signed
from dptune.present.sections.comparison import page as lines
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts, OptimizerFacts
from dptune.runfile.loader import LoaderFacts

WHY = "not part of this test"
MIB = 2**20
MS = 1_000_000


def account(**parts: int) -> Account:
    exposed = sum(value for name, value in parts.items() if name.startswith("exposed_"))
    hidden = parts.pop("hidden", 0)
    window = sum(parts.values())
    return Account(window_ns=window, communication_ns=exposed + hidden, hidden_communication_ns=hidden, **parts)


def run(
    name: str = "run",
    step_ns: int = 1000,
    *,
    parts: Mapping[str, int] | None = None,
    traced: bool = False,
    samples: int | None = None,
    facts: list[Facts] | None = None,
    recorded: str | None = None,
    torch: str | None = None,
    trust: str = "sound",
    codes: tuple[str, ...] = ("x",),
    lost: str = "half is lost",
    remedy: str = "",
    device_name: str | None = None,
    numbers: tuple[int, ...] = (0,),
    **measured: Any,
) -> ReadRun:
    """One run of one step per rank whose account is `parts`, all of it computing where none are given."""
    own = account(**({"compute_ns": step_ns} if parts is None else parts))
    step = StepTime.only(
        WHY,
        basis="traced" if traced else "untraced",
        time_ns=step_ns,
        untraced_median_ns=None if traced else step_ns,
        light_median_ns=step_ns if traced else 2 * step_ns,
    )
    devices = [
        DeviceFigures(
            device="cuda:0",
            steps=[StepAccount(number=1, start_ns=0, account=own)],
            whole=own,
            device_operations=1,
            kernels=1,
        )
    ]
    total = own
    for _ in numbers[1:]:
        total = total + own
    figures: dict[str, Any] = {
        "step": step,
        "account": total,
        "samples_per_step": samples,
        "ranks": [
            RankFigures.only(
                WHY,
                rank=number,
                source="",
                events=1,
                devices=devices,
                untraced_median_ns=None if traced else step_ns,
                device_name=device_name,
            )
            for number in numbers
        ],
        "input": InputFigures.only(WHY),
        "accumulation": AccumulationFigures.only(WHY),
        "matmul": MatmulFigures.only(WHY),
        **measured,
    }
    report = Report(
        dptune="0",
        run=RunSummary(sources=[name], recorded=recorded, torch=torch, command="python train.py" if facts else None),
        headline=Headline(verdict="", why="", next=remedy),
        trust=Trust(level=trust, findings=[Finding(code, trust, lost) for code in codes] if trust != "sound" else []),
        advice=[],
        skipped=[],
        quiet=[],
        measured=Measured.only(WHY, **figures),
    )
    return ReadRun(name, report, {one.rank: one for one in facts or ()})


def compared(*sides: ReadRun | list[ReadRun]) -> Compared:
    a, b = (side if isinstance(side, list) else [side] for side in sides)
    return compare(Sides(a, b))


def why(*sides: ReadRun | list[ReadRun]) -> str:
    a, b = (side if isinstance(side, list) else [side] for side in sides)
    return build_comparison(Sides(a, b)).headline.why


def by_name(found: Compared) -> dict[str, tuple[int, int, int]]:
    return {one.category: (one.a_ns, one.b_ns, one.difference_ns) for one in found.categories if one.a_ns or one.b_ns}


# Classes: an unsplit account is drawn with less, so that both kinds of table come up.
some_parts = st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 10**10), min_size=1).filter(
    lambda parts: sum(parts.values()) > 0
)
some_runs = st.lists(st.tuples(st.integers(1, 10**11), some_parts), min_size=1, max_size=5)


JOINED = {"input_or_host_idle_ns": ["input_idle_ns", "host_idle_ns"]}


def made(drawn: list[tuple[int, dict[str, int]]], odd: bool = False, times: int = 1) -> list[ReadRun]:
    """Runs of step times that no other run of the side has, nor one of the other side if that is odd."""
    apart: dict[int, ReadRun] = {}
    for place, (half_ns, parts) in enumerate(drawn):
        step_ns = 2 * half_ns + odd
        apart[step_ns] = run(f"run {place}", step_ns, parts={name: times * ns for name, ns in parts.items()})
    return list(apart.values())


@pytest.mark.long
@given(some_runs, some_runs)
def test_the_differences_of_the_classes_sum_to_that_of_the_step(a: Any, b: Any) -> None:
    one, other = made(a), made(b, odd=True)
    found = compared(one, other)
    steps = [round(median(run.measured.step.time_ns for run in side)) for side in (one, other)]
    for end, step_ns in zip(("a_ns", "b_ns"), steps, strict=True):
        assert sum(getattr(category, end) for category in found.categories) == step_ns
    whole = steps[1] - steps[0]
    assert sum(category.difference_ns for category in found.categories) == whole
    assert sum(ns for _, ns in changes(found)) == whole
    if whole:
        assert sum(category.share for category in found.categories) == pytest.approx(1)
    for category in found.categories:  # of the runs in the middle, nearly: rounding loses less than a nanosecond
        names = JOINED.get(category.category, [category.category])
        for end, side in (("a_ns", one), ("b_ns", other)):
            in_order = sorted(side, key=lambda run: run.measured.step.time_ns)
            middle = in_order[(len(side) - 1) // 2 : len(side) // 2 + 1]
            spent = [run.measured.step.time_ns * sum(run.measured.share(name) for name in names) for run in middle]
            assert getattr(category, end) == pytest.approx(mean(spent), abs=1.01 * len(names), rel=1e-9)


@given(some_runs)
def test_runs_of_the_same_times_and_shares_differ_in_nothing(drawn: Any) -> None:
    one, other = made(drawn), made(drawn, times=2)  # of twice as many steps
    found = compared(one, other)
    assert found.verdict.outcome == "inconclusive"
    assert found.time_ns.difference == found.step_ns.difference == 0
    assert found.ratio == 1
    assert {category.difference_ns for category in found.categories} == {0}
    assert {rank.step_ns.difference for rank in found.ranks} == {rank.idle_ns.difference for rank in found.ranks} == {0}
    assert why(one, other) == "A and B take the same time."


@pytest.mark.long
@given(some_runs, some_runs)
def test_swapping_the_sides_negates_every_difference(a: Any, b: Any) -> None:
    one, other = made(a), made(b, odd=True)
    there, back = compared(one, other), compared(other, one)
    assert back.step_ns.difference == -there.step_ns.difference
    assert back.time_ns.difference == -there.time_ns.difference
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert [c.difference_ns for c in back.categories] == [-c.difference_ns for c in there.categories]
    for mine, theirs in zip(there.ranks, back.ranks, strict=True):
        assert theirs.compute_ns.difference == -mine.compute_ns.difference


@pytest.mark.parametrize(
    ("ms", "words"), [(0.004, "0"), (0.006, "+0.01"), (-0.006, "-0.01"), (-1.5, "-1.50"), (12.0, "+12.0")]
)
def test_a_small_difference_has_one_sign(ms: float, words: str) -> None:
    assert signed(ms) == words


def test_directions_of_copies_are_called_as_in_a_report_and_values_have_separators() -> None:
    assert [_kind(kind) for kind in ("h2d pageable", "d2d", "all_reduce")] == [
        "host to device pageable",
        "on the device",
        "all_reduce",
    ]
    assert _values([12609536, None, True, 0.5]) == "12,609,536 or unset or True or 0.5"


def test_a_step_is_apportioned_as_by_hand() -> None:
    halves = account(compute_ns=1, input_idle_ns=1)
    quarter = account(compute_ns=1, input_idle_ns=3)
    parts = apportioned([(halves, Fraction(600)), (quarter, Fraction(400))])
    assert (parts["compute_ns"], parts["input_idle_ns"]) == (300 + 100, 300 + 300)
    assert set(parts.values()) == {0, 400, 600}


def test_a_step_is_rounded_as_running_totals() -> None:
    """333.3, 666.7 and 1000."""
    parts = apportioned([(account(compute_ns=1, input_idle_ns=1, host_idle_ns=1), Fraction(1000))])
    assert (parts["compute_ns"], parts["input_idle_ns"], parts["host_idle_ns"]) == (333, 334, 333)


def test_the_parts_of_a_step_are_those_of_the_run_that_takes_it() -> None:
    def taking(name: str, step_ns: int, compute_ns: int) -> ReadRun:
        return run(name, step_ns, parts={"compute_ns": compute_ns, "host_idle_ns": step_ns - compute_ns})

    a = [taking("a1", 100, 100), taking("a2", 120, 30), taking("a3", 900, 900)]
    b = [taking("b1", 80, 80), taking("b2", 100, 50), taking("b3", 140, 30), taking("b4", 999, 999)]
    computing = next(one for one in compared(a, b).categories if one.category == "compute_ns")
    assert (computing.a_ns, computing.b_ns) == (30, (50 + 30) // 2)


def test_medians_over_runs_by_hand() -> None:
    a = [run("a1", 100), run("a2", 300), run("a3", 110)]
    b = [run("b1", 200), run("b2", 90), run("b3", 220), run("b4", 240)]
    found = compared(a, b)
    assert (found.step_ns.a, found.step_ns.b, found.step_ns.difference) == (110, 210, 100)
    assert found.ratio == pytest.approx(210 / 110)
    assert found.verdict.outcome == "inconclusive"
    assert [one.time_ns for one in found.runs] == [100, 300, 110, 200, 90, 220, 240]
    assert [one.side for one in found.runs] == ["A"] * 3 + ["B"] * 4


def test_a_run_of_several_processes_counts_once_by_their_median() -> None:
    step = StepTime.only(WHY, basis="untraced", time_ns=120, untraced_median_ns=100, repeats_ns=[120, 130])
    found = compared(run("a", 100), run("b", 100, step=step))
    assert (found.time_ns.a, found.time_ns.b, len(found.runs)) == (100, 120, 2)


def test_four_runs_a_side_that_lie_apart_are_called_what_they_are() -> None:
    quick = [run(f"q{n}", 100 + n) for n in range(4)]
    slow = [run(f"s{n}", 120 + n) for n in range(4)]
    assert compared(quick, slow).verdict.outcome == "worse"
    assert compared(slow, quick).verdict.outcome == "better"
    told = build_comparison(Sides(quick, slow)).headline
    assert told.verdict.startswith("B is worse: A and B differ significantly (p = ")


def test_steps_of_one_process_never_decide() -> None:
    long = run("b", 10_000)
    found = compared(run("a", 10), long)
    assert found.verdict.outcome == "inconclusive"
    assert found.verdict.ratio == 1000
    told = build_comparison(Sides([run("a", 10)], [long])).headline
    assert told.verdict == (
        "No verdict yet: B is 1,000x as slow in this pair of runs. One run per side cannot rule out noise: a verdict "
        "needs at least 4 per side."
    )
    assert "a1 a2 a3 a4 -- b1 b2 b3 b4" in told.next


@pytest.mark.parametrize(
    ("ns", "words"),
    [(25, "B is 4x as fast"), (88, "B is 12 % faster"), (104, "B is 4.0 % slower")],
)
def test_without_a_verdict_the_measured_difference_is_known(ns: int, words: str) -> None:
    assert words in build_comparison(Sides([run("a", 100)], [run("b", ns)])).headline.verdict


def test_untraced_is_never_set_against_traced() -> None:
    both = compared(run("a", 100, parts={"compute_ns": 101}), run("b", 150, traced=True))
    assert both.basis == "traced"
    assert (both.step_ns.a, both.step_ns.b) == (101, 150)  # what a's traced steps took
    none = compared(run("a", 100), run("b", step=StepTime.only("no step was timed", basis="traced")))
    assert none.step_ns.known("b") is None
    assert none.verdict.outcome == "inconclusive"
    assert none.verdict.reason == "a step time is missing: no step was timed"
    with pytest.raises(Missing, match="no step was timed"):
        print(none.ratio)
    assert "The difference is unknown: no step was timed" in why(
        run("a", 100), run("b", step=StepTime.only("no step was timed", basis="traced"))
    )


def test_the_objective_is_the_time_per_sample_where_the_batch_is_known() -> None:
    found = compared(run("a", 1000, samples=10), run("b", 1500, samples=10))
    assert (found.objective, found.time_ns.a, found.time_ns.b) == ("time per sample", 100, 150)
    assert compared(run("a", samples=10), run("b", 1001, samples=None)).objective == "time per step"


def test_what_is_not_comparable_is_named_and_has_no_verdict() -> None:
    a = [run(f"a{n}", 100 + n, samples=8, torch="2.13.0", device_name="H100", world_size=8) for n in range(4)]
    b = [run(f"b{n}", 300 + n, samples=16, torch="2.12.0", device_name="B200", world_size=8) for n in range(4)]
    found = compared(a, b)
    assert [one.name for one in found.conditions if one.differs] == ["device", "torch", "samples per step"]
    assert found.verdict.outcome == "not comparable"
    assert found.verdict.known("p_value") is None
    # 301.5 / 16 against 101.5 / 8
    assert why(a, b).startswith("B is 0.00616 us per sample slower (49 %): per step, compute +0.0002 ms")
    (device,) = [one for one in found.conditions if one.name == "device"]
    assert (device.a, device.b, device.unknown) == (["H100"], ["B200"], [])


def test_a_side_whose_own_runs_differ_is_not_comparable() -> None:
    a = [run("a1", 100, torch="2.13.0"), run("a2", 101, torch="2.12.0")]
    found = compared(a, [run("b1", 102, torch="2.13.0"), run("b2", 103, torch="2.12.0")])
    assert found.verdict.outcome == "not comparable"


def test_what_is_not_known_is_comparable_but_said() -> None:
    found = compared(run("a", torch="2.13.0"), run("b", 1001))
    (torch,) = [one for one in found.conditions if one.name == "torch"]
    assert (torch.differs, torch.unknown) == (False, ["b"])
    assert found.verdict.outcome == "inconclusive"


def test_runs_that_cannot_be_judged_decide_nothing_and_are_named_with_the_reason_and_the_remedy() -> None:
    lost = {"trust": "unjudgeable", "remedy": "Record with CUDA."}
    a = [run(f"a{n}", 100 + n, **(lost if n in (1, 2) else {})) for n in range(4)]
    b = [run(f"b{n}", 300 + n, **(lost if n == 3 else {})) for n in range(4)]
    found = compared(a, b)
    reason = "not reliable enough: a1 (A), a2 (A), b3 (B): half is lost"
    assert (found.verdict.outcome, found.verdict.reason) == ("inconclusive", reason)
    told = build_comparison(Sides(a, b)).headline
    assert (told.verdict, told.next) == (f"Inconclusive: {reason}.", "Record with CUDA.")


def test_one_fault_of_several_runs_is_described_once_though_its_figures_differ() -> None:
    lost = {"trust": "unjudgeable"}
    a, b = (
        [run(f"{side}{n}", 100 + n + 10 * ord(side), lost=f"{n} % is lost", **lost) for n in (1, 2)] for side in "ab"
    )
    reason = compared(a, b).verdict.reason
    assert reason == (
        "not reliable enough: a1 (A), a2 (A), b1 (B), b2 (B): 1 % is lost (as in a1 (A); the others are similar)"
    )
    comparison = build_comparison(Sides(a, b))
    page = " ".join("".join(span.text for span in line) for line in lines(comparison, 120))
    assert page.count("not reliable enough") == 1


@pytest.mark.parametrize(
    ("codes", "traced", "outcome"),
    [
        (("steps-few",), False, "worse"),
        (("steps-few",), True, "inconclusive"),
        (("steps-few", "recording-broken-off"), False, "inconclusive"),
    ],
)
def test_times_without_the_profiler_need_no_traced_steps(codes: tuple[str, ...], traced: bool, outcome: str) -> None:
    a = [run(f"a{n}", 100 + n, traced=traced, trust="unjudgeable", codes=codes) for n in range(4)]
    found = compared(a, [run(f"b{n}", 300 + n) for n in range(4)])
    assert found.verdict.outcome == outcome
    assert {one.trust for one in found.runs if one.side == "A"} == {"unjudgeable"}


def test_what_limits_the_comparison_is_said() -> None:
    found = compared(run("a", trust="partial", numbers=(0, 1)), run("b", 1001))
    assert found.remarks == [
        "A (a) is partial: half is lost",
        "different ranks were read in different runs, so their breakdowns are of different ranks",
    ]


def test_one_side_after_the_other_decides_nothing() -> None:
    """Five runs that take twice as long: slower by the test, unless all were recorded after the others."""
    days = [
        [run(f"{side}{n}", (100 if side == "a" else 200) + n, recorded=f"2026-01-{day}{n}") for n in range(5)]
        for side, day in ("a1", "b2")
    ]
    verdict = compared(*days).verdict
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("all or nearly all runs of one side were recorded before those of the other")
    days[1][0] = run("b0", 200, recorded="2026-01-09")
    assert compared(*days).verdict.outcome == "worse"


def test_a_machine_that_drifts_is_no_difference() -> None:
    """Six of A, six of B, one more of A, each 1 % slower than the one before: B is later in 36 of 42 pairs."""
    order = ["a"] * 6 + ["b"] * 6 + ["a"]
    runs = [
        run(f"{side}{n}", round(10_000 * 1.01**n), recorded=f"2026-01-01T{n:02}:00:00+00:00")
        for n, side in enumerate(order)
    ]
    sides = [[one for one, side in zip(runs, order, strict=True) if side == name] for name in "ab"]
    verdict = compared(*sides).verdict
    assert verdict.outcome == "inconclusive"
    assert "record A and B in random order" in verdict.reason


def test_times_of_recording_are_compared_as_moments() -> None:
    """08:00 in a zone nine hours ahead is before 00:30 UTC, as text it is after."""
    ahead = [run(f"a{n}", 100 + n, recorded=f"2026-01-02T0{8}:{n:02}:00+09:00") for n in range(4)]
    utc = [run(f"b{n}", 200 + n, recorded=f"2026-01-02T00:{30 + n}:00+00:00") for n in range(4)]
    assert compared(ahead, utc).verdict.outcome == "inconclusive"
    turn = [run(f"b{n}", 200 + n, recorded=f"2026-01-01T23:{n:02}:30+00:00") for n in range(4)]
    assert compared(ahead, turn).verdict.outcome == "worse"


def test_a_test_that_says_other_than_the_medians_decides_nothing() -> None:
    """Of 20 and 20 runs B is slower in 11 * 9 + 9 * 20 = 279 of 400 pairs, which the test takes for a difference."""
    a = [*range(10, 19), *range(1000, 1011)]
    b = [*range(980, 991), *range(2000, 2009)]
    assert decide(a, b).outcome == "worse"
    found = compared([run(f"a{n}", time) for n, time in enumerate(a)], [run(f"b{n}", time) for n, time in enumerate(b)])
    assert found.time_ns.difference == 989.5 - 1000.5
    assert found.verdict.outcome == "inconclusive"
    assert found.verdict.reason.endswith("but the medians of the sides differ in the other direction")


@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (3, 3)])
def test_it_takes_four_runs_on_each_side(counts: tuple[int, int]) -> None:
    a, b = (
        [run(f"{side}{n}", first + n) for n in range(count)]
        for side, first, count in zip("ab", (100, 300), counts, strict=True)
    )
    found = compared(a, b).verdict
    assert found.outcome == "inconclusive"
    assert "a verdict needs at least 4 per side" in found.reason


def test_the_same_recording_twice_is_not_two_runs() -> None:
    with pytest.raises(RunError, match="a2 and a3 are the same recording"):
        compared([run("a1", 1), run("a2", 2), run("a3", 2)], [run("b")])


def test_a_run_is_not_compared_with_itself() -> None:
    a = [run("a1", 1), run("a2", 2)]
    with pytest.raises(RunError, match=r"a2 \(A\) and copy \(B\) are the same recording"):
        compared(a, [run("b1", 3), run("copy", 2)])
    assert compared(a, [run("b1", 3), run("b2", 2, parts={"compute_ns": 1, "copy_ns": 1})]).ratio == 2.5 / 1.5


def test_ranks_of_one_run_are_not_repeats_of_it() -> None:
    a = [run(f"rank{n}.json", 100 + n, traced=True, numbers=(n,), world_size=4) for n in range(4)]
    with pytest.raises(RunError, match=r"rank0.json and rank1.json are rank 0 and rank 1: ranks of one run"):
        compared(a, a)
    a, b = ([run(f"{n}/rank0.json", ns + n, traced=True, world_size=4) for n in range(4)] for ns in (100, 200))
    assert compared(a, b).verdict.outcome == "worse"


def test_waiting_and_transfer_are_apart_only_where_every_run_tells_them_apart() -> None:
    a = run("a", 100, parts={"compute_ns": 60, "exposed_transfer_ns": 30, "exposed_waiting_ns": 10})
    b = run("b", 110, parts={"compute_ns": 60, "exposed_transfer_ns": 20, "exposed_waiting_ns": 30})
    assert by_name(compared(a, b)) == {
        "compute_ns": (60, 60, 0),
        "exposed_transfer_ns": (30, 20, -10),
        "exposed_waiting_ns": (10, 30, 20),
    }
    unsplit = run("b", 110, parts={"compute_ns": 60, "exposed_unsplit_ns": 50})
    assert by_name(compared(a, unsplit)) == {"compute_ns": (60, 60, 0), "exposed_communication_ns": (40, 50, 10)}


def test_why_waiting_and_transfer_are_not_told_apart_is_said() -> None:
    """Of 50 exposed 2 are unsplit, and of 40 one."""
    split = {"compute_ns": 60, "exposed_transfer_ns": 30, "exposed_waiting_ns": 10}
    some = run(
        "b2",
        110,
        parts={"compute_ns": 60, "exposed_transfer_ns": 30, "exposed_waiting_ns": 18, "exposed_unsplit_ns": 2},
    )
    less = run("b1", 100, parts={"compute_ns": 60, "exposed_transfer_ns": 39, "exposed_unsplit_ns": 1})
    assert compared(run("a", 99, parts=split), [less, some]).remarks == [
        "exposed communication and waiting for ranks are shown together: 4 % of this time in b2 (B) cannot be split"
    ]
    none = {"compute_ns": 60, "exposed_unsplit_ns": 40}
    assert compared(run("a", 100, parts=none), run("b", 101, parts=none)).remarks == []  # no run tells them apart


def test_waiting_for_input_and_the_host_are_apart_only_where_every_run_saw_its_loader() -> None:
    a = run("a", 100 * MS, parts={"compute_ns": 6, "input_idle_ns": 3, "host_idle_ns": 1})
    unseen = run("b", 110 * MS, parts={"compute_ns": 6, "host_idle_ns": 5})
    found = compared(a, unseen)
    assert by_name(found) == {
        "compute_ns": (60 * MS, 60 * MS, 0),
        "input_or_host_idle_ns": (40 * MS, 50 * MS, 10 * MS),
    }
    assert found.remarks == ["waiting for input and the host are shown together: no DataLoader was seen in b (B)"]
    assert why(a, unseen) == "B is 10 ms per step slower (10 %): input or host +10 ms."
    page = " ".join("".join(span.text for span in line) for line in lines(build_comparison(Sides([a], [unseen])), 100))
    assert "waiting for input " not in page
    assert re.search(r"input or host +40\.0 +50\.0 +\+10\.0 +100 %", page)

    seen = InputFigures(wait_share=0.0, wait_ns=0, computed_share=0.0, missing={"preparing": "not metered"})
    prompt = run("b", 110 * MS, parts={"compute_ns": 6, "host_idle_ns": 5}, input=seen)
    assert by_name(compared(a, prompt)) == {
        "compute_ns": (60 * MS, 60 * MS, 0),
        "input_idle_ns": (30 * MS, 0, -30 * MS),
        "host_idle_ns": (10 * MS, 50 * MS, 40 * MS),
    }
    neither = compared(run("a", 20, parts={"compute_ns": 10, "host_idle_ns": 10}), unseen)
    assert (neither.remarks, neither.categories[-2].category) == ([], "host_idle_ns")


def test_ranks_that_changed_show_it() -> None:
    def own(slow: int) -> list[RankFigures]:
        return [
            RankFigures.only(
                WHY,
                rank=rank,
                source="",
                events=1,
                untraced_median_ns=100 + extra,
                devices=[
                    DeviceFigures(
                        device="cpu",
                        steps=[StepAccount(number=1, start_ns=0, account=account(compute_ns=3, host_idle_ns=1))],
                        whole=account(compute_ns=4),
                        device_operations=1,
                        kernels=0,
                    )
                ],
            )
            for rank, extra in ((0, 0), (3, slow))
        ]

    found = compared(run("a", 100, ranks=own(0)), run("b", 140, ranks=own(40)))
    assert [(rank.rank, rank.step_ns.difference) for rank in found.ranks] == [(0, 0), (3, 40)]
    assert found.ranks[1].compute_ns.difference == pytest.approx(30)  # three quarters of what it spends more
    assert found.ranks[1].idle_ns.difference == pytest.approx(10)
    assert found.ranks[1].lag_ns.missing["a"] == WHY
    nobody = compared(run("a", ranks=own(0)), run("b", 1001, ranks=[]))
    assert nobody.missing["ranks"] == "no rank was read in all runs"


def test_a_traced_rank_takes_as_long_as_on_the_device_with_most_steps() -> None:
    def device(name: str, *windows_ns: int) -> DeviceFigures:
        steps = [StepAccount(number=n, start_ns=0, account=account(compute_ns=ns)) for n, ns in enumerate(windows_ns)]
        whole = account(compute_ns=sum(windows_ns))
        return DeviceFigures(device=name, steps=steps, whole=whole, device_operations=1, kernels=1)

    devices = [device("cuda:0", 100), device("cuda:1", 300, 320)]
    own = [RankFigures.only(WHY, rank=0, source="", events=1, devices=devices)]
    (rank,) = compared(run("a", 100, traced=True, ranks=own), run("b", 140, traced=True, ranks=own)).ranks
    assert rank.step_ns.a == 310


def test_phases_are_scaled_as_the_classes_are() -> None:
    def phase(name: str, compute_ns: int, exposed_ns: int) -> PhaseFigures:
        return PhaseFigures.only(
            WHY,
            phase=name,
            compute_ns=compute_ns,
            communication_ns=exposed_ns,
            hidden_communication_ns=0,
            exposed_communication_ns=exposed_ns,
        )

    parts = {"compute_ns": 6, "exposed_unsplit_ns": 4}
    a = run("a", 1000, parts=parts, phases=[phase("forward", 4, 0), phase("backward", 2, 4)])
    b = run("b", 2000, parts=parts, phases=[phase("forward", 1, 0), phase("backward", 4, 4), phase("optimizer", 1, 0)])
    found = {one.phase: one for one in compared(a, b).phases}
    compute = {name: (round(one.compute_ns.a), round(one.compute_ns.b)) for name, one in found.items()}
    assert compute == {"forward": (400, 200), "backward": (200, 800), "optimizer": (0, 200)}
    assert found["backward"].exposed_communication_ns.difference == pytest.approx(400)
    assert compared(a, run("c")).missing["phases"] == WHY


def collective(kind: str, calls: float, total_ns: int, size: int | None) -> CollectiveFigures:
    return CollectiveFigures.only(
        "no size",
        kind=kind,
        message_bytes=size,
        calls=int(calls * 10),
        calls_per_step=calls,
        median_ns=1,
        shortest_ns=1,
        total_ns=total_ns,
    )


def test_collectives_are_summed_by_kind_and_one_that_is_not_there_is_none() -> None:
    a = run("a", collectives=[collective("all_reduce", 2, 500, 8), collective("all_reduce", 1, 100, 4)])
    b = run("b", 1001, collectives=[collective("all_reduce", 4, 900, None), collective("broadcast", 1, 70, 2)])
    reduce, broadcast = compared(a, b).collectives
    assert (reduce.kind, reduce.calls_per_step.a, reduce.calls_per_step.b) == ("all_reduce", 3, 4)
    assert (reduce.time_ns.a, reduce.time_ns.b, reduce.time_ns.difference) == (60, 90, 30)  # of ten steps
    assert (reduce.moved_bytes.a, reduce.moved_bytes.missing) == (2 * 8 + 4, {"b": "no size", "difference": "no size"})
    assert (broadcast.kind, broadcast.time_ns.a, broadcast.time_ns.b, broadcast.moved_bytes.b) == ("broadcast", 0, 7, 2)
    assert compared(a, run("b", 1001)).missing["collectives"] == WHY


def test_copies_are_told_apart_by_direction_and_memory() -> None:
    def copied(pinned: bool | None, total_ns: int) -> CopyFigures:
        return CopyFigures.only(
            WHY,
            direction="h2d",
            pinned=pinned,
            calls=20,
            calls_per_step=2,
            total_bytes=1000,
            total_ns=total_ns,
            exposed_ns=0,
            most_share=0.0,
            most_held_share=0.0,
        )

    found = compared(run("a", copies=[copied(False, 90)]), run("b", 1001, copies=[copied(True, 40)])).copies
    assert {one.kind: (one.time_ns.a, one.time_ns.b) for one in found} == {"h2d pageable": (9, 0), "h2d pinned": (0, 4)}
    assert found[0].moved_bytes.a == 100


def test_loader_waits_of_different_windows_are_not_compared() -> None:
    wait = InputFigures(
        wait_share=0.1, wait_ns=100, computed_share=0.0, basis="untraced", missing={"preparing": "not metered"}
    )
    assert compared(run("a", input=wait), run("b", 1001, input=wait)).loader_wait_ns.difference == 0
    traced = wait.model_copy(update={"basis": "traced"})
    mixed = compared(run("a", input=wait), run("b", 1001, input=traced)).loader_wait_ns
    assert mixed.missing["b"] == "its wait was measured in traced steps, the comparison in untraced ones"


def ddp_facts(cap_mb: float = 25, rank: int = 0, **more: Any) -> Facts:
    module = DdpFacts("Sequential", "train.py:67", bucket_cap_bytes=int(cap_mb * MIB), rebuilt_bucket_sizes=[1, 2])
    return Facts(
        **{"rank": rank, "pid": 7, "ddp": [module], "environment": {"TORCHELASTIC_RUN_ID": str(id(module))}, **more}
    )


def differing(a: list[Facts], b: list[Facts]) -> dict[str, tuple[Any, Any, str | None]]:
    found = compared(run("a", facts=a), run("b", 1001, facts=b)).facts
    return {one.name: (one.a, one.b, one.at) for one in found}


def test_a_setting_that_differs_is_told_with_its_line() -> None:
    assert differing([ddp_facts(25)], [ddp_facts(0.05)]) == {"ddp.bucket_cap_mb": ([25], [0.05], "train.py:67")}
    assert differing([ddp_facts()], [ddp_facts(pid=8, steps=9, ended="complete")]) == {}
    settings = differing(
        [ddp_facts(settings={"float32_matmul_precision": "highest", "anomaly_mode": False}, grad_scaler=False)],
        [
            ddp_facts(
                settings={"float32_matmul_precision": "high", "anomaly_mode": True}, environment={"NCCL_ALGO": "Ring"}
            )
        ],
    )
    assert settings == {
        "grad_scaler": ([False], [None], None),
        "precision.float32_matmul": (["highest"], ["high"], None),
        "settings.anomaly_mode": ([False], [True], None),
        "environment.NCCL_ALGO": ([None], ["Ring"], None),
    }


def test_an_object_that_one_side_lacks_is_told_once() -> None:
    loader = LoaderFacts("eval.py:3", batch_size=4, num_workers=2, dataset="Clips")
    adam = OptimizerFacts("AdamW", "train.py:9", fused=True)
    assert differing([ddp_facts()], [ddp_facts(loaders=[loader], optimizers=[adam])]) == {
        "loader": ([None], ["Clips"], "eval.py:3"),
        "optimizer": ([None], ["AdamW"], "train.py:9"),
    }
    two = differing([ddp_facts(loaders=[loader])], [ddp_facts(loaders=[loader, loader])])
    assert two == {"loader[1]": ([None], ["Clips"], "eval.py:3")}


@pytest.mark.parametrize(
    ("known", "unread"),
    [
        ({"loaders": [LoaderFacts(dataset="Clips")]}, "loaders"),
        ({"settings": {"anomaly_mode": True}}, "anomaly_mode"),
        ({"settings": {"float32_matmul_precision": "high"}}, "float32_matmul_precision"),
        ({"autocast": "bfloat16"}, "autocast"),
    ],
)
def test_what_could_not_be_read_is_not_unset(known: dict[str, Any], unread: str) -> None:
    assert len(differing([ddp_facts(**known)], [ddp_facts()])) == 1
    assert differing([ddp_facts(**known)], [ddp_facts(unread={unread: "RuntimeError"})]) == {}
    assert differing([ddp_facts(**known)], [ddp_facts(schema_version="0.0")]) == {}


def test_ranks_that_do_not_agree_are_told_in_their_order() -> None:
    def workers(*counts: int) -> list[Facts]:
        return [ddp_facts(rank=n, loaders=[LoaderFacts("t.py:1", num_workers=k)]) for n, k in enumerate(counts)]

    assert differing(workers(2, 2), workers(2, 0))["loader.num_workers"] == ([2], ["2, 0"], "t.py:1")


def test_what_varies_among_the_runs_of_a_side_separates_nothing() -> None:
    def side(name: str, *caps: float) -> list[ReadRun]:
        return [run(f"{name}{n}", 100 * len(name) + n, facts=[ddp_facts(cap)]) for n, cap in enumerate(caps)]

    assert compared(side("a", 25, 50), side("bb", 50, 100)).facts == []
    (fact,) = compared(side("a", 25, 50), side("bb", 1, 2)).facts
    assert (fact.a, fact.b) == ([25, 50], [1, 2])


def test_without_facts_what_was_set_otherwise_is_not_known() -> None:
    found = compared(run("a", facts=[ddp_facts()]), run("b.json", 1001))
    assert found.missing["facts"].startswith("no facts of B: ")


def test_the_sentence_of_the_largest_classes_and_the_settings() -> None:
    a = run("a", 86 * MS, parts={"compute_ns": 80, "exposed_unsplit_ns": 6}, samples=4, facts=[ddp_facts(25)])
    b = run(
        "b",
        98_100_000,
        parts={"compute_ns": 803, "exposed_unsplit_ns": 178},
        samples=4,
        facts=[ddp_facts(0.05, optimizers=[OptimizerFacts("SGD")])],
    )
    assert why(a, b) == (
        "B is 12.1 ms per step slower (14 %): exposed communication and waiting +11.8 ms; "
        "ddp.bucket_cap_mb changed from 25.0 to 0.05 and optimizer changed from unset to SGD."
    )
    assert why(b, a).startswith("B is 12.1 ms per step faster (12 %): exposed communication and waiting -11.8 ms; ")


def test_the_sentence_names_what_went_the_other_way_too() -> None:
    a = run("a", 10_000_000, parts={"compute_ns": 8, "input_idle_ns": 2})
    b = run("b", 11_000_000, parts={"compute_ns": 5, "input_idle_ns": 6})
    assert why(a, b) == "B is 1 ms per step slower (10 %): waiting for input +4 ms, compute -3 ms."


def test_a_comparison_is_read_back_as_it_was_written() -> None:
    a = run("a", 100, facts=[ddp_facts(25)])
    written = build_comparison(Sides([a], [run("b", 90, traced=True)]))
    text = json.dumps(written.model_dump(mode="json"), allow_nan=False)
    assert Comparison.model_validate_json(text) == written


@pytest.mark.parametrize(
    ("kind", "record"), [("optimizers", OptimizerFacts("SGD")), ("loaders", LoaderFacts(dataset="Clips"))]
)
def test_arguments_are_settings_and_their_lines_are_not(kind: str, record: Any) -> None:
    def made(line: str, value: float) -> list[Facts]:
        known: dict[str, Any] = {
            kind: [replace(record, where=line, arguments={"given": value}, argument_lines={"given": line})]
        }
        return [ddp_facts(**known)]

    assert differing(made("train.py:9", 0.1), made("train.py:12", 0.1)) == {}
    whole = kind.removesuffix("s")
    assert differing(made("train.py:9", 0.1), made("train.py:9", 0.2)) == {
        f"{whole}.given": ([0.1], [0.2], "train.py:9")
    }


def test_a_line_that_moved_is_no_setting() -> None:
    loaders = [LoaderFacts("train.py:9", iterated_at=line, costly_lines={line: "pop"}) for line in ("a.py:1", "a.py:2")]
    assert differing(*([ddp_facts(loaders=[loader])] for loader in loaders)) == {}
